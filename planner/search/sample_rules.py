"""The cost of padding or packing for a job, and the best length of its packs.

Each other packing rule of the framework is searched for its fastest plan with the same samples per
step. The cost of padding is then a ratio of two plans with its own error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.job.quantities import seconds, share
from planner.job.request import Request
from planner.job.samples import BALANCE_WORDS, BALANCED, PACKING_WORDS, offered_by
from planner.predict.plan import Plan
from planner.predict.threads import OutOfTimeError
from planner.predict.uncertainty.differences import Ratio, plan_ratio
from planner.search.limit_results import Effort
from planner.search.trial import TRIAL_EFFORT, try_job

# Multiples of the shortest sensible pack length that are tried.
_TIMES = (2, 4)
# A longer pack, or another rule, that gains less is not worth it.
_LEAST_GAIN = 1.01


def with_pack_length(request: Request, effort: Effort) -> Request:
    """The request with the best of a few pack lengths, if none was given; else unchanged. The
    samples per step stay the same."""
    if request.seq is not None or request.lengths is None:
        return request
    job = request.resolve()
    if not job.samples.is_packed:
        return request
    best, most = request, _rate(request, effort)
    for times in _TIMES:
        longer = _longer_packs(request, job, times)
        rate = 0.0 if longer is None else _rate(longer, effort)
        if longer is not None and rate > _LEAST_GAIN * most:
            best, most = longer, rate
    return best


def pack_note(asked: Request, taken: Request) -> Iterator[str]:
    """A note on the pack length that a search chose, and from which, if none was given."""
    if asked.seq is not None or asked.lengths is None:
        return
    job = asked.resolve()
    if not job.samples.is_packed:
        return
    longer = [_longer_packs(asked, job, times) for times in _TIMES]
    tried = [job.seq, *(one.seq for one in longer if one is not None and one.seq)]
    if len(tried) > 1:
        listed = ", ".join(f"{length:,}" for length in tried)
        yield f"Packs of {taken.seq or job.seq:,} tokens are the fastest of {listed} (--seq)."


def _longer_packs(request: Request, job: Job, times: int) -> Request | None:
    """The request with packs `times` as long; None if they exceed the model's positions, or a step
    would not have a whole number of them."""
    seq = times * job.seq
    if seq > job.model.max_positions or (request.gbs or times) % times:
        return None
    gbs = None if request.gbs is None else request.gbs // times
    return request.model_copy(update={"seq": seq, "gbs": gbs})


def _rate(request: Request, effort: Effort) -> float:
    """Real tokens per second of the fastest plan that fits; 0 without one."""
    plan = _fastest(request, effort)
    return 0.0 if plan is None else plan.tokens_per_s


def _fastest(request: Request, effort: Effort) -> Plan | None:
    """The fastest plan found with this effort; None without one, and once time is up."""
    limits: dict[str, Any] = {"time_limit_s": effort.time_limit_s, "started_s": effort.started_s}
    if effort.deadline is not None and time.perf_counter() >= effort.deadline:
        return None
    with suppress(OutOfTimeError):
        trial = try_job(request.resolve, effort=replace(TRIAL_EFFORT, **limits))
        return None if trial is None else trial.plan()
    return None


def rule_notes(request: Request, job: Job, best: Plan, effort: Effort) -> Iterator[str]:
    """Notes on the share of a plan's work that is padding, and on what other packing rules would
    gain."""
    if best.samples is None or request.overrides.launched is not None:
        return
    padding = 1.0 - best.tokens_per_s / best.samples.computed_tokens_per_s
    if padding > 0.01:
        yield f"Padding is {share(padding)} of the tokens that are computed."
    found = [
        (other, plan)
        for other in _other_rules(request, job, best)
        if (plan := _fastest(other, effort)) is not None
        and plan.tokens_per_s > _LEAST_GAIN * best.tokens_per_s
    ]
    for other, plan in sorted(found, key=lambda pair: -pair[1].tokens_per_s):
        yield _gain_text(other, best, plan, mixture=job.model.moe is not None)


def _other_rules(request: Request, job: Job, best: Plan) -> Iterator[Request]:
    """The request under each other packing and balance rule of its framework, with about as many
    real tokens per step."""
    samples, offered = job.samples, offered_by(job.framework.name, job.framework.family)
    same = {"gbs": None, "gbs_tokens": best.gbs_tokens, "gbs_tolerance": 0.25}
    rules = offered.answers if job.objective.reads_answers else tuple(offered.packings)
    for packing in rules:
        balances = [one for one in offered.balances if packing in BALANCED[one]]
        for balance in balances:
            if (packing, balance) == (samples.packing, samples.balance) or packing == "limit":
                continue
            update = {"packing": packing, "balance": None if balance == "none" else balance}
            yield request.model_copy(update={**same, **update})


def _gain_text(other: Request, best: Plan, plan: Plan, *, mixture: bool) -> str:
    """`Packing (…) would be 3.4 times as fast (2.7 to 4.2): …`."""
    ratio = _faster(plan_ratio(best, plan, mixture))
    packing = plan.samples.packing if plan.samples else "pack"
    options = f"--packing {packing}" + (f" --balance {other.balance}" if other.balance else "")
    words = PACKING_WORDS[packing] + (f", {BALANCE_WORDS[other.balance]}" if other.balance else "")
    return (
        f"{words[0].upper()}{words[1:]}, samples would train {ratio.value:.2g} times as fast "
        f"({ratio.low:.2g} to {ratio.high:.2g}): {options}, {seconds(plan.step_time_s)} a step of "
        f"{plan.gbs_tokens:,} tokens that count"
    )


def _faster(times: Ratio) -> Ratio:
    """Convert a ratio of times to a ratio of rates."""
    return Ratio(value=1.0 / times.value, low=1.0 / times.high, high=1.0 / times.low)
