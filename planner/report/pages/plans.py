"""The page of a plan file: the front, and every plan in full."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.pool import SeveralTypes
from planner.job.request import Request
from planner.launch.registry import target_named
from planner.predict.command_line import search_command
from planner.predict.configuration import Configuration, decided_request
from planner.predict.evaluate import checked
from planner.predict.memory.account import footprint_of
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text
from planner.report.charts import plan as charts
from planner.report.charts.drawing import Drawing
from planner.report.explain import explanation_report
from planner.report.figures.memory import memory_panel
from planner.report.figures.plan import cluster_of
from planner.report.pages.front import Front, PagePlan
from planner.report.pages.page import Page, Section
from planner.report.pages.studies import memory_drawing
from planner.report.plots import pictures
from planner.report.said import described, said
from planner.report.search import printed
from planner.report.tables import Block, Facts, Notes
from planner.search.explanation import explain
from planner.search.result import SearchResult

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
    """The sections of one plan."""
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
    """The searches of the entries, each once."""
    return list({id(entry.result): entry.result for entry in entries}.values())


def _page(
    entries: Sequence[PagePlan],
    opening: int,
    notes: Sequence[str] = (),
    before: Sequence[Plan] = (),
) -> Page:
    """What stands above the single plans."""
    results = _results(entries)
    job = results[0].job
    front = Front(results, entries, _shown_numbers(results, len(entries)), before)
    cluster = job.cluster if len(results) == 1 else f"{len(results)} clusters"
    return Page(
        f"{job.model} on {cluster}",
        f"{job.framework} {job.framework_version}, {job.precision}, sequences of {job.seq:,}: "
        "plans on the front of speed against memory. Pick one in the list or in the picture.",
        [*front.sections(notes)],
        tuple(
            (number, f"{number}: {entry.prefix}{configuration_text(entry.plan)}")
            for number, entry in enumerate(entries, start=1)
        ),
        opening,
        front.pick,
    )


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
    title = f"Plan {number}: {entry.prefix}{configuration_text(plan)}"
    commands = _commands(path, number, entry.result.request, whole)
    yield Section(title, blocks=(commands,), plan=number)
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
    explaining: tuple[str, ...] = ("See what else was close:", explained)
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
        charts.cluster_chart(cluster),
        said(described("pages.cluster"), cluster) or "",
    )
