"""The files of one launch as they are read: what each is, and what scripts bring in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hardware.files import read_text
from planner.job.errors import UsageError
from planner.launch.languages.shell import Site, Undecided
from planner.launch.languages.text import Files, Text
from planner.launch.read.beside import beside, text_of
from planner.launch.read.command import LaunchCommand
from planner.launch.read.detect import file_kind, readable
from planner.launch.read.found import Problem
from planner.launch.read.limits import MOST_BYTES

# Files that the scripts of one launch may bring in.
_MOST_FILES = 64


@dataclass
class Opened:
    """Files by kind, and the commands of scripts."""

    files: Files
    kinds: dict[str, str] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)
    commands: list[LaunchCommand] = field(default_factory=list)
    # Files that a script starts or reads.
    opened: set[Path] = field(default_factory=set)
    # Where a launcher starts a program whose name is not known, and why it is not.
    hidden: list[str] = field(default_factory=list)
    # Scripts that are started and not there.
    absent: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    submitted: list[Text] = field(default_factory=list)
    contents: Mapping[str, str] = field(default_factory=dict)
    # Python programs that the files hold, by name.
    programs: dict[str, str] = field(default_factory=dict)
    # The command that trains.
    launch: LaunchCommand | None = None
    # Branches of scripts that are taken, those that reading cannot decide, and whether tests are
    # taken as met.
    chosen: Mapping[Site, int] = field(default_factory=dict)
    undecided: Mapping[Site, Undecided] = field(default_factory=dict)
    hopeful: bool = False

    @property
    def program(self) -> str:
        """Name of the program that trains; empty before it is known."""
        return "" if self.launch is None else self.launch.name

    def open_beside(self, name: str, script: str) -> Text | None:
        """A file that a script names, from the folders around it; None where it is not there."""
        path = beside(name, Path(script).parent)
        if path is None or len(self.files.by_path) >= _MOST_FILES:
            return None
        text = self.contents.get(str(path)) or text_of(path)
        if path.resolve() != Path(script).resolve():  # one that starts itself anew
            self.opened.add(path.resolve())
        return None if text is None else self.files.add(str(path), text).as_text()

    def not_opened(self, paths: Sequence[str]) -> list[str]:
        """Those of some paths that no script read so far starts or reads."""
        return [path for path in paths if Path(path).resolve() not in self.opened]

    def of_kind(self, *kinds: str) -> list[str]:
        """Paths of some kinds."""
        return [path for path, kind in self.kinds.items() if kind in kinds]


def open_file(path: Path, read: Opened) -> None:
    """Read one file and see what it is."""
    name = str(path)
    if name in read.kinds:
        raise UsageError(f"{name} is given twice")
    text = read.contents.get(name) or _content(path)
    source = read.files.add(name, text)
    read.texts[name] = source.as_text()
    kind = file_kind(name, text)
    if kind is None:
        raise UsageError(f"{name}: this is no launch file; readable are {readable()}")
    read.kinds[name] = kind


def _content(path: Path) -> str:
    """A text file's content. HardwareError, UsageError for anything else."""
    text = read_text(path) if path.suffix == ".json" else read_text(path, MOST_BYTES)
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")
