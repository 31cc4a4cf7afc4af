"""The page of a plan file: the front, what two degrees leave, the table, and every plan in full."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.pool import SeveralTypes
from planner.job.quantities import GIB, gib, seconds
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
    front_chart,
    front_plans,
    riskier_plans,
)
from planner.report.charts.heat import heat_chart, heat_map
from planner.report.charts.memory import memory_panel
from planner.report.charts.plan import cluster_chart, cluster_of
from planner.report.explain import explanation_report
from planner.report.pages.page import Card, Page, Pick, Section
from planner.report.pages.studies import memory_drawing
from planner.report.plan_table import plan_table, techniques_row
from planner.report.plots import pictures
from planner.report.said import described, said
from planner.report.search import job_facts, printed, recommended_note, riskier_table
from planner.report.tables import Block, Column, Facts, Notes
from planner.report.verdict import Verdict, kinds_of_time
from planner.search.explanation import explain
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
        return self.result.plans[self.number - 1]

    @property
    def prefix(self) -> str:
        """The cluster before the plan's degrees, if there are several."""
        return f"{self.where}, " if self.where else ""


@dataclass(frozen=True)
class Front:
    """The plans of all clusters, some with labels; `before`: plans of the search that
    it is compared with."""

    results: Sequence[SearchResult]
    entries: Sequence[PagePlan]
    labels: Mapping[int, str]
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
            drawing = Drawing("heat", "", heat_chart(found), described("pages.heat"))
            yield Section("Two degrees at a time", (drawing,))

    def _picture(self) -> Section:
        found = [
            candidates(costed, result)
            for result, (costed, _) in zip(self.results, self.costed, strict=True)
            if costed is not None
        ]
        names = [entry.where for entry in self.entries] if len(self.results) > 1 else []
        riskier = riskier_plans(self.results)
        chart = front_chart(
            front_plans(self._plans, self.labels, names),
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


def overview_section(
    entries: Sequence[PagePlan], results: Sequence[SearchResult], notes: Sequence[str]
) -> Section:
    is_alone = len(results) == 1
    plans = [entry.plan for entry in entries]
    advised = results[0].recommended if is_alone else 0
    near = Verdict(results[0]).near if advised else {}
    marks = dict.fromkeys(near, "≈") | {advised: "→"}
    numbers = range(1, len(entries) + 1)
    first = [(Column("plan"), [f"{marks.get(number, '')}{number}" for number in numbers])]
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


# Plans that are shown in full; of further ones memory and time alone.
MOST_PLANS, MOST_DRAWN = 16, 48


def result_page(result: SearchResult, path: Path | None, selected: int = 0) -> Page:
    """The page of one search, written to `path` if to any; opens with the plan `selected`."""
    return plans_page(path, _entries(result), selected=selected)


def first_page(result: SearchResult, path: Path, before: Sequence[Plan]) -> Page:
    """As `result_page`, with the plan to take alone in full; `plan_page` has each of the others.
    `before`: plans of an earlier search, whose front is drawn too."""
    page = _page(_entries(result), result.recommended or 1, before=before)
    chosen = plan_page(result, path, page.selected)
    return replace(page, sections=[*page.sections, *chosen.sections])


def plan_page(result: SearchResult, path: Path, number: int) -> Page:
    return Page("", "", [*_plan_sections(path, number, PagePlan(result, number))])


def _entries(result: SearchResult) -> list[PagePlan]:
    return [PagePlan(result, number) for number in range(1, len(result.plans) + 1)]


def plans_page(
    path: Path | None,
    entries: Sequence[PagePlan],
    notes: Sequence[str] = (),
    selected: int = 0,
) -> Page:
    """The page of plans, of a file if there is one, in their order; opens with the plan `selected`,
    or the one to take. UsageError if there is none."""
    if not entries:
        raise UsageError(f"{path or 'the search'} holds no plan: there is nothing to draw")
    results = _results(entries)
    shown = _shown_numbers(results, len(entries))
    # Several searches have one to take each.
    to_take = results[0].recommended if len(results) == 1 else 0
    page = _page(entries, selected or to_take or shown[0], notes)
    singly = [
        section
        for number, entry in enumerate(entries, start=1)
        for section in _plan_sections(path, number, entry, number in (*shown, selected))
    ]
    return replace(page, sections=[*page.sections, *singly])


def _results(entries: Sequence[PagePlan]) -> list[SearchResult]:
    return list({id(entry.result): entry.result for entry in entries}.values())


def _page(
    entries: Sequence[PagePlan],
    opening: int,
    notes: Sequence[str] = (),
    before: Sequence[Plan] = (),
) -> Page:
    results = _results(entries)
    job = results[0].job
    is_answer = len(results) == 1 and results[0].recommended > 0
    shown = _shown_numbers(results, len(entries))
    labels = Verdict(results[0]).labels if is_answer else {number: str(number) for number in shown}
    front = Front(results, entries, labels, before)
    cluster = job.cluster if len(results) == 1 else f"{len(results)} clusters"
    return Page(
        f"{job.model} on {cluster}",
        f"{job.framework} {job.framework_version}, {job.precision}, sequences of {job.seq:,}: "
        "plans on the front of speed against memory. Pick one in the list or in the picture.",
        [*front.sections(notes)],
        tuple(
            (number, f"{number}: {entry.prefix}{plan_name(entry.plan)}, {_figures(entry.plan)}")
            for number, entry in enumerate(entries, start=1)
        ),
        opening,
        front.pick,
        verdict_card(results[0]) if is_answer else None,
        {number: compared(entry.plan) for number, entry in enumerate(entries, start=1)},
    )


def verdict_card(result: SearchResult) -> Card:
    """The verdict of a search as the page shows it."""
    verdict = Verdict(result)
    used, may = verdict.memory_shares
    whole_s = verdict.plan.step_time_s
    kinds = kinds_of_time(verdict.plan)
    return Card(
        verdict.headline,
        (
            (
                "memory",
                verdict.memory_text,
                ((used, "used", "held"), (may, "may", "80 % interval")),
            ),
            (
                "step",
                verdict.time_text,
                [(size / whole_s, kind, f"{kind} {seconds(size)}") for kind, size in kinds.items()],
            ),
        ),
        (("risk", verdict.risk),),
        [
            (one.number, one.words, f"{one.name}: {one.than}, {gib(one.plan.peak_bytes)} GiB")
            for one in verdict.alternatives
        ],
    )


def _figures(plan: Plan) -> str:
    """`55.7 s, 68.3 GiB`."""
    return f"{seconds(plan.step_time_s)}, {gib(plan.peak_bytes)} GiB"


def _shown_numbers(results: Sequence[SearchResult], count: int) -> list[int]:
    """Plans that are shown in full: of one search those that it prints, else the first."""
    if len(results) > 1:
        return list(range(1, count + 1))[:MOST_PLANS]
    return sorted(number for number, _ in printed(results[0], MOST_PLANS))


def _plan_sections(
    path: Path | None, number: int, entry: PagePlan, whole: bool = True
) -> Iterator[Section]:
    """The sections of a plan; unless `whole` what needs no costing, and what draws the rest."""
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
        drawings.append(_cluster(number, plan, job.cluster.gpus_per_node))
    yield Section("Memory, time and place", drawings, plan=number)
    blocks = _explanation(entry, job, reason)
    yield Section("Figures and assumptions", blocks=blocks[:1], folded=blocks[1:], plan=number)


def _commands(path: Path | None, number: int, request: Request, whole: bool) -> Notes:
    """What launches and explains a plan, and draws one that is not drawn in full; without a file,
    what writes one first."""
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
    """The job of a plan on the GPUs that it uses, or none and why."""
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
    """The phases of the heaviest stage. None where the layers of a stage recompute in several
    modes, on GPUs of several types, and where the job cannot be resolved, which the page says."""
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


def _cluster(number: int, plan: Plan, gpus_per_node: int) -> Drawing:
    cluster = cluster_of(plan.degrees, gpus_per_node)
    return Drawing(
        f"cluster-{number}",
        f"Groups on the cluster, nodes of {gpus_per_node} GPUs",
        cluster_chart(cluster),
        said(described("pages.cluster"), cluster) or "",
    )
