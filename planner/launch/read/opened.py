"""The files of a launch: what each is, and the commands of its scripts, in one shell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hardware.errors import HardwareError
from hardware.files import read_text
from planner.job.errors import UsageError
from planner.launch.read.beside import beside, text_of
from planner.launch.read.command import (
    LaunchCommand,
    arguments_as_command,
    hidden_program,
    split_command,
)
from planner.launch.read.detect import READABLE, Kind, file_kind
from planner.launch.read.embedded import embedded_environment, embedded_texts
from planner.launch.read.found import Hints, Problem
from planner.launch.read.limits import MOST_BYTES
from planner.launch.read.shell import read_script
from planner.launch.read.shell_calls import script_call
from planner.launch.read.shell_state import Command, Shell
from planner.launch.read.text import Files, Text, Word

# Files that the scripts of one launch may bring in.
_MOST_FILES = 64


@dataclass
class Opened:
    """Files by kind, and the commands of scripts."""

    files: Files
    kinds: dict[str, Kind] = field(default_factory=dict)
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

    def of_kind(self, *kinds: Kind) -> list[str]:
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
        raise UsageError(f"{name}: this is no launch file; readable are {READABLE}")
    read.kinds[name] = kind


def _content(path: Path) -> str:
    """A text file's content. HardwareError, UsageError for anything else."""
    text = read_text(path, MOST_BYTES)
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_shells(read: Opened, hints: Hints) -> None:
    """Commands of all scripts, in one shell; files that they would write join the others."""
    for path in read.of_kind("arguments"):
        text = _blank_comments(read.texts[path])
        command = arguments_as_command(text)
        read.commands.append(LaunchCommand("", "", command.words, (), command))
    shell = _walked(read, hints)
    if not any(split_command(command, read.files) for command in shell.commands):
        again = _walked(read, hints, hopeful=True)
        shell = again if len(again.commands) > len(shell.commands) else shell
    for command in shell.commands:
        found = split_command(command, read.files)
        if found is not None:
            read.commands.append(found)
        elif why := hidden_program(command):
            read.hidden.append(f"the program that line {command.line} starts is {why}")
        elif (call := script_call(command.words)) is not None:
            read.absent.append(call.name.known.rpartition("/")[2])
    if not read.commands:
        read.commands += _of_a_pair(read)
    read.submitted = shell.submitted
    for path, text in shell.written.items():
        _add_written(path, text, read)
    for file, line, what in shell.errors:
        words = f"syntax: {what}; bash may read it otherwise"
        read.problems.append(Problem("shell-syntax", words, "warning", (f"{file}:{line}",)))
    for note in _noted_once(shell.notes):
        read.problems.append(Problem("shell-not-followed", note, "note"))


def _of_a_pair(read: Opened) -> Iterator[LaunchCommand]:
    """The command that starts a Trainer's settings under accelerate's: the two that were given."""
    sharding, settings = read.of_kind("accelerate"), read.of_kind("trainer")
    if len(sharding) == len(settings) == 1:
        words = ("accelerate", "launch", "--config_file", sharding[0], "train.py", settings[0])
        command = Command(tuple(Word(Text.made(word)) for word in words), {}, sharding[0], 1)
        found = split_command(command, read.files)
        yield from () if found is None else (found,)


def _noted_once(notes: Sequence[str]) -> Iterator[str]:
    """Notes, those of the same on several lines as one."""
    lines: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        match = re.fullmatch(r"line (\d+): (.*)", note, re.DOTALL)
        lines.setdefault(match[2] if match else note, []).extend([match[1]] if match else [])
    for text, found in lines.items():
        several = "s" if len(found) > 1 else ""
        yield f"line{several} {', '.join(found)}: {text}" if found else text


def starting_scripts(paths: Sequence[Path]) -> list[Path]:
    """Those of several scripts and jobs that none of the others starts or reads; all of them where
    each is started. CannotTellError as `read_launch`."""
    read = Opened(Files())
    for path in paths:
        open_file(path, read)
    for hopeful in (False, True):
        _walked(read, Hints(), hopeful=hopeful)
    first = read.not_opened([str(path) for path in paths])
    return [Path(path) for path in first] or list(paths)


def _walked(read: Opened, hints: Hints, *, hopeful: bool = False) -> Shell:
    """One shell that has read all scripts; `hopeful`: tests beyond reading are taken as met."""
    given = read.of_kind("shell")
    shell = _shell_of(given, read, hints, hopeful=hopeful)
    # One that another starts is read there, with what it is given there, and only there.
    first = read.not_opened(given)
    if first and len(first) < len(given):
        shell = _shell_of(first, read, hints, hopeful=hopeful)
    for path in read.of_kind("job"):
        environment = embedded_environment(read.texts[path])
        shell.variables |= environment
        shell.exported |= environment.keys()
        for embedded_text in embedded_texts(read.texts[path]):
            if embedded_text.name:
                shell.written[embedded_text.name] = embedded_text.text
            else:
                read_script(shell, embedded_text.text)
    return shell


def _shell_of(paths: Sequence[str], read: Opened, hints: Hints, *, hopeful: bool) -> Shell:
    """One shell that has read scripts one after another."""
    shell = Shell(read.files, hints.environment, open_file=read.open_beside, hopeful=hopeful)
    for path in paths:
        read_script(shell, read.texts[path])
    return shell


def _blank_comments(text: Text) -> Text:
    """A list of arguments with its comments, continuation marks and quotes blanked out."""
    plain = re.sub(r"(?m)^\s*#.*$|(?<=\s)#.*$", lambda item: " " * len(item[0]), text.value)
    plain = re.sub(r"\\\n", "  ", plain)
    return Text(plain, text.origin)


def _add_written(path: str, text: Text, read: Opened) -> None:
    """A file that a script writes (a here-document), if it is one that can be read."""
    read.files.written[path] = text
    if path.endswith(".py"):
        read.programs[Path(path).name] = text.value
    try:
        kind = file_kind(path, text.value)
    except (UsageError, HardwareError):
        return
    if kind not in (None, "shell", "arguments", "plan", "job") and path not in read.kinds:
        read.kinds[path] = kind
        read.texts[path] = text
