"""From files to `Found`: what each file is, by its content, and which reader it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.job.errors import CannotTellError, UsageError
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.megatron_table import option
from planner.launch.read.beside import beside, text_of
from planner.launch.read.command import (
    LaunchCommand,
)
from planner.launch.read.command_kinds import (
    MEGATRON_SIGNS,
    is_megatron,
    named_configs,
    names_config,
)
from planner.launch.read.configured import (
    CONFIGURATIONS,
    is_trainer,
    read_configured,
    read_trainer,
)
from planner.launch.read.detect import READABLE
from planner.launch.read.found import READ_ONLY, Count, Found, Hints, Problem
from planner.launch.read.megatron_attributes import is_swift_megatron, read_swift_megatron
from planner.launch.read.megatron_bridge import is_bridge, read_megatron_bridge
from planner.launch.read.megatron_dialects import other_model
from planner.launch.read.opened import Opened, open_file, read_shells
from planner.launch.read.text import HOLE, Files, Text
from planner.launch.read.world import accelerate_counts, stated_counts

# Frameworks whose programs train by next-token prediction, unless their names say otherwise.
_PRETRAINERS = ("torchtitan", "nanotron")


def read_launch(
    paths: Sequence[str | Path],
    hints: Hints | None = None,
    plan: int | None = None,
    contents: Mapping[str, str] | None = None,
) -> Found:
    """What launch files describe, together.

    Scripts are read one after another in one shell; a configuration file that a script names, or
    that is given beside it, completes it. `plan`: which plan of a plan file, else the recommended
    one; `contents`: texts to read in place of the files'. UsageError for files that are none of
    what can be read.
    """
    hints = hints or Hints()
    read = Opened(Files(), contents=contents or {})
    for path in paths:
        open_file(Path(path).expanduser(), read)
    plans = read.of_kind("plan")
    if plans:
        return _plan(read, plans[0], hints, plan)
    read_shells(read, hints)
    found = _found(read, hints)
    if found.format in READ_ONLY:
        plain = tuple(replace(problem, edits=()) for problem in found.problems)
        return replace(found, problems=(*read.problems, *plain))
    problems = (*read.problems, *_as_environment_may(read, found.problems))
    return replace(found, problems=problems, counts=_counts(read, found))


def _as_environment_may(read: Opened, problems: Sequence[Problem]) -> Iterator[Problem]:
    """A variable that is not set may be in a file of them that was not there."""
    words = () if read.launch is None else read.launch.command.words
    unread = [item.text for item in read.problems if item.text.startswith("source ")]
    unread += [one.text.value for one in words if one.text.value.startswith("--env-file")]
    for problem in problems:
        is_absent = problem.rule == "cuda-device-max-connections" and "not set" in problem.text
        if not (unread and is_absent):
            yield problem
            continue
        text = f"{problem.text}; {unread[0].partition(':')[0]} may set it, and was not read"
        yield replace(problem, severity="warning", text=text)


def _counts(read: Opened, found: Found) -> tuple[Count, ...]:
    """What the files state of nodes, GPUs and processes."""
    submitted = {place[0]: text for text in read.submitted if (place := text.first())}
    scripts = [*submitted.values()]
    scripts += [read.texts[path] for path in read.of_kind("shell") if path not in submitted]
    jobs = [read.texts[path] for path in read.of_kind("job")]
    counts = stated_counts(scripts, jobs, read.launch, read.files)
    return (*counts, *accelerate_counts(found, counts))


def _plan(read: Opened, path: str, hints: Hints, number: int | None) -> Found:
    """A plan file, which says all. UsageError where others are given beside it."""
    from planner.launch.read.configured import read_plan

    if len(read.kinds) > 1:
        others = ", ".join(other for other in read.kinds if other != path)
        raise UsageError(f"{path} is a plan file: give it alone, without {others}")
    return read_plan(Path(path), read.files, hints, number)


# --- the launch -----------------------------------------------------------------------------------


def _found(read: Opened, hints: Hints) -> Found:
    """The reader that the files call for."""
    launch = read.launch = _choose_command(read)
    if launch is not None and is_bridge(launch):
        return read_megatron_bridge(launch, _program_text(read, launch), read.files, hints)
    if launch is not None and is_swift_megatron(launch):
        return read_swift_megatron(launch, read.files, hints)
    config = _config_path(read, launch)
    of_megatron = launch is not None and is_megatron(launch)
    if config is not None and not (of_megatron and read.kinds[config] == "deepspeed"):
        found = read_configured(
            read.kinds[config], read.texts[config], config, launch, read.files, hints
        )
        if launch is not None and found.framework in _PRETRAINERS and other_model(launch):
            why = f"{launch.program.rpartition('/')[2]} trains nothing, by its name"
            found = replace(found, problems=(Problem("not-predictable", why, "warning"),))
        return replace(found, document=read.texts[config])
    if launch is not None and of_megatron:
        from planner.launch.read.megatron import read_megatron

        return read_megatron(launch, read.files, hints)
    if launch is not None and is_trainer(launch, read.files):
        return read_trainer(launch, read.files, hints)
    raise CannotTellError(_no_launch(read, launch))


def _program_text(read: Opened, launch: LaunchCommand) -> str | None:
    """The start script, written by the files or beside them; None where it is not there."""
    name = Path(launch.program).name
    if name in read.programs:
        return read.programs[name]
    path = beside(name, Path(launch.command.file).parent) if name.endswith(".py") else None
    return None if path is None else text_of(path)


def _choose_command(read: Opened) -> LaunchCommand | None:
    """The command that trains: the last of those with most arguments that say so."""
    if not read.commands:
        return None
    # What a script only shows is run where nothing else is.
    shown = [command for command in read.commands if not _is_shown(command)]
    read.commands = shown or read.commands
    others = [command for command in read.commands if not other_model(command)] or read.commands
    trains = [
        command
        for command in read.commands
        if is_megatron(command)
        or is_bridge(command)
        or (names_config(command) and command in others)
    ]
    # What a launcher starts trains rather than what runs before or after it.
    chosen = (trains or [command for command in others if command.launcher] or others)[-1]
    if len(trains) > 1:
        place = f"{chosen.command.file}:{chosen.command.line}"
        text = f"{len(trains)} commands that train; the last one is read"
        read.problems.append(Problem("several-commands", text, "warning", (place,)))
    return chosen


def _is_shown(launch: LaunchCommand) -> bool:
    """`echo torchrun ...`."""
    words = launch.command.words
    return bool(words) and words[0].text.value in ("echo", "printf")


def _config_path(read: Opened, launch: LaunchCommand | None) -> str | None:
    """The configuration file: given, written by the script, or named by it and there."""
    given = read.of_kind(*CONFIGURATIONS)
    named = [name.value for name in named_configs(launch)] if launch else []
    for name in named:
        match = next((item for item in given if Path(item).name == Path(name).name), None)
        if match is not None:
            return match
    if given:
        if len(given) > 1:
            raise UsageError(f"several configurations ({', '.join(given)}): give one at a time")
        return given[0]
    if launch is None or is_megatron(launch):
        return None
    return _open_named(read, launch, named)


def _open_named(read: Opened, launch: LaunchCommand, named: list[str]) -> str | None:
    """A configuration beside the script, or where the script names it."""
    folder = Path(launch.command.file).parent
    for name in named:
        path = beside(name, folder)
        if path is not None and path.suffix in (".toml", ".json", ".yaml", ".yml", ".py"):
            open_file(path, read)
            return str(path)
    return None


_OPTION = re.compile(rf"(?:{'|'.join(MEGATRON_SIGNS)}|--{option('layers')})[ =]")
_PROGRAM = re.compile(r"\.py\b|\btorchrun\b|\bpython")
_CALL = re.compile(r"(?m)(?:^|[\s;&|])(?:bash|sh)\s+([\w./${}-]+\.sh)\b")


def _called_scripts(read: Opened) -> list[str]:
    """Other scripts that the scripts given start, also inside a string for a container."""
    given = {Path(kind).name for kind in read.kinds}
    names = [item[1] for text in read.texts.values() for item in _CALL.finditer(text.value)]
    named = {Path(name).name for name in names}
    names += [name for name in read.absent if name.endswith(".sh") and name not in named]
    return [name for name in dict.fromkeys(names) if Path(name).name not in given]


def _no_launch(read: Opened, launch: LaunchCommand | None) -> str:
    names = ", ".join(read.kinds)
    missing = [problem.text for problem in read.problems if problem.rule == "shell-not-followed"]
    if launch is None:
        return "\n  - ".join(_no_command(read, names, missing))
    if re.search(r"pretrain_\w+\.py$", launch.program) and not launch.arguments:
        first = f"{names}: the command at line {launch.command.line} starts {launch.program}"
        return "\n  - ".join([f"{first} with no argument that is known", *missing])
    configs = {name.value: name for name in named_configs(launch)}
    if configs and not re.search("maxtext", launch.program, re.IGNORECASE):
        return f"{names}: the command at line {launch.command.line} trains {_with(configs)}"
    # Suites for reinforcement learning fine-tune too.
    supervised = re.search(r"[._]sft(?![a-z])", launch.program)
    for word in () if supervised else re.split(r"[^a-zA-Z0-9]+", launch.program):
        refuse_unmodelled(
            word, f"{names}: the command at line {launch.command.line} runs {launch.program}"
        )
    return (
        f"{names}: the command at line {launch.command.line} runs {launch.program}, which is no "
        f"framework that can be read; readable are {READABLE}"
    )


def _with(configs: Mapping[str, Text]) -> str:
    """What is wanted of the configuration files that a command names."""
    if any("{{" in name for name in configs):
        return "with a file whose name is to be filled in ({{ ... }}): the script is a template"
    shown = ", ".join(name.replace(HOLE, "...") for name in configs if name.strip(f"{HOLE}/"))
    if shown:
        return f"with {shown}; give it too"
    why = next(text.unknown for text in configs.values())
    return f"with a file that is {why}; give it too, or say which it is"


def _no_command(read: Opened, names: str, missing: list[str]) -> list[str]:
    """Why scripts start nothing that trains; what was not followed, where that may be why."""
    slips = [problem for problem in read.problems if problem.rule == "shell-syntax"]
    if slips:
        place, what = slips[0].places[0], slips[0].text
        return [f"{place}: {what}; no command that starts a training program"]
    if read.hidden:
        return [f"{names}: {read.hidden[-1]} (--env NAME=VALUE sets a variable)"]
    if called := _called_scripts(read):
        return [f"{names}: it starts {', '.join(called)}, which was not given; give it too"]
    texts = [text.value for text in read.texts.values()]
    if any(map(_OPTION.search, texts)) and not any(map(_PROGRAM.search, texts)):
        return [
            f"{names}: options of a training program, and no command that starts it; give the "
            "script that does, too, after it",
            *missing,
        ]
    first = f"{names}: no command that starts a training program; readable are {READABLE}"
    return [first, *missing]
