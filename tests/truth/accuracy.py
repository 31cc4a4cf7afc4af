"""How exact the memory model is: its errors against reference counts.

    python -m tests.truth.accuracy [TRUTH_DIR]

prints a Markdown table. Errors against measured peaks are in `planner validate`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from planner.job.errors import UsageError
from planner.job.written import markdown_table
from tests.truth.predicted import (
    COMPARISONS,
    FLOP,
    TENSORS,
    Compared,
    Row,
    read_counts,
    reference_model,
)
from tests.truth.predicted_flop import compare_flop
from tests.truth.predicted_tensors import compare_tensors, saved_runs

COUNTS = Path(__file__).resolve().parent / "data"
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
_STATES = frozenset({"param", "grad", "shard_param", "shard_grad", "optimizer_state"})
_OF_A_LAYER = frozenset({"params.csv", "activations.csv", TENSORS})
# Errors smaller than this are printed as being so, and their rows are not named.
_SMALLEST_SHOWN = 1e-4
# Names of rows are cut here.
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of one subject: how many figures, median, 95th percentile, the worst
    (signed) and the name of its row, empty where all are equal."""

    figures: int = 0
    median: float = 0.0
    p95: float = 0.0
    worst: float = 0.0
    worst_row: str = ""


def summarise(errors: Iterable[tuple[float, str]]) -> Errors:
    """Median, 95th percentile (nearest rank) and worst of (signed error, name of the row)."""
    ordered = sorted(errors, key=lambda error: abs(error[0]))
    if not ordered:
        return Errors()
    sizes = [abs(size) for size, _ in ordered]
    worst, name = ordered[-1]
    p95 = sizes[math.ceil(0.95 * len(sizes)) - 1]
    return Errors(len(sizes), median(sizes), p95, worst, name if worst else "")


def counted_accuracy(folder: Path) -> tuple[dict[str, Errors], dict[str, Errors]]:
    """Errors on the counts in a folder, by subject, and of one layer and the ends by the family of
    the model (transformers' name of it)."""
    subjects: dict[str, list[tuple[float, str]]] = defaultdict(list)
    families: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, rows in read_counts(folder).items():
        for compared in _compared(name, rows):
            if compared.counted or compared.predicted:
                error = compared.error, f"{compared.quantity}, {compared.row}"
                subjects[_subject(name, compared.quantity)].append(error)
                if name in _OF_A_LAYER:
                    families[reference_model(compared.row.split()[0]).family].append(error)
    return (
        {subject: summarise(errors) for subject, errors in subjects.items()},
        {family: summarise(families[family]) for family in sorted(families)},
    )


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


def counted_tables(
    *counted: Mapping[str, Errors], titles: Sequence[str] = ("counted", "parameters and bytes of")
) -> str:
    """Errors against what was counted in real frameworks, as Markdown."""
    tables = []
    for title, table in zip(titles, counted, strict=True):
        rows = [(subject, *_cells(errors)) for subject, errors in table.items()]
        columns = (title, "figures", "median", "95 %", "worst", "where")
        tables.append(markdown_table(columns, rows, range(1, 5)) + "\n")
    return "\n".join(tables)


def _cells(errors: Errors) -> list[str]:
    if not errors.worst:
        return [f"{errors.figures:,}", "0", "0", "0", ""]
    sizes = [_percent(errors.median), _percent(errors.p95), _percent(errors.worst, signed=True)]
    name = errors.worst_row if abs(errors.worst) >= _SMALLEST_SHOWN else ""
    return [f"{errors.figures:,}", *sizes, _cut(name)]


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _percent(share: float, *, signed: bool = False) -> str:
    if abs(share) < _SMALLEST_SHOWN:
        return "<0.01 %" if share else "0"
    digits = 2 if abs(share) < 0.01 else 1
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.accuracy",
        description="Errors of the memory model against counted bytes.",
    )
    parser.add_argument("truth", type=Path, nargs="?", default=COUNTS, metavar="TRUTH_DIR")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(counted_tables(*counted_accuracy(options.truth)))
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
