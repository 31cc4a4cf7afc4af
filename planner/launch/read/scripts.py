"""Reads all scripts of a launch in one shell: their commands, and the files that they would
write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hardware.errors import HardwareError
from planner.job.errors import CannotTellError, UsageError
from planner.launch.languages.shell import Around, Command, Script, Scripts, read_scripts
from planner.launch.languages.text import Files, Text, Word
from planner.launch.read.beside import beside, within_limits
from planner.launch.read.command import LaunchCommand, hidden_program, made_launch, split_command
from planner.launch.read.found import Hints, Problem
from planner.launch.read.opened import ARGUMENTS, JOB, PLAN, SHELL, Opened, file_kind, open_file
from planner.launch.read.world import STARTERS, counted_by, machine_variables, scheduler_variables
from planner.launch.read.yaml_text import embedded_environment, embedded_texts


def read_shells(read: Opened, hints: Hints) -> None:
    """Read all scripts in one shell, and add to `read` their commands, the files that they would
    write, and notes on parts that are not followed."""
    for path in read.of_kind(ARGUMENTS):
        text = _blank_comments(read.texts[path])
        read.commands.append(made_launch([Word(word, word.span()) for word in text.split()], path))
    shell = _walked(read, hints, hopeful=read.hopeful)
    if not any(split_command(command) for command in shell.commands) and not read.chosen:
        again = _walked(read, hints, hopeful=True)
        read.hopeful = len(again.commands) > len(shell.commands)
        shell = again if read.hopeful else shell
    read.undecided = shell.undecided
    for command in shell.commands:
        found = split_command(command)
        if found is not None:
            read.commands.append(found)
        elif why := hidden_program(command):
            read.hidden.append(f"the program that line {command.line} starts is {why}")
        elif (call := STARTERS.script_call(command.words)) is not None:
            read.absent.append(call.name.known.rpartition("/")[2])
    if not read.commands:
        read.commands += _of_a_pair(read)
    read.submitted = shell.submitted
    for path, text in shell.written.items():
        _add_written(path, text, read)
    for place, what in shell.errors:
        said = f"syntax: {what}; bash may read it otherwise"
        read.problems.append(Problem("shell-syntax", said, "warning", (place,)))
    for note in _noted_once(shell.notes):
        read.problems.append(Problem("shell-not-followed", note, "note"))


def _of_a_pair(read: Opened) -> Iterator[LaunchCommand]:
    """The command that is implied if exactly two files are given, a Trainer's settings and
    accelerate's; nothing otherwise."""
    sharding = read.of_kind("accelerate")
    settings = read.of_kind("trainer", "llamafactory", "axolotl")
    if len(sharding) == len(settings) == 1:
        words = ("accelerate", "launch", "--config_file", sharding[0], "train.py", settings[0])
        command = Command(tuple(Word(Text.made(word)) for word in words), {}, sharding[0], 1)
        yield from filter(None, [split_command(command)])


def _noted_once(notes: Sequence[str]) -> Iterator[str]:
    """The notes, with a note on several lines given once (`lines 3, 7: ...`)."""
    lines: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        match = re.fullmatch(r"line (\d+): (.*)", note, re.DOTALL)
        lines.setdefault(match[2] if match else note, []).extend([match[1]] if match else [])
    for text, found in lines.items():
        several = "s" if len(found) > 1 else ""
        yield f"line{several} {', '.join(found)}: {text}" if found else text


def starting_scripts(paths: Sequence[Path]) -> list[Path]:
    """Those scripts and jobs that none of the others starts or reads. All of them, if there is no
    such script. CannotTellError as for `read_launch`."""
    read = Opened(Files())
    for path in paths:
        open_file(path, read)
    for hopeful in (False, True):
        _walked(read, Hints(), hopeful=hopeful)
    first = read.not_opened([str(path) for path in paths])
    return [Path(path) for path in first] or list(paths)


def _walked(read: Opened, hints: Hints, *, hopeful: bool = False) -> Scripts:
    """The effects of all scripts of the launch. `hopeful`: tests that cannot be decided count as
    true."""
    around = Around(
        given=hints.environment,
        machine=machine_variables(hints.nodes, hints.gpus_per_node),
        directives=scheduler_variables,
        counted_by=counted_by,
        open_file=read.open_beside,
        has_file=lambda name, script: beside(name, Path(script).parent) is not None,
        given_files=read.files.by_path.keys,
        starters=STARTERS,
    )

    def walked(paths: Sequence[str], jobs: Sequence[Script] = ()) -> Scripts:
        scripts = (*(Script(read.texts[path]) for path in paths), *jobs)
        with within_limits():
            return read_scripts(scripts, around, read.chosen, hopeful=hopeful)

    given = read.of_kind(SHELL)
    jobs = [script for path in read.of_kind(JOB) for script in _of_job(read.texts[path])]
    scripts = walked(given)
    # A script that another starts is read there, with its arguments, and only there.
    first = read.not_opened(given) or given
    return walked(first, jobs) if jobs or len(first) < len(given) else scripts


def _of_job(job: Text) -> Iterator[Script]:
    """Scripts of a job's containers, with their variables and files."""
    texts = list(embedded_texts(job))
    files = {one.name: one.text for one in texts if one.name}
    yield Script(Text(""), embedded_environment(job), files)
    yield from (Script(one.text) for one in texts if not one.name)


def _blank_comments(text: Text) -> Text:
    """The text of a file of arguments, with comments and line continuations replaced by blanks, so
    that every character keeps its place."""
    plain = re.sub(r"(?m)^\s*#.*$|(?<=\s)#.*$", lambda item: " " * len(item[0]), text.value)
    plain = re.sub(r"\\\n", "  ", plain)
    return Text(plain, text.origin)


def _add_written(path: str, text: Text, read: Opened) -> None:
    """Add a file that a script writes as a here-document, if it is a configuration or a Python
    file."""
    read.files.written[path] = text
    if path.endswith(".py"):
        read.programs[Path(path).name] = text.value
    try:
        kind = file_kind(path, text.value)
    except (UsageError, CannotTellError, HardwareError):
        return
    if kind not in (None, SHELL, ARGUMENTS, PLAN, JOB) and path not in read.kinds:
        read.kinds[path] = kind
        read.texts[path] = text
