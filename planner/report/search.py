"""Report of `planner search`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from planner.job.amounts import parse_resolution
from planner.job.quantities import gib, plural, share, tflop_per_s
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.plan_text import (
    LIKELY_TO_FIT,
    batch_rows,
    batch_sentence,
    blocks_text,
    does_without,
    error_text,
    layers_text,
    shared_techniques,
)
from planner.report.differences import is_mixture, tie_note, ties
from planner.report.passes import passes_blocks
from planner.report.plan_table import (
    Numbered,
    beyond_text,
    folded_rows,
    full_memory_note,
    numbered_plans,
    plan_table,
    techniques_row,
)
from planner.report.said import described, fact_rows, notes, said
from planner.report.study_words import search_note
from planner.report.tables import Block, Column, Facts, Notes, TableData, as_report
from planner.report.verdict import LEAST_LUCK, Verdict, verdict_blocks
from planner.search.limit_results import SLOWEST
from planner.search.result import JobSummary, SearchResult
from planner.search.unused import LEAST_GAIN, UnusedTechnique

KEEP = "Next: add -o plans.json to this command to keep the plans, then"


@as_report
def search_report(
    result: SearchResult,
    saved_as: str | None = None,
    most: int | None = None,
    whole: bool = False,
    verbose: bool = False,
) -> Iterator[Block]:
    """The report. `saved_as`: the plan file, if one was written; `most`: number of plans to
    print; `whole`: print the complete front; `verbose`: also rules and assumptions."""
    plans = printed(result, most, whole)
    yield from verdict_blocks(result, saved_as)
    yield front_table(plans, result, folded=not whole)
    if result.riskier:
        told, usable_bytes = [plan for _, plan in plans], result.job.usable_bytes
        yield riskier_table(result.riskier, usable_bytes, "Faster, if it fits", told)
    if result.recommended:
        yield from passes_blocks(result.plans[result.recommended - 1].passes, result.recommended)
    yield Facts((*job_facts(result.job), *_outcome_facts(result, plans)), "What was searched")
    yield Notes(front_notes(result, plans))
    if verbose:
        yield from _details(result)
    yield Notes(_next_steps(saved_as, result.recommended or 1))


def _details(result: SearchResult) -> Iterator[Block]:
    """How plans were proven optimal, how many shapes each rule excluded, and the assumptions of the
    recommended plan."""
    found = result.counts
    left = max(0, found.legal - found.solved - found.skipped)
    yield Facts(tuple(fact_rows("search.proof", found, left=left)), "How it was proven")
    counts = sorted(result.rule_counts.items(), key=lambda item: -item[1])
    if left_out := tuple((name, f"{count:,}") for name, count in counts if count):
        yield Facts(left_out, "Left out, by rule")
    if result.recommended:
        plan = result.plans[result.recommended - 1]
        assumed = tuple(f"- {text}" for text in (*plan.assumptions, *result.job.assumed))
        yield Notes(assumed, f"Assumed for plan {result.recommended}")


def printed(result: SearchResult, most: int | None = None, whole: bool = False) -> Numbered:
    """The plans to print, with their numbers: the shown ones, at most `most` of them, or all if
    `whole`. The recommended plan is always among them; if need be, it replaces the last one."""
    every = list(enumerate(result.plans, start=1))
    if whole:
        return every
    chosen = [pair for pair in every if pair[0] in result.shown] if result.shown else every
    chosen = chosen[:most]
    left_out = [pair for pair in every if pair[0] == result.recommended and pair not in chosen]
    return chosen[: len(chosen) - len(left_out)] + left_out


def job_facts(job: JobSummary) -> tuple[tuple[str, str], ...]:
    """Model, cluster and framework of the job, in words."""
    gpus = plural(job.num_gpus, "GPU")
    return fact_rows(
        "search.job", job, alias=job.model_alias and f"{job.model_alias} is {job.model}",
        active=job.active_parameters if job.active_parameters != job.parameters else 0,
        used=gpus if job.used_gpus == job.num_gpus else f"{job.used_gpus:,} of {gpus} used",
    )  # fmt: skip


def _outcome_facts(result: SearchResult, plans: Numbered) -> Iterator[tuple[str, str]]:
    listed = [plan for _, plan in plans]
    if conditions := result.request.conditions():
        yield "conditions", "; ".join(condition.words for condition in conditions)
    yield from techniques_row(listed)
    yield "batch", _batch_text(listed, result.job)
    yield from batch_rows(result.plans[max(0, result.recommended - 1)])
    yield from fact_rows("search.before", result.request)
    yield from fact_rows("search.counts", result.counts)
    yield "front", _front_text(result, plans)


def _batch_text(plans: Sequence[Plan], job: JobSummary) -> str:
    """The batch as text: one batch if all plans have the same, otherwise the smallest and the
    largest, with the target."""
    target = job.batch_target_sequences
    by_size = sorted(plans, key=lambda plan: plan.gbs)
    low, high = by_size[0], by_size[-1]
    if low.gbs == high.gbs:
        return batch_sentence(low, target)
    packed = low.samples is not None and low.samples.packing in ("pack", "pack-varlen")
    noun = "packs" if packed else "sequences" if low.samples is None else "samples"
    return (
        f"{low.gbs:,} to {high.gbs:,} {noun} of {job.seq:,}, as each plan shows "
        f"(target {target:,.1f})"
    )


def _front_text(result: SearchResult, plans: Numbered) -> str:
    count = plural(len(result.plans), "plan")
    if len(result.plans) > 1:
        count += ", none both faster and lighter than another"
    more = f"; {len(plans)} printed (--all)" if len(plans) < len(result.plans) else ""
    missing = f" {_missing_text(result)}"
    open_plans = [plan for plan in result.plans if plan.status == "feasible"]
    if result.proven and not open_plans:
        optimal = f"optimal to {share(OPTIMAL_WITHIN)} within the cost model"
        return f"{count}{more}. Proven {optimal}.{missing}"
    worst = max((plan.gap for plan in open_plans), default=result.gap)
    if worst is None:
        return f"{count}{more}; not proven"
    if open_plans:
        faster = f"up to {share(worst)} faster plans"
        fastest = max(result.plans, key=lambda plan: plan.tokens_per_s)
        if fastest.status == "optimal":
            proven = "the fastest is proven optimal, but not every lighter plan"
            return f"{count}{more}; {proven}: {faster} with as little memory may exist"
        if fastest.gap is not None and fastest.gap < worst:
            near = f"the fastest is at most {share(fastest.gap)} from the best"
            return f"{count}{more}; not proven: {near}; among lighter plans, {faster} may exist"
        return f"{count}{more}; not proven: {faster} may exist"
    return (
        f"{count}{more}. Each proven optimal to {share(OPTIMAL_WITHIN)} within the cost model; "
        f"under other memory limits a plan may be missing that is faster by up to {share(worst)}"
    )


def _missing_text(result: SearchResult) -> str:
    """A sentence on plans that the front may lack. If the search is complete: how much a missing
    plan could differ at most. Otherwise: that plans in between may be missing, and the options that
    look for them."""
    if result.complete:
        resolution = parse_resolution(result.request.resolution)
        return said(described("search.complete"), resolution, slowest=SLOWEST) or ""
    if result.stopped:
        return "Others may lie between them."
    which = "between these" if len(result.plans) > 1 else "near this one"
    return f"Plans {which} were not looked for: --all, --json, --csv and -o do."


def front_table(plans: Numbered, result: SearchResult, *, folded: bool = False) -> TableData:
    """One row for each plan, numbered as in the plan file. `folded`: plans that may be as
    fast as the recommended one share a row."""
    near = ties(plans, is_mixture(result.job))
    marks = {number: "≈" if number in near else "" for number, _ in plans}
    if result.recommended:
        marks[result.recommended] = "→" + marks.get(result.recommended, "")
    listed = [plan for _, plan in plans]
    same_batch = len({plan.gbs for plan in listed}) == 1
    data = plan_table(
        listed,
        result.job.usable_bytes,
        first=[(Column("#"), [f"{marks[number]}{number}" for number, _ in plans])],
        target_sequences=None if same_batch else result.job.batch_target_sequences,
        told=listed,
        noted=True,
    )
    return folded_rows(data, "≈") if folded else data


def riskier_table(
    plans: Sequence[Plan], usable_bytes: float, title: str, told: Sequence[Plan] = ()
) -> TableData:
    """Plans that may fit, but with a lower probability than was asked for. `told`: see
    `plan_table`."""
    return plan_table(
        plans, usable_bytes, title=f"{title}: less likely to fit than required", told=told
    )


def front_notes(result: SearchResult, numbered: Numbered) -> tuple[str, ...]:
    """The meaning of the columns, the origin of the error bars, and plans that may be as good."""
    plans, job = [plan for _, plan in numbered], result.job
    lines = [metric_note(job, plans), error_note(plans, numbered)]
    if any(plan.status == "feasible" for plan in plans):
        lines.append(_gap_note(numbered))
    if any(layers_text(plan) or blocks_text(plan) for plan in (*plans, *result.riskier)):
        listed = "Stages differ in layers: --wide and planner explain list them."
        lines.append(listed + _standalone_vocab_note(plans))
    near = tie_note(numbered[0][0], ties(numbered, is_mixture(job))) if numbered else ""
    lines += [note for note in (near, _luck_note(result), _doubt_note(numbered)) if note]
    lines += _technique_notes(numbered)
    largest = max((plan.gbs_tokens for plan in plans), default=0)
    lines += search_note(job, largest) if largest else ()
    lines += map(unused_note, result.unused)
    return (*lines, *_assumed_note(result), *job.notes, *result.notes)


def _technique_notes(plans: Numbered) -> Iterator[str]:
    """A sentence for each technique in which plans differ from the majority: the plans without a
    technique that most plans use, and the plans with one that most do not use."""
    usual = shared_techniques([plan for _, plan in plans])
    for name in dict.fromkeys((*usual, *(name for _, plan in plans for name in plan.techniques))):
        without = [n for n, plan in plans if name in usual and does_without(plan, name)]
        having = [n for n, plan in plans if name not in usual and name in plan.techniques]
        for word, numbers in (("Without", without), ("With", having)):
            if numbers:
                yield f"{word} {name}: {numbered_plans(numbers)}."


def unused_note(unused: UnusedTechnique) -> str:
    """A sentence on a technique that is off by default: the time and memory that it would save, and
    how to turn it on."""
    gains = []
    if unused.faster_by >= LEAST_GAIN:
        gains.append(f"{share(unused.faster_by)} faster")
    if unused.saved_bytes > 0:
        gains.append(f"{gib(unused.saved_bytes)} GiB less at the peak")
    numerics = unused.effect == "numerics"
    text = described("search.unused")
    return said(text, unused, gains=", ".join(gains), numerics=numerics) or ""


def _assumed_note(result: SearchResult) -> tuple[str, ...]:
    """A sentence with the number of assumptions behind the recommended plan, or behind plan 1 if
    none is recommended. Empty if there is no plan."""
    if not result.plans:
        return ()
    number = result.recommended or 1
    count = len(result.plans[number - 1].assumptions) + len(result.job.assumed)
    return (f"Plan {number} counts on {plural(count, 'assumption')}: planner explain lists them.",)


def _standalone_vocab_note(plans: Sequence[Plan]) -> str:
    """The contents of pipeline stages without layers, as words that begin with a space (such as
    only the embedding at the start). Empty if there are no such stages."""
    blocks = [plan.layout.stage_layers for plan in plans]
    apart = [plan.layout.mtp_standalone for plan in plans]
    found = notes(
        "search.standalone", None, start=any(block[0] == 0 for block in blocks), apart=any(apart),
        end=any(block[-1] == 0 and not alone for block, alone in zip(blocks, apart, strict=True)),
    )  # fmt: skip
    words = "; ".join(found)
    return f" {words}." if words else ""


def _gap_note(plans: Numbered) -> str:
    """A sentence with the numbers of the plans that are not proven optimal, and how much faster
    another plan may be at most."""
    gaps = {number: plan.gap for number, plan in plans if plan.status == "feasible"}
    low, high = share(min(gaps.values())), share(max(gaps.values()))
    by = low if low == high else f"{low} to {high}"
    plans_text = numbered_plans(list(gaps))
    return f"Not proven optimal: {plans_text}; another may be up to {by} faster."


def metric_note(job: JobSummary, plans: Sequence[Plan] = ()) -> str:
    """A sentence on the columns: the peak FLOP/s to which MFU refers, and the meaning of peak
    memory and its limit."""
    if any(plan.stage_gpus for plan in plans):  # types of GPU, each with its own memory
        sizes = {plan.stage_gpus[plan.heaviest_stage]: plan.limit_bytes for plan in plans}
        shares_text = ", ".join(f"{gib(size)} of a {name}" for name, size in sizes.items())
        peak, text = tflop_per_s(job.peak_flop_per_s), described("search.metric-of-pool")
        return said(text, job, peak=peak, shares=shares_text) or ""
    limit = job.limit_bytes if job.limit_bytes < job.usable_bytes else 0
    text = described("search.metric")
    return said(text, job, peak=tflop_per_s(job.peak_flop_per_s), limit=limit) or ""


def error_note(plans: Sequence[Plan], numbered: Numbered = ()) -> str:
    """How the intervals were obtained. `numbered`: plans with their numbers."""
    families = dict.fromkeys(plan.step_time.family for plan in plans)
    both = any("/" in error_text(plan.step_time_s, plan.step_time) for plan in plans)
    shown = "-below/+above" if both else "its larger side"
    beyond = beyond_text(numbered or [(0, plan) for plan in plans], bool(numbered))
    return f"±: 80 % interval ({shown}), from {'; '.join(families)}.{beyond}"


def _luck_note(result: SearchResult) -> str:
    """A sentence on how much slower than predicted the chosen plan is expected to be. A plan that
    was chosen for its predicted time is likely to have been predicted too fast. Empty if the effect
    is small or if the card already names it as the risk."""
    luck = result.luck
    if luck is None or luck.longer < LEAST_LUCK or Verdict(result).fears_luck:
        return ""
    return said(described("search.luck"), luck) or ""


def _doubt_note(plans: Numbered) -> str:
    doubtful = [number for number, plan in plans if plan.fit_probability < LIKELY_TO_FIT]
    if not doubtful:
        return ""
    which = numbered_plans(doubtful).capitalize()
    said = f"{which} may not fit on a real machine: see the column fits."
    return " ".join(filter(None, (said, full_memory_note(plans))))


def _next_steps(saved_as: str | None, number: int) -> tuple[str, ...]:
    """Commands to run next. Without a plan file, the first one is how to write one; otherwise they
    use the file `saved_as` and plan `number`."""
    if saved_as is None:
        return KEEP, "    planner explain plans.json"
    return tuple(
        notes("search.next", None, saved_as=saved_as, quoted=shlex.quote(saved_as), number=number)
    )
