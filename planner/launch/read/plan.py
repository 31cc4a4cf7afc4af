"""A plan file read as a launch."""

from __future__ import annotations

from pathlib import Path

from planner.job.frameworks import load_framework
from planner.job.request import Request
from planner.launch.read.found import ASKED, Found, Hints


def read_plan(path: Path, hints: Hints, number: int | None = None) -> Found:
    """Plan `number` of a plan file, or the recommended one. UsageError if there is none."""
    from planner.search.explanation import pick_plan
    from planner.search.plan_file import read_plan_file

    result = read_plan_file(path)
    plan, request = pick_plan(result, number or result.recommended or 1), result.request
    degrees = plan.degrees
    recomputes = plan.recompute != "none"
    profile = load_framework(request.framework)
    # As the request says, but for what the search decided.
    asked = {name: getattr(request, name) for name in ASKED} | {
        "seq": hints.seq or plan.seq,
        "attention": request.attention or profile.attention,
        "optimizer": plan.optimizer,
        "optimizer_offload": plan.optimizer_offload,
        "activation_offload": ",".join(plan.activation_offload) or "off",
        "activation_offload_fraction": plan.activation_offload_fraction,
        "cp_comm_type": plan.cp_comm_type or None,
        "cp_sizes": plan.cp_sizes,
    }
    return Found(
        format="plan",
        model=hints.model or request.model,
        world=degrees.gpus,
        mbs=hints.mbs or degrees.mbs,
        gbs=hints.gbs or plan.gbs,
        batch_ramp=None if hints.gbs else plan.ramp_text or None,
        block_layers=plan.layout.block_layers,
        mtp_standalone=plan.layout.mtp_standalone,
        recompute=hints.recompute or plan.recompute,
        recomputed=plan.layout.recomputed if recomputes and not hints.recompute else None,
        optimizer_kernel=plan.optimizer_kernel or None,
        variations=(
            *(() if request.sequence_parallel else ("no-sequence-parallel",)),
            *plan.techniques,
            *(f"no-{name}" for name in _usual_techniques(request) if name not in plan.techniques),
        ),
        cublas_workspace_config=request.cublas_workspace_config,
        plan_gpus=request.gpus,
        main_file=str(path),
        **degrees.model_dump(exclude={"mbs", "grad_acc"}),
        **asked,
    )


def _usual_techniques(request: Request) -> tuple[str, ...]:
    """Those that the job uses where nobody says otherwise."""
    return request.model_copy(update={"use": (), "without": ()}).resolve().techniques
