"""`scale`: one kind of GPU in growing numbers, with a fixed and with a growing batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from hardware.load import parse_gpus
from planner._version import __version__
from planner.compare.choice import ChoiceLimits, Objective
from planner.compare.comparison import (
    EnteredOffer,
    check_currencies,
    check_tokens,
    enter,
    raise_common_problem,
    run_of,
    search_entries,
    with_batch,
)
from planner.compare.decision import best_of
from planner.compare.offers import Offer
from planner.compare.quotes import check_providers
from planner.compare.results import ScalePoint, Scaling
from planner.compare.searches import ONE_BY_ONE, How, Outcome, Prepare
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.models.catalog import load_model
from planner.job.request import Request

Batch = Literal["fixed", "scaled"]
BATCHES: tuple[Batch, ...] = ("fixed", "scaled")
# The batch limits where a batch grown with the GPUs is faster a GPU by more than this share.
CLEARLY_FASTER = 0.1
MOST_POINTS = 64
_COUNTED = re.compile(r"^\s*\d+\s*[x×*]\s*")


def scale(
    request: Request,
    gpu: str,
    counts: Sequence[int],
    tokens: int,
    settings: Settings | None = None,
    *,
    batches: Sequence[Batch] = BATCHES,
    how: How = ONE_BY_ONE,
    limits: ChoiceLimits | None = None,
    objective: Objective = "cost",
) -> Scaling:
    """Throughput, days and money against the number of GPUs, each point after a search.

    `request`: the job, without gpus and cluster; its batch is that of every point of the fixed
    series (strong scaling), and that of the first count of the scaled series (weak scaling), whose
    batch grows with the GPUs. `counts`: numbers of GPUs, ascending.
    `limits`, `objective`: what the recommended number keeps to and is best by. UsageError for
    wrong input.
    """
    one_settings = settings or Settings()
    check_tokens(tokens)
    _check_counts(counts, gpu)
    base, notes = with_batch(request)
    if "scaled" in batches and base.batch_ramp is not None:
        raise UsageError("--batch-ramp says the batch: with it scale takes --batch fixed alone")
    plain = Offer(gpus=f"{counts[0]}x{gpu}")
    check_providers(one_settings, (plain,))
    wanted = [(batch, count) for batch in batches for count in counts]
    entries = [_entry(base, gpu, count, counts[0], batch, how.prepare) for batch, count in wanted]
    raise_common_problem(entries)
    check_currencies(entries, one_settings)
    outcomes = search_entries(entries, how, tokens=tokens)
    points = [
        _point(batch, entry, outcome, tokens, one_settings)
        for (batch, _), entry, outcome in zip(wanted, entries, outcomes, strict=True)
    ]
    series: dict[str, tuple[ScalePoint, ...]] = {
        batch: with_speedups([point for point in points if point.batch == batch])
        for batch in BATCHES
    }
    return Scaling(
        planner_version=__version__,
        model=load_model(request.model).spec.name,
        gpu=entries[0].cluster.gpu.name,
        tokens=tokens,
        currency=one_settings.currency,
        basis=one_settings.basis,
        points=tuple(point for batch in batches for point in series[batch]),
        decision=best_of(
            [
                (f"{point.num_gpus}x{gpu}", point.num_gpus, point.run)
                for point in series[batches[0]]
                if point.run is not None
            ],
            limits or ChoiceLimits(),
            objective,
            one_settings.basis,
        ),
        knees={batch: knee(series[batch]) for batch in batches},
        batch_limit=batch_limit(series["fixed"], series["scaled"]),
        notes=notes,
    )


def _check_counts(counts: Sequence[int], gpu: str) -> None:
    if not counts or any(count < 1 for count in counts) or list(counts) != sorted(set(counts)):
        raise UsageError("give numbers of GPUs in growing order, as 512, 1024, 2048")
    if len(counts) > MOST_POINTS:
        raise UsageError(f"{len(counts)} numbers of GPUs: give at most {MOST_POINTS}")
    counted = _COUNTED.match(gpu)
    if counted:
        raise UsageError(
            f"--gpus {gpu!r}: give the kind of GPU alone, as {gpu[counted.end() :]}; the numbers "
            "are those of --from, --to or --counts"
        )
    parse_gpus(f"{counts[0]}x{gpu}")


def _entry(
    base: Request, gpu: str, count: int, first: int, batch: Batch, prepare: Prepare | None
) -> EnteredOffer:
    request = base
    if batch == "scaled":
        request = base.model_copy(
            update={
                name: value * count // first
                for name in ("gbs", "gbs_tokens")
                if (value := getattr(base, name)) is not None
            }
        )
    return enter(Offer(gpus=f"{count}x{gpu}"), request, None, prepare)


def _point(
    batch: Batch, entry: EnteredOffer, outcome: Outcome | None, tokens: int, settings: Settings
) -> ScalePoint:
    asked = entry.request.gbs_tokens or 0
    point = ScalePoint(batch=batch, num_gpus=entry.cluster.num_gpus, gbs_tokens=asked)
    run, reason = run_of(entry, outcome, tokens, settings)
    if run is None:
        return point.model_copy(update={"reason": reason})
    return point.model_copy(update={"run": run, "gbs_tokens": run.plan.gbs_tokens})


def with_speedups(points: Sequence[ScalePoint]) -> tuple[ScalePoint, ...]:
    """Points of a series with lasting tokens/s over those of its first point that has a plan."""
    rates = [point.lasting_tokens_per_s for point in points]
    first = next((index for index, rate in enumerate(rates) if rate), None)
    if first is None:
        return tuple(points)
    base, gpus = rates[first] or 1.0, points[first].num_gpus
    return tuple(
        point
        if not rate
        else point.model_copy(
            update={"speedup": rate / base, "efficiency": rate / base * gpus / point.num_gpus}
        )
        for point, rate in zip(points, rates, strict=True)
    )


def knee(points: Sequence[ScalePoint]) -> int | None:
    """The number of GPUs with the most efficiency times speedup; None if that is the largest.

    The knee of Eager, Zahorjan and Lazowska 1989, Speedup versus efficiency in parallel systems,
    IEEE Transactions on Computers 38(3): most efficiency per execution time.
    """
    known = [point for point in points if point.speedup is not None]
    if len(known) < 2:
        return None
    best = max(known, key=lambda point: (point.speedup or 0.0) * (point.efficiency or 0.0))
    return None if best is known[-1] else best.num_gpus


def batch_limit(fixed: Sequence[ScalePoint], scaled: Sequence[ScalePoint]) -> int | None:
    """Least number of GPUs at which a batch grown with them is clearly faster a GPU, or at which
    only the grown one has a plan at all."""
    for one, other in zip(fixed, scaled, strict=False):
        slow, fast = one.lasting_tokens_per_s, other.lasting_tokens_per_s
        if fast and (not slow or fast > (1.0 + CLEARLY_FASTER) * slow):
            return one.num_gpus
    return None
