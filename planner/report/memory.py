"""What `planner memory` shows: the waterfall of the peak, the timeline, the other stages; what
`--solve` and `--advise` found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from planner.cost.terms import LIVE_TERMS
from planner.job.quantities import (
    gib,
    number_ranges,
    percent_sure,
    plural,
    run_lengths,
    share,
    short_count,
)
from planner.predict.assumptions import framework_assumptions
from planner.predict.memory.account import StageAccount
from planner.predict.memory.by_layer import backward_by_layer
from planner.predict.memory.footprint import Footprint
from planner.predict.memory.solve import Border, Solution
from planner.predict.memory.tensors import KeptTensor
from planner.predict.memory.terms import PhaseRow, label, peak_parts, peak_row, phase_rows
from planner.predict.ops import parameter_count
from planner.predict.plan_text import (
    degrees_text,
    error_text,
    fit_text,
    fraction_text,
)
from planner.predict.techniques import used_techniques
from planner.report.full_memory import limit_text
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table

_BAR = 26
# Forward phases of a warm-up that are shown; the rest lies evenly between.
_MOST_WARM_UP = 5
# Layers of a stage that are shown; the rest lies evenly between.
_MOST_LAYERS = 9
# Tensors that are listed one by one.
_MOST_TENSORS = 20
# Columns of the table of stages: heading, and the terms that it counts.
_STAGE_COLUMNS = {
    heading: [name for name, term in LIVE_TERMS.items() if term.heading == heading]
    for heading in ("weights", "optim.", "grads", "activ.")
}


@as_report
def memory_report(
    footprint: Footprint,
    stages: Sequence[StageAccount],
    *,
    tensors: Sequence[KeptTensor] = (),
    worst: Footprint | None = None,
    notes: Sequence[str] = (),
    more: Sequence[Block] = (),
    first: Sequence[tuple[str, str]] = (),
    instead: str = "",
    by_layer: bool = False,
) -> Iterator[Block]:
    """The report of a configuration, with waterfall and timeline of the given stages.

    `tensors`: those kept at the first stage's peak, if they are to be listed; `worst`: the
    footprint under the worst load of a dropless router; `notes`: what was taken for granted;
    `more`: blocks of a solution or of advice; `first`: facts that lead to these; `instead`: what
    fits in its place; `by_layer`: backward is shown layer by layer too.
    """
    fitting = (("instead", instead),) if instead else ()
    yield Facts((*_facts(footprint, worst), *first, *fitting))
    for account in stages:
        yield waterfall(footprint, account)
        yield timeline(footprint, account)
        if by_layer and account.layers:
            yield layer_table(footprint, account)
    if tensors:
        yield tensor_table(tensors, stages[0])
    if len(footprint.stages) > 1:
        yield stage_table(footprint)
    yield from more
    yield Notes(_notes(footprint))
    configuration = footprint.configuration
    assumed = (*notes, *framework_assumptions(configuration.job, configuration.degrees))
    if assumed:
        yield Notes(tuple(f"- {text}" for text in assumed), "Assumed")


# --- the configuration ---------------------------------------------------------------------------


def _facts(footprint: Footprint, worst: Footprint | None) -> Iterator[tuple[str, str]]:
    configuration = footprint.configuration
    job, degrees, gpu = configuration.job, configuration.degrees, configuration.job.cluster.gpu
    dtype = {
        "bf16": f"{job.precision}, 16-bit weights",
        "amp": f"{job.precision} autocast over fp32 weights",
        "fp32": "fp32 throughout",
    }[job.dtype]
    steps = plural(degrees.grad_acc, "micro-batch").replace("batchs", "batches")
    yield "model", f"{job.model.name}, {short_count(parameter_count(job.model).total)} parameters"
    yield (
        "GPUs",
        f"{degrees.gpus:,} {gpu.name}, {gib(gpu.hbm_bytes)} GiB of HBM, of which torch can use "
        f"{gib(gpu.hbm_usable_bytes)}",
    )
    yield (
        "framework",
        f"{job.framework.name} {job.framework.version}, {dtype}, {job.optimizer.name}, "
        f"{job.attention} attention",
    )
    yield "degrees", degrees_text(degrees)
    yield "batch", f"{degrees.mbs:,} × {job.seq:,} tokens a micro-batch, {steps} a step"
    yield "recompute", _recompute_text(footprint)
    if techniques := used_techniques(job, degrees):
        yield "techniques", ", ".join(techniques)
    if job.activation_offload:
        yield "on the host", fraction_text(job.activation_offload, job.offload_fraction)
    if configuration.layout.mtp_standalone:
        yield "MTP", f"on stage {degrees.pp - 2}; head and loss alone on the last"
    yield "memory", total_sentence(footprint)
    if worst is not None:
        yield (
            "imbalance",
            "dropless worst case, all tokens of an ep group on one rank "
            f"({worst.configuration.job.expert_imbalance:g} times the mean): "
            f"{gib(worst.total_bytes, 2)} GiB, {'fits' if worst.fits else 'does not fit'} "
            f"(probability {percent_sure(worst.fit_probability)})",
        )


def _recompute_text(footprint: Footprint) -> str:
    configuration = footprint.configuration
    layout = configuration.layout
    if not configuration.job.recompute[0].mask or layout.stage_layers in layout.recomputed.values():
        return configuration.recompute
    return "; ".join(
        f"{mode}, {run_lengths(counts)} layers by stage"
        for mode, counts in layout.recomputed.items()
    )


def total_sentence(footprint: Footprint) -> str:
    """The total against what is there, with its error and the probability that it fits."""
    total, limit = footprint.total_bytes, footprint.limit_bytes
    of = limit_text(limit, footprint.usable_bytes)
    verdict = fit_text(total, limit, footprint.fit_probability)
    return f"{gib(total, 2)} GiB {error_text(total, footprint.interval)} {of}: {verdict}"


# --- the peak ------------------------------------------------------------------------------------


def waterfall(footprint: Footprint, account: StageAccount) -> TableData:
    """What holds the peak, one term on top of the other, up to the usable HBM."""
    top = _scale(footprint, account)
    rows: list[tuple[str, ...]] = []
    reached = 0.0
    for where, group in groupby(peak_parts(footprint, account), key=lambda part: part.where):
        for part in group:
            before, reached = reached, reached + part.size_bytes
            bar = step_bar(before, reached, top)
            rows.append((part.label, gib(part.size_bytes, 2), gib(reached, 2), bar))
        reached = account.allocated_bytes if where == "tensors" else account.total_bytes
        if where == "tensors":
            rows.append(_sum_row("= live tensors (torch: allocated)", reached, top))
    rows.append(_sum_row("= total (nvidia-smi)", account.total_bytes, top))
    allowed = "allowed" if footprint.limit_bytes < footprint.usable_bytes else "usable HBM"
    limit_bar = "─" * (_BAR - 1) + "→"
    if footprint.limit_bytes <= top:
        limit_bar = "─" * (round(footprint.limit_bytes / top * _BAR) - 1) + "┤"
    rows.append((allowed, gib(footprint.limit_bytes, 2), "", limit_bar))
    title = f"{_stage_name(footprint, account)}at its peak: {peak_text(account)}"
    return table("~term | GiB | sum | <", rows, title)


def _sum_row(text: str, size: float, top: float) -> tuple[str, ...]:
    return text, gib(size, 2), "", step_bar(0.0, size, top)


def step_bar(start: float, end: float, top: float) -> str:
    """A bar from `start` to `end` on a scale up to `top`; at least a sliver."""
    left, right = round(start / top * _BAR), round(end / top * _BAR)
    if right <= left:
        return " " * min(left, _BAR - 1) + "▏"
    return " " * left + "█" * (right - left)


def _scale(footprint: Footprint, account: StageAccount) -> float:
    """Bytes at the right end of the bars: the limit too, unless it dwarfs what is there."""
    total, limit = account.total_bytes, footprint.limit_bytes
    return total if total < limit / 2 else max(total, limit)


def _stage_name(footprint: Footprint, account: StageAccount, short: bool = False) -> str:
    count = len(footprint.stages)
    heaviest = ", the heaviest," if account is footprint.heaviest and not short else ""
    return f"Stage {account.stage} of {count}{heaviest} " if count > 1 else "The GPU "


def peak_text(account: StageAccount) -> str:
    """Where the peak falls: `backward at the loss, from step 2 on`."""
    row = peak_row(account)
    since = "already in step 1" if row.step == "first" else "from step 2 on"
    at = f" at the {row.phase.at}" if row.phase.at else ""
    if row.phase.at.startswith("layer["):
        kind = row.phase.at.removeprefix("layer[").removesuffix("]").replace(",", ", ")
        at = f" of a layer ({kind})"
    return f"{phase_text(row.phase.name)}{at}, {since}"


def phase_text(name: str) -> str:
    """A phase's name for people."""
    return name.replace(" (accumulating)", ", gradients held")


# --- the step ------------------------------------------------------------------------------------


def timeline(footprint: Footprint, account: StageAccount) -> TableData:
    """Phase by phase: live tensors, what lies outside them, and the largest term."""
    outside = account.total_bytes - account.allocated_bytes
    top = _scale(footprint, account)
    rows: list[tuple[str, ...]] = []
    for step, group in groupby(phase_rows(account), key=lambda row: row.step):
        rows.append(("step 1" if step == "first" else "step 2 and later", "", "", ""))
        rows += [_phase_row(row, outside, top) for row in _thinned(list(group))]
    stage = _stage_name(footprint, account, short=True)
    title = f"{stage}over time: live tensors in GiB (█), beside them (░)"
    return table(f"<phase | GiB | <0 to {gib(top)} GiB | ~mostly", rows, title)


def layer_table(footprint: Footprint, account: StageAccount) -> TableData:
    """Live tensors during backward, from the stage's last layer to its first."""
    layers, top = backward_by_layer(account), _scale(footprint, account)
    last = len(layers) - 1
    shown = {round(last * step / (_MOST_LAYERS - 1)) for step in range(_MOST_LAYERS)}
    rows = [
        (
            f"{one.layer}",
            f"{one.done}",
            gib(one.total_bytes, 2),
            step_bar(0.0, one.total_bytes, top),
        )
        for one in layers
        if one.done in shown
    ]
    stage = _stage_name(footprint, account, short=True)
    title = f"{stage}during backward, by layer: live tensors"
    return table(f"layer of\nthe stage | layers\ndone | GiB | <0 to {gib(top)} GiB", rows, title)


def _phase_row(row: PhaseRow, outside: float, top: float) -> tuple[str, ...]:
    total = row.phase.total_bytes
    largest = max(row.phase.terms, key=lambda name: row.phase.terms[name])
    filled = round(total / top * _BAR)
    beside = round((total + outside) / top * _BAR) - filled
    bar = "█" * filled + "░" * beside
    mark = "◄ peak, " if row.is_peak else ""
    return f"  {phase_text(row.phase.name)}", gib(total, 2), bar, mark + label(largest)


def _thinned(rows: Sequence[PhaseRow]) -> list[PhaseRow]:
    """The phases without most of a long warm-up; its first and last forward stay."""
    forward = [row for row in rows if "/" in row.phase.name]
    if len(forward) <= _MOST_WARM_UP:
        return list(rows)
    last = len(forward) - 1
    kept = {round(step * last / (_MOST_WARM_UP - 1)) for step in range(_MOST_WARM_UP)}
    dropped = {id(row) for index, row in enumerate(forward) if index not in kept}
    return [row for row in rows if id(row) not in dropped or row.is_peak]


# --- stages and tensors --------------------------------------------------------------------------


def stage_table(footprint: Footprint) -> TableData:
    """One line a pipeline stage; equal neighbours share it."""
    terms = " | ".join(_STAGE_COLUMNS)

    def likeness(account: StageAccount) -> tuple[object, ...]:
        peak = account.peak
        return account.layers, account.in_flight, peak.name, tuple(peak.terms.items())

    rows = (_stage_row(list(group)) for _, group in groupby(footprint.stages, key=likeness))
    titles = f"<stage | layers | in\nflight | {terms} | rest | total | ~peak at"
    return table(titles, rows, "Every stage at its peak, GiB")


def _stage_row(group: Sequence[StageAccount]) -> tuple[str, ...]:
    account = group[0]
    terms = account.peak.terms
    shown = [sum(terms.get(name, 0.0) for name in names) for names in _STAGE_COLUMNS.values()]
    return (
        number_ranges([each.stage for each in group]),
        str(account.layers),
        f"{account.in_flight:.3g}",
        *(gib(size) for size in shown),
        gib(account.total_bytes - sum(shown)),
        gib(account.total_bytes),
        phase_text(account.peak.name),
    )


def tensor_table(tensors: Sequence[KeptTensor], account: StageAccount) -> TableData:
    """The largest tensors kept for backward at a stage's peak."""
    total = sum(tensor.size_bytes for tensor in tensors)
    rows = [
        (
            tensor.name,
            f"{tensor.copies:,.4g}",
            f"{tensor.size_bytes / tensor.copies / 2**20:,.1f}",
            gib(tensor.size_bytes, 2),
            share(tensor.size_bytes / total),
            f"{tensor.rounding_bytes:,.0f}",
        )
        for tensor in tensors[:_MOST_TENSORS]
    ]
    if rest := tensors[_MOST_TENSORS:]:
        size = sum(tensor.size_bytes for tensor in rest)
        added = sum(tensor.rounding_bytes for tensor in rest)
        ends = gib(size, 2), share(size / total), f"{added:,.0f}"
        rows.append((f"{len(rest)} smaller ones", "", "", *ends))
    added = sum(tensor.rounding_bytes for tensor in tensors)
    rows.append(("all kept", "", "", gib(total, 2), share(1.0), f"{added:,.0f}"))
    title = f"Tensors kept for backward at the peak of stage {account.stage}"
    return table("~tensor | copies | MiB each | GiB | share | rounding\nto 512 B, B", rows, title)


def _notes(footprint: Footprint) -> tuple[str, ...]:
    outside = footprint.configuration.job.framework.outside
    return (
        f"±: 80 % interval of the total, {gib(footprint.interval.low)} to "
        f"{gib(footprint.interval.high)} GiB, from {footprint.interval.basis}.",
        *((f"Beside the tensors: {outside.evidence}",) if outside.evidence else ()),
    )


_NAMES = {"mbs": "micro-batch", "seq": "sequence", "layers": "number of layers"}


def solution_blocks(solution: Solution) -> tuple[Block, ...]:
    """The largest value that fits, for both probabilities."""
    unknown, even = solution.unknown, solution.even
    rows = (_border_row(border, solution) for border in (solution.safe, even))
    title = f"Largest {_NAMES[unknown]} that fits (--solve {unknown})"
    # A search looks at one point at least.
    tried = next(point for point in (even.largest, even.beyond) if point is not None)
    limit = gib(tried.footprint.limit_bytes, 2)
    beyond = solution.safe.beyond is not None
    checked = " The next value was evaluated too and does not fit." if beyond else ""
    steps = f" in steps of {solution.step:,}" if solution.step > 1 else ""
    note = f"Of {limit} GiB that may be used. Tried{steps}, keeping {solution.held}.{checked}"
    return table(f"<fits with | {unknown} | total GiB | ± | <", rows, title), Notes((note,))


def _border_row(border: Border, solution: Solution) -> tuple[str, ...]:
    sure = f"≥ {share(border.probability, 0)}"
    ends = "" if border.beyond is not None else f"the {_NAMES[solution.unknown]} ends here"
    if border.largest is None:
        return (sure, "none", "", "", ends)
    footprint = border.largest.footprint
    error = error_text(footprint.total_bytes, footprint.interval).removeprefix("±")
    return (sure, f"{border.largest.value:,}", gib(footprint.total_bytes, 2), error, ends)
