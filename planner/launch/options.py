"""How a dialect says how a plan runs: the tables of its `options.toml`, for writing, reading and
`--fix`.

A row is our name of a setting (a degree, a field of the request, or a variation), and theirs.
`written`: our value -> theirs, where they differ; `state`: of a switch, whether it is there where
the variation is (on), where it is not (off), or whether it is true (yes) or false (no) then;
stated: that of no variation. `since`: their releases that have it, where it is not all. Without a
key: the switch of the technique of that name, in the profile of the dialect's first target.

The model's fields stand in the writers' tables (`planner.launch.architecture`). What takes more
than a name and a value (layers by stage, modules that run again, shards) has a function that writes
and `--fix` share.
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
    """One setting: `ours` is a degree, a field of the request, or the name of a variation.

    `key`: theirs. `written`: our value -> theirs, where they differ; a switch has the value of
    each state, `SWITCH` and `GONE` for options that are there or not. `since`: their release
    that has it, where it is not all.
    """

    ours: str
    key: str
    written: Mapping[str, str] = field(default_factory=dict)
    since: str = ""

    @property
    def name(self) -> str:
        """A flag without its dashes."""
        return self.key.removeprefix("--")

    def text(self, value: object) -> str:
        """Our value in their words."""
        return self.written.get(str(value), str(value))

    def read(self, theirs: object) -> str | None:
        """Their value in ours, the first that is written so; None where there is none such."""
        if not self.written:
            return str(theirs)
        return next((ours for ours, text in self.written.items() if text == str(theirs)), None)


Options = Mapping[str, DialectOption]
# A switch that stands alone, and one that is left out.
SWITCH, GONE = "", "\0"
# What options.toml names: ours -> theirs.
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
    """The flags of each technique."""
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
    """The key in its own table: what a section's setting is called."""
    return option.key.rpartition(".")[2]
