"""Why nothing fits, and what would fit, found by searching again with one change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.job.errors import NothingFitsError, UsageError
from planner.job.quantities import GIB, short_count
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.predict.ops.table import parameter_count
from planner.search.rl.explorer import RlExplorer, Within
from planner.search.rl.trainers import jobs_of


@dataclass(frozen=True)
class RlWhy:
    """Why no plan fits, in sentences; whether that is proven; and changes with which one fits, each
    with its step time."""

    reasons: tuple[str, ...]
    proven: bool
    remedies: tuple[str, ...]

    def sentences(self) -> str:
        """The whole explanation, one sentence per line."""
        if self.proven:
            return "\n".join(("nothing fits", *self.reasons, *self.remedies))
        unsure = (
            "not proven: the search ended before everything was costed; give degrees, for example "
            "--tp 4 --pp 2"
        )
        return "\n".join(("found nothing that fits", unsure, *self.reasons, *self.remedies))


class RlDoesNotFitError(NothingFitsError):
    """No way to run the job fits its GPUs. `why` says what is missing."""

    def __init__(self, why: RlWhy) -> None:
        self.why = why
        super().__init__(why.sentences())


def does_not_fit(
    request: RlRequest, explorer: RlExplorer, within: Within, *, remedies: bool = True
) -> RlDoesNotFitError:
    """The error of a search that found no plan. `remedies`: search for what would fit."""
    proven = within.gap == 0.0 and not explorer.broken
    found = tuple(_remedies(request, explorer)) if remedies else ()
    beside = tuple(_beside(request, explorer)) if remedies else ()
    return RlDoesNotFitError(RlWhy(beside or tuple(_reasons(explorer)), proven, found))


def _beside(request: RlRequest, explorer: RlExplorer) -> Iterator[str]:
    """Models beside the policy without which the job fits, each searched."""
    job = explorer.jobs[0]
    models = (
        (job.reward.model, "judge", "--reward rule", {"reward": "rule"}),
        (job.critic, "critic", "a critic of the policy's size", {"critic": None}),
    )
    for model, word, instead, change in models:
        if model is None or explorer.ending.is_over:
            continue
        if (step_s := fastest_s(_changed(request, **change), explorer)) is not None:
            yield (
                f"the {word} does not fit together with the rest: {model.name}, "
                f"{short_count(parameter_count(model).total)} parameters; with {instead} the job "
                f"fits, at {step_s:,.0f} s a step"
            )


def _reasons(explorer: RlExplorer) -> Iterator[str]:
    """Memory that each side lacks alone; if neither does, that they do not fit together."""
    job = explorer.jobs[0]
    usable = job.trainer.cluster.gpu.hbm_usable_bytes
    if explorer.no_engine_fits:
        yield _engine_reason(job)
    least = min((float(side.least.min()) for side in explorer.sides.values()), default=0.0)
    if least > usable:
        yield (
            f"the lightest update of {job.policy.name}{_with_models(job)} needs "
            f"{least / GIB:,.1f} GiB on a GPU of the trainer, which has {usable / GIB:,.1f} GiB"
        )
    elif not explorer.no_engine_fits:
        yield "trainers and engines fit separately, but not together with the requested probability"


def _with_models(job: RlJob) -> str:
    """`, beside the judge llama-3-70b and the critic qwen3-8b,`: models on the trainer's GPUs."""
    models = {"judge": job.reward.model, "critic": job.critic}
    named = [f"the {word} {model.name}" for word, model in models.items() if model is not None]
    return f", beside {' and '.join(named)}," if named else ""


def _engine_reason(job: RlJob) -> str:
    gpu = job.sampling_cluster.gpu
    return (
        f"no engine on {gpu.name} holds the weights of {job.policy.name} and one sample of "
        f"{job.rollout.longest:,} tokens"
    )


def _remedies(request: RlRequest, explorer: RlExplorer) -> Iterator[str]:
    """Changes with which something fits, each searched for its fastest plan."""
    for words, changed in changes(request, explorer.jobs[0]):
        if explorer.ending.is_over:
            return
        if (step_s := fastest_s(changed, explorer)) is not None:
            yield f"with {words} it fits, at {step_s:,.0f} s a step"


def fastest_s(request: RlRequest, explorer: RlExplorer) -> float | None:
    """Seconds of the shortest step of a request; None if nothing is legal or fits."""
    try:
        found = RlExplorer(
            jobs_of(request), explorer.costs.again(), explorer.ending, explorer.limits
        ).within(1.0)
    except UsageError:
        return None
    return None if found.pair is None else found.pair.step.step_s


def changes(request: RlRequest, job: RlJob) -> Iterator[tuple[str, RlRequest]]:
    """Changes that would let a job fit or shorten its step, smallest first, in words and as a
    request."""
    if request.kv_share is not None:
        yield "no --kv-share", _changed(request, kv_share=None)
    for share in (0.5, 0.3):
        if request.kv_share is not None and request.kv_share > share:
            yield f"--kv-share {share:g}", _changed(request, kv_share=share)
    yield from _asynchrony(request, job)
    if request.token_limit is not None and request.token_limit > job.rollout.longest:
        limit = job.rollout.longest
        yield f"--token-limit {limit}", _changed(request, token_limit=limit)
    if (more := _more_nodes(request, job)) is not None:
        yield more


def _asynchrony(request: RlRequest, job: RlJob) -> Iterator[tuple[str, RlRequest]]:
    framework = job.framework
    if "separate" not in framework.placements or request.rollout_gpus is not None:
        return
    if framework.most_staleness and max(job.staleness) == 0:
        changed = _changed(request, placement="separate", staleness="1")
        yield "--placement separate --staleness 1", changed
    elif job.placements == ("colocated",):
        yield "--placement separate", _changed(request, placement="separate")


def _more_nodes(request: RlRequest, job: RlJob) -> tuple[str, RlRequest] | None:
    """One more node of the trainer's machine, or twice the GPUs inside a node."""
    cluster, trainer = job.trainer.cluster, request.trainer
    if trainer.gpus is None:
        return None
    gpus, node = cluster.num_gpus, cluster.gpus_per_node
    more = gpus + node if gpus >= node else min(node, 2 * gpus)
    shape = trainer.gpus.rpartition("x")[2]
    text = f"{more}x{shape}"
    words = "one node more" if gpus >= node else f"{more} GPUs"
    changed = trainer.model_copy(update={"gpus": text})
    return f"{words} (--gpus {text})", _changed(request, trainer=changed)


def _changed(request: RlRequest, **fields: Any) -> RlRequest:
    return request.model_copy(update=fields)
