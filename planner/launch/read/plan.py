"""Reader of the planner's own plan files."""

from __future__ import annotations

from pathlib import Path

from planner.job.frameworks import load_framework
from planner.launch.read.found import Found, Hints
from planner.launch.read.text import Files


def read_plan(path: Path, files: Files, hints: Hints, number: int = 1) -> Found:
    """Plan `number` of a plan file. UsageError if there is none."""
    from planner.search.explanation import pick_plan
    from planner.search.plan_file import read_plan_file

    result = read_plan_file(path)
    plan, request = pick_plan(result, number), result.request
    degrees = plan.degrees
    recomputes = plan.recompute != "none"
    return Found(
        format="plan",
        files=files.by_path,
        framework=request.framework,
        model=hints.model or request.model,
        world=degrees.gpus,
        mbs=hints.mbs or degrees.mbs,
        gbs=hints.gbs or plan.gbs,
        batch_ramp=None if hints.gbs else plan.ramp_text or None,
        seq=hints.seq or plan.seq,
        block_layers=plan.layout.block_layers,
        mtp_standalone=plan.layout.mtp_standalone,
        recompute=hints.recompute or plan.recompute,
        recomputed=plan.layout.recomputed if recomputes and not hints.recompute else None,
        optimizer=plan.optimizer,
        optimizer_kernel=plan.optimizer_kernel or None,
        optimizer_offload=plan.optimizer_offload,
        activation_offload=",".join(plan.activation_offload) or "off",
        activation_offload_fraction=plan.activation_offload_fraction,
        precision=request.precision,
        dtype=request.dtype,
        schedule=request.schedule,
        attention=request.attention or load_framework(request.framework).attention,
        dropout=request.dropout,
        expert_imbalance=request.expert_imbalance,
        cp_comm_type=plan.cp_comm_type or None,
        cp_sizes=plan.cp_sizes,
        sharp=request.sharp,
        variations=(
            *(() if request.sequence_parallel else ("no-sequence-parallel",)),
            *(
                name if name in plan.techniques else f"no-{name}"
                for name in (one.name for one in load_framework(request.framework).techniques)
            ),
        ),
        gradient_as_bucket_view=request.gradient_as_bucket_view,
        set_to_none=request.set_to_none,
        cublas_workspace_config=request.cublas_workspace_config,
        bias=request.bias,
        plan_gpus=request.gpus,
        main_file=str(path),
        **degrees.model_dump(exclude={"mbs", "grad_acc"}),
    )
