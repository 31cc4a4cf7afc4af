"""How exact the memory model is: errors by source, against counted bytes and measured peaks.

    python -m planner.evidence.fit.memory_accuracy [TRUTH_DIR] [MEASURED_DIR]

prints Markdown tables; with `--toml` the figures as planner/evidence/data/memory_accuracy.toml,
from which the README's tables are drawn. TRUTH_DIR holds counts of real frameworks in the format
of tests/truth/data, which it is in a clone, MEASURED_DIR measured runs in the format of
planner/evidence/runs/rows.py: without it those that ship.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from planner.evidence.fit.accuracy_tables import (
    Accuracy,
    Counted,
    Errors,
    Measured,
    markdown,
)
from planner.evidence.fit.truth import COMPARISONS, FLOP, TENSORS, Compared, Row, read_counts
from planner.evidence.fit.truth_flop import compare_flop
from planner.evidence.fit.truth_tensors import compare_tensors, saved_runs
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import fit_confusion, memory_error
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.job.errors import UsageError
from planner.job.written import toml_text

# Below this a peak is mostly what libraries allocate, not the model: reported apart.
SMALLEST_PEAK_GIB = 8.0
# Counts of a clone.
COUNTS = Path(__file__).resolve().parents[3] / "tests" / "truth" / "data"
# What is counted in each file; a step's peak and its phases are two subjects.
_SUBJECTS = {
    "params.csv": "parameters of a model",
    "activations.csv": "kept for backward: layer, outside",
    FLOP: "FLOP of a layer, of a step",
    TENSORS: "kept for backward: each tensor",
    "megatron_params.csv": "Megatron-Core: parameters of a rank",
    "megatron_activations.csv": "Megatron-Core: kept for backward",
    "step_memory.csv": "one device: peak of a step",
    "step_memory_fsdp.csv": "FSDP2: peak of a step",
    "ddp_memory.csv": "DDP: gradients and buckets",
}
_PHASES = frozenset({"forward_peak", "forward_end", "backward_peak", "optimizer_peak"})
ALL = f"all (peaks of {SMALLEST_PEAK_GIB:.0f} GiB and more)"
_STATES = frozenset({"param", "grad", "shard_param", "shard_grad", "optimizer_state"})


def summarise(errors: Iterable[tuple[float, str]]) -> Errors:
    """Median, 95th percentile (nearest rank) and worst of (signed error, name of the row)."""
    ordered = sorted(errors, key=lambda error: abs(error[0]))
    if not ordered:
        return Errors()
    sizes = [abs(size) for size, _ in ordered]
    worst, name = ordered[-1]
    p95 = sizes[math.ceil(0.95 * len(sizes)) - 1]
    return Errors(len(sizes), median(sizes), p95, worst, name if worst else "")


def counted_accuracy(folder: Path) -> tuple[Counted, ...]:
    """Errors by subject on the counts in a folder."""
    subjects: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, rows in read_counts(folder).items():
        for compared in _compared(name, rows):
            if compared.counted or compared.predicted:
                where = f"{compared.quantity}, {compared.row}"
                subjects[_subject(name, compared.quantity)].append((compared.error, where))
    return tuple(Counted(subject, summarise(found)) for subject, found in subjects.items())


def _compared(name: str, rows: Sequence[Row]) -> Iterator[Compared]:
    if name == TENSORS:
        for run, tensors in saved_runs(rows):
            yield from compare_tensors(run, tensors)
        return
    compare = compare_flop if name == FLOP else COMPARISONS[name]
    for row in rows:
        yield from compare(row)


def _subject(name: str, quantity: str) -> str:
    subject = _SUBJECTS[name]
    if quantity in _PHASES:
        return subject.replace("peak of a step", "phases of a step")
    if quantity in _STATES:
        return subject.replace("peak of a step", "what persists")
    return subject


def measured_accuracy(rows: Iterable[MeasuredRow]) -> tuple[Measured, ...]:
    """Errors by source on measured runs that state what they recompute and a peak or a fit, and
    over all of them; small peaks are a source of their own and not among all."""
    groups: dict[str, list[Prediction]] = defaultdict(list)
    pool: list[Prediction] = []
    for prediction in predict_rows([row for row in rows if _tells_memory(row)]):
        if prediction.error is None:
            groups[_source(prediction.row)].append(prediction)
            pool += [] if _is_small(prediction.row) else [prediction]
    return (_accuracy(ALL, pool), *(_accuracy(name, groups[name]) for name in sorted(groups)))


def _tells_memory(row: MeasuredRow) -> bool:
    return row.text("recompute") is not None and bool(row.text("peak_mem_gib") or row.text("oom"))


def _is_small(row: MeasuredRow) -> bool:
    peak = row.number("peak_mem_gib")
    return peak is not None and peak < SMALLEST_PEAK_GIB


def _source(row: MeasuredRow) -> str:
    return f"{row.source}, under {SMALLEST_PEAK_GIB:.0f} GiB" if _is_small(row) else row.source


def _accuracy(name: str, members: Sequence[Prediction]) -> Measured:
    found = [(memory_error(member), _run(member.row)) for member in members]
    errors = summarise((error, where) for error, where in found if error is not None)
    fit = fit_confusion(members)
    return Measured(
        source=name,
        errors=errors,
        ran=fit.ran,
        called_too_large=fit.ran_predicted_not_to_fit,
        ran_out=fit.out_of_memory,
        called_fitting=fit.out_of_memory_predicted_to_fit,
    )


def _run(row: MeasuredRow) -> str:
    """A run in words: model, GPUs, the degrees above 1, micro-batch."""
    stated = {name: row.integer(name) or 1 for name in ("tp", "pp", "cp", "ep", "dp")}
    degrees = [f"{name}{value}" for name, value in stated.items() if value > 1]
    gpus = f"{row.text('num_gpus')}x{row.text('gpu')}"
    batch = (f"s{row.text('seq')}", f"mbs{row.text('mbs')}")
    parts = (row.text("model"), gpus, *degrees, *batch, row.text("variant"))
    return " ".join(part for part in parts if part)


def accuracy(truth: Path, measured: Path) -> Accuracy:
    """All figures from the folders given; without counts in an installed package."""
    return Accuracy(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        command="python -m planner.evidence.fit.memory_accuracy",
        counted=counted_accuracy(truth) if truth != COUNTS or truth.is_dir() else (),
        measured=measured_accuracy(read_rows(measured)),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or with `--toml` the data file."""
    parser = argparse.ArgumentParser(
        prog="python -m planner.evidence.fit.memory_accuracy",
        description="Errors of the memory model against counted bytes and measured peaks.",
    )
    parser.add_argument("truth", type=Path, nargs="?", default=COUNTS, metavar="TRUTH_DIR")
    parser.add_argument("measured", type=Path, nargs="?", default=PUBLISHED, metavar="MEASURED_DIR")
    parser.add_argument("--toml", action="store_true", help="print the data file")
    options = parser.parse_args(arguments)
    try:
        figures = accuracy(options.truth, options.measured)
    except UsageError as error:
        parser.error(str(error))
    sys.stdout.write(toml_text(asdict(figures)) if options.toml else markdown(figures))


if __name__ == "__main__":
    main()
