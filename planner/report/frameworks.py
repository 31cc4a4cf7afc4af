"""Report of `planner frameworks`: the list, and one profile with its assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from constraints.axes import AXES
from planner.job.errors import UsageError
from planner.job.frameworks.names import known_names, names_of, profile_named
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.frameworks.tables import TABLES, DeclaredSetting, settings_of
from planner.job.schedules import SCHEDULES
from planner.launch.registry import dialect_named, target_named
from planner.report.said import facts, notes, table_of
from planner.report.tables import Block, Facts, Notes, as_report

# Wording for when a technique is used, by the word in its profile.
_USED = {"on": "unless excluded", "searched": "as is fastest", "asked": "if asked"}


@as_report
def frameworks_report(profiles: Sequence[FrameworkProfile]) -> Iterator[Block]:
    yield table_of(
        "frameworks.list", profiles, offered=offered_degrees,
        stages=lambda one: map(str, sorted(one.parallelism.zero_stages)),
    )  # fmt: skip
    profile_of = {name: profile_named(name) for name in known_names()}
    names = [f"{name} ({profile})" for name, profile in profile_of.items() if name != profile]
    yield Notes(tuple(notes("frameworks.notes", None, names=names)))


def offered_degrees(profile: FrameworkProfile) -> tuple[str, ...]:
    """Degrees that the framework supports, besides dp."""
    rules = profile.parallelism
    return tuple(
        name for name, axis in AXES.items() if axis.capability and getattr(rules, axis.capability)
    )


@as_report
def framework_report(profile: FrameworkProfile, whole: bool = False) -> Iterator[Block]:
    """One framework. `whole`: also list its memory, overlaps and assumptions, with sources."""
    yield facts(
        "frameworks.head", profile, also=", ".join(names_of(profile.name)) or "-",
        files=_launch_files(profile.name), offered=" ".join(offered_degrees(profile)),
    )  # fmt: skip
    if profile.parallelism.pipeline:
        schedules = (SCHEDULES[name] for name in profile.parallelism.schedules)
        yield table_of("frameworks.schedules", schedules)
    yield table_of("frameworks.modes", profile.recompute)
    if profile.techniques:
        yield table_of("frameworks.techniques", profile.techniques, used=lambda one: _USED[one.use])
    if whole:
        yield from (_settings(profile, name, title) for name, title in TABLES.items())
        yield Notes(profile.assumptions, "Assumed")
        yield Notes(profile.sources, "Sources")
        return
    count = sum(map(len, map(settings_of, TABLES)))
    more = f"Its {count} settings, what is assumed of it, and where that is from:"
    yield Notes((more, f"    planner frameworks {profile.name} --all"))


def _launch_files(profile: str) -> str:
    try:
        written = f"written for {target_named(profile).name}"
    except UsageError:
        written = "not written"
    try:
        return f"{written}; check reads those of {dialect_named(profile)}"
    except UsageError:
        return f"{written}, not read"


def settings_document(profile: FrameworkProfile) -> dict[str, Any]:
    """One profile with its settings, both as declared and as values."""
    values = profile.model_dump(mode="json")
    settings = [
        setting._asdict() | {"value": values[setting.table][setting.name]}
        for name in TABLES
        for setting in settings_of(name)
    ]
    return {"name": profile.name, "version": profile.version, "settings": settings}


def _settings(profile: FrameworkProfile, name: str, title: str) -> Facts:
    values = getattr(profile, name).model_dump(mode="json")
    settings = settings_of(name)
    return Facts(tuple((one.name, _described(one, values[one.name])) for one in settings), title)


def _described(setting: DeclaredSetting, value: object) -> str:
    """`4 B/parameter: gradients as they accumulate.`"""
    unit = f" {setting.unit}" if setting.unit not in ("", "1") and value is not None else ""
    return f"{_setting(value)}{unit}: {setting.meaning}"


def _setting(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():  # of pairs as `exp_avg --exp-avg-dtype`
            items = (item if isinstance(item, list) else [item] for item in value)
            return ", ".join(" ".join(map(str, item)) for item in items) or "-"
        case None | "":
            return "-"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
