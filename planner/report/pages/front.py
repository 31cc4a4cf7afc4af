"""What a page says of all plans: the front, what two degrees leave, the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.job.quantities import GIB
from planner.predict.command_line import degree_options, evaluate_command, search_command
from planner.predict.plan import Plan
from planner.report.charts import plan as charts
from planner.report.charts.drawing import Drawing
from planner.report.figures.candidates import CandidateDots, candidates, costed_or_reason
from planner.report.figures.heat import HeatMap, heat_map
from planner.report.figures.plan import front_plans, riskier_plans
from planner.report.pages.page import Pick, Section
from planner.report.plan_table import plan_table, techniques_row
from planner.report.said import described, said
from planner.report.search import job_facts, recommended_note, riskier_table
from planner.report.tables import Column, Facts, Notes
from planner.search.result import SearchResult
from planner.search.shares import CostedJob


@dataclass(frozen=True, slots=True)
class PagePlan:
    """A plan of the page: `number` is that in `result`; `where`: its cluster, if there are
    several."""

    result: SearchResult
    number: int
    where: str = ""

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.result.plans[self.number - 1]

    @property
    def prefix(self) -> str:
        """The cluster before the plan's degrees, if there are several."""
        return f"{self.where}, " if self.where else ""


@dataclass(frozen=True)
class Front:
    """The plans of all clusters, those with `numbers` labelled; `before`: plans of the search that
    it is compared with."""

    results: Sequence[SearchResult]
    entries: Sequence[PagePlan]
    numbers: Sequence[int]
    before: Sequence[Plan] = ()

    @cached_property
    def costed(self) -> list[tuple[CostedJob | None, str]]:
        """What was considered beside the plans: costed shapes of each search, or none and why."""
        return [costed_or_reason(result) for result in self.results]

    @property
    def limit_bytes(self) -> float | None:
        """The memory that may be used, if it is the same everywhere."""
        limits = {result.job.limit_bytes for result in self.results}
        return next(iter(limits)) if len(limits) == 1 else None

    @property
    def pick(self) -> Pick | None:
        """What the page says of a candidate that is clicked, where there is one cluster."""
        if len(self.results) > 1 or self.limit_bytes is None:
            return None
        return Pick(
            evaluate_command(self.results[0].request),
            self.limit_bytes / GIB,
            tuple(
                (number, plan.peak_bytes / GIB, plan.tokens_per_s_per_gpu)
                for number, plan in enumerate(self._plans, start=1)
            ),
            degree_options(),
        )

    @cached_property
    def _plans(self) -> list[Plan]:
        return [entry.plan for entry in self.entries]

    def sections(self, notes: Sequence[str]) -> Iterator[Section]:
        """The front, the table, what two degrees leave."""
        yield self._picture()
        yield overview_section(self.entries, self.results, notes)
        costed = self.costed[0][0] if len(self.results) == 1 else None
        if costed is not None and (found := heat_map(costed, self.results[0])) is not None:
            yield heat_section(found)

    def _picture(self) -> Section:
        found = [
            candidates(costed, result)
            for result, (costed, _) in zip(self.results, self.costed, strict=True)
            if costed is not None
        ]
        names = [entry.where for entry in self.entries] if len(self.results) > 1 else []
        riskier = riskier_plans(self.results)
        chart = charts.front_chart(
            front_plans(self._plans, self.numbers, names),
            riskier,
            [dot for each in found for dot in each.dots],
            self.limit_bytes,
            before=front_plans(self.before, ()),
        )
        note = said(described("pages.front"), self, riskier=bool(riskier)) or ""
        reasons = [f"Candidates are not drawn: {reason}." for _, reason in self.costed if reason]
        told = " ".join((note, *(_dots_text(each) for each in found), *reasons))
        return Section("Speed against memory", (Drawing("front", "", chart, told),), picks=True)


def _dots_text(found: CandidateDots) -> str:
    """Which candidates are drawn."""
    return said(described("pages.dots"), found, drawn=len(found.dots)) or ""


def heat_section(found: HeatMap) -> Section:
    """Two degrees of choice."""
    note = described("pages.heat")
    drawing = Drawing("heat", "", charts.heat_chart(found), note)
    return Section("Two degrees at a time", (drawing,))


def overview_section(
    entries: Sequence[PagePlan], results: Sequence[SearchResult], notes: Sequence[str]
) -> Section:
    is_alone = len(results) == 1
    plans = [entry.plan for entry in entries]
    advised = results[0].recommended if is_alone else 0
    numbers = range(1, len(entries) + 1)
    first = [(Column("plan"), ["→" * (number == advised) + str(number) for number in numbers])]
    if any(entry.where for entry in entries):
        first.append((Column("cluster", "left"), [entry.where for entry in entries]))
    usable_bytes = results[0].job.usable_bytes if is_alone else None
    advice = recommended_note(results[0]) if is_alone else ()
    said = dict.fromkeys((*advice, *notes, *(note for result in results for note in result.notes)))
    facts = [Facts((*job_facts(result.job), *techniques_row(plans))) for result in results[:1]]
    if is_alone:
        said |= dict.fromkeys(("Search again:", f"    {search_command(results[0].request)}"))
    tables = [plan_table(plans, usable_bytes, first=first, told=plans)]
    tables += [
        riskier_table(result.riskier, result.job.usable_bytes, "Faster, if it fits")
        for result in results
        if result.riskier
    ]
    return Section("All plans", blocks=(*facts, *tables, Notes(tuple(said))))
