"""Report of `planner memory`: the peak as a waterfall, memory over time, stages, `--solve` and
`--advise`; and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from planner.cost.terms import LIVE_TERMS
from planner.job.quantities import gib, plural, run_lengths
from planner.job.request import Request
from planner.job.written import picked
from planner.predict.assumptions import framework_assumptions
from planner.predict.memory.account import Footprint, StageAccount, backward_by_layer
from planner.predict.memory.advice import Advice, advice_record
from planner.predict.memory.solve import Border, Solution, SolvedPoint
from planner.predict.memory.terms import (
    KeptTensor,
    PhaseRow,
    label,
    peak_parts,
    peak_row,
    peak_tensors,
    phase_rows,
)
from planner.predict.ops.table import parameter_count
from planner.predict.ops.trained import held_parameters
from planner.predict.passes import configured_passes
from planner.predict.plan_text import error_text, fit_text, fraction_text
from planner.predict.techniques import used_techniques
from planner.report.passes import passes_blocks
from planner.report.plan_table import limit_text, stage_row
from planner.report.said import described, facts, rows_of, said, table_of
from planner.report.said import notes as told
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table

_BAR = 26
# Most forward phases of a warm-up that are shown: the first, the last, and others evenly between.
_MOST_WARM_UP = 5
# Most layers of a stage that are shown: the first, the last, and others evenly between.
_MOST_LAYERS = 9
# Most tensors that are listed one by one.
_MOST_TENSORS = 20
# Columns of the table of stages: the terms that each heading adds up.
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

    `tensors`: tensors to list one by one; `worst`: the footprint under the worst load of a dropless
    router; `notes`: defaults that were assumed; `more`: blocks of a solution or of advice; `first`:
    facts that summarize these blocks; `instead`: a plan that fits; `by_layer`: also show backward
    layer by layer.
    """
    fitting = (("instead", instead),) if instead else ()
    yield Facts((*_facts(footprint, worst).rows, *first, *fitting))
    for account in stages:
        yield waterfall(footprint, account)
        yield timeline(footprint, account)
        if by_layer and account.layers:
            yield layer_table(footprint, account)
    yield from passes_blocks(configured_passes(footprint.configuration))
    if tensors:
        yield tensor_table(tensors, stages[0])
    if len(footprint.stages) > 1:
        yield stage_table(footprint)
    yield from more
    configuration = footprint.configuration
    evidence = configuration.job.framework.outside.evidence
    yield Notes(tuple(told("memory.notes", footprint, evidence=evidence)))
    assumed = (*notes, *framework_assumptions(configuration.job, configuration.degrees))
    if assumed:
        yield Notes(tuple(f"- {text}" for text in assumed), "Assumed")


# --- the configuration ---------------------------------------------------------------------------


def _facts(footprint: Footprint, worst: Footprint | None) -> Facts:
    configuration = footprint.configuration
    job, degrees = configuration.job, configuration.degrees
    return facts(
        "memory.facts", configuration, worst=worst, gpu=job.cluster.gpu,
        parameters=parameter_count(job.model).total, tuned=not job.tuning.trains_all,
        trained=held_parameters(job).trained,
        dtype=said(described(f"memory.dtypes.{job.dtype}"), job),
        techniques=used_techniques(job, degrees),
        steps=plural(degrees.grad_acc, "micro-batch").replace("batchs", "batches"),
        recompute_words=_recompute_text(footprint), total=total_sentence(footprint),
        host_words=fraction_text(job.activation_offload, job.offload_fraction),
        mtp_stage=degrees.pp - 2, most=degrees.mbs * job.row(degrees.mbs).most,
    )  # fmt: skip


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
    """Total memory with its interval, the limit, and the probability of fitting."""
    total, limit = footprint.total_bytes, footprint.limit_bytes
    of = limit_text(limit, footprint.usable_bytes)
    verdict = fit_text(total, limit, footprint.fit_probability)
    return f"{gib(total, 2)} GiB {error_text(total, footprint.interval)} {of}: {verdict}"


# --- the peak ------------------------------------------------------------------------------------


def waterfall(footprint: Footprint, account: StageAccount) -> TableData:
    """The terms of the peak, stacked up to the usable HBM."""
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
    """A bar of text from `start` to `end`, on a scale from 0 to `top`. Amounts that are too small
    for a full cell get a thin mark."""
    left, right = round(start / top * _BAR), round(end / top * _BAR)
    if right <= left:
        return " " * min(left, _BAR - 1) + "▏"
    return " " * left + "█" * (right - left)


def _scale(footprint: Footprint, account: StageAccount) -> float:
    """The bytes at the right end of the bars: the total or the memory limit, the larger of the two.
    If the total is below half the limit, the total."""
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
    """The name of a phase, as users read it."""
    return name.replace(" (accumulating)", ", gradients held")


# --- the step ------------------------------------------------------------------------------------


def timeline(footprint: Footprint, account: StageAccount) -> TableData:
    """One row for each phase: live tensors, other memory, and the largest term."""
    outside = account.total_bytes - account.allocated_bytes
    top = _scale(footprint, account)
    stage = _stage_name(footprint, account, short=True)

    def bar(row: PhaseRow) -> str:
        filled = round(row.phase.total_bytes / top * _BAR)
        beside = round((row.phase.total_bytes + outside) / top * _BAR) - filled
        return "█" * filled + "░" * beside

    rows: list[tuple[str, ...]] = []
    for step, group in groupby(phase_rows(account), key=lambda row: row.step):
        rows.append(("step 1" if step == "first" else "step 2 and later", "", "", ""))
        rows += rows_of(
            "memory.timeline", _thinned(list(group)), bar=bar, stage=stage, top=top,
            phase_words=lambda row: phase_text(row.phase.name),
            largest=lambda row: label(max(row.phase.terms, key=row.phase.terms.__getitem__)),
        )  # fmt: skip
    return table_of("memory.timeline", (), rows, stage=stage, top=top)


def layer_table(footprint: Footprint, account: StageAccount) -> TableData:
    """Live tensors during backward, from the stage's last layer to its first."""
    layers, top = backward_by_layer(account), _scale(footprint, account)
    last = len(layers) - 1
    shown = {round(last * step / (_MOST_LAYERS - 1)) for step in range(_MOST_LAYERS)}
    return table_of(
        "memory.by-layer", (one for one in layers if one.done in shown), top=top,
        stage=_stage_name(footprint, account, short=True),
        bar=lambda one: step_bar(0.0, one.total_bytes, top),
    )  # fmt: skip


def _thinned(rows: Sequence[PhaseRow]) -> list[PhaseRow]:
    """The phases to show. If there are many forward passes in the warm-up, a few of them, evenly
    spread, including the first, the last and the peak."""
    forward = [row for row in rows if "/" in row.phase.name]
    if len(forward) <= _MOST_WARM_UP:
        return list(rows)
    last = len(forward) - 1
    kept = {round(step * last / (_MOST_WARM_UP - 1)) for step in range(_MOST_WARM_UP)}
    dropped = {id(row) for index, row in enumerate(forward) if index not in kept}
    return [row for row in rows if id(row) not in dropped or row.is_peak]


# --- stages and tensors --------------------------------------------------------------------------


def stage_table(footprint: Footprint) -> TableData:
    """One row for each pipeline stage; equal neighbours share a row."""
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
    stages, phase = [each.stage for each in group], phase_text(account.peak.name)
    return stage_row(stages, account, shown, account.total_bytes, phase)


def tensor_table(tensors: Sequence[KeptTensor], account: StageAccount) -> TableData:
    """The largest tensors kept for backward at a stage's peak."""
    total = sum(tensor.size_bytes for tensor in tensors)

    def together(name: str, some: Sequence[KeptTensor]) -> dict[str, Any]:
        size = sum(tensor.size_bytes for tensor in some)
        added = sum(tensor.rounding_bytes for tensor in some)
        part, none = size / total, dict.fromkeys(("copies", "each"))
        return {"name": name, "size_bytes": size, "rounding_bytes": added, "part": part, **none}

    rows: list[dict[str, Any]] = [
        {**asdict(tensor), "each": tensor.size_bytes / tensor.copies / 2**20,
         "rounding_bytes": tensor.rounding_bytes,
         "part": tensor.size_bytes / total}
        for tensor in tensors[:_MOST_TENSORS]
    ]  # fmt: skip
    if rest := tensors[_MOST_TENSORS:]:
        rows.append(together(f"{len(rest)} smaller ones", rest))
    rows.append(together("all kept", tensors))
    return table_of("memory.tensors", rows, stage=account.stage)


_NAMES = {"mbs": "micro-batch", "seq": "sequence", "layers": "number of layers"}


def solution_blocks(solution: Solution) -> tuple[Block, ...]:
    """A table with the largest value of the unknown that fits, once with the safe probability of
    fitting and once with an even chance (50 %); and a note."""
    unknown, even = solution.unknown, solution.even
    # A search examines at least one point.
    tried = next(point for point in (even.largest, even.beyond) if point is not None)

    def error(border: Border) -> str:
        if border.largest is None:
            return ""
        found = border.largest.footprint
        return error_text(found.total_bytes, found.interval).removeprefix("±")

    borders = table_of(
        "memory.solutions", (solution.safe, even), noun=_NAMES[unknown], unknown=unknown,
        error=error, ends=lambda one: "" if one.beyond else f"the {_NAMES[unknown]} ends here",
    )  # fmt: skip
    note = said(
        described("memory.solved"), solution, limit=tried.footprint.limit_bytes,
        steps=solution.step if solution.step > 1 else 0, beyond=solution.safe.beyond is not None,
    )  # fmt: skip
    return borders, Notes((note or "",))


DOCUMENT_VERSION = 1


def memory_json(
    request: Request,
    footprint: Footprint,
    worst: Footprint | None,
    solution: Solution | None,
    advice: Advice | None,
) -> str:
    """The report and more as JSON, in bytes and seconds."""
    configuration = footprint.configuration
    job = configuration.job
    document = {
        "version": DOCUMENT_VERSION,
        "request": request.model_dump(mode="json"),
        **picked(
            configuration,
            "model=job.model.name framework=job.framework.name"
            " framework_version=job.framework.version dtype=job.dtype gpu=job.cluster.gpu.name"
            " seq=job.seq degrees recompute",
        ),
        "layout": picked(configuration.layout, "block_layers recomputed mtp_standalone"),
        **_verdict_record(footprint),
        "heaviest_stage": footprint.heaviest.stage,
        "dropless_worst_case": worst
        and picked(worst.configuration.job, "expert_imbalance") | _verdict_record(worst),
        "stages": [_stage_record(footprint, account) for account in footprint.stages],
        "passes": [one.model_dump() for one in configured_passes(footprint.configuration)],
        "solution": solution
        and {
            **picked(solution, "unknown step held"),
            "safe": _border_record(solution.safe),
            "even": _border_record(solution.even),
        },
        "advice": advice and advice_record(advice),
        "assumptions": list(framework_assumptions(job, footprint.configuration.degrees)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _verdict_record(footprint: Footprint) -> dict[str, Any]:
    return picked(footprint, "total_bytes interval limit_bytes usable_bytes fits fit_probability")


def _stage_record(footprint: Footprint, account: StageAccount) -> dict[str, Any]:
    return {
        **picked(account, "stage layers in_flight allocated_bytes reserved_bytes total_bytes"),
        "peak": picked(peak_row(account), "step phase=phase.name at=phase.at"),
        "peak_parts": [
            picked(part, "name bytes=size_bytes where") for part in peak_parts(footprint, account)
        ],
        "peak_kept_tensors": [
            picked(tensor, "name copies bytes=size_bytes rounding_bytes")
            for tensor in peak_tensors(footprint, account)
        ],
        "outside": dict(account.outside),
        "backward_by_layer": [
            picked(layer, "layer done bytes=total_bytes") for layer in backward_by_layer(account)
        ],
        "phases": [
            picked(
                row,
                "step phase=phase.name at=phase.at in_flight=phase.in_flight"
                " bytes=phase.total_bytes terms=phase.terms",
            )
            for row in phase_rows(account)
        ],
    }


def _border_record(border: Border) -> dict[str, Any]:
    return {
        "probability": border.probability,
        "largest": border.largest and _point_record(border.largest),
        "beyond": border.beyond and _point_record(border.beyond),
    }


def _point_record(point: SolvedPoint) -> dict[str, Any]:
    return {"value": point.value, **_verdict_record(point.footprint)}
