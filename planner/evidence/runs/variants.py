"""What a measured row says of its software beyond the framework's name, as a change of profile.

The rules are data (`variants.toml`, which says how one is written).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import Field

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.training import optimizer_share
from planner.job.frameworks import FrameworkProfile, load_framework
from planner.job.frameworks.switches import with_tables
from planner.predict.uncertainty.families import UNFAMILIAR

Tables = dict[str, Mapping[str, Any]]
Condition = Callable[[MeasuredRow], bool]


def says(column: str, pattern: str) -> Condition:
    """Rows whose column has words that match; of `!column`: none that do."""
    name = column.removeprefix("!")
    return lambda row: row.says(name, pattern) == (name == column)


class Variant(Frozen):
    """A rule of `variants.toml`."""

    name: str
    profiles: tuple[str, ...] = ()
    when: tuple[dict[str, str], ...]
    use: str = ""
    technique: str = ""
    tables: dict[str, dict[str, bool | float | str | tuple[str, ...]]] = Field(default_factory=dict)

    def applies(self, profile: str, row: MeasuredRow) -> bool:
        """Whether the rule holds for a row under a profile."""
        return self.of(profile) and any(
            all(says(*one)(row) for one in alternative.items()) for alternative in self.when
        )

    def of(self, profile: str) -> bool:
        """Whether the rule is about rows under a profile."""
        return not self.profiles or profile in self.profiles

    def changes(self, profile: FrameworkProfile) -> Tables:
        """What it changes in the profile's tables. KeyError for an unknown technique."""
        if not self.technique:
            return {
                table: {key: _value(table, key, value, profile) for key, value in given.items()}
                for table, given in self.tables.items()
            }
        *framework, name = self.technique.split(":")
        technique = load_framework(*framework or ("megatron-core",)).technique(name)
        if technique is None:
            raise KeyError(self.technique)
        return dict(technique.changes(used=True))


def _value(table: str, key: str, given: Any, profile: FrameworkProfile) -> Any:
    """The value that a rule gives to a key of a profile's table."""
    if given == "one pass":
        return 1.0 / profile.kernels.memory_traffic
    if isinstance(given, str):
        return getattr(getattr(load_framework(given.removeprefix("as ")), table), key)
    return given


@cache
def _variants() -> tuple[Variant, ...]:
    content = shipped_toml("planner.evidence.runs", "variants.toml")
    named = content["conditions"]
    return tuple(
        Variant(**rule | {"when": named[when] if isinstance(when := rule["when"], str) else when})
        for rule in content["rules"]
    )


def replaced_profile(name: str, row: MeasuredRow) -> str:
    """Name of the profile that the row runs under, where `name` is its framework's."""
    found = (one.use for one in _variants() if one.use and one.applies(name, row))
    return next(found, name)


def varied_profile(
    name: str, row: MeasuredRow, sequence_parallel: str | None, precision: str, unfamiliar: bool
) -> FrameworkProfile:
    """The profile as the row states it: its variants, sequence parallelism (`y`, `n`, or not at
    all), and a precision it did train in; `unfamiliar`: it stands for a framework without one."""
    applied = tuple(
        index
        for index, variant in enumerate(_variants())
        if not variant.use and variant.applies(name, row)
    )
    mixed = row.says("state_precision", "^fp32") or (
        row.says("precision", r"\b(amp|autocast)|mixed")
        and not row.says("state_precision", r"^(bf|fp)16")
    )
    hosted = optimizer_share(row) > 0.0
    return _profile(name, applied, sequence_parallel, precision, unfamiliar, mixed, hosted)


@cache
def _profile(
    name: str,
    applied: tuple[int, ...],
    sequence_parallel: str | None,
    precision: str,
    unfamiliar: bool,
    mixed: bool,
    hosted: bool,
) -> FrameworkProfile:
    """One object per distinct variant, so that rows which share it are costed together."""
    profile = load_framework(name)
    if mixed and any(mode.name == "amp" for mode in profile.modes):
        profile = profile.in_mode("amp")
    for index in applied:
        profile = with_tables(profile, _variants()[index].changes(profile))
    changes: dict[str, object] = {"family": UNFAMILIAR} if unfamiliar else {}
    if sequence_parallel is not None:
        value = "with-tp" if sequence_parallel == "y" else "never"
        changes["parallelism"] = profile.parallelism.model_copy(update={"sequence_parallel": value})
    if precision not in profile.precisions:
        changes["precisions"] = (*profile.precisions, precision)
    if hosted and profile.optimizer.offload != "share":
        changes["optimizer"] = profile.optimizer.model_copy(update={"offload": "share"})
    return profile.model_copy(update=changes)


def tables_of(name: str, profile: str) -> Tables:
    """What variants of that name change in a profile's tables; nothing if none applies there."""
    tables: Tables = {}
    for variant in _variants():
        if variant.name == name and variant.of(profile):
            for table, values in variant.changes(load_framework(profile)).items():
                tables[table] = {**tables.get(table, {}), **values}
    return tables
