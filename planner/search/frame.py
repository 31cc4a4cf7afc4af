"""Plans as a pandas table: SI units, every column documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from constraints.axes import AXES
from hardware.plain_text import guarded_cell
from planner.predict.plan import Plan, TimeTerms

if TYPE_CHECKING:
    import pandas as pd

# Column -> its unit (empty: none) and what it means. Lists have one entry a pipeline stage.
COLUMNS: dict[str, tuple[str, str]] = {
    **{name: (axis.unit, axis.words) for name, axis in AXES.items()},
    "recompute": ("", "recompute mode"),
    "recompute_flags": ("", "flags of the framework for it"),
    "schedule": ("", "pipeline schedule"),
    "gbs": ("sequences", "global batch"),
    "gbs_tokens": ("tokens", "global batch"),
    "seq": ("tokens", "sequence length"),
    "step_time_s": ("s", "one optimizer step, predicted"),
    "tokens_per_s": ("tokens/s", "of all GPUs"),
    "tokens_per_s_per_gpu": ("tokens/s", "of one GPU"),
    "mfu": ("share", "model FLOP, full attention square, of the dense 16-bit peak"),
    "mfu_causal": ("share", "the same with the lower triangle of attention"),
    "mfu_precision": ("share", "of the peak of the training precision"),
    "hfu": ("share", "with recomputed FLOP"),
    "peak_bytes": ("B", "peak memory of the heaviest GPU, predicted"),
    "allocated_bytes": ("B", "of it, what tensors hold"),
    "usable_bytes": ("B", "memory of a GPU that torch can use"),
    "limit_bytes": ("B", "of it, what plans may use"),
    "heaviest_stage": ("", "pipeline stage with the peak, from 0"),
    "fits": ("", "whether the prediction is within the limit"),
    "fit_probability": ("share", "with which it fits, by the error of memory predictions"),
    "status": ("", "optimal, feasible (see gap) or evaluated"),
    "gap": ("share", "by which a better plan may be faster at most"),
    "optimizer": ("", "optimizer with its types"),
    "optimizer_kernel": ("", "how torch updates parameters"),
    "optimizer_offload": ("share", "of the optimizer on the CPU"),
    "optimizer_flags": ("", "flags of the framework for it"),
    "activation_offload": ("", "list of modules whose activations are kept on the host"),
    "activation_offload_fraction": ("share", "of these that leaves the GPU"),
    "activation_offload_flags": ("", "flags of the framework for it"),
    "cp_comm_type": ("", "how context parallelism exchanges"),
    "cp_sizes": ("", "list of the ranks of its two levels, where it has two"),
    "step_time_low_s": ("s", "lower end of the 80 % interval"),
    "step_time_high_s": ("s", "upper end of it"),
    "peak_low_bytes": ("B", "lower end of the 80 % interval of the peak"),
    "peak_high_bytes": ("B", "upper end of it"),
    "layers_per_stage": ("", "list: transformer layers"),
    "recomputed_per_stage": ("", "list: of these, layers that recompute, in any mode"),
    "mtp_standalone": ("", "whether multi-token prediction stands before the head's block"),
    "stage_gpus": ("", "list: GPU types, where they differ"),
    "full_memory_step_time_s": ("s", "a step where memory ran full; empty where no run says"),
    **dict.fromkeys(TimeTerms.model_fields, ("s", "term of the step time, on the slowest stage")),
}
_NESTED = {
    "degrees", "layout", "time", "stages", "assumptions", "step_time", "peak_interval",
    "full_memory", "stage_gpus",
}  # fmt: skip


def plan_frame(plans: Sequence[Plan]) -> pd.DataFrame:
    """One row a plan; units are the frame's `attrs["units"]`, too."""
    import pandas as pd

    frame = pd.DataFrame([plan_row(plan) for plan in plans], columns=list(COLUMNS))
    frame.attrs["units"] = {name: unit for name, (unit, _) in COLUMNS.items() if unit}
    return frame


def plan_row(plan: Plan) -> dict[str, Any]:
    """The columns of a plan."""
    row: dict[str, Any] = plan.degrees.model_dump()
    row |= plan.model_dump(exclude=_NESTED)
    row |= {
        "step_time_low_s": plan.step_time.low,
        "step_time_high_s": plan.step_time.high,
        "peak_low_bytes": plan.peak_interval.low,
        "peak_high_bytes": plan.peak_interval.high,
        "layers_per_stage": plan.layout.stage_layers,
        "recomputed_per_stage": plan.layout.stage_recomputed,
        "mtp_standalone": plan.layout.mtp_standalone,
        "stage_gpus": plan.stage_gpus,
        "full_memory_step_time_s": plan.full_memory.step_time_s if plan.full_memory else None,
    }
    row |= plan.time.model_dump()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV, lists as `8/9/10`."""
    joined = frame.map(
        lambda cell: guarded_cell("/".join(map(str, cell)) if isinstance(cell, list) else cell)
    )
    return str(joined.to_csv(index=False))
