"""The one-row CSV in which a run's measurements go back to `planner validate`."""

from __future__ import annotations

from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.written import csv_text
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
        "layers": model.layers,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "vocab": model.vocab,
        "act": "swiglu" if model.gated else "gelu",
        "seq": plan.seq,
        "gpu": cluster.gpu.name,
        "num_gpus": degrees.gpus,
        "gpus_per_node": launch.gpus_per_node,
        "framework": launch.target,
        "precision": launch.job.precision,
        "tp": degrees.tp,
        "pp": degrees.pp,
        "vpp": degrees.vpp,
        "cp": degrees.cp,
        "ep": degrees.ep,
        "zero": degrees.zero,
        "mbs": degrees.mbs,
        "gbs": plan.gbs,
        "recompute": plan.recompute,
        PLAN_COLUMN: PLAN_FILE,
        "step_time_s": "",
        "peak_mem_gib": "",
        "mem_kind": "allocated",
    }
    return csv_text(row, [row])
