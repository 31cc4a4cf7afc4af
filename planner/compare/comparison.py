"""Every offer at its best plan: `compare_clusters` with the front of cost against time, and `scale`
for one kind of GPU in growing numbers, with a fixed and with a growing batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.load import parse_gpus
from hardware.prices import PRICE_KINDS
from hardware.schema import Cluster
from planner._version import __version__
from planner.compare.decision import best_of
from planner.compare.offers import Offer, check_providers, choose, demand_distinct
from planner.compare.results import (
    SORT_KEYS,
    ChoiceLimits,
    Comparison,
    ComparisonRow,
    Objective,
    Run,
    ScalePoint,
    Scaling,
    SortKey,
)
from planner.compare.run import PlacedRun, run_at
from planner.compare.searches import ONE_BY_ONE, How, Outcome, Prepare, run_searches
from planner.compare.settings import Settings
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.profile import check_precision, load_framework
from planner.job.job import Job
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.predict.configuration import decided_job
from planner.predict.ops.table import parameter_count

NO_USEFUL_TIME = "interruptions come faster than the job restarts: no useful time is left"


@dataclass(frozen=True)
class EnteredOffer:
    """An offer with its cluster and its job, or the reason why the job cannot run there."""

    offer: Offer
    cluster: Cluster
    request: Request
    job: Job | None
    problem: UsageError | HardwareError | ConstraintError | None = None


def compare_clusters(
    request: Request,
    offers: Sequence[Offer | str],
    tokens: int,
    settings: Settings | None = None,
    *,
    sort: SortKey = "days",
    fallback_precision: str | None = None,
    how: How = ONE_BY_ONE,
    limits: ChoiceLimits | None = None,
    objective: Objective = "cost",
) -> Comparison:
    """Clusters compared for one job, each after a full search.

    `request`: the job, without gpus and cluster. `offers`: clusters, as `Offer` or as `64xH100`.
    `tokens`: to train on. `fallback_precision`: for GPUs that lack the job's precision. A cluster
    on which nothing fits stays in the result, with its reason. `limits`, `objective`: for the
    recommended cluster. UsageError for input that is wrong for every cluster.
    """
    one_settings = settings or Settings()
    named = tuple(Offer(gpus=one) if isinstance(one, str) else one for one in offers)
    _check(named, tokens, sort, one_settings)
    if fallback_precision is not None:
        check_precision(request.find_framework(), fallback_precision)
    base, notes = with_batch(request)
    entries = [enter(offer, base, fallback_precision, how.prepare) for offer in named]
    raise_common_problem(entries)
    check_currencies(entries, one_settings)
    outcomes = search_entries(entries, how, tokens=tokens)
    rows = [
        _row(entry, outcome, tokens, one_settings)
        for entry, outcome in zip(entries, outcomes, strict=True)
    ]
    front = front_names(rows, one_settings)
    marked = [row.model_copy(update={"on_front": row.name in front}) for row in rows]
    model = load_model(request.model).spec
    return Comparison(
        planner_version=__version__,
        model=model.name,
        parameters=parameter_count(model).total,
        framework=load_framework(request.framework).name,
        tokens=tokens,
        currency=one_settings.currency,
        basis=one_settings.basis,
        sort=sort,
        rows=tuple(sorted(marked, key=lambda row: _sort_value(row, sort, one_settings))),
        decision=best_of(
            [(row.name, row.num_gpus, row.run) for row in rows if row.run is not None],
            limits or ChoiceLimits(),
            objective,
            one_settings.basis,
        ),
        notes=notes,
    )


def _check(offers: tuple[Offer, ...], tokens: int, sort: str, settings: Settings) -> None:
    if not offers:
        raise UsageError("no cluster to compare: give --gpus 64xH100 or --clusters FILE.toml")
    check_tokens(tokens)
    if sort not in SORT_KEYS:
        raise unknown_name("sort key", sort, SORT_KEYS, "known: " + ", ".join(SORT_KEYS))
    demand_distinct(offers)
    check_providers(settings, offers)


def check_tokens(tokens: int) -> None:
    """Raise UsageError if there are no tokens to train on."""
    if tokens < 1:
        raise UsageError(f"{tokens:,} tokens to train on: give a number above 0, such as 15T")


def enter(
    offer: Offer, base: Request, fallback_precision: str | None, prepare: Prepare | None
) -> EnteredOffer:
    """An offer with its job. HardwareError if the offer itself cannot be understood."""
    cluster = offer.resolve()
    precision = offer.precision or base.precision
    if fallback_precision is not None and precision not in cluster.gpu.peak_flop_per_s:
        precision = fallback_precision
    update = {"gpus": offer.gpus, "cluster": offer.cluster, "precision": precision}
    request = base.model_copy(update=update)
    try:
        job = request.resolve()
        if prepare is not None:
            request = prepare(request, job)
    except (UsageError, HardwareError, ConstraintError) as error:
        return EnteredOffer(offer, cluster, request, None, error)
    return EnteredOffer(offer, cluster, request, job)


def search_entries(entries: Sequence[EnteredOffer], how: How, **more: Any) -> list[Outcome | None]:
    """The outcome of the search at each entry, in order; None for an entry whose job cannot run
    there. `more`: further fields of `Task`."""
    ready = [index for index, entry in enumerate(entries) if entry.job is not None]
    found = run_searches(
        [how.task(entries[index].request, **more) for index in ready],
        [entries[index].offer.label for index in ready],
        jobs=how.jobs,
        progress=how.progress,
    )
    by_index = dict(zip(ready, found, strict=True))
    return [by_index.get(index) for index in range(len(entries))]


def raise_common_problem(entries: Sequence[EnteredOffer]) -> None:
    """Raise the first problem if every cluster has one, since it then lies with the job."""
    problems = [entry.problem for entry in entries if entry.problem is not None]
    if len(problems) == len(entries) and problems:
        raise problems[0]


def check_currencies(entries: Sequence[EnteredOffer], settings: Settings) -> None:
    """Raise UsageError for prices in currencies without a rate, before any search."""
    settings.converted(1.0, "USD")
    for entry in entries:
        for kind in PRICE_KINDS:
            choose(entry.offer, entry.cluster, kind, settings)


def _row(
    entry: EnteredOffer, outcome: Outcome | None, tokens: int, settings: Settings
) -> ComparisonRow:
    cluster = entry.cluster
    run, reason = run_of(entry, outcome, tokens, settings)
    return ComparisonRow(
        name=entry.offer.label,
        cluster=cluster.describe(),
        gpu=cluster.gpu.name,
        num_gpus=cluster.num_gpus,
        num_nodes=cluster.num_nodes,
        precision=entry.request.precision,
        run=run,
        reason=reason,
        needs=() if outcome is None or outcome.result is not None else outcome.needs,
        refused=outcome is not None and outcome.refused,
    )


def run_of(
    entry: EnteredOffer, outcome: Outcome | None, tokens: int, settings: Settings
) -> tuple[Run | None, str]:
    """The run at the best plan that a search found, and an empty text; or None and the reason why
    there is none. Without an outcome, the job cannot run on that cluster."""
    if outcome is None or entry.job is None:
        return None, str(entry.problem)
    if outcome.result is None:
        return None, outcome.reason
    plan = outcome.result.plans[0]
    placed = PlacedRun(entry.offer, decided_job(entry.job, plan), tokens, settings)
    run = run_at(placed, outcome.result.job, plan)
    return run, "" if run else NO_USEFUL_TIME


def front_names(rows: Sequence[ComparisonRow], settings: Settings) -> set[str]:
    """Names of the clusters that no other beats both in days and in cost."""
    import numpy as np

    from planner.search.front import nondominated

    known = [
        (row.name, row.run.days.value, cost.value)
        for row in rows
        if row.run is not None and (cost := row.run.cost(settings.basis)) is not None
    ]
    if not known:
        return set()
    names, days, costs = zip(*known, strict=True)
    return {names[index] for index in nondominated(np.column_stack([days, costs])).tolist()}


def _sort_value(row: ComparisonRow, sort: SortKey, settings: Settings) -> tuple[int, float]:
    """Sort key: rows without the figure come after those with it, rows without a plan last."""
    run = row.run
    if sort == "given":
        return (0, 0.0)
    if run is None:
        return (2, 0.0)
    cost = run.cost(settings.basis)
    values = {
        "days": run.days.value,
        "cost": None if cost is None else cost.value,
        "tokens_per_s": -run.plan.tokens_per_s,
        "mfu": -run.plan.mfu,
        "energy": run.energy.mwh.value,
    }
    value = values[sort]
    return (1, 0.0) if value is None else (0, value)


# Llama 2 trained 7 B to 70 B parameters with 4 M tokens (arXiv 2307.09288, section 2.2); Llama 3
# trained 405 B with 16 M from 2.87 T tokens on (arXiv 2407.21783, section 3.4.1).
USUAL_TOKENS = 4_000_000
LARGE_TOKENS = 16_000_000
LARGE_MODEL_PARAMETERS = 1e11


def with_batch(request: Request) -> tuple[Request, tuple[str, ...]]:
    """The request with a global batch, and a sentence if it had to be assumed."""
    if (request.gbs, request.gbs_tokens, request.batch_ramp) != (None, None, None):
        return request, ()
    model = request.find_model().spec
    large = parameter_count(model).total >= LARGE_MODEL_PARAMETERS
    tokens = LARGE_TOKENS if large else USUAL_TOKENS
    like = "Llama 3 405B" if large else "Llama 2"
    note = (
        f"global batch of {tokens // 10**6} M tokens assumed, as {like} had; --gbs-tokens sets it"
    )
    return request.model_copy(update={"gbs_tokens": tokens}), (note,)


Batch = Literal["fixed", "scaled"]
BATCHES: tuple[Batch, ...] = ("fixed", "scaled")
# The batch is the limit if one that grows with the GPUs is faster per GPU by more than this share.
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

    `request`: the job, without gpus and cluster. Its batch is used at every point of the fixed
    series (strong scaling) and at the first point of the scaled series (weak scaling), in which it
    grows with the GPUs. `counts`: numbers of GPUs, ascending. `limits`, `objective`: for the
    recommended number of GPUs. UsageError for wrong input.
    """
    one_settings = settings or Settings()
    check_tokens(tokens)
    _check_counts(counts, gpu)
    base, notes = with_batch(request)
    if "scaled" in batches and base.batch_ramp is not None:
        raise UsageError(
            "--batch-ramp determines the batch: with it, scale takes only --batch fixed"
        )
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
        raise UsageError("give numbers of GPUs in ascending order, such as 512, 1024, 2048")
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
    run, reason = run_of(entry, outcome, tokens, settings)
    return ScalePoint(
        batch=batch,
        num_gpus=entry.cluster.num_gpus,
        gbs_tokens=(entry.request.gbs_tokens or 0) if run is None else run.plan.gbs_tokens,
        run=run,
        reason=reason if run is None else "",
    )


def with_speedups(points: Sequence[ScalePoint]) -> tuple[ScalePoint, ...]:
    """The points of a series, with their speedup in lasting tokens/s over the first point that has
    a plan."""
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
    """The number of GPUs with the highest efficiency times speedup. None if that is the largest
    number, or if fewer than two points have a plan.

    This is the knee of Eager, Zahorjan and Lazowska 1989, Speedup versus efficiency in parallel
    systems, IEEE Transactions on Computers 38(3): highest efficiency per execution time.
    """
    known = [point for point in points if point.speedup is not None]
    if len(known) < 2:
        return None
    best = max(known, key=lambda point: (point.speedup or 0.0) * (point.efficiency or 0.0))
    return None if best is known[-1] else best.num_gpus


def batch_limit(fixed: Sequence[ScalePoint], scaled: Sequence[ScalePoint]) -> int | None:
    """The smallest number of GPUs at which training with the scaled batch is clearly faster than
    with the fixed one, in lasting tokens/s, or at which only the scaled batch has a plan. None if
    there is no such number."""
    for one, other in zip(fixed, scaled, strict=False):
        slow, fast = one.lasting_tokens_per_s, other.lasting_tokens_per_s
        if fast and (not slow or fast > (1.0 + CLEARLY_FASTER) * slow):
            return one.num_gpus
    return None
