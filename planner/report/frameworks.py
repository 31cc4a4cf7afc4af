"""What `planner frameworks` shows: the list, and one profile with its assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.job.errors import UsageError
from planner.job.frameworks import FrameworkProfile
from planner.job.frameworks.names import (
    family_named,
    known_names,
    names_of,
    profile_named,
    target_named,
)
from planner.job.frameworks.settings import TABLES, Setting, settings_of
from planner.job.frameworks.techniques import Technique
from planner.job.schedules import SCHEDULES
from planner.report.tables import Block, Column, Facts, Notes, Report, TableData, headings


def frameworks_report(
    profiles: Sequence[FrameworkProfile], targets: Mapping[str, Sequence[str]]
) -> Report:
    """The list of framework profiles. `targets`: what `planner launch` calls each one's writers."""
    beside = ("degrees\nbeside dp", "ZeRO", "precisions")
    columns = (
        *headings("<--framework | ~what it is | <launch"),
        *(Column(title, "left", optional=place) for place, title in enumerate(beside, start=1)),
    )
    rows = tuple(
        (
            profile.name,
            profile.summary,
            "\n".join(targets.get(profile.name, ())) or "-",
            " ".join(offered_degrees(profile)) or "-",
            ", ".join(str(stage) for stage in sorted(profile.parallelism.zero_stages)),
            " ".join(profile.precisions),
        )
        for profile in profiles
    )
    notes = (
        "launch: as what planner launch writes files for it; - : searched and costed, not written.",
        _other_names(),
        "More about one, and those that only account for older runs and texts:",
        "    planner frameworks megatron-core",
        "    planner frameworks --all",
    )
    return Report((TableData(columns, rows), Notes(notes)))


def _other_names() -> str:
    """Every other word that --framework takes."""
    words = (
        f"{name} ({profile_named(name)})" for name in known_names() if name != profile_named(name)
    )
    return "--framework also takes: " + ", ".join(words)


def offered_degrees(profile: FrameworkProfile) -> tuple[str, ...]:
    """Degrees beside dp that the framework has."""
    rules = profile.parallelism
    offered = {
        "tp": rules.tensor,
        "pp": rules.pipeline,
        "vpp": rules.interleaved,
        "cp": rules.context,
        "ep": rules.expert,
        "etp": rules.expert_tensor,
    }
    return tuple(name for name, has in offered.items() if has)


def framework_report(profile: FrameworkProfile, whole: bool = False) -> Report:
    """One profile: what it expresses and is asked for by; `whole`: all that it keeps, overlaps and
    assumes, with sources."""
    columns = headings("<--recompute | <tried | ~flags there")
    modes = tuple(
        (mode.name, "yes" if mode.searched else "if asked", mode.flags or "-")
        for mode in profile.recompute
    )
    return Report(
        (
            Facts(
                (
                    ("framework", f"{profile.name} {profile.version}"),
                    ("what", profile.summary),
                    ("also called", ", ".join(names_of(profile.name)) or "-"),
                    ("launch files", _launch_files(profile.name)),
                    ("degrees", " ".join(("dp", *offered_degrees(profile)))),
                    ("precisions", ", ".join(profile.precisions)),
                )
            ),
            *schedule_table(profile),
            TableData(columns, modes, "Recompute modes"),
            *technique_table(profile),
            *(_whole(profile) if whole else _what_more_there_is(profile)),
        )
    )


def _whole(profile: FrameworkProfile) -> Iterator[Block]:
    yield from (_settings(profile, table, title) for table, title in TABLES.items())
    yield Notes(profile.assumptions, "Assumed")
    yield Notes(profile.sources, "Sources")


def _what_more_there_is(profile: FrameworkProfile) -> Iterator[Block]:
    count = sum(len(settings_of(table)) for table in TABLES)
    yield Notes((
        f"Its {count} settings, what is assumed of it, and where that is from:",
        f"    planner frameworks {profile.name} --all",
    ))  # fmt: skip


def _launch_files(profile: str) -> str:
    """Whether they are written and read."""
    try:
        written = f"written for {target_named(profile).name}"
    except UsageError:
        written = "not written"
    try:
        return f"{written}; check reads those of {family_named(profile)}"
    except UsageError:
        return f"{written}, not read"


def _scope(technique: Technique) -> str:
    """What it does, and of which models."""
    families = f" (models of {', '.join(technique.families)})" if technique.families else ""
    return technique.words + families


def technique_table(profile: FrameworkProfile) -> tuple[TableData, ...]:
    """Techniques of a framework that has some."""
    if not profile.techniques:
        return ()
    columns = headings("<--with, --without | <used | ~what it is, and flags there")
    used = {
        "on": "unless excluded",
        "searched": "as is fastest",
        "asked": "if asked",
    }
    rows = tuple(
        (one.name, used[one.use], f"{_scope(one)}: {one.usual_flags}") for one in profile.techniques
    )
    return (TableData(columns, rows, "Techniques"),)


def schedule_table(profile: FrameworkProfile) -> tuple[TableData, ...]:
    """Pipeline schedules of a framework that has pipelines."""
    if not profile.parallelism.pipeline:
        return ()
    columns = headings("<--schedule | ~what it is")
    schedules = [SCHEDULES[name] for name in profile.parallelism.schedules]
    return (TableData(columns, tuple((it.name, it.summary) for it in schedules), "Schedules"),)


def settings_document(profile: FrameworkProfile) -> dict[str, Any]:
    """One profile with its settings: as declared, and their values."""
    values = profile.model_dump(mode="json")
    return {
        "name": profile.name,
        "version": profile.version,
        "settings": [
            setting._asdict() | {"value": values[setting.table][setting.name]}
            for table in TABLES
            for setting in settings_of(table)
        ],
    }


def _settings(profile: FrameworkProfile, table: str, title: str) -> Facts:
    values = getattr(profile, table).model_dump(mode="json")
    return Facts(
        tuple(
            (setting.name, _described(setting, values[setting.name]))
            for setting in settings_of(table)
        ),
        title,
    )


def _described(setting: Setting, value: object) -> str:
    """`4 B/parameter: gradients as they accumulate.`"""
    unit = f" {setting.unit}" if setting.unit not in ("", "1") and value is not None else ""
    return f"{_setting(value)}{unit}: {setting.meaning}"


def _setting(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(_item(item) for item in value) or "-"
        case None | "":
            return "-"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _item(value: object) -> str:
    """One of a list; pairs as `exp_avg --exp-avg-dtype`."""
    return " ".join(str(part) for part in value) if isinstance(value, list) else str(value)
