"""Reports of traced steps and memory snapshots, compared with the prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from planner.cost.terms import MEMORY_TERMS, TIME_TERMS
from planner.evidence.traces.findings import Finding
from planner.evidence.traces.rank import TERMS, RankTrace
from planner.evidence.traces.snapshot import Snapshot
from planner.job.quantities import GIB, seconds
from planner.predict.plan import Plan
from planner.report.said import described, fact_rows, facts, table_of, words_of
from planner.report.tables import Block, Facts, Notes, TableData, as_report

_GROUPS = ("tp", "cp", "ep", "dp", "pp", "unnamed group")


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured and a predicted amount, in the unit of its chart; `predicted` is None without a
    prediction."""

    label: str
    predicted: float | None
    measured: float


# Bars that are sums of others.
_SUMS = ("whole step", "total", "peak")
Panels = Mapping[str, tuple[Sequence[Pair], str]]


def panels_of_trace(ranks: Sequence[RankTrace], plan: Plan | None) -> Panels:
    """One panel: the bars of the terms of a step, and their unit, under the panel's title. Measured
    values are medians over ranks."""
    return {"Where the step goes (median rank)": (trace_pairs(ranks, plan), "ms a step")}


def panels_of_snapshots(found: Sequence[Snapshot], plan: Plan | None) -> Panels:
    """Bars for each snapshot's peak, with their unit, by title."""
    return {f"{one.path}, at the peak": (snapshot_pairs(one, plan), "GiB") for one in found}


def pairs_verdict(panels: Panels) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """A sentence with the answer, and rows for risk and next step; None if nothing was measured."""
    every = [
        (pair, unit) for pairs, unit in panels.values() for pair in pairs if pair.label not in _SUMS
    ]
    if not every:
        return None
    largest, unit = max(every, key=lambda one: one[0].measured)
    furthest, furthest_unit = max(every, key=lambda one: _off(one[0]))
    known = furthest.predicted is not None
    far, far_unit = (furthest, furthest_unit) if known else (None, "")
    rows = fact_rows(f"traced.verdict.{'memory' if unit == 'GiB' else 'time'}", far)
    whole = next((pair.measured for pairs, _ in panels.values() for pair in pairs
                  if pair.label in _SUMS), None)  # fmt: skip
    words = words_of("traced.headline", largest, far=far, unit=unit, far_unit=far_unit, whole=whole)
    return words, rows


def _off(pair: Pair) -> float:
    """The distance between the measured and the predicted amount, in the pair's unit; -1 without a
    prediction."""
    return -1.0 if pair.predicted is None else abs(pair.measured - pair.predicted)


def _verdict_blocks(panels: Panels) -> Iterator[Block]:
    verdict = pairs_verdict(panels)
    if verdict is not None:
        yield Notes((verdict[0],))
        yield Facts(verdict[1])


@as_report
def trace_report(
    ranks: Sequence[RankTrace], found: Sequence[Finding], plan: Plan | None
) -> Iterator[Block]:
    """The answer, facts, the terms of a step (medians over ranks, next to the plan's if there is
    one), a row for each rank, and patterns that cost time. `found`: these patterns."""
    yield from _verdict_blocks(panels_of_trace(ranks, plan))
    yield facts(
        "traced.facts", None, count=len(ranks), steps=median(len(rank.steps) for rank in ranks),
        step_s=_median(ranks, "step_s"), unmarked=not all(rank.marked for rank in ranks),
        unusable=sum(rank.unusable for rank in ranks),
    )  # fmt: skip
    yield _terms(ranks, plan)
    if len(ranks) > 1:
        yield table_of("traced.ranks", sorted(ranks, key=lambda rank: rank.rank))
    lines = tuple(
        f"{seconds(one.seconds)} a step: {one.pattern}. Change: {one.change}." for one in found
    )
    yield Notes(lines or ("No pattern that costs 2 % of a step.",), "Patterns")


def _median(ranks: Sequence[RankTrace], name: str) -> float:
    return float(median(getattr(rank, name) for rank in ranks))


def _terms(ranks: Sequence[RankTrace], plan: Plan | None) -> TableData:
    step_s = _median(ranks, "step_s")
    rows = (
        {"name": name, "traced": traced, "predicted": predicted, "part": traced / step_s}
        for name, traced, predicted in _lines(ranks, plan)
        if traced or predicted
    )
    return table_of("traced.terms", rows, plan=plan)


def _lines(
    ranks: Sequence[RankTrace], plan: Plan | None
) -> Iterator[tuple[str, float, float | None]]:
    """(term, traced s, predicted s) in reading order; the last is None if there is no prediction
    for the term. Traced seconds are medians over ranks. Indented terms are parts of the term above
    them."""
    predicted = {} if plan is None else _predicted_terms(plan)
    terms = {name: float(median(rank.terms.get(name, 0.0) for rank in ranks)) for name in TERMS}
    compute = math.fsum(seconds for name, seconds in terms.items() if name != "optimizer")
    yield "compute", compute, predicted.get("compute")
    for name in TERMS:
        if name != "optimizer":
            yield f"  {name}", terms[name], None
    for memory, where in described("traced.copies").items():
        copied = float(median(rank.copies.get(memory, 0.0) for rank in ranks))
        yield f"    {where}", copied, None
    yield "optimizer", terms["optimizer"], predicted.get("optimizer")
    for group in _GROUPS:
        exposed = float(median(rank.exposed.get(group, 0.0) for rank in ranks))
        yield f"exposed communication, {group}", exposed, predicted.get(group)
    yield "idle", _median(ranks, "idle_s"), predicted.get("idle")
    yield "  after the CPU waited", _median(ranks, "idle_synchronised_s"), None
    yield "step", _median(ranks, "step_s"), predicted.get("step")
    hidden = float(median(math.fsum(rank.hidden.values()) for rank in ranks))
    yield "hidden communication", hidden, None


def trace_pairs(ranks: Sequence[RankTrace], plan: Plan | None) -> tuple[Pair, ...]:
    """The terms that make up a step of the median rank, ms."""
    return tuple(
        Pair(
            "whole step" if name == "step" else name,
            None if predicted is None else predicted * 1e3,
            traced * 1e3,
        )
        for name, traced, predicted in _lines(ranks, plan)
        if (traced or predicted) and not name.startswith("  ")
    )


def _predicted_terms(plan: Plan) -> dict[str, float]:
    """The plan's seconds of a step, keyed by the names that traces use for the terms, and the whole
    step as `step`."""
    found = {"step": plan.step_time_s}
    for term in TIME_TERMS:
        found[term.traced] = found.get(term.traced, 0.0) + getattr(plan.time, term.field)
    return found


@as_report
def snapshot_report(found: Sequence[Snapshot], plan: Plan | None) -> Iterator[Block]:
    """The answer, and each snapshot's peak by category, compared with the plan's heaviest stage."""
    yield from _verdict_blocks(panels_of_snapshots(found, plan))
    for one in found:
        frames = one.made and ("; ".join(one.made.frames) or "no stack")
        yield facts("traced.snapshot", one, title=str(one.path), plan=plan, frames=frames)
        yield table_of("traced.categories", snapshot_pairs(one, plan), plan=plan)


def snapshot_pairs(one: Snapshot, plan: Plan | None) -> tuple[Pair, ...]:
    """Categories of memory at the snapshot's peak in GiB, the largest measured one first; next to
    the plan's, if there is one. Categories that only the plan has count as 0."""
    predicted = {} if plan is None else _predicted(plan)
    names = sorted(one.categories | predicted, key=lambda name: -one.categories.get(name, 0))
    return tuple(
        Pair(name, expected and expected / GIB, one.categories.get(name, 0) / GIB)
        for name, expected in ((name, predicted.get(name)) for name in names)
    )


def _predicted(plan: Plan) -> dict[str, float]:
    stage = plan.stages[plan.heaviest_stage]
    found: dict[str, float] = {}
    for term in MEMORY_TERMS:
        if term.snapshot:
            found[term.snapshot] = found.get(term.snapshot, 0.0) + getattr(stage, term.field)
    return found
