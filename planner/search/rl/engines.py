"""Engine layouts to try: every split of their GPUs, KV share and number of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from planner.job.errors import UsageError
from planner.job.rl.job import RlJob
from planner.job.rl.spec import Placement
from planner.predict.memory.serving.deployment import Deployment, check_deployment
from planner.predict.memory.serving.formats import kv_format, weight_format
from planner.predict.rl.plan import EngineLayout

# Default shares of a GPU to try besides the framework's own. On separate GPUs an engine has no
# reason to leave much free.
KV_SHARES: dict[Placement, tuple[float, ...]] = {
    "colocated": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "separate": (0.5, 0.7, 0.8, 0.9, 0.95),
}
# Numbers of concurrent sequences to try besides the framework's own. More than an engine receives
# or has room for change nothing; fewer avoid preemption if the cache is small.
SEQUENCES = (128, 256, 512, 1024)


@dataclass(frozen=True)
class EngineLimits:
    """The user's values for engine degrees, None if a search decides; and the way of sending new
    weights, "" if it decides."""

    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dp: int | None = None
    way: str = ""


def engine_layouts(
    job: RlJob, gpus: int, placement: Placement, limits: EngineLimits | None = None
) -> tuple[EngineLayout, ...]:
    """Every engine layout on this many GPUs that model and framework allow. Those with most room
    come first, because their cost bounds the others. Empty if no split is legal."""
    said = limits or EngineLimits()
    shares = kv_shares(job, placement)[::-1]
    return tuple(
        EngineLayout(engines, tp, pp, ep, dp, share, count)
        for tp, pp, dp, ep in engine_degrees(job, gpus, said)
        for engines in (gpus // (tp * pp * dp),)
        for share, count in product(shares, sequences_tried(job, placement, engines)[::-1])
    )


def kv_shares(job: RlJob, placement: Placement) -> tuple[float, ...]:
    """Shares of a GPU's memory to try for the engine: the given one, else a grid."""
    if job.engine.kv_share is not None:
        return (job.engine.kv_share,)
    usual = getattr(job.framework, f"kv_share_{placement}")
    return tuple(sorted({*KV_SHARES[placement], usual}))


def sequences_tried(job: RlJob, placement: Placement, engines: int) -> tuple[int, ...]:
    """Numbers of concurrent sequences to try for each of so many engines."""
    given = job.engine.sequences
    if given is not None and given != job.framework.sequences:
        return (given,)
    if not job.framework.told_sequences:
        return (job.usual_sequences(placement, engines),)
    samples = round(job.rollout.samples * job.rollout.batches)
    tried = sorted({job.framework.sequences, *SEQUENCES})
    return tuple(one for at, one in enumerate(tried) if not at or tried[at - 1] < samples)


def engine_degrees(
    job: RlJob, gpus: int, said: EngineLimits
) -> Iterator[tuple[int, int, int, int]]:
    """(tp, pp, dp, ep) of one engine, inside a node or over whole nodes."""
    node = job.sampling_cluster.gpus_per_node
    moe = job.policy.moe is not None
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
    tps = [said.tp] if said.tp else [size for size in sizes if _power_of_two(size)]
    pps = [said.pp] if said.pp else [1, 2, 4] if job.framework.engine_pipelines else [1]
    dps = [said.dp] if said.dp else [1, 2, 4, 8, 16] if moe else [1]
    for tp, pp, dp in product(tps, pps, dps):
        size = tp * pp * dp
        if gpus % size or (node % size if size < node else size % node):
            continue
        # Attention is data-parallel so that the experts use all of its ranks.
        usual = {tp * dp} if dp > 1 else {1, tp}
        for ep in [said.ep] if said.ep else sorted(usual) if moe else [1]:
            if _whole_experts(job, tp, dp, ep) and _legal(job, tp, pp, dp, ep):
                yield tp, pp, dp, ep


def demand_formats(job: RlJob) -> None:
    """Raise UsageError for unknown number formats of an engine."""
    weight_format(job.engine.weights, "--rollout-precision")
    kv_format(job.engine.kv, "--rollout-kv-precision")


def no_engine(job: RlJob) -> str:
    """Message that no engine fills the GPUs that sample, with the numbers that its degrees must
    divide."""
    policy, gpus = job.policy, job.sampling_cluster.num_gpus
    return (
        f"no engine of {job.engine.name} with these degrees fills the GPUs that sample, at most "
        f"{gpus:,}: tp·pp·dp must divide their number, and tp the {policy.heads} attention heads "
        f"of {policy.name}; give other --rollout-tp, --rollout-pp, --rollout-dp, or leave them out"
    )


def _whole_experts(job: RlJob, tp: int, dp: int, ep: int) -> bool:
    """verl only accepts ep = tp·dp (verl/workers/config/rollout.py)."""
    return ep in (1, tp * dp) or not job.framework.engine_whole_experts


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _legal(job: RlJob, tp: int, pp: int, dp: int, ep: int) -> bool:
    gpu = job.sampling_cluster.gpu
    try:
        check_deployment(Deployment(job.policy, gpu, tp=tp, pp=pp, ep=ep, dp=dp))
    except UsageError:
        return False
    return True


def demand_engine(job: RlJob, engine: EngineLayout) -> None:
    """Raise UsageError for engine degrees that the model, the GPUs or the framework do not
    allow."""
    gpu, node = job.sampling_cluster.gpu, job.sampling_cluster.gpus_per_node
    asked = Deployment(job.policy, gpu, tp=engine.tp, pp=engine.pp, ep=engine.ep, dp=engine.dp)
    try:
        check_deployment(asked)
    except UsageError as error:
        raise UsageError(str(error).replace("--", "--rollout-")) from None
    if engine.pp > 1 and not job.framework.engine_pipelines:
        raise UsageError(
            f"--rollout-pp {engine.pp}: {job.framework.name} does not support pipeline stages in "
            "engines; give --rollout-pp 1 and a larger --rollout-tp"
        )
    if not _whole_experts(job, engine.tp, engine.dp, engine.ep):
        raise UsageError(
            f"--rollout-ep {engine.ep}: {job.framework.name} accepts 1 or tp·dp of the engine; "
            f"give --rollout-ep {engine.tp * engine.dp}"
        )
    if engine.engine_gpus > node and engine.engine_gpus % node:
        raise UsageError(
            f"an engine of {engine.engine_gpus} GPUs does not fill whole nodes of {node}; give "
            f"--rollout-tp {min(engine.tp, node)}"
        )
