"""How a dialect describes a run: the tables of its `options.toml`, for writing, reading and
`--fix`.

A row maps our name of a setting (a degree, a field of the request, or a variation) to the
framework's. `written`: our value -> theirs, if they differ. `state`: when a switch is present or
true: with the variation (on, yes) or without it (off, no); stated: always. `since`: the releases
that have it, if not all. A row without key is the switch of the technique of that name, in the
profile of the dialect's first target.

Fields of the model are in the writers' tables (`planner.launch.architecture`). What needs more than
a name and a value (layers by stage, modules to recompute, shards) has a function, which writer and
`--fix` share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from planner.job.frameworks.profile import load_framework
from planner.launch.registry import dialect_toml, dialects


@dataclass(frozen=True, slots=True)
class DialectOption:
    """A setting under our name and the framework's.

    `ours`: a degree, a field of the request or a variation; `key`: the framework's name. `written`:
    our value -> theirs, if they differ. A switch has an entry for each state: `SWITCH` if it is
    present, `GONE` if it is left out. `since`: the release that introduced it, empty if all have
    it.
    """

    ours: str
    key: str
    written: Mapping[str, str] = field(default_factory=dict)
    since: str = ""

    @property
    def name(self) -> str:
        """The framework's key without leading dashes."""
        return self.key.removeprefix("--")

    def text(self, value: object) -> str:
        """Our value in the framework's words."""
        return self.written.get(str(value), str(value))

    def read(self, theirs: object) -> str | None:
        """Our value for the framework's value; None if no value of ours is written so."""
        if not self.written:
            return str(theirs)
        return next((ours for ours, text in self.written.items() if text == str(theirs)), None)


Options = Mapping[str, DialectOption]
# A switch without a value, and one that is left out.
SWITCH, GONE = "", "\0"
# The states of options.toml: our value -> theirs.
_STATES: Mapping[str, Mapping[str, str]] = {
    "on": {"True": SWITCH, "False": GONE},
    "off": {"True": GONE, "False": SWITCH},
    "stated": {"1": SWITCH, "0": GONE},
    "yes": {"True": "true", "False": "false"},
    "no": {"True": "false", "False": "true"},
}


def _option(ours: str, row: str | Mapping[str, Any], dialect: str) -> DialectOption:
    if isinstance(row, str):
        return DialectOption(ours, row)
    written = _STATES[row["state"]] if "state" in row else row.get("written", {})
    key = row.get("key") or _switches(dialect)[ours]
    return DialectOption(ours, key, written, row.get("since", ""))


def _switches(dialect: str) -> Mapping[str, str]:
    """The flags of each technique, by its name, in the profile of the dialect's first target."""
    first = next(iter(dialects()[dialect].targets.values()))
    return {one.name: one.flags for one in load_framework(first.profile).techniques}


@cache
def run_options(dialect: str) -> Mapping[str, Options]:
    """The tables of a dialect, by name."""
    return {
        name: {ours: _option(ours, row, dialect) for ours, row in rows.items()}
        for name, rows in dialect_toml(dialect, "options.toml").items()
    }


def last(option: DialectOption) -> str:
    """The last part of the option's dotted key, without the table that it is in."""
    return option.key.rpartition(".")[2]
