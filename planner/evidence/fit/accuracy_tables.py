"""Figures of how exact the memory model is: their file, and the README's tables of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

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


def to_toml(accuracy: Accuracy) -> str:
    """The data file."""
    lines = [
        "# Errors of the memory model by subject and source: relative, `worst` signed.",
        f"date = {json.dumps(accuracy.date)}",
        f"command = {json.dumps(accuracy.command)}",
    ]
    for counted in accuracy.counted:
        lines += ["", "[[counted]]", f"subject = {json.dumps(counted.subject)}"]
        lines += _errors_lines(counted.errors)
    for measured in accuracy.measured:
        lines += ["", "[[measured]]", f"source = {json.dumps(measured.source)}"]
        lines += [f"{name} = {getattr(measured, name)}" for name in _FIT]
        lines += _errors_lines(measured.errors)
    return "\n".join(lines) + "\n"


_FIT = ("ran", "called_too_large", "ran_out", "called_fitting")


def _errors_lines(errors: Errors) -> list[str]:
    if not errors.figures:
        return []
    values = {field.name: getattr(errors, field.name) for field in fields(Errors)}
    return [f"{name} = {_toml_value(value)}" for name, value in values.items()]


def _toml_value(value: object) -> str:
    if isinstance(value, float):
        return repr(float(f"{value:.4g}"))
    return json.dumps(value, ensure_ascii=False)


def from_toml(text: str) -> Accuracy:
    """The figures of a data file."""
    table = tomllib.loads(text)
    return Accuracy(
        date=table["date"],
        command=table["command"],
        counted=tuple(Counted(item["subject"], _errors(item)) for item in table.get("counted", ())),
        measured=_measured(table.get("measured", ())),
    )


def _errors(table: dict[str, Any]) -> Errors:
    return Errors(**{key.name: table[key.name] for key in fields(Errors) if key.name in table})


def _measured(tables: Iterable[dict[str, Any]]) -> tuple[Measured, ...]:
    return tuple(
        Measured(table["source"], _errors(table), *(table[name] for name in _FIT))
        for table in tables
    )


def load() -> Accuracy:
    """The figures that ship."""
    folder = files("planner.evidence").joinpath("data")
    return from_toml(folder.joinpath(FILE).read_text(encoding="utf-8"))


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
    lines = ["| counted | figures | median | 95 % | worst | where |", "|---|--:|--:|--:|--:|---|"]
    lines += [f"| {item.subject} | {' | '.join(_cells(item.errors))} |" for item in counted]
    return "\n".join(lines) + "\n"


def measured_table(measured: Iterable[Measured]) -> str:
    """Errors against measured peaks, and the fit; those with peaks first, those with nothing to
    tell pooled."""
    sources = sorted(measured, key=lambda item: not item.errors.figures)
    silent = [source for source in sources if source.is_silent]
    lines = [
        "| measured | ran: called too large | ran out: called fitting | peaks | median | 95 % "
        "| worst | where |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    lines += [_measured_line(source) for source in sources if not source.is_silent]
    if silent:
        ran = sum(item.ran for item in silent)
        lines.append(f"| {len(silent)} other sources | 0 of {ran:,} | - | - |  |  |  |  |")
    return "\n".join(lines) + "\n"


def _measured_line(measured: Measured) -> str:
    fit = [
        _of(measured.ran, measured.called_too_large),
        _of(measured.ran_out, measured.called_fitting),
    ]
    cells = _cells(measured.errors) if measured.errors.figures else ["-", "", "", "", ""]
    return "| " + " | ".join((measured.source, *fit, *cells)) + " |"


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
