"""A folder for machine code in which only this user can put anything.

Machine code that is loaded runs with all rights of the user. So its folder must belong to the user,
and nobody else may write to any folder on its path: anyone who can write to a folder can rename a
file in it and put another in its place, unless the sticky bit (as on /tmp) is set. A path through
links is resolved once, and then the folder is used by the path that was checked.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

CACHE_VARIABLE = "PLANNER_CACHE_DIR"
# Why each root that was tried cannot be used, in words; empty once one can.
refused: list[str] = []
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def user() -> int | None:
    """The user's number; None on systems that have none."""
    return os.getuid() if hasattr(os, "getuid") else None


def roots() -> list[Path]:
    """Folders that may contain the cache, first choice first: the one that the user names, the
    platform's cache folder, one for temporary files. A relative XDG_CACHE_HOME is ignored, as the
    XDG Base Directory Specification (0.8) asks."""
    if override := os.environ.get(CACHE_VARIABLE):
        found = [Path(override).absolute()]
    else:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        found = [named / "trainplan"] if named.is_absolute() and sys.platform != "darwin" else []
        found = found or [each / "trainplan" for each in _caches_at_home()]
    number = user()
    return [*found, Path(tempfile.gettempdir()).absolute() / f"trainplan-{number or 0}"]


def _caches_at_home() -> list[Path]:
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry for the user
        return []
    inside = Path("Library", "Caches") if sys.platform == "darwin" else Path(".cache")
    return [home / inside] if home.is_absolute() else []


def private_folder(inside: Path) -> Path:
    """A private, writable folder with this relative name. If no root allows one, it is a new
    temporary folder, which is removed when the process ends. Processes that this one starts use the
    same folder."""
    for root in roots():
        why = why_not_private(root, inside)
        if why is None:
            refused.clear()
            return _resolved(root) / inside
        refused.append(why)
    fresh = Path(tempfile.mkdtemp(prefix="trainplan-"))
    made_by = os.getpid()

    def gone() -> None:
        if os.getpid() == made_by:
            shutil.rmtree(fresh, ignore_errors=True)

    atexit.register(gone)
    os.environ[CACHE_VARIABLE] = str(fresh)
    for folder in _levels(fresh, inside):
        folder.mkdir(mode=0o700, exist_ok=True)
    return fresh / inside


def why_not_private(root: Path, inside: Path) -> str | None:
    """Why machine code cannot be kept below a root, in words; None if it can. Missing folders are
    created."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        if why := _why_not_trusted(root.parent):
            return why
        root = _resolved(root)
        if why := _why_not_trusted(root.parent):
            return why
        for folder in _levels(root, inside):
            folder.mkdir(mode=0o700, exist_ok=True)
            if why := _why_not_mine(folder):
                return why
        with tempfile.TemporaryFile(dir=root / inside):
            return None
    except OSError as error:
        return f"{error.filename or root}: {error.strerror}"


def _resolved(root: Path) -> Path:
    """A root below the real path of its parent: it contains no link that could later point
    elsewhere."""
    return Path(os.path.realpath(root.parent)) / root.name


def _levels(root: Path, inside: Path) -> list[Path]:
    return [root / each for each in (*reversed(inside.parents), inside)]


def _why_not_trusted(folder: Path) -> str | None:
    """Why others could exchange a folder, or a link on its path; checks every folder of the
    path."""
    number = user()
    if number is None:
        return None
    for each in (*reversed(folder.parents), folder):
        found = each.lstat()
        if found.st_uid not in (0, number):
            return f"{each} belongs to user {found.st_uid}"
        is_open = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
        if is_open and not stat.S_ISLNK(found.st_mode):
            return f"others may write to {each}"
    return None


def _why_not_mine(folder: Path) -> str | None:
    """Why others could write to a folder of the cache. If others may only read it, that is
    forbidden here."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is a link, or not a folder"
    if user() is None:
        return None
    if found.st_uid != user():
        return f"{folder} belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}"
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    return None


_READ = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")
)


def read_mine(path: Path) -> bytes | None:
    """The content of a file that only this user can have written; None if there is no such file.

    The folder is opened and checked first, then the file in it, so the check applies to the very
    file that is read. A file with a second name (a hard link) is not read, since others may reach
    that name.
    """
    try:
        handle = _opened(path)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        alone = stat.S_ISREG(found.st_mode) and (user() is None or found.st_nlink == 1)
        return stream.read() if alone and _is_mine(found) else None


def _opened(path: Path) -> int:
    """A handle of a file in a folder that only this user can write to; raise OSError if there is
    none."""
    if os.open not in os.supports_dir_fd:
        return os.open(path, _READ)
    folder = os.open(path.parent, _READ | os.O_DIRECTORY)
    try:
        if not _is_mine(os.fstat(folder)):
            raise PermissionError(errno.EPERM, "others may write to this folder", str(path.parent))
        return os.open(path.name, _READ, dir_fd=folder)
    finally:
        os.close(folder)


def _is_mine(found: os.stat_result) -> bool:
    return user() is None or (found.st_uid == user() and not found.st_mode & _OTHERS_WRITE)


def write_mine(path: Path, content: bytes) -> None:
    """Write a file completely under a temporary name, then rename it; others cannot read it. Raise
    OSError if that fails."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
