"""Plans as a pandas table: SI units, every column documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from constraints.axes import AXES
from hardware.files import shipped_toml
from hardware.plain_text import guarded_cell
from planner.predict.plan import Plan, TimeTerms

if TYPE_CHECKING:
    import pandas as pd

_ROWS = shipped_toml("planner.search", "frame.toml")
# Column -> its unit and what it means.
COLUMNS: dict[str, tuple[str, str]] = {
    **{name: (axis.unit, axis.words) for name, axis in AXES.items()},
    **{name: (unit, words) for name, (unit, words) in _ROWS.items()},
    **dict.fromkeys(TimeTerms.model_fields, ("s", "term of the step time, on the slowest stage")),
}
_NESTED = {
    "degrees", "layout", "time", "stages", "assumptions", "step_time", "peak_interval",
    "full_memory", "stage_gpus", "samples",
}  # fmt: skip


# For samples of unlike lengths: how they become rows, and figures.
_OF_SAMPLES = ("packing", "balance", "samples_per_s", "computed_tokens_per_s", "mfu_counted")


def plan_frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """One row per plan. The units are also in the frame's `attrs["units"]`."""
    import pandas as pd

    frame = pd.DataFrame([plan_row(plan) for plan in plans], columns=list(COLUMNS))
    frame.attrs["units"] = {name: unit for name, (unit, _) in COLUMNS.items() if unit}
    return frame


def plan_row(plan: Plan) -> dict[str, Any]:
    """The columns of one plan."""
    row: dict[str, Any] = plan.degrees.model_dump()
    row |= plan.model_dump(exclude=_NESTED)
    row |= {
        "step_time_low_s": plan.step_time.low,
        "step_time_high_s": plan.step_time.high,
        "peak_low_bytes": plan.peak_interval.low,
        "peak_high_bytes": plan.peak_interval.high,
        "layers_per_stage": plan.layout.stage_layers,
        "layers_per_block": plan.layout.block_layers,
        "recomputed_per_stage": plan.layout.stage_recomputed,
        "mtp_standalone": plan.layout.mtp_standalone,
        "stage_gpus": plan.stage_gpus,
        "full_memory_step_time_s": plan.full_memory.step_time_s if plan.full_memory else None,
    }
    row |= {name: getattr(plan.samples, name, None) for name in _OF_SAMPLES}
    row |= plan.time.model_dump()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV, with lists written as `8/9/10`."""
    joined = frame.map(
        lambda cell: guarded_cell("/".join(map(str, cell)) if isinstance(cell, list) else cell)
    )
    return str(joined.to_csv(index=False))
