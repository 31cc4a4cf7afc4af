"""The one-row CSV in which a run's measurements go back to `planner validate`."""

from __future__ import annotations

from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.written import csv_text, picked
from planner.launch.contract import Launch

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
