"""Shell scripts: the commands that they would run, and where each word comes from.

`read_scripts` reads some one after another in one shell, as `Scripts`; `Around` says what they see
around them.
"""

from planner.launch.languages.shell.arithmetic import evaluate_arithmetic
from planner.launch.languages.shell.calls import Starters, assignments
from planner.launch.languages.shell.script import Script, read_scripts
from planner.launch.languages.shell.state import (
    OF_THE_MACHINE,
    Around,
    Command,
    Scripts,
    Site,
    Undecided,
)

__all__ = [
    "OF_THE_MACHINE",
    "Around",
    "Command",
    "Script",
    "Scripts",
    "Site",
    "Starters",
    "Undecided",
    "assignments",
    "evaluate_arithmetic",
    "read_scripts",
]
