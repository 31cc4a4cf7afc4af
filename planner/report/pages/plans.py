"""The page of a plan file: the front, and every plan in full."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.frameworks.names import target_named
from planner.job.job import Job
from planner.job.pool import is_pool
from planner.job.quantities import gib, percent_sure, seconds
from planner.job.schedules import SCHEDULES
from planner.predict.configuration import given_job
from planner.predict.decided import decided_request
from planner.predict.memory.footprint import configure, footprint_of
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text, recompute_text
from planner.report.charts import plan as charts
from planner.report.charts.drawing import specification
from planner.report.explain import explanation_report
from planner.report.figures.candidates import Candidate, candidates_or_reason
from planner.report.figures.memory import Panel, memory_panel
from planner.report.figures.plan import (
    cluster_of,
    front_plans,
    riskier_plans,
    stage_bars,
    waterfall,
)
from planner.report.figures.schedule import schedule_gantt
from planner.report.pages.page import Drawing, Page, Section
from planner.report.pages.studies import memory_drawing
from planner.report.search import job_facts, printed, recommended_note, riskier_table
from planner.report.tables import Block, Column, Facts, Notes, TableData
from planner.search.explanation import explain
from planner.search.pools.explain import explain_pool
from planner.search.result import SearchResult

# Plans that are shown in full; further ones are on the front and in the table.
MOST_PLANS = 16
_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "mbs", "grad_acc")


@dataclass(frozen=True, slots=True)
class Entry:
    """A plan of the page: `number` is its own in `result`; `where`: its cluster, if there are
    several."""

    result: SearchResult
    number: int
    where: str = ""

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.result.plans[self.number - 1]


def plans_page(path: Path, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Page:
    """The page of the plans of a file, in its order. UsageError if there is none."""
    if not entries:
        raise UsageError(f"{path} holds no plan: there is nothing to draw")
    for number, entry in enumerate(entries, start=1):
        _demand_whole(path, number, entry.plan)
    results = list({id(entry.result): entry.result for entry in entries}.values())
    job = results[0].job
    numbers = _shown_numbers(results, len(entries))
    sections = [_front(results, entries, numbers), _overview(entries, results, notes)]
    for number in numbers:
        sections += _plan_sections(path, number, entries[number - 1])
    cluster = job.cluster if len(results) == 1 else f"{len(results)} clusters"
    names = {number: entries[number - 1] for number in numbers}
    return Page(
        f"{job.model} on {cluster}",
        f"{job.framework} {job.framework_version}, {job.precision}, sequences of {job.seq:,}: "
        "plans on the front of speed against memory. Pick one in the list or in the picture.",
        sections,
        tuple(
            (number, f"{number}: {_named(entry)}{configuration_text(entry.plan)}")
            for number, entry in names.items()
        ),
        _recommended(results) or numbers[0],
    )


def _demand_whole(path: Path, number: int, plan: Plan) -> None:
    """UsageError for a plan whose parts contradict each other, as no command writes it."""
    pp, layout = plan.degrees.pp, plan.layout
    is_whole = (
        len(plan.stages) == len(layout.recomputed) == pp
        and len(layout.block_layers) % pp == 0
        and 0 <= plan.heaviest_stage < pp
        and plan.schedule in SCHEDULES
        and plan.step_time_s > 0.0
    )
    if not is_whole:
        raise UsageError(f"{path}: the stages, layers or schedule of plan {number} do not fit it")


def _recommended(results: Sequence[SearchResult]) -> int:
    """Number of the plan to take; 0 where several searches have one each."""
    return results[0].recommended if len(results) == 1 else 0


def _shown_numbers(results: Sequence[SearchResult], count: int) -> list[int]:
    """Plans that are shown in full: of one search those that it prints, else the first."""
    if len(results) > 1:
        return list(range(1, count + 1))[:MOST_PLANS]
    return sorted(number for number, _ in printed(results[0], MOST_PLANS))


def _named(entry: Entry) -> str:
    return f"{entry.where}, " if entry.where else ""


def _front(
    results: Sequence[SearchResult], entries: Sequence[Entry], numbers: Sequence[int]
) -> Section:
    dots: list[Candidate] = []
    reasons: list[str] = []
    for result in results:
        found, reason = candidates_or_reason(result)
        dots += found
        reasons += [f"Candidates are not drawn: {reason}"] if reason else []
    names = [entry.where for entry in entries] if len(results) > 1 else []
    limits = {result.job.limit_bytes for result in results}
    limit = next(iter(limits)) if len(limits) == 1 else None
    plans = front_plans([entry.plan for entry in entries], numbers, names)
    riskier = riskier_plans([plan for result in results for plan in result.riskier])
    note = "Blue: the plans; numbered: those in the list. Dashed: HBM that may be used."
    if riskier:
        note += " Hollow: faster, but less likely to fit than was asked."
    if dots:
        note += (
            " Faint: shapes that were considered, with their layers spread evenly; where many lie "
            "together, the fastest."
        )
    chart = charts.front_chart(plans, riskier, dots, limit, "container")
    drawing = Drawing("front", "", specification(chart), " ".join((note, *reasons)))
    return Section("Speed against memory", (drawing,))


def _overview(
    entries: Sequence[Entry], results: Sequence[SearchResult], notes: Sequence[str]
) -> Section:
    used = [
        name
        for name in _DEGREES
        if name in ("tp", "pp", "dp", "mbs", "grad_acc")
        or any(getattr(entry.plan.degrees, name) not in (0, 1) for entry in entries)
    ]
    where = ("cluster",) if any(entry.where for entry in entries) else ()
    columns = (
        Column("plan"),
        *(Column(title, "left") for title in where),
        *(Column(title) for title in ("step s", "tokens/s/GPU", "MFU %", "peak GiB", "fits %")),
        *(Column(name.replace("_", " ")) for name in used),
        Column("recompute", "left"),
    )
    rows = tuple(
        (
            str(number),
            *((entry.where,) if where else ()),
            f"{entry.plan.step_time_s:.3g}",
            f"{entry.plan.tokens_per_s_per_gpu:,.0f}",
            f"{entry.plan.mfu * 100:.1f}",
            gib(entry.plan.peak_bytes),
            percent_sure(entry.plan.fit_probability).removesuffix(" %"),
            *(str(getattr(entry.plan.degrees, name)) for name in used),
            recompute_text(entry.plan),
        )
        for number, entry in enumerate(entries, start=1)
    )
    advice = recommended_note(results[0]) if len(results) == 1 else ()
    said = dict.fromkeys((*advice, *notes, *(note for result in results for note in result.notes)))
    facts = [Facts(job_facts(result.job)) for result in results[:1]]
    tables = [TableData(columns, rows)]
    tables += [
        riskier_table(result.riskier, result.job.usable_bytes, "Faster, if it fits")
        for result in results
        if result.riskier
    ]
    return Section("All plans", blocks=(*facts, *tables, Notes(tuple(said))))


def _plan_sections(path: Path, number: int, entry: Entry) -> Iterator[Section]:
    plan = entry.plan
    title = f"Plan {number}: {_named(entry)}{configuration_text(plan)}"
    job, reason = _job(entry)
    drawings = [*_memory(number, entry), *_time(number, plan)]
    if job is not None:
        drawings += _cluster(number, plan, job.cluster.gpus_per_node)
    yield Section(
        title, blocks=(_commands(path, number, entry.result.request.framework),), plan=number
    )
    yield Section("Memory, time and place", drawings, plan=number)
    blocks = _explanation(entry, job, reason)
    yield Section("Figures and assumptions", blocks=blocks[:1], folded=blocks[1:], plan=number)


def _commands(path: Path, number: int, framework: str) -> Notes:
    name = shlex.quote(str(path))
    explaining = ("See what else was close:", f"    planner explain {name} {number}")
    try:
        target_named(framework)
    except UsageError as error:
        return Notes((*explaining, str(error)))
    launching = f"    planner launch {name} {number} -o run-{number}"
    return Notes(("Write a folder that launches it:", launching, *explaining))


def _job(entry: Entry) -> tuple[Job | None, str]:
    """The job of a plan on the GPUs that it uses, or none and why."""
    if is_pool(entry.result.request.gpus):
        return None, "its GPUs are of several types"
    try:
        job = decided_request(entry.result.request, entry.plan).resolve()
    except UsageError as error:
        return None, str(error)
    used = entry.result.job.used_gpus
    if job.cluster.num_gpus != used:
        job = replace(job, cluster=job.cluster.with_gpus(used))
    return job, ""


def _explanation(entry: Entry, job: Job | None, reason: str) -> tuple[Block, ...]:
    if job is not None:
        return explanation_report(explain(entry.result, entry.number, job)).blocks
    if is_pool(entry.result.request.gpus):
        return explanation_report(explain_pool(entry.result, entry.number)).blocks
    missing = Notes((f"Less is shown, as the job cannot be resolved here: {reason}",))
    return missing, Facts(tuple(("assumed", text) for text in entry.plan.assumptions), "Assumed")


def _memory(number: int, entry: Entry) -> Iterator[Drawing]:
    plan = entry.plan
    chart = charts.stages_chart(stage_bars(plan), plan.limit_bytes, "container")
    yield Drawing(
        f"stages-{number}",
        "Memory of each pipeline stage at its peak",
        specification(chart),
        f"Dashed: HBM that may be used, {gib(plan.limit_bytes)} GiB.",
    )
    panel = _phases(entry)
    if panel is None:
        return
    note = "The heaviest stage over the first and later steps, with everything beside the tensors."
    yield memory_drawing(panel, f"phases-{number}", f"Memory over the step. {panel.title}", note)


def _phases(entry: Entry) -> Panel | None:
    """The phases of the heaviest stage. None where the layers of a stage recompute in several
    modes, on GPUs of several types, and where the job cannot be resolved, which the page says."""
    plan, layout = entry.plan, entry.plan.layout
    if layout.others or is_pool(entry.result.request.gpus):
        return None
    try:
        configuration = configure(
            given_job(decided_request(entry.result.request, plan)),
            plan.degrees,
            plan.recompute,
            layout.block_layers,
            layout.recomputed if any(layout.recomputed) else None,
            layout.mtp_standalone,
        )
    except UsageError:
        return None
    footprint = footprint_of(configuration)
    return memory_panel(footprint, footprint.heaviest)


def _time(number: int, plan: Plan) -> Iterator[Drawing]:
    high_s = plan.step_time.high
    interval = (plan.step_time.low, high_s if isfinite(high_s) else plan.step_time_s)
    chart = charts.waterfall_chart(waterfall(plan), interval, "container")
    yield Drawing(
        f"time-{number}",
        f"Time of a step: {seconds(plan.step_time_s)}",
        specification(chart),
        "On the slowest stage. Line: 80 % interval of the whole.",
    )
    gantt = schedule_gantt(plan)
    if gantt is None:
        return
    part = "" if gantt.microbatches == gantt.of else f" with {gantt.microbatches} of {gantt.of:,}"
    yield Drawing(
        f"schedule-{number}",
        f"Schedule of the pipeline ({plan.schedule}){part and part + ' micro-batches'}",
        specification(charts.schedule_chart(gantt, "container")),
        "Grey: bubble. What recomputes and communicates is drawn at the start and the end of each "
        "pass, by its share of the step; then gradients are reduced and the optimizer runs.",
    )


def _cluster(number: int, plan: Plan, gpus_per_node: int) -> Iterator[Drawing]:
    cluster = cluster_of(plan.degrees, gpus_per_node)
    rest = f" {cluster.left_out:,} more GPUs go on alike." if cluster.left_out else ""
    yield Drawing(
        f"cluster-{number}",
        f"Groups on the cluster, nodes of {gpus_per_node} GPUs",
        specification(charts.cluster_chart(cluster, "container")),
        f"One square a GPU, in rank order; point at one to see its group.{rest}",
    )
