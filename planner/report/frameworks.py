"""What `planner frameworks` shows: the list, and one profile with its assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.job.frameworks import FrameworkProfile
from planner.job.frameworks.settings import TABLES, Setting, settings_of
from planner.job.schedules import SCHEDULES
from planner.report.tables import Column, Facts, Notes, Report, TableData


def frameworks_report(
    profiles: Sequence[FrameworkProfile], targets: Mapping[str, Sequence[str]]
) -> Report:
    """The list of framework profiles. `targets`: what `planner launch` calls each one's writers."""
    columns = (
        Column("--framework", "left"),
        Column("what it is", "left", wrap=True),
        Column("launch", "left"),
        Column("degrees\nbeside dp", "left", optional=1),
        Column("ZeRO", "left", optional=2),
        Column("precisions", "left", optional=3),
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
        "More about one, and those that only account for older runs and texts:",
        "    planner frameworks megatron-core",
        "    planner frameworks --all",
    )
    return Report((TableData(columns, rows), Notes(notes)))


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


def framework_report(profile: FrameworkProfile) -> Report:
    """One profile: what it expresses, keeps and overlaps, its recompute modes and sources."""
    columns = (
        Column("--recompute", "left"),
        Column("tried", "left"),
        Column("flags there", "left", wrap=True),
    )
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
                    ("degrees", " ".join(("dp", *offered_degrees(profile)))),
                    ("precisions", ", ".join(profile.precisions)),
                )
            ),
            *schedule_table(profile),
            TableData(columns, modes, "Recompute modes"),
            *(_settings(profile, table, title) for table, title in TABLES.items()),
            Notes(profile.assumptions, "Assumed"),
            Notes(profile.sources, "Sources"),
        )
    )


def schedule_table(profile: FrameworkProfile) -> tuple[TableData, ...]:
    """Pipeline schedules of a framework that has pipelines."""
    if not profile.parallelism.pipeline:
        return ()
    columns = (Column("--schedule", "left"), Column("what it is", "left", wrap=True))
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
