"""What a launched plan is expected to show, from which numbers on to worry, and the one-row CSV in
which measurements go back to `planner validate`."""

from __future__ import annotations

from hardware.frozen import Frozen
from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.written import csv_text, picked
from planner.launch.contract import Launch
from planner.predict.plan import Plan, StageMemory


class StageExpectation(Frozen):
    """Bytes on one GPU of a pipeline stage, as three tools count them.

    `allocated`: torch.cuda.max_memory_allocated; `reserved`: max_memory_reserved; `total`:
    nvidia-smi. `*_high_bytes`: upper end of the 80 % interval, which is fitted on totals and
    carried over to the others as a share.
    """

    stage: int
    layers: int
    allocated_bytes: float
    reserved_bytes: float
    total_bytes: float
    total_low_bytes: float
    total_high_bytes: float
    allocated_high_bytes: float


class Expectations(Frozen):
    """Step time in seconds and memory in bytes, each with its 80 % interval."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    step_time_family: str
    tokens_per_s_per_gpu: float
    tokens_per_s_per_gpu_low: float
    tokens_per_s_per_gpu_high: float
    mfu: float
    memory_family: str
    heaviest_stage: int
    usable_bytes: float
    fit_probability: float
    fits: bool
    stages: tuple[StageExpectation, ...]

    @property
    def heaviest(self) -> StageExpectation:
        """The stage that decides whether the plan fits."""
        return self.stages[self.heaviest_stage]


def expectations(launch: Launch) -> Expectations:
    """The plan's predictions in the terms in which a run reports."""
    plan = launch.plan
    tokens = plan.gbs_tokens / plan.degrees.gpus
    workspace = launch.job.workspace_bytes
    return Expectations(
        **picked(plan, "step_time_s tokens_per_s_per_gpu mfu heaviest_stage"),
        **picked(plan, "usable_bytes fit_probability fits"),
        step_time_low_s=plan.step_time.low,
        step_time_high_s=plan.step_time.high,
        step_time_family=plan.step_time.basis,
        tokens_per_s_per_gpu_low=tokens / plan.step_time.high,
        tokens_per_s_per_gpu_high=tokens / plan.step_time.low,
        memory_family=plan.peak_interval.basis,
        stages=tuple(_stage(stage, plan, workspace) for stage in plan.stages),
    )


def _stage(stage: StageMemory, plan: Plan, workspace_bytes: float) -> StageExpectation:
    low = plan.peak_interval.low / plan.peak_bytes
    high = plan.peak_interval.high / plan.peak_bytes
    # Torch allocates the workspaces of its libraries too.
    allocated = stage.allocated + workspace_bytes
    return StageExpectation(
        stage=stage.stage,
        layers=stage.layers,
        allocated_bytes=allocated,
        reserved_bytes=stage.allocated + stage.fragmentation,
        total_bytes=stage.peak,
        total_low_bytes=stage.peak * low,
        total_high_bytes=stage.peak * high,
        allocated_high_bytes=allocated * high,
    )


MEASURED_FILE = "measured.csv"
PLAN_FILE = "plan.json"


def measured_csv(launch: Launch) -> str:
    """Header and one row: the plan's configuration, and empty cells for what is measured."""
    plan, model, cluster = launch.plan, launch.job.model, launch.job.cluster
    degrees = plan.degrees
    row: dict[str, object] = {
        "source": "my-run",
        "model": model.name,
        **picked(model, "layers hidden ffn heads kv_heads vocab"),
        "act": "swiglu" if model.gated else "gelu",
        "seq": plan.seq,
        "gpu": cluster.gpu.name,
        "num_gpus": degrees.gpus,
        "gpus_per_node": launch.gpus_per_node,
        "framework": launch.target,
        "precision": launch.job.precision,
        **picked(degrees, "tp pp vpp cp ep zero mbs"),
        "gbs": plan.gbs,
        "recompute": plan.recompute,
        PLAN_COLUMN: PLAN_FILE,
        "step_time_s": "",
        "peak_mem_gib": "",
        "mem_kind": "allocated",
    }
    return csv_text(row, [row])
