"""Report of `planner search` on several clusters: one front over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.compare.cluster_front import ClusterFront, ClusterPoint
from planner.job.quantities import number_ranges, plural, share
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.plan_text import plan_name
from planner.report.differences import is_mixture, ties
from planner.report.plan_table import plan_table, techniques_row
from planner.report.said import described, notes, table_of
from planner.report.search import KEEP, error_note
from planner.report.tables import Block, Column, Facts, Notes, TableData, as_report
from planner.report.verdict import headline_of

Numbered = Sequence[tuple[int, ClusterPoint]]


def front_headline(front: ClusterFront) -> str:
    """The fastest plan of all clusters, as a sentence."""
    numbered = enumerate(front.points, start=1)
    number, point = min(numbered, key=lambda one: one[1].step_time_s)
    plan = front.plan_of(point)
    said = f"Fastest of {plural(len(front.clusters), 'cluster')} is plan {number} on "
    return headline_of(plan, f"{said}{point.cluster}, {plan_name(plan)}")


@as_report
def cluster_front_report(
    front: ClusterFront, shown: Sequence[ClusterPoint], saved_as: str | None = None
) -> Iterator[Block]:
    """The report. `shown`: points of the front, in the order of the table."""
    numbers = {id(point): number for number, point in enumerate(front.points, start=1)}
    numbered = [(numbers[id(point)], point) for point in shown]
    plans = [front.plan_of(point) for point in shown]
    yield Facts(_facts(front, plans))
    if shown:
        yield _table(front, numbered, plans)
        yield Notes(tuple(_notes(front, numbered, plans)))
    yield table_of(
        "clusters.clusters", front.clusters, price_words=lambda cluster: cluster.price or "-"
    )
    if reasons := tuple(
        f"{cluster.cluster}: {cluster.reason}" for cluster in front.clusters if cluster.reason
    ):
        yield Notes(reasons, "No plan")
    if shown:
        kept = KEEP if saved_as is None else f"Plans written to {saved_as}. Next:"
        yield Notes((kept, f"    planner explain {saved_as or 'plans.json'} {numbered[0][0]}"))


def _weighed(front: ClusterFront) -> str:
    return ", ".join(described("clusters.weighed")[name] for name in front.dimensions)


def _facts(front: ClusterFront, plans: Sequence[Plan]) -> tuple[tuple[str, str], ...]:
    weighed = _weighed(front)
    clusters = f"{plural(len(front.clusters), 'cluster')}, each searched on its own"
    first = next(iter(front.results.values()), None)
    job = () if first is None else (("model", first.job.model), ("framework", first.job.framework))
    count = plural(len(front.points), "plan")
    if front.proven and not front.points:
        state = "nothing fits on any cluster, proven within the cost model"
    elif front.proven:
        state = f"{count}, proven optimal to {share(OPTIMAL_WITHIN)} within the cost model"
    else:
        worst = max((point.gap for point in front.points), default=0.0)
        state = f"{count}; not proven: gaps of up to {share(worst)}"
    if front.stopped:
        why = "the time limit" if front.stopped == "time-limit" else "Ctrl-C"
        state += f", cut by {why}"
    told = (("searched", clusters), ("front over", weighed), ("front", state))
    return (*job, *techniques_row(plans), *told)


def _table(front: ClusterFront, numbered: Numbered, plans: Sequence[Plan]) -> TableData:
    first = [
        (Column("#"), [str(number) for number, _ in numbered]),
        (Column("GPUs", "left"), [point.cluster for _, point in numbered]),
    ]
    if "usd_per_billion_tokens" in front.dimensions:
        dollars = [_usd_text(point) for _, point in numbered]
        first.append((Column("USD per\n1 B tok", optional=1), dollars))
    return plan_table(plans, None, first=first, told=plans)


def _usd_text(point: ClusterPoint) -> str:
    usd = point.usd_per_billion_tokens or 0.0
    return f"{usd:,.0f}" if usd >= 100 else f"{usd:.1f}"


def _notes(front: ClusterFront, numbered: Numbered, plans: Sequence[Plan]) -> Iterator[str]:
    unpriced = (one for one in front.clusters if one.plans and not one.usd_per_gpu_hour)
    shown = [(number, plan) for (number, _), plan in zip(numbered, plans, strict=True)]
    mixture = is_mixture(front.results[numbered[0][1].cluster].job)
    near = sorted(ties(shown, mixture, [point.gpu for _, point in numbered]))
    yield from notes(
        "clusters.notes", front, errors=error_note(plans), first=numbered[0][0],
        weighed=_weighed(front),
        priced="usd_per_billion_tokens" in front.dimensions,
        bare=[cluster.cluster for cluster in unpriced], near=number_ranges(near),
        hidden=len(front.points) - len(numbered),
    )  # fmt: skip
    yield from front.notes
