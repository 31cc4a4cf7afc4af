"""What `planner search` shows: the job, what was looked at, the front, what to type next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from planner.job.quantities import (
    gib,
    number_ranges,
    percent_sure,
    plural,
    rate,
    seconds,
    share,
    short_count,
    signed_share,
    tflop_per_s,
)
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.plan_text import (
    LIKELY_TO_FIT,
    batch_difference,
    batch_sentence,
    batch_text,
    blocks_text,
    degrees_text,
    error_text,
    exchange_text,
    layers_text,
    offload_text,
    recompute_text,
    schedule_text,
    stage_gpus_text,
    step_time_text,
)
from planner.report.full_memory import full_memory_note
from planner.report.tables import Block, Column, Facts, Notes, Report, TableData
from planner.search.exact_front import MEMORY_BYTES, TIME
from planner.search.front import ALIKE
from planner.search.result import Counts, JobSummary, SearchResult

# A plan and its number, from 1, in the whole front: in the table as in the file.
Numbered = Sequence[tuple[int, Plan]]


def search_report(
    result: SearchResult, saved_as: str | None = None, most: int | None = None, whole: bool = False
) -> Report:
    """The report of a search; `saved_as` is the plan file that was written, if any.

    `most`: plans that are printed at most; `whole`: the complete front, not only plans between
    which people would choose.
    """
    plans = printed(result, most, whole)
    blocks: list[Block] = [
        Facts((*job_facts(result.job), *_outcome_facts(result, plans))),
        front_table(plans, result),
    ]
    if result.riskier:
        blocks.append(riskier_table(result.riskier, result.job.usable_bytes, "Faster, if it fits"))
    return Report(
        (*blocks, Notes(front_notes(result, plans)), Notes(_next_steps(saved_as, result)))
    )


def printed(result: SearchResult, most: int | None = None, whole: bool = False) -> Numbered:
    """The plans that are printed, the recommended one always among them."""
    every = list(enumerate(result.plans, start=1))
    if whole:
        return every
    chosen = [pair for pair in every if pair[0] in result.shown] if result.shown else every
    chosen = chosen[:most]
    left_out = [pair for pair in every if pair[0] == result.recommended and pair not in chosen]
    return chosen[: len(chosen) - len(left_out)] + left_out


def job_facts(job: JobSummary) -> tuple[tuple[str, str], ...]:
    """Model, cluster and framework, in words."""
    return (
        ("model", _model_text(job)),
        ("cluster", _cluster_text(job)),
        (
            "framework",
            f"{job.framework} {job.framework_version}, {job.precision}, {job.optimizer}",
        ),
    )


def _model_text(job: JobSummary) -> str:
    alias = f" ({job.model_alias} is {job.model})" if job.model_alias else ""
    active = (
        f", {short_count(job.active_parameters)} active per token"
        if job.active_parameters != job.parameters
        else ""
    )
    return f"{job.model}{alias}, {short_count(job.parameters)} parameters{active}"


def _cluster_text(job: JobSummary) -> str:
    if job.used_gpus == job.num_gpus:
        return f"{plural(job.num_gpus, 'GPU')}: {job.cluster}"
    return f"{job.used_gpus:,} of {plural(job.num_gpus, 'GPU')} used: {job.cluster}"


def _outcome_facts(result: SearchResult, plans: Numbered) -> tuple[tuple[str, str], ...]:
    conditions = result.request.conditions()
    asked = (
        (("conditions", "; ".join(condition.words for condition in conditions)),)
        if conditions
        else ()
    )
    return (
        *asked,
        ("batch", _batch_text([plan for _, plan in plans], result.job)),
        ("must fit", f"with a probability of {share(result.request.fit_probability, 0)} or more "
         "(--fit-probability)"),
        ("searched", searched_text(result.counts)),
        ("proof", proof_text(result.counts)),
        ("front", _front_text(result, plans)),
    )  # fmt: skip


def _batch_text(plans: Sequence[Plan], job: JobSummary) -> str:
    """The batch of all plans, or the range where they differ."""
    target = job.batch_target_sequences
    by_size = sorted(plans, key=lambda plan: plan.gbs)
    low, high = by_size[0], by_size[-1]
    if low.gbs == high.gbs:
        return batch_sentence(low, target)
    return (
        f"{low.gbs:,} to {high.gbs:,} sequences of {job.seq:,}, as each plan shows "
        f"(target {target:,.1f})"
    )


def searched_text(counts: Counts) -> str:
    """How many configurations were looked at, and how fast."""
    return (
        f"{counts.considered:,} configurations; {counts.legal:,} are legal and were costed, "
        f"{counts.fitting:,} of them fit with layers split evenly; {seconds(counts.seconds)}, "
        f"{rate(counts.shapes_per_s)} candidates/s costed"
    )


def proof_text(counts: Counts) -> str:
    """How it was decided that no better plan is left out."""
    left = counts.legal - counts.solved - counts.skipped
    parts = [
        f"{counts.skipped:,} configurations cannot beat the plans found: they need too much "
        "memory, or even a lower bound on their step time is too long",
        f"{counts.solved:,} had the best split of their layers looked for by the solver CP-SAT",
    ]
    if left > 0:
        parts.append(f"{left:,} were left undecided")
    return "; ".join(parts)


def _front_text(result: SearchResult, plans: Numbered) -> str:
    count = plural(len(result.plans), "plan")
    more = f", {len(plans)} printed (--all)" if len(plans) < len(result.plans) else ""
    missing = f" {_missing_text(result)}"
    open_plans = [plan for plan in result.plans if plan.status == "feasible"]
    if result.proven and not open_plans:
        optimal = f"optimal to {share(OPTIMAL_WITHIN)} within the cost model"
        return f"{count}{more}, proven {optimal}.{missing}"
    worst = max((plan.gap for plan in open_plans), default=result.gap)
    if worst is None:
        return f"{count}{more}; not proven"
    if open_plans:
        return f"{count}{more}; not proven: up to {share(worst)} faster plans may exist"
    return (
        f"{count}{more}, each proven optimal to {share(OPTIMAL_WITHIN)} within the cost model; "
        f"under other memory limits a plan may be missing that is faster by up to {share(worst)}"
    )


def _missing_text(result: SearchResult) -> str:
    """Whether the front holds plans that are not among these."""
    if result.complete:
        return f"No plan that differs by more than {_RESOLUTION} is missing."
    if result.stopped or _is_mixed(result.plans):
        return "Others may lie between them."
    return "Plans between these were not looked for: --all, --json, --csv and -o do."


_RESOLUTION = f"{share(TIME)} of the step time and {gib(MEMORY_BYTES)} GiB"


def front_table(plans: Numbered, result: SearchResult) -> TableData:
    """One row a plan, its numbers first; what is uneven stands on a line of its own."""
    job, ties = result.job, _ties(plans)
    marks = {number: "≈" if number in ties else "" for number, _ in plans}
    if result.recommended:
        marks[result.recommended] = "→" + marks.get(result.recommended, "")
    target = _common_target([plan for _, plan in plans], job)
    rows = tuple(_front_row(f"{marks[number]}{number}", plan, target) for number, plan in plans)
    return TableData(_columns([plan for _, plan in plans], job.usable_bytes), rows)


def riskier_table(plans: Sequence[Plan], usable_bytes: float, title: str) -> TableData:
    """Plans that may fit, less surely than was asked, on GPUs with so much memory."""
    rows = tuple(_front_row(percent_sure(plan.fit_probability), plan, None) for plan in plans)
    columns = (Column("fits"), *_columns(plans, usable_bytes)[1:])
    return TableData(columns, rows, f"{title}: less surely than was asked")


def _common_target(plans: Sequence[Plan], job: JobSummary) -> float | None:
    """None where all plans have one batch, else the one that was asked for."""
    return None if len({plan.gbs for plan in plans}) == 1 else job.batch_target_sequences


def _columns(plans: Sequence[Plan], usable_bytes: float) -> tuple[Column, ...]:
    limit = "of limit" if _is_mixed(plans) else f"of {gib(usable_bytes)}"
    return (
        Column("#"),
        Column("step time"),
        Column("tok/s\n/GPU"),
        Column("MFU\n%"),
        Column(f"peak GiB\n{limit}"),
        Column("degrees, mbs×grad_acc,\nrecompute", "left", wrap=True),
    )


def _front_row(number: str, plan: Plan, target_sequences: float | None) -> tuple[str, ...]:
    lines = [f"{degrees_text(plan.degrees)}, {batch_text(plan.degrees)}, {recompute_text(plan)}"]
    for named in (schedule_text(plan), exchange_text(plan)):
        lines[0] += f", {named}" if named else ""
    if layers := layers_text(plan) or blocks_text(plan):
        lines.append(f"layers {layers}")
    if plan.stage_gpus:
        lines.append(stage_gpus_text(plan))
    fraction = plan.activation_offload_fraction
    if offload := offload_text(plan.optimizer_offload, plan.activation_offload, fraction):
        lines.append(offload)
    if target_sequences is not None:
        difference = signed_share(batch_difference(plan, target_sequences))
        lines.append(f"batch {plan.gbs:,} ({difference})")
    return (
        number,
        step_time_text(plan),
        f"{plan.tokens_per_s_per_gpu:,.0f}",
        f"{plan.mfu * 100:.1f}",
        _peak_text(plan),
        "\n".join(lines),
    )


def _peak_text(plan: Plan) -> str:
    """`64.6`, marked if it may not fit; on GPUs of several types with its own limit."""
    limit = f"/{gib(plan.limit_bytes)}" if plan.stage_gpus else ""
    return gib(plan.peak_bytes) + limit + ("" if plan.fit_probability >= LIKELY_TO_FIT else "*")


def front_notes(result: SearchResult, numbered: Numbered) -> tuple[str, ...]:
    """What the columns mean, what the error bars rest on, and which plans are as good."""
    plans, job = [plan for _, plan in numbered], result.job
    notes = [*recommended_note(result), metric_note(job, plans), error_note(plans, numbered)]
    if any(plan.status == "feasible" for plan in plans):
        notes.append(_gap_note(numbered))
    if any(layers_text(plan) or blocks_text(plan) for plan in (*plans, *result.riskier)):
        notes.append(
            "layers: of each pipeline stage (or block) in order; 14×5 = 14 layers, 5 times."
            + _standalone_vocab_note(plans)
        )
    notes += [note for note in (_tie_note(numbered), _doubt_note(numbered)) if note]
    return (*notes, *_assumed_note(result), *job.notes, *result.notes)


def recommended_note(result: SearchResult) -> tuple[str, ...]:
    """Which plan to take, and why."""
    if not result.recommended:
        return ()
    plan, fastest = result.plans[result.recommended - 1], result.plans[0]
    as_fast = "the fastest" if plan is fastest else f"as fast as any, within {share(ALIKE, 0)}"
    return (
        f"→ Take plan {result.recommended}: {as_fast}, and of those the likeliest to fit "
        f"({percent_sure(plan.fit_probability)}).",
    )


def _assumed_note(result: SearchResult) -> tuple[str, ...]:
    """How much the fastest plan takes for granted, and where that is listed."""
    if not result.plans:
        return ()
    count = len(result.plans[0].assumptions) + len(result.job.assumed)
    return (
        f"Assumed for plan 1: {plural(count, 'thing')}, listed by planner explain and held by "
        "--json and plan files.",
    )


def _standalone_vocab_note(plans: Sequence[Plan]) -> str:
    """What a stage without layers holds."""
    blocks = [plan.layout.stage_layers(plan.degrees.pp) for plan in plans]
    found = []
    if any(block[0] == 0 for block in blocks):
        found.append("0 at the start: the embedding alone")
    together = [not plan.layout.mtp_standalone for plan in plans]
    if any(block[-1] == 0 and beside for block, beside in zip(blocks, together, strict=True)):
        found.append("0 at the end: head, loss and any multi-token prediction alone")
    if not all(together):
        found.append(
            "m|L: multi-token prediction in the last block but one, head and loss alone in the last"
        )
    return f" {'; '.join(found)}." if found else ""


def _gap_note(plans: Numbered) -> str:
    """Plans that are not proven, and by how much a plan of no more memory might be faster."""
    gaps = {number: plan.gap for number, plan in plans if plan.status == "feasible"}
    low, high = share(min(gaps.values())), share(max(gaps.values()))
    by = low if low == high else f"{low} to {high}"
    noun = "plan" if len(gaps) == 1 else "plans"
    return f"Not proven optimal: {noun} {number_ranges(list(gaps))}; by {by} at most."


def _is_mixed(plans: Sequence[Plan]) -> bool:
    """Whether stages live on GPUs of several types, each with its own memory."""
    return any(plan.stage_gpus for plan in plans)


def metric_note(job: JobSummary, plans: Sequence[Plan] = ()) -> str:
    """The peak that MFU refers to, and what peak memory is."""
    if _is_mixed(plans):
        sizes = {plan.stage_gpus[plan.heaviest_stage]: plan.limit_bytes for plan in plans}
        shares_text = ", ".join(f"{gib(size)} of a {name}" for name, size in sizes.items())
        return (
            f"MFU: model FLOP, full attention square, against the mean of the GPUs' dense bf16 "
            f"peaks, {tflop_per_s(job.peak_flop_per_s)}. peak GiB: stage that takes the largest "
            f"share of its GPU's memory; torch can use {shares_text}."
        )
    return (
        f"MFU: model FLOP, full attention square, against {tflop_per_s(job.peak_flop_per_s)} "
        f"dense bf16. peak GiB: heaviest pipeline stage; torch can use "
        f"{gib(job.usable_bytes)} GiB of a {job.gpu}"
        + (
            f", {gib(job.limit_bytes)} GiB after the reserve."
            if job.limit_bytes < job.usable_bytes
            else "."
        )
    )


def error_note(plans: Sequence[Plan], numbered: Numbered = ()) -> str:
    """Where the error bars come from; `numbered`: numbers by which the reader knows the plans."""
    families = dict.fromkeys(plan.step_time.family for plan in plans)
    both = any("/" in error_text(plan.step_time_s, plan.step_time) for plan in plans)
    shown = "below/above" if both else "its larger side"
    beyond = _beyond_text(numbered or [(0, plan) for plan in plans], bool(numbered))
    return f"±: 80 % interval ({shown}), from {'; '.join(families)}{beyond}."


def _beyond_text(plans: Numbered, numbered: bool) -> str:
    """What the error bars are wider for, with the plans that it holds for unless all."""
    holders: dict[str, list[int]] = defaultdict(list)
    for number, plan in plans:
        for text in plan.step_time.beyond:
            holders[text].append(number)
    if not holders:
        return ""
    texts = [
        text if len(numbers) == len(plans) else f"{text}: {_holders_text(numbers, numbered)}"
        for text, numbers in holders.items()
    ]
    return f"; wider for what was never measured: {'; '.join(texts)}"


def _holders_text(numbers: list[int], numbered: bool) -> str:
    if not numbered:
        return "some of these plans"
    return ("plan " if len(numbers) == 1 else "plans ") + number_ranges(numbers)


def _ties(plans: Numbered) -> list[int]:
    """Numbers of the plans that the error bar of the first cannot tell from it."""
    if not plans:
        return []
    _, first = plans[0]
    slowest_likely = first.tokens_per_s * first.step_time_s / first.step_time.high
    return [number for number, plan in plans[1:] if plan.tokens_per_s >= slowest_likely]


def _tie_note(plans: Numbered) -> str:
    """What the mark of a tie means."""
    ties = _ties(plans)
    if not ties:
        return ""
    noun = "plan" if len(ties) == 1 else "plans"
    first = plans[0][0]
    return (
        f"≈ Within plan {first}'s error bar: {noun} {number_ranges(ties)}. Prefer the lighter of "
        "equals."
    )


def _doubt_note(plans: Numbered) -> str:
    doubtful = [
        f"plan {number}: {percent_sure(plan.fit_probability)}"
        for number, plan in plans
        if plan.fit_probability < LIKELY_TO_FIT
    ]
    if not doubtful:
        return ""
    said = f"* may not fit on a real machine; probability of fitting: {', '.join(doubtful)}."
    return " ".join(filter(None, (said, full_memory_note(plans))))


def _next_steps(saved_as: str | None, result: SearchResult) -> tuple[str, ...]:
    number = result.recommended or 1
    if saved_as is None:
        return (
            "Next: add -o plans.json to this command to keep the plans, then",
            f"    planner explain plans.json {number}",
        )
    return (
        f"Plans written to {saved_as}. Next: where memory and time go, and what else was close:",
        f"    planner explain {saved_as} {number}",
    )
