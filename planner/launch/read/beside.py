"""Finds the files that a launch file names, in the folders around it; and the limits of reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardware.errors import HardwareError
from hardware.files import read_text
from planner.job.errors import CannotTellError, UsageError
from planner.launch.languages.limits import LimitError
from planner.launch.languages.text import HOLE, Files, SourceFile

MOST_BYTES = 2**20
# Keys of a configuration file; each unknown one is examined.
MOST_SETTINGS = 2_000


@contextmanager
def within_limits() -> Iterator[None]:
    """A context for reading scripts. It raises CannotTellError if a limit of reading is exceeded
    inside it."""
    try:
        yield
    except LimitError as error:
        raise CannotTellError(
            f"the script is not read to its end: {error}; give the arguments of its training "
            "command in a file of their own, or set what it computes with --env NAME=VALUE"
        ) from None


# Scripts name files relative to their folder or to the top of their repository.
_MOST_FOLDERS_UP = 8
_LONGEST_NAME = 1_000


def beside(name: str, folder: Path, *, whole: bool = False) -> Path | None:
    """The file that a launch file in `folder` names; None if it does not exist.

    Unknown parts at the front of a name (`$HERE/configs/x.json`) are dropped; a name without
    folders is only looked for beside the launch file. `whole`: no part may be dropped, as for
    imported modules.
    """
    if not name or len(name) > _LONGEST_NAME or "\0" in name:
        return None
    places = (place / name for place in _around(folder)) if whole else _places(name, folder)
    return next((path for path in places if _is_file(path)), None)


def _around(folder: Path) -> list[Path]:
    """The folder and up to eight of its parents, from the inside out."""
    absolute = folder.absolute()
    return [absolute, *list(absolute.parents)[:_MOST_FOLDERS_UP]]


def _places(name: str, folder: Path) -> Iterator[Path]:
    """Paths where the named file may be, the likeliest first."""
    known = name.rpartition(HOLE)[2].strip("/") if HOLE in name else name
    path = Path(known)
    if HOLE not in name and not path.is_absolute():
        yield folder / path
    parts = [part for part in path.parts if part not in ("/", ".", "..")]
    around = _around(folder)
    for length in range(len(parts), 1, -1):
        yield from (place.joinpath(*parts[-length:]) for place in around)
    if parts:
        yield folder / parts[-1]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def source_beside(name: str, folder: Path, files: Files) -> SourceFile | None:
    """The file that a launch file in `folder` names, also added to `files`. None if the file is
    missing, empty or unreadable."""
    path = beside(name, folder)
    text = None if path is None else text_of(path)
    return None if path is None or text is None else files.add(str(path), text)


def text_beside(name: str, folder: Path, *, whole: bool = False) -> str:
    """The text of the file that a launch file in `folder` names. Empty if the file is missing,
    empty or unreadable. `whole`: as in `beside`."""
    path = beside(name, folder, whole=whole)
    return "" if path is None else text_of(path) or ""


def text_of(path: Path) -> str | None:
    """A file's text; None if it is empty, unreadable or too large."""
    try:
        text = read_text(path, MOST_BYTES)
    except (UsageError, HardwareError, OSError):
        return None
    return text.replace("\r\n", "\n") if text.strip() else None
