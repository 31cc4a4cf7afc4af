"""Folders that a command writes. Only files that an earlier run wrote are replaced.

A record beside the files lists them with their hashes. A listed file whose content differs was
edited: it is kept beside the new one as NAME.yours. Files that the record does not list belong to
the user: they are never opened, moved or deleted, and neither is any folder or link.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.written import naming, staged

RECORD = ".trainplan.json"
YOURS = ".yours"


@dataclass(frozen=True, slots=True)
class Replaced:
    """Changes to earlier files: `kept` under a new name (old -> new), and `removed`, unedited files
    of an earlier run that this run does not write."""

    kept: Mapping[str, str]
    removed: tuple[str, ...]


def refuse_folder(path: Path, force: bool) -> None:
    """Raise UsageError, before any work is done, if the folder could not be written."""
    if path.is_symlink():
        raise UsageError(f"{path} is a link to {path.readlink()}; give the folder itself to -o")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; give the name of a folder to -o")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise UsageError(
            f"{path} exists and is not empty; --force replaces only the files in it that planner "
            "wrote; or give another folder to -o"
        )
    near = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not near.is_dir():
        raise UsageError(f"{near} is a file; give another folder to -o")
    if not os.access(near, os.W_OK):
        raise UsageError(f"the folder {near} is not writable")


def write_folder(
    path: Path, files: Mapping[str, str | bytes], force: bool, together: str = ""
) -> Replaced:
    """Write all files or none of them. Raises UsageError or OSError.

    `together`: a file that edited files depend on; it is kept whenever one of them is.
    """
    refuse_folder(path, force)
    path = path.absolute()
    written = refuse_names(path, files)
    kept = _kept_names(path, written, together if together in files else "")
    removed = tuple(
        name
        for name in sorted(written.keys() - files.keys() - kept.keys())
        if (path / name).is_file()
    )
    with naming(path), ExitStack() as stack:
        stack.enter_context(_folders_made(path, files))
        contents = {
            name: content.encode() if isinstance(content, str) else content
            for name, content in files.items()
        }
        contents[RECORD] = _record(contents)
        ready = {
            name: stack.enter_context(staged(path / name, content))
            for name, content in contents.items()
        }
        for name, new in kept.items():
            (path / name).rename(path / new)
        for name, temporary in ready.items():
            temporary.replace(path / name)
        for name in removed:
            (path / name).unlink()
    return Replaced(kept, removed)


def _record(contents: Mapping[str, bytes]) -> bytes:
    hashes = {name: _hash(content) for name, content in sorted(contents.items())}
    text = "Files that planner wrote; --force replaces only these."
    return (json.dumps({"about": text, "sha256": hashes}, indent=1) + "\n").encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written_before(path: Path) -> dict[str, str]:
    """Name -> hash of the files that earlier runs wrote; empty without a record. Raises
    UsageError."""
    record = path / RECORD
    if record.is_symlink():
        raise UsageError(f"{record} is a link; give another folder to -o")
    try:
        found = json.loads(record.read_bytes())["sha256"]
        return {
            name: digest
            for name, digest in found.items()
            if isinstance(digest, str) and _is_inside(name)
        }
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UsageError(
            f"{record} does not say which files planner wrote; give another folder to -o"
        ) from None


def _is_inside(name: str) -> bool:
    """Whether a name stays inside the folder. A record may come from anybody."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts


def refuse_names(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Raise UsageError if a needed name belongs to the user, or a link or folder leads elsewhere.
    Returns what earlier runs wrote, with hashes."""
    written, wanted = _written_before(path), set(names)
    for name in sorted(wanted | written.keys()):
        file = path / name
        for each in (file, *(path / above for above in Path(name).parents if above.name)):
            if each.is_symlink():
                raise UsageError(f"{each} is a link; remove it, or give another folder to -o")
        if any((path / above).is_file() for above in Path(name).parents) or file.is_dir():
            raise UsageError(f"{file} cannot be written; give another folder to -o")
        if file.exists() and name in wanted - written.keys():
            raise UsageError(
                f"{file} exists, and planner did not write it; move it, or give another folder "
                "to -o"
            )
    return written


def _kept_names(path: Path, written: Mapping[str, str], together: str) -> dict[str, str]:
    """Edited files, each with the name under which it is kept; all get the same ending."""
    edited = [
        name
        for name, digest in written.items()
        if (path / name).is_file() and _hash((path / name).read_bytes()) != digest
    ]
    if edited and together and together not in edited and (path / together).is_file():
        edited.append(together)
    number, ending = 1, YOURS
    while any(os.path.lexists(path / f"{name}{ending}") for name in edited):
        number += 1
        ending = f"{YOURS}{number}"
    return {name: f"{name}{ending}" for name in edited}


@contextmanager
def _folders_made(path: Path, files: Mapping[str, str | bytes]) -> Iterator[None]:
    """Create the folders of some files; new folders that stay empty are removed at the end."""
    made: list[Path] = []
    try:
        for folder in sorted({(path / name).parent for name in files} | {path}):
            for each in reversed([*_missing(folder)]):
                each.mkdir()
                made.append(each)
        yield
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # it is not empty: the files are there
                folder.rmdir()


def _missing(folder: Path) -> Iterator[Path]:
    while not folder.exists():
        yield folder
        folder = folder.parent
