"""What Megatron-LM finds out only at run time, or not at all: checked before anything is written.

Each rule cites the place in megatron-core 0.19 where a run would fail.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.launch.contract import Launch, Refusal
from planner.launch.megatron_run import LOCAL_PROFILE, is_fsdp
from planner.predict.plan import LayerLayout

_SCHEDULES = ("1f1b", "interleaved")
_FSDP_OPTIMIZERS = ("adamw", "sgd")


def run_refusals(launch: Launch) -> Iterator[Refusal]:
    """Everything about degrees, schedule and sharding that would not run."""
    yield from _schedule(launch)
    yield from _experts(launch)
    yield from _sharding(launch)
    yield from _recompute(launch)


def attention_refusals(job: Job) -> Iterator[Refusal]:
    """Attention that the layers' implementation does not have."""
    if job.framework.name == LOCAL_PROFILE and job.attention == "flash":
        # dot_product_attention.py: the scores are made in full.
        yield Refusal(
            "--transformer-impl local has no flash attention",
            "--attention eager, or --framework megatron-core",
        )


def _schedule(launch: Launch) -> Iterator[Refusal]:
    degrees, schedule = launch.plan.degrees, launch.plan.schedule
    if schedule not in _SCHEDULES or launch.plan.layout.placement != "straight":
        yield Refusal(
            f"Megatron-LM has no {schedule} schedule: it runs 1F1B, interleaved with vpp > 1",
            "--schedule interleaved with --vpp 2" if degrees.vpp > 1 else "--schedule 1f1b",
        )
    elif degrees.vpp > 1 and degrees.grad_acc % degrees.pp > 0:
        # schedules.py, forward_backward_pipelining_with_interleaving.
        yield Refusal(
            f"interleaving takes groups of pp = {degrees.pp} micro-batches, and "
            f"{degrees.grad_acc} are "
            "no multiple of it",
            f"--grad-acc {max(1, degrees.grad_acc // degrees.pp) * degrees.pp}, or --vpp 1",
        )
    elif degrees.vpp > 1 and degrees.pp == 1:
        yield Refusal("interleaving needs more than one pipeline stage", "--vpp 1")


def _experts(launch: Launch) -> Iterator[Refusal]:
    degrees, moe = launch.plan.degrees, launch.job.model.moe
    if moe is None:
        return
    world = degrees.gpus
    if world % (degrees.ep * degrees.etp * degrees.pp):
        # parallel_state.py, initialize_model_parallel: the expert grid.
        yield Refusal(
            f"ep·etp·pp = {degrees.ep * degrees.etp * degrees.pp} does not divide {world} GPUs",
            f"--ep {_largest_divisor(world // degrees.pp // degrees.etp, degrees.ep)}",
        )
    if degrees.tp > 1 and launch.job.framework.parallelism.sequence_parallel != "with-tp":
        # moe_layer.py, MoELayer.forward.
        yield Refusal(
            "experts under tensor parallelism train only with sequence parallelism", "--tp 1"
        )
    shards = _instances(launch)
    replicas = (
        world // (degrees.ep * degrees.etp * degrees.pp)
        if degrees.ep * degrees.etp * degrees.pp <= world
        else 1
    )
    if shards > 1 and replicas % shards:
        yield Refusal(
            f"{shards} instances of the distributed optimizer do not divide the {replicas} "
            "replicas of an expert",
            "--shard-size 0",
        )


def _largest_divisor(number: int, most: int) -> int:
    return max(index for index in range(1, max(1, most) + 1) if max(1, number) % index == 0)


def _instances(launch: Launch) -> int:
    degrees = launch.plan.degrees
    return degrees.dp * degrees.cp // degrees.shard if degrees.shard and degrees.zero else 1


def _sharding(launch: Launch) -> Iterator[Refusal]:
    degrees, job = launch.plan.degrees, launch.job
    if not is_fsdp(launch):
        return
    family = job.optimizer.family
    if family not in _FSDP_OPTIMIZERS:
        yield Refusal(f"Megatron-FSDP trains with Adam or SGD, not {family}", "--zero 1")
    if degrees.pp > 1:
        yield Refusal(
            f"ZeRO-{degrees.zero} with a pipeline: every micro-batch would gather all "
            f"weights again",
            "--zero 1, or --pp 1",
        )
    if _instances(launch) > 1:
        yield Refusal("the writer has no hybrid sharding under Megatron-FSDP", "--shard-size 0")


def _recompute(launch: Launch) -> Iterator[Refusal]:
    plan = launch.plan
    if "(" in plan.recompute_flags:
        counts = ", ".join(str(count) for count in plan.layout.stage_recomputed(plan.degrees.pp))
        least = min(_per_block(plan.layout, plan.degrees.pp))
        yield Refusal(
            f"Megatron-LM recomputes the same number of layers on every stage, not {counts}",
            f"--recompute full:block={max(1, least)}",
        )


def _per_block(layout: LayerLayout, pp: int) -> tuple[int, ...]:
    chunks = max(1, len(layout.block_layers) // pp)
    return tuple(count // chunks for count in layout.stage_recomputed(pp))
