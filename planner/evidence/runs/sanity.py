"""What no run can have been: degrees that its GPUs, its batch or its model rule out.

Such a row is refused by name. Priced all the same it would show an absurd rate.
"""

from __future__ import annotations

from hardware import HardwareError
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow
from planner.job.job import Job
from planner.predict.device import gpu_inputs
from planner.predict.plan import Degrees

# Column, and the least value that it may state.
_LEAST = {
    "layers": 1, "hidden": 1, "heads": 1, "kv_heads": 1, "ffn": 0, "vocab": 1, "seq": 1,
    "num_gpus": 1, "gpus_per_node": 1, "tp": 1, "pp": 1, "vpp": 0, "cp": 1, "ep": 1,
    "mbs": 1, "gbs": 1, "head_stage": 0,
}  # fmt: skip


def demand_counts(row: MeasuredRow) -> None:
    """UnpredictableRowError names a count of the row that is too small to be one."""
    for column, least in _LEAST.items():
        value = row.integer(column)
        if value is not None and value < least:
            raise UnpredictableRowError(f"{column} is {value}, and must be {least} or more")


def demand_possible(row: MeasuredRow, job: Job, degrees: Degrees) -> None:
    """UnpredictableRowError where GPUs, batch, heads, experts or kernels rule the row out."""
    gpus, one_degrees = row.integer("num_gpus") or 1, degrees
    group = one_degrees.tp * one_degrees.pp * one_degrees.cp
    if gpus % group:
        raise UnpredictableRowError(f"tp·pp·cp = {group} does not divide {gpus} GPUs")
    gbs = row.integer("gbs")
    if gbs is not None and gbs < one_degrees.dp:
        raise UnpredictableRowError(
            f"gbs {gbs} is less than one sequence for each of dp {one_degrees.dp}"
        )
    if job.model.heads % one_degrees.tp:
        raise UnpredictableRowError(f"tp {one_degrees.tp} does not divide {job.model.heads} heads")
    # Embedding and loss may have stages of their own.
    blocks, most = one_degrees.pp * one_degrees.vpp, job.model.layers + 2
    if blocks > most and row.text("layers_per_stage") is None:
        named = f"pp·vpp = {blocks}" if one_degrees.vpp > 1 else f"pp {one_degrees.pp}"
        raise UnpredictableRowError(f"{named} of {job.model.layers} layers")
    experts = job.model.moe.experts if job.model.moe else None
    if experts is not None and experts % one_degrees.ep:
        raise UnpredictableRowError(f"ep {one_degrees.ep} does not divide {experts} experts")
    try:
        gpu_inputs(job.cluster.gpu, job.precision, job.fused_attention)
    except HardwareError as error:
        raise UnpredictableRowError(str(error)) from None
