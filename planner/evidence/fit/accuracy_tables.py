"""Figures of how exact the memory model is: their file, and the README's tables of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from planner.evidence.fit.command import shipped_file
from planner.job.markdown import markdown_table

FILE = "memory_accuracy.toml"
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


@dataclass(frozen=True, slots=True)
class Counted:
    """Errors on what was counted of one subject."""

    subject: str
    errors: Errors


@dataclass(frozen=True, slots=True)
class Measured:
    """Errors on the measured peaks of one source, and the fit called wrongly, each way."""

    source: str
    errors: Errors
    ran: int
    called_too_large: int
    ran_out: int
    called_fitting: int

    @property
    def is_silent(self) -> bool:
        """Only runs that ran, all called so: nothing to tell apart."""
        return not (self.errors.figures or self.called_too_large or self.ran_out)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """All figures; `date` and `command` say when and how they were made."""

    date: str
    command: str
    counted: tuple[Counted, ...]
    measured: tuple[Measured, ...]


def load() -> Accuracy:
    """The figures that ship."""
    return from_toml(shipped_file(FILE).read_text(encoding="utf-8"))


def from_toml(text: str) -> Accuracy:
    """The figures of a file: errors are relative, the worst signed."""
    return TypeAdapter(Accuracy).validate_python(tomllib.loads(text))


def markdown(accuracy: Accuracy) -> str:
    """Two tables: against counts, and against measured runs."""
    tables = []
    if accuracy.counted:
        tables.append(counted_table(accuracy.counted))
    tables.append(measured_table(accuracy.measured))
    made = f"Figures of {accuracy.date}, by `{accuracy.command}`.\n"
    return "\n".join((*tables, made))


def counted_table(counted: Iterable[Counted]) -> str:
    """Errors against what was counted in real frameworks."""
    titles = ("counted", "figures", "median", "95 %", "worst", "where")
    rows = [(item.subject, *_cells(item.errors)) for item in counted]
    return markdown_table(titles, rows, range(1, 5)) + "\n"


def measured_table(measured: Iterable[Measured]) -> str:
    """Errors against measured peaks, and the fit; those with peaks first, those with nothing to
    tell pooled."""
    titles = (
        "measured", "ran: called too large", "ran out: called fitting", "peaks", "median", "95 %",
        "worst", "where",
    )  # fmt: skip
    sources = sorted(measured, key=lambda item: not item.errors.figures)
    silent = [source for source in sources if source.is_silent]
    rows = [_measured_row(source) for source in sources if not source.is_silent]
    if silent:
        ran = sum(item.ran for item in silent)
        rows.append((f"{len(silent)} other sources", f"0 of {ran:,}", "-", "-", *[""] * 4))
    return markdown_table(titles, rows, range(1, 7)) + "\n"


def _measured_row(measured: Measured) -> tuple[str, ...]:
    large = _of(measured.ran, measured.called_too_large)
    out = _of(measured.ran_out, measured.called_fitting)
    cells = _cells(measured.errors) if measured.errors.figures else ["-", "", "", "", ""]
    return (measured.source, large, out, *cells)


def _of(rows: int, wrong: int) -> str:
    return f"{wrong} of {rows:,}" if rows else "-"


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
