"""The page of a plan file: the front, the heat map of two degrees, the table, and every plan in
full."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from planner.compare.cluster_front import ClusterFront, ClusterPoint
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.pool import SeveralTypes
from planner.job.quantities import GIB, gib, plural, seconds
from planner.job.request import Request
from planner.launch.registry import target_named
from planner.predict.command_line import degree_options, evaluate_command, search_command
from planner.predict.configuration import Configuration, decided_request
from planner.predict.evaluate import checked
from planner.predict.memory.account import footprint_of
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text, plan_name
from planner.report.beside import compared
from planner.report.charts.drawing import Drawing
from planner.report.charts.front import (
    candidates,
    costed_or_reason,
    end_labels,
    front_chart,
    front_plans,
    riskier_plans,
)
from planner.report.charts.heat import heat_chart, heat_map
from planner.report.charts.memory import memory_panel
from planner.report.charts.plan import cluster_chart, cluster_of
from planner.report.explain import explanation_report
from planner.report.pages.cards import front_card, verdict_card
from planner.report.pages.page import Card, Page, Pick, Section
from planner.report.pages.studies import memory_drawing
from planner.report.plan_table import plan_table, techniques_row
from planner.report.plots import pictures
from planner.report.said import described, said
from planner.report.search import job_facts, printed, riskier_table
from planner.report.tables import Block, Column, Facts, Notes
from planner.report.verdict import Verdict
from planner.search.explanation import explain
from planner.search.result import SearchResult
from planner.search.shares import CostedJob


@dataclass(frozen=True, slots=True)
class PagePlan:
    """A plan of the page. `number`: its number in `result`; `where`: its cluster, if the front
    covers several."""

    result: SearchResult
    number: int
    where: str = ""

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.result.plans[self.number - 1]

    @property
    def prefix(self) -> str:
        """The name of the cluster, to be written before the plan's degrees; empty for a single
        cluster."""
        return f"{self.where}, " if self.where else ""


@dataclass(frozen=True)
class Front:
    """The plans of a page. `before`: plans of an earlier search, for comparison."""

    entries: Sequence[PagePlan]
    before: Sequence[Plan] = ()

    @cached_property
    def plans(self) -> list[Plan]:
        """The plans of all clusters."""
        return [entry.plan for entry in self.entries]

    @cached_property
    def results(self) -> list[SearchResult]:
        """The searches that found the plans, without repetition."""
        return list({id(entry.result): entry.result for entry in self.entries}.values())

    @property
    def alone(self) -> SearchResult | None:
        """The only search of the page; None if the front covers several clusters."""
        return None if self.entries[0].where else self.results[0]

    @property
    def to_take(self) -> int:
        """The number of the recommended plan, or 0."""
        return self.alone.recommended if self.alone is not None else 0

    @cached_property
    def in_full(self) -> list[int]:
        """Numbers of the plans shown in full: those that a single search prints, or the first of a
        front over clusters."""
        if self.alone is None:
            return list(range(1, len(self.entries) + 1))[:MOST_PLANS]
        return sorted(number for number, _ in printed(self.alone, MOST_PLANS))

    @cached_property
    def costed(self) -> list[tuple[CostedJob | None, str]]:
        """All costed shapes of each search, or None and the reason."""
        return [costed_or_reason(result) for result in self.results]

    @property
    def limit_bytes(self) -> float | None:
        """The memory limit in bytes; None if the searches have different limits."""
        limits = {result.job.limit_bytes for result in self.results}
        return next(iter(limits)) if len(limits) == 1 else None

    @property
    def pick(self) -> Pick | None:
        """Data for describing a clicked candidate; None if there are several clusters."""
        if len(self.results) > 1 or self.limit_bytes is None:
            return None
        numbered = enumerate(self.plans, start=1)
        plans = [(number, one.peak_bytes / GIB, one.tokens_per_s_per_gpu)
                 for number, one in numbered]  # fmt: skip
        command = evaluate_command(self.results[0].request)
        return Pick(command, self.limit_bytes / GIB, plans, degree_options())

    def sections(self, notes: Sequence[str]) -> Iterator[Section]:
        """The front, the table, and the heat map of two degrees."""
        yield self._picture()
        yield self._overview(notes)
        costed = self.costed[0][0] if self.alone is not None else None
        if costed is not None and (found := heat_map(costed, self.results[0])) is not None:
            drawing = Drawing("heat", "", heat_chart(found), described("pages.heat"))
            yield Section("Two degrees at a time", (drawing,))

    def _picture(self) -> Section:
        pairs = zip(self.results, self.costed, strict=True)
        found = [candidates(costed, result) for result, (costed, _) in pairs if costed is not None]
        riskier = riskier_plans(self.results)
        labels = end_labels(self.plans)
        if self.alone is not None and self.to_take:
            labels = Verdict(self.alone).labels
        chart = front_chart(
            front_plans(
                self.plans, labels, [] if self.alone else [one.where for one in self.entries]
            ),
            riskier,
            [dot for each in found for dot in each.dots],
            self.limit_bytes,
            before=front_plans(self.before, {}),
        )
        note = said(described("pages.front"), self, riskier=bool(riskier)) or ""
        reasons = [f"Candidates are not drawn: {reason}." for _, reason in self.costed if reason]
        dots = (said(described("pages.dots"), one, drawn=len(one.dots)) or "" for one in found)
        told = " ".join((note, *dots, *reasons))
        return Section("Speed against memory", (Drawing("front", "", chart, told),), picks=True)

    def _overview(self, notes: Sequence[str]) -> Section:
        """The table of all plans, with the job above and notes below."""
        near = Verdict(self.alone).near if self.alone is not None and self.to_take else {}
        marks = dict.fromkeys(near, "≈") | {self.to_take: "→"}
        numbers = range(1, len(self.entries) + 1)
        first = [(Column("plan"), [f"{marks.get(number, '')}{number}" for number in numbers])]
        told = dict.fromkeys((*notes, *(note for result in self.results for note in result.notes)))
        usable_bytes = None
        if self.alone is None:
            first.append((Column("cluster", "left"), [entry.where for entry in self.entries]))
        else:
            usable_bytes = self.alone.job.usable_bytes
            told |= dict.fromkeys(("Search again:", f"    {search_command(self.alone.request)}"))
        tables = [plan_table(self.plans, usable_bytes, first=first, told=self.plans)]
        tables += [
            riskier_table(result.riskier, result.job.usable_bytes, "Faster, if it fits")
            for result in self.results
            if result.riskier
        ]
        facts = Facts((*job_facts(self.results[0].job), *techniques_row(self.plans)))
        return Section("All plans", blocks=(facts, *tables, Notes(tuple(told))))


# Most plans that are shown in full, and most for which memory and time are drawn.
MOST_PLANS, MOST_DRAWN = 16, 48


def result_page(result: SearchResult, path: Path | None, selected: int = 0) -> Page:
    """The page of one search, opened with the plan `selected`, or with the recommended plan if it
    is 0. `path`: the plan file, None if none was written. Raises UsageError if there is no plan."""
    if not result.plans:
        raise UsageError(f"{path or 'the search'} holds no plan: there is nothing to draw")
    front = Front(_entries(result))
    return _whole(_page(front, verdict_card(result, path), selected), front, path)


def cluster_front_page(front: ClusterFront, path: Path | None) -> Page:
    """The page of one front over several clusters. Raises UsageError if the file contradicts itself
    or has no plan."""
    entries = [_entry(path, front, point) for point in front.points]
    if not entries:
        raise UsageError(f"{path or 'the search'} holds no plan: there is nothing to draw")
    drawn = Front(entries)
    page = _page(drawn, front_card(front, path), notes=front.notes)
    clusters = f"{len(front.clusters)} clusters"
    page = replace(page, title=f"{drawn.results[0].job.model} on {clusters}")
    return _whole(page, drawn, path)


def _entry(path: Path | None, front: ClusterFront, point: ClusterPoint) -> PagePlan:
    result = front.results.get(point.cluster)
    if result is None or not 1 <= point.plan <= len(result.plans):
        raise UsageError(
            f"{path}: there is no plan {point.plan} of {point.cluster}; planner search writes such "
            "files with -o FILE.json"
        )
    return PagePlan(result, point.plan, point.cluster)


def first_page(result: SearchResult, path: Path, before: Sequence[Plan]) -> Page:
    """Like `result_page`, but with the sections of the selected plan only. `plan_page` gives those
    of another plan when the user asks for it. `before`: plans of an earlier search, whose front is
    drawn as well."""
    page = _page(Front(_entries(result), before), verdict_card(result, path))
    chosen = plan_page(result, path, page.selected)
    return replace(page, sections=[*page.sections, *chosen.sections])


def plan_page(result: SearchResult, path: Path, number: int) -> Page:
    """A page without a title that holds only the sections of plan `number`."""
    return Page("", "", [*_plan_sections(path, number, PagePlan(result, number))])


def _entries(result: SearchResult) -> list[PagePlan]:
    return [PagePlan(result, number) for number in range(1, len(result.plans) + 1)]


def _whole(page: Page, front: Front, path: Path | None) -> Page:
    """The page with the sections of every plan added. The plans of `Front.in_full` and the selected
    plan get all their sections, the others only those that need no costing."""
    shown = (*front.in_full, page.selected)
    singly = [
        section
        for number, entry in enumerate(front.entries, start=1)
        for section in _plan_sections(path, number, entry, number in shown)
    ]
    return replace(page, sections=[*page.sections, *singly])


def _page(front: Front, card: Card, selected: int = 0, notes: Sequence[str] = ()) -> Page:
    """Everything except the sections of single plans. The page opens with the plan `selected`, or
    with the recommended one."""
    job = front.results[0].job
    numbered = list(enumerate(front.entries, start=1))
    method = "".join(f", {words}" for words in (job.tuning, job.objective) if words)
    return Page(
        f"{job.model} on {job.num_gpus:,} × {job.gpu}",
        f"{job.framework} {job.framework_version}, {job.precision}{method}, sequences of "
        f"{job.seq:,}",
        [*front.sections(notes)],
        [(number, f"{number}: {entry.prefix}{plan_name(entry.plan)}, {_figures(entry.plan)}")
         for number, entry in numbered],
        selected or front.to_take or front.in_full[0],
        front.pick,
        card,
        {number: compared(entry.plan) for number, entry in numbered},
    )  # fmt: skip


def _figures(plan: Plan) -> str:
    """`55.7 s, 68.3 GiB`."""
    return f"{seconds(plan.step_time_s)}, {gib(plan.peak_bytes)} GiB"


def _plan_sections(
    path: Path | None, number: int, entry: PagePlan, whole: bool = True
) -> Iterator[Section]:
    """The sections of a plan. Unless `whole`: only those that need no costing, and the command that
    draws the rest."""
    plan = entry.plan
    title = f"Plan {number}: {entry.prefix}{plan_name(plan)}"
    commands = _commands(path, number, entry.result.request, whole)
    degrees = Notes((f"{configuration_text(plan)}.",))
    yield Section(title, blocks=(degrees, commands), plan=number)
    if not whole and number <= MOST_DRAWN:
        yield Section("Memory and time", [*islice(_drawings(number, plan), 2)], plan=number)
    if not whole:
        return
    job, reason = _job(entry)
    stages, *rest = _drawings(number, plan)
    drawings = [stages, *_memory(number, entry), *rest]
    if job is not None:
        drawings += _cluster(number, plan, job.cluster.gpus_per_node)
    yield Section("Memory, time and place", drawings, plan=number)
    first, *others = _explanation(entry, job, reason)
    folded = [*_together(others)]
    yield Section("Figures and assumptions", blocks=[first], folded=folded, plan=number)


def _together(blocks: Sequence[Block]) -> Iterator[Block]:
    """The blocks without the untitled notes, and these notes merged into one titled block at the
    end."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Notes) and not block.title:
            lines += block.lines
        else:
            yield block
    yield Notes(tuple(lines), "How to read these figures")


def _commands(path: Path | None, number: int, request: Request, whole: bool) -> Notes:
    """Commands that launch and explain a plan, and that draw it if it is not shown in full. If
    there is no plan file, first the command that writes one."""
    name = "plans.json" if path is None else shlex.quote(str(path))
    writing = f"    {search_command(request)} -o {name}"
    first = ("Write the plans into a file:", writing) if path is None else ()
    explained = f"    planner explain {name} {number}"
    traced = f"{explained} --trace step-{number}.json"
    explaining: tuple[str, ...] = (
        "See what else was close:", explained,
        "See the step pass by pass: write its trace and open it in Perfetto (ui.perfetto.dev).",
        traced,
    )  # fmt: skip
    if not whole:
        explaining += ("Draw it in full:", f"{explained} --plot plan-{number}.html")
    try:
        target_named(request.framework)
    except UsageError as error:
        return Notes((*first, *explaining, str(error)))
    launching = f"    planner launch {name} {number} -o run-{number}"
    return Notes((*first, "Write a folder that launches it:", launching, *explaining))


def _job(entry: PagePlan) -> tuple[Job | None, str]:
    """The job of a plan on the GPUs that the search uses, and an empty text. If it cannot be
    resolved: None and the reason."""
    try:
        job = decided_request(entry.result.request, entry.plan).resolve()
    except UsageError as error:
        return None, str(error)
    return job.on_gpus(entry.result.job.used_gpus), ""


def _explanation(entry: PagePlan, job: Job | None, reason: str) -> tuple[Block, ...]:
    if job is not None:
        return explanation_report(explain(entry.result, entry.number, job)).blocks
    missing = Notes((f"Less is shown, as the job cannot be resolved here: {reason}",))
    return missing, Facts(tuple(("assumed", text) for text in entry.plan.assumptions), "Assumed")


def _drawings(number: int, plan: Plan) -> Iterator[Drawing]:
    for drawn in pictures(plan):
        called = "stages" if drawn.name == "memory" else drawn.name
        note = said(described(f"pages.{drawn.name}"), plan) or ""
        yield replace(drawn, name=f"{called}-{number}", note=note)


def _memory(number: int, entry: PagePlan) -> Iterator[Drawing]:
    """The chart of the memory of the heaviest stage in each phase. No chart if layers recompute in
    several modes, if there are GPUs of several types, or if the job cannot be resolved."""
    plan = entry.plan
    if len(plan.modes) > 1 or isinstance(entry.result.request.gpu_words, SeveralTypes):
        return
    try:
        job = decided_request(entry.result.request, plan).resolve()
        configuration = checked(Configuration.of_plan(job, plan))
    except UsageError:
        return
    footprint = footprint_of(configuration)
    panel = memory_panel(footprint, footprint.heaviest)
    note = "The heaviest stage over the first and later steps, with everything beside the tensors."
    yield memory_drawing(panel, f"phases-{number}", f"Memory over the step. {panel.title}", note)


def _cluster(number: int, plan: Plan, gpus_per_node: int) -> Iterator[Drawing]:
    """A chart of the GPUs, coloured by group. No chart if all GPUs are in the same groups, because
    there is nothing to tell apart."""
    cluster = cluster_of(plan.degrees, gpus_per_node)
    if len({gpu.groups for gpu in cluster.gpus}) > 1:
        yield Drawing(
            f"cluster-{number}",
            f"Groups on the cluster, nodes of {plural(gpus_per_node, 'GPU')}",
            cluster_chart(cluster),
            said(described("pages.cluster"), cluster) or "",
        )
