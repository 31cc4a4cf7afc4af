"""Values of named settings of Hugging Face programs, and which program's they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Setting

Program = Literal["llamafactory", "axolotl", "swift", "trainer"]
Named = Mapping[str, Setting]
_SWIFT = re.compile(r"(^|/)swift($|/cli/)|(^|/)llm_(sft|pt)\.py$")
_OFF = ("", "false", "0", "none", "no", "{}", "[]")


def program_of(program: Program, named: Named, launch: LaunchCommand | None) -> Program:
    """The program whose defaults the settings have, also where a command states them all."""
    name = launch.program if launch is not None else ""
    if "finetuning_type" in named or name.endswith("llamafactory-cli"):
        return "llamafactory"
    return "swift" if _SWIFT.search(name) else program


def value_of(named: Named, name: str) -> str:
    """A value in lower case; `table` for a table, empty for none and for one that is not known."""
    setting = named.get(name)
    if setting is None:
        return "table" if any(key.startswith(f"{name}.") for key in named) else ""
    return "" if setting.value is None or setting.unknown else str(setting.value).lower()


def is_on(named: Named, name: str) -> bool:
    """Whether something is asked for; a size of 1 asks for nothing."""
    return value_of(named, name) not in (*_OFF, "1.0", "1")


def is_switched(named: Named, name: str) -> bool:
    """Whether a switch is on: `1` counts, and so does a value that only running tells."""
    hidden = name in named and bool(named[name].unknown)
    return hidden or value_of(named, name) not in (*_OFF, "-1")


def place_of(named: Named, name: str) -> Setting:
    """A setting, or the first of a table of that name."""
    return named.get(name) or next(item for key, item in named.items() if key.startswith(name))
