"""Answer "does it fit?" with the search, and find the longest sequence and largest model that fit.

`find_plans` answers what fits and how; this module calls it for longer sequences and other models,
only to learn if a plan exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from hardware.frozen import Frozen
from planner._version import __version__
from planner.job.errors import UsageError
from planner.job.frameworks.adapters import usual_framework
from planner.job.models.catalog import load_model, model_names
from planner.job.request import Request
from planner.job.tuning import FULL, read_tuning
from planner.predict.memory.solve import bracket
from planner.predict.ops.table import parameter_count
from planner.predict.ops.trained import held_parameters
from planner.predict.plan import Plan
from planner.predict.plan_text import FitVerdict, fit_verdict
from planner.search.changes import EFFORT
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.launchable import SILENT, LaunchNotes
from planner.search.limit_results import Effort, Progress, Until
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.trial import try_job

# Sequence lengths are tried at powers of two from here on.
_SHORTEST_SEQ = 256
# Trainings to try if training all weights does not fit.
ADAPTERS = ("lora", "qlora")
# Descriptions for progress messages.
WHAT = {"seq": "longest sequence", "model": "largest model"}
# Default number of sequences per GPU in a batch.
SEQUENCES_PER_GPU = 8


class Largest(Frozen):
    """The largest value of one quantity that was found to fit, with everything else as requested.

    `value`: a number of tokens or a model's name; None if none of those tried fits. `beyond`: the
    next larger value tried that does not fit; empty if all fit. `proven`: no plan exists for it
    within the cost model. `exact`: no value between the two was left untried. `plan`: a plan for
    `value`.
    """

    what: Literal["seq", "model"]
    value: str | None
    beyond: str = ""
    proven: bool = True
    exact: bool = True
    plan: Plan | None = None


class OtherTraining(Frozen):
    """Training of the same model with adapters that fits although training all weights does not.
    `trained`: number of adapter parameters."""

    request: Request
    trained: int
    plan: Plan


class FitAnswer(Frozen):
    """Whether a job fits its GPUs. `result`: the search's result, if it does. `why`: why not, and
    what would fit. `other`: another training that fits. `untried`: what the time limit cut off."""

    planner_version: str = __version__
    request: Request
    result: SearchResult | None
    why: WhyNothingFits | None
    largest: tuple[Largest, ...]
    other: OtherTraining | None = None
    untried: tuple[str, ...] = ()

    @property
    def verdict(self) -> FitVerdict:
        """Whether it fits, in the words that every command uses."""
        if self.why is not None:
            return self.why.verdict
        return "cannot tell" if self.best is None else fit_verdict(self.best.fit_probability)

    @property
    def best(self) -> Plan | None:
        """The plan to use, if one fits."""
        if self.result is None:
            return None
        return self.result.plans[max(self.result.recommended, 1) - 1]

    @property
    def fits(self) -> bool:
        """Whether a plan fits as surely as the request asks."""
        return self.result is not None


def does_it_fit(
    request: Request,
    *,
    until: Until | None = None,
    progress: Progress | None = None,
    launch: LaunchNotes = SILENT,
) -> FitAnswer:
    """Search for plans, then for the longest sequence and the largest model that fit.

    UsageError as in `find_plans`. `until`: when all searches end.
    """
    until = until or Until()
    result, why = None, None
    try:
        result = find_plans(
            request, time_limit_s=until.seconds_left, progress=progress, launch=launch
        )
    except DoesNotFitError as error:
        why = error.why
    tell = progress or (lambda *_: None)
    other = None if result is not None else _other_training(request, until, tell)
    largest = [_longest(request, until, tell), _largest_model(request, until, tell)]
    return FitAnswer(
        request=request,
        result=result,
        why=why,
        largest=tuple(item for item in largest if item is not None),
        other=other,
        untried=until.untried,
    )


def fitting_plan(request: Request, time_limit_s: float | None = None) -> Plan | None:
    """The plan that a search recommends; None if none fits or none was found."""
    try:
        found = find_plans(
            request, top=1, time_limit_s=time_limit_s, fastest_only=True, relaxed=False
        )
    except (DoesNotFitError, UsageError):
        return None
    return found.plans[0]


def _other_training(request: Request, until: Until, tell: Progress) -> OtherTraining | None:
    """Adapters beside frozen weights in 16 bits, else in 4 bits, with the framework itself or the
    usual one for adapters; those in 4 bits on shorter sequences if necessary. None if the request
    does not train all weights, or nothing fits."""
    if read_tuning(request.train, request.freeze) != FULL:
        return None
    tried = list(_adapter_requests(request))
    for number, changed in enumerate(tried):
        if until.over(f"--train {changed.train}"):
            return None
        tell(f"trying whether --train {changed.train} fits", number, len(tried))
        plan, _ = _trial(changed, until.effort(EFFORT))
        if plan is not None:
            trained = held_parameters(changed.resolve()).trained
            return OtherTraining(request=changed, trained=trained, plan=plan)
    return None


def _adapter_requests(request: Request) -> Iterator[Request]:
    """Requests to try, smallest change first."""
    seq = request.resolve().seq
    for train in ADAPTERS:
        yield request.model_copy(update=_with_adapters(request, train))
    quantised, shorter = _with_adapters(request, ADAPTERS[-1]), seq // 2
    while shorter >= _SHORTEST_SEQ:
        yield request.model_copy(update=quantised | _same_tokens(request, seq, shorter))
        shorter //= 2


def _with_adapters(request: Request, train: str) -> dict[str, str | int]:
    """The fields of a request that change if it trains adapters."""
    tuning, profile = read_tuning(train), request.find_framework()
    rules = profile.adapters
    if tuning.method in rules.methods and tuning.base in (None, *rules.bases):
        return {"train": train}
    gpus = request.find_cluster().num_gpus
    return {"train": train, "framework": usual_framework(tuning, gpus)}


def _trial(request: Request, effort: Effort) -> tuple[Plan | None, bool]:
    """(the fastest fitting plan found with this effort or None, whether its absence is proven)."""
    trial = try_job(request.resolve, effort=effort)
    return (None, True) if trial is None else (trial.plan(), trial.proven)


def _longest(request: Request, until: Until, tell: Progress) -> Largest | None:
    job = request.resolve()
    if job.samples.packing == "longest" and job.samples.lengths is not None:
        return None  # the samples say how long a row is, not a limit above them
    seq = request.seq or job.seq
    powers = [1 << power for power in range(_SHORTEST_SEQ.bit_length() - 1, 64)]
    lengths = sorted({seq, *(length for length in powers if length <= job.model.longest_seq)})
    requests = [request.model_copy(update=_same_tokens(request, seq, each)) for each in lengths]
    names = [f"{length:,}" for length in lengths]
    return _largest("seq", names, requests, lengths.index(seq), until, tell)


def _same_tokens(request: Request, seq: int, length: int) -> dict[str, str | int]:
    """The sequence length, with the batch in sequences unchanged, because fitting depends on
    these."""
    if request.lengths is not None:
        return {"seq": length}
    gbs = request.gbs if request.gbs is not None else max(1, (request.gbs_tokens or seq) // seq)
    tokens: dict[str, str | int] = {}
    if request.gbs_tokens is not None:
        tokens["gbs_tokens"] = gbs * length
    return {"seq": length, **tokens}


def _largest_model(request: Request, until: Until, tell: Progress) -> Largest | None:
    """The largest catalogue model of the same kind (dense or mixture) that fits at the same length,
    which its positions must allow."""
    job = request.resolve()
    specs = {name: load_model(name).spec for name in model_names()}
    alike = {
        name: spec
        for name, spec in specs.items()
        if bool(spec.moe) == bool(job.model.moe) and spec.longest_seq >= job.seq
    }
    sizes = {name: parameter_count(spec).total for name, spec in alike.items()}
    names = sorted(sizes, key=sizes.__getitem__)
    size = parameter_count(job.model).total
    start = sum(sizes[name] < size for name in names)
    requests = [request.model_copy(update={"model": name, "seq": job.seq}) for name in names]
    return _largest("model", names, requests, min(start, len(names) - 1), until, tell)


def _largest(
    what: Literal["seq", "model"],
    names: Sequence[str],
    requests: Sequence[Request],
    start: int,
    until: Until,
    tell: Progress,
) -> Largest | None:
    """The last of `names`, in order of size, that fits, found by doubling steps from `start` and
    then bisection. None if time ran out before anything was known."""
    found: dict[int, tuple[Plan | None, bool]] = {}

    def tried(index: int, effort: Effort) -> tuple[Plan | None, bool]:
        return _trial(requests[index], until.effort(effort))

    def fits(index: int) -> bool:
        if index not in found:
            tell(f"trying whether {names[index]} fits", len(found), len(found) + 1)
            found[index] = tried(index, Effort(any_plan=True))
        return found[index][0] is not None

    low, high = bracket(fits, start, len(names), lambda: until.over(WHAT[what]))
    if not found:
        return None
    beyond = found.get(high)
    return Largest(
        what=what,
        value=names[low] if low >= 0 else None,
        beyond=names[high] if beyond else "",
        proven=beyond is None or beyond[1],
        exact=high - low == 1,
        plan=tried(low, EFFORT)[0] if low in found else None,
    )
