"""Plans as a table: numbers first, a column for each degree, what is uneven where it has place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from constraints.axes import AXES
from planner.job.quantities import gib, percent_sure, share, signed_share
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

# A column and how a plan fills it.
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
    """One row a plan. `usable_bytes`: of the GPU of all, None where each plan has one of its kind;
    `first`: columns before the others, as of numbers; `target_sequences`: the batch that was asked
    for, where the plans' batches differ; `told`: plans whose `techniques_row` the report has;
    `noted`: its notes say which plans do without them, and which have others."""
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
        # One that no plan has more than the usual of is left out.
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


def _degree(plan: Plan, name: str) -> str:
    return f"{getattr(plan.degrees, name):,}"


def _peak_text(plan: Plan, limit: bool) -> str:
    """`64.6`; `64.6/79.1` with the limit of its GPU."""
    return gib(plan.peak_bytes) + (f"/{gib(plan.limit_bytes)}" if limit else "")


def _layers(plan: Plan) -> str:
    return layers_text(plan) or blocks_text(plan)


def techniques_row(plans: Sequence[Plan]) -> tuple[tuple[str, str], ...]:
    """The fact that names the techniques of most plans, if there are any."""
    said = shared_techniques(plans)
    if all(set(said) <= set(plan.techniques) for plan in plans):
        whose = "every plan"
    elif any(techniques_text(plan, (*said, *plan.techniques)) for plan in plans):
        whose = "but where said otherwise"
    else:
        whose = "every plan that can"
    return (("with", f"{', '.join(said)}, {whose}"),) if said else ()


def _also(plan: Plan, said: Sequence[str], noted: bool) -> str:
    """What most plans have not: another schedule or exchange, techniques but those that are `said`,
    offloading, GPUs of several types. `noted`: no techniques."""
    fraction = plan.activation_offload_fraction
    parts = (
        schedule_text(plan),
        exchange_text(plan),
        "" if noted else techniques_text(plan, said),
        stage_gpus_text(plan) if plan.stage_gpus else "",
        offload_text(plan.optimizer_offload, plan.activation_offload, fraction),
    )
    return "\n".join(filter(None, parts))
