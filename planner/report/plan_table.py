"""Tables of plans, and notes on their intervals and on running out of memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from constraints.axes import AXES
from planner.job.quantities import gib, number_ranges, percent_sure, seconds, share, signed_share
from planner.predict.plan import Plan
from planner.predict.plan_text import (
    batch_difference,
    batch_text,
    blocks_text,
    exchange_text,
    layers_text,
    offload_text,
    recompute_text,
    schedule_text,
    shared_techniques,
    stage_gpus_text,
    step_time_text,
    techniques_text,
)
from planner.report.tables import Column, TableData

# A column and the function that writes its text for a plan.
_Part = tuple[Column, Callable[[Plan], str]]


def plan_table(
    plans: Sequence[Plan],
    usable_bytes: float | None,
    *,
    first: Sequence[tuple[Column, Sequence[str]]] = (),
    target_sequences: float | None = None,
    title: str = "",
    told: Sequence[Plan] = (),
    noted: bool = False,
) -> TableData:
    """One row for each plan.

    `usable_bytes`: usable memory of a GPU, None if plans use different GPUs; `first`: leading
    columns; `target_sequences`: the batch that was asked for, if the plans' batches differ; `told`:
    plans whose usual techniques the report names elsewhere; `noted`: the report's notes name the
    plans that use other techniques.
    """
    also = partial(_also, said=shared_techniques(told), noted=noted)
    parts = list(_parts(plans, usable_bytes, target_sequences, also))
    rows = [[cell(plan) for _, cell in parts] for plan in plans]
    before = zip(*(cells for _, cells in first), strict=True) if first else ((),) * len(rows)
    return TableData(
        tuple(column for column, _ in (*first, *parts)),
        tuple((*cells, *row) for cells, row in zip(before, rows, strict=True)),
        title,
    )


def _parts(
    plans: Sequence[Plan],
    usable_bytes: float | None,
    target_sequences: float | None,
    also: Callable[[Plan], str],
) -> Iterator[_Part]:
    mixed = any(plan.stage_gpus for plan in plans)
    limit = "of limit" if mixed else "" if usable_bytes is None else f"of {gib(usable_bytes)}"
    yield (Column("step time"), step_time_text)
    yield (Column("tok/s\n/GPU", optional=3), lambda plan: f"{plan.tokens_per_s_per_gpu:,.0f}")
    yield (Column("MFU\n%", optional=1), lambda plan: f"{plan.mfu * 100:.1f}")
    peak = f"peak GiB\n{limit}" if limit else "peak\nGiB"
    yield (Column(peak), partial(_peak_text, limit=mixed))
    if usable_bytes is None and not mixed:
        yield (Column("of\nGiB", optional=2), lambda plan: gib(plan.limit_bytes))
    yield (Column("fits"), lambda plan: percent_sure(plan.fit_probability))
    for name, axis in AXES.items():
        # Leave out an axis if no plan uses more than its usual value.
        if any(axis.text(getattr(plan.degrees, name)) for plan in plans):
            yield Column("ZeRO" if name == "zero" else name), partial(_degree, name=name)
    yield (Column("mbs×\nacc"), lambda plan: batch_text(plan.degrees))
    if target_sequences is not None:
        difference = partial(batch_difference, target_sequences=target_sequences)
        yield (Column("batch", optional=2), lambda plan: f"{plan.gbs:,}")
        off = Column("of the\ntarget", optional=4)
        yield (off, lambda plan: signed_share(difference(plan)))
    yield (Column("recompute", "left", wrap=True), recompute_text)
    if any(map(also, plans)):
        yield (Column("also", "left", wrap=True), also)
    if any(map(_layers, plans)):
        yield (Column("layers", "left", optional=5), _layers)
    if any(plan.status == "feasible" for plan in plans):
        yield (Column("gap", optional=6), lambda plan: share(plan.gap) if plan.gap else "-")


# Rows that begin with a mark are merged if there are at least this many.
_FOLDED_FROM = 2
_LEADING = re.compile(r"[>≈→]*(\d[\d,.]*)")


def folded_rows(data: TableData, mark: str) -> TableData:
    """The table with all rows whose first cell begins with `mark` merged into one, at the place of
    the first. Each cell shows the common value, or the smallest and largest number. The table is
    unchanged if only a few rows have the mark."""
    marked = [row for row in data.rows if row[0].startswith(mark)]
    if len(marked) < _FOLDED_FROM:
        return data
    cells = [
        _shared_cell([row[place] for row in marked], column.align == "left")
        for place, column in enumerate(data.columns)
    ]
    one = (f"{mark}{len(marked)}", *cells[1:])
    kept = [row for row in data.rows if row not in marked or row is marked[0]]
    return replace(data, rows=tuple(one if row is marked[0] else row for row in kept))


def _shared_cell(cells: Sequence[str], are_words: bool) -> str:
    """One text for several cells: the common text, or the range of their numbers with the unit:
    `8`, `4-8`, `57.2-63.6 s`. `various` for words or texts without a number that differ."""
    if len(set(cells)) == 1:
        return cells[0]
    numbers = [match[1] for match in map(_LEADING.match, cells) if match]
    if are_words or len(numbers) < len(cells):
        return "various"
    low, *_, high = sorted(numbers, key=lambda text: float(text.replace(",", "")))
    unit = next((unit for unit in (" s", " %") if all(unit in cell for cell in cells)), "")
    return f"{low}-{high}{unit}" if low != high else f"{low}{unit}"


def stage_row(
    stages: Sequence[int], held: Any, shown: Sequence[float], total: float, phase: str
) -> tuple[str, ...]:
    """A table row for equal pipeline stages: their numbers, layers, micro-batches in flight, the
    sizes `shown`, the rest of `total`, `total` itself, and the `phase` of the peak. Sizes are given
    in bytes and written in GiB. `held`: a stage of a plan or its memory account."""
    sizes = map(gib, (*shown, total - sum(shown), total))
    return number_ranges(stages), str(held.layers), f"{held.in_flight:.3g}", *sizes, phase


def _degree(plan: Plan, name: str) -> str:
    return f"{getattr(plan.degrees, name):,}"


def _peak_text(plan: Plan, limit: bool) -> str:
    """The plan's peak memory in GiB: `64.6`; if `limit` is set, with the memory limit of the plan:
    `64.6/79.1`."""
    return gib(plan.peak_bytes) + (f"/{gib(plan.limit_bytes)}" if limit else "")


def _layers(plan: Plan) -> str:
    return layers_text(plan) or blocks_text(plan)


def techniques_row(plans: Sequence[Plan]) -> tuple[tuple[str, str], ...]:
    """A row `with` that names the techniques that most plans use, and says whether every plan uses
    them. Empty if there are none."""
    said = shared_techniques(plans)
    if all(set(said) <= set(plan.techniques) for plan in plans):
        whose = "every plan"
    elif any(techniques_text(plan, (*said, *plan.techniques)) for plan in plans):
        whose = "but where said otherwise"
    else:
        whose = "every plan that can"
    return (("with", f"{', '.join(said)}, {whose}"),) if said else ()


def _also(plan: Plan, said: Sequence[str], noted: bool) -> str:
    """Features that set a plan apart, one on each line: its schedule, its exchange of context,
    techniques that are not in `said`, GPU types, offloading. Unless `noted`: notes then name the
    techniques, so they are left out. Empty if there are none."""
    fraction = plan.activation_offload_fraction
    parts = (
        schedule_text(plan),
        exchange_text(plan),
        "" if noted else techniques_text(plan, said),
        stage_gpus_text(plan) if plan.stage_gpus else "",
        offload_text(plan.optimizer_offload, plan.activation_offload, fraction, plan.optimizer),
    )
    return "\n".join(filter(None, parts))


# Plans with their numbers.
Numbered = Sequence[tuple[int, Plan]]
_EXPOSED = re.compile(r"(\d+) % of the step")


def beyond_text(plans: Numbered, numbered: bool) -> str:
    """The reasons why intervals are wider than usual (nothing like these plans was measured), as a
    sentence that begins with a space; empty without such reasons. If a reason does not hold for all
    plans, they are named by number, or as `some plans` unless `numbered`."""
    holders: dict[str, set[int]] = defaultdict(set)
    shares: dict[str, set[int]] = defaultdict(set)
    for index, (_, plan) in enumerate(plans):
        for text in plan.step_time.beyond:
            # The exposed share differs by plan; the rest of the sentence is the same.
            reason = _EXPOSED.sub("{} % of the step", text, count=1)
            shares[reason].update(int(share) for share in _EXPOSED.findall(text)[:1])
            holders[reason].add(index)
    texts = []
    for reason, held in holders.items():
        text = _with_shares(reason, shares[reason])
        if len(held) < len(plans):
            numbers = [plans[index][0] for index in sorted(held)]
            text += f" ({numbered_plans(numbers) if numbered else 'some plans'})"
        texts.append(text)
    said = f" Wider because nothing like it was measured: {'; '.join(texts)}."
    return said if texts else ""


def _with_shares(reason: str, shares: set[int]) -> str:
    """The reason with its `{}` replaced by the share of the step in percent; if plans differ, by
    the smallest and the largest."""
    ends = dict.fromkeys((min(shares), max(shares))) if shares else ()
    return reason.replace("{}", " to ".join(map(str, ends)))


def numbered_plans(numbers: Sequence[int]) -> str:
    """`plan 3`, `plans 1-4`."""
    return ("plan " if len(numbers) == 1 else "plans ") + number_ranges(numbers)


CURE = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes that less likely; a lighter plan or "
    "--hbm-reserve avoids it."
)


def limit_text(limit_bytes: float, usable_bytes: float) -> str:
    """The memory that may be used, in GiB: `of 79.1`. If the limit is below the usable memory,
    both: `of 70.0 allowed, 79.1 usable`."""
    beyond = f" allowed, {gib(usable_bytes)} usable" if limit_bytes < usable_bytes else ""
    return f"of {gib(limit_bytes)}{beyond}"


def full_memory_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """A row on what happens if memory runs out; empty if the plan is sure to fit."""
    risk = plan.full_memory
    if risk is None:
        return ()
    slowly, full_s = "", risk.step_time_s
    if full_s is not None:
        times = f"{full_s / plan.step_time_s:.1f} times as long"
        slowly = f"; a step then takes {seconds(full_s)}, {times}"
    sentence = (
        f"{percent_sure(risk.probability)} chance that memory runs out: torch then "
        f"frees its cache and tries again, or stops with an out-of-memory error{slowly}. "
        f"Measured: {risk.note}. {CURE}"
    )
    return (("memory full", sentence),)


def full_memory_note(plans: Sequence[tuple[int, Plan]]) -> str:
    """A note on plans that may run out of memory: the step time with full memory, where it is
    known, and a remedy. Empty if no plan is at risk."""
    at_risk = [(n, plan.full_memory) for n, plan in plans if plan.full_memory is not None]
    slow = [(n, risk, risk.step_time_s) for n, risk in at_risk if risk.step_time_s is not None]
    if not slow:
        return CURE if at_risk else ""
    listed = ", ".join(f"plan {n}: {seconds(full_s)}" for n, _, full_s in slow)
    return f"A step with full memory: {listed}. Measured: {slow[0][1].note}. {CURE}"
