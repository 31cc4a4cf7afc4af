"""Why files start nothing that can be read, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from planner.job.unmodelled import refuse_unmodelled
from planner.launch.languages.text import HOLE, Text
from planner.launch.read.command import LaunchCommand
from planner.launch.read.detect import readable
from planner.launch.read.opened import Opened
from planner.launch.read.programs import named_configs
from planner.launch.registry import dialects

_PROGRAM = re.compile(r"\.py\b|\btorchrun\b|\bpython")
_CALL = re.compile(r"(?m)(?:^|[\s;&|])(?:bash|sh)\s+([\w./${}-]+\.sh)\b")


def _called_scripts(read: Opened) -> list[str]:
    """Other scripts that the scripts given start, also inside a string for a container."""
    given = {Path(kind).name for kind in read.kinds}
    names = [item[1] for text in read.texts.values() for item in _CALL.finditer(text.value)]
    named = {Path(name).name for name in names}
    names += [name for name in read.absent if name.endswith(".sh") and name not in named]
    return [name for name in dict.fromkeys(names) if Path(name).name not in given]


def no_launch(read: Opened, launch: LaunchCommand | None) -> str:
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
        f"framework that can be read; readable are {readable()}"
    )


def _with(configs: Mapping[str, Text]) -> str:
    """What is wanted of the configuration files that a command names."""
    if any("a placeholder" in text.unknown or "{{" in name for name, text in configs.items()):
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
    options = [option for one in dialects().values() for option in one.shown_by]
    shown = re.compile(rf"(?:{'|'.join(options)})[ =]")
    if any(map(shown.search, texts)) and not any(map(_PROGRAM.search, texts)):
        return [
            f"{names}: options of a training program, and no command that starts it; give the "
            "script that does, too, after it",
            *missing,
        ]
    first = f"{names}: no command that starts a training program; readable are {readable()}"
    return [first, *missing]
