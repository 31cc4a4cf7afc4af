"""Read measured runs: one CSV row per run.

`docs/measured_runs.md` describes the columns; an empty cell is unknown. `doubt` names the figures
that the row's source contradicts (`time: ...`, `time, memory: ...`, `layout: ...`); a withdrawn
time (`time withdrawn: ...`) is not compared at all.

`source, source_ref, model, notes` say where a row comes from; they group and label, and no
prediction depends on them. `first_sight_s`, `first_sight_gib` are the predictions from before
anything was learnt from the row, if they were kept; error bars are judged by them. Unknown columns
are kept. A row that names a plan file (`plan_file`, relative to the CSV) is predicted from its
first plan; the other columns of the configuration are then for tables only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hardware.files import csv_table, read_text, shipped_toml
from planner.job.errors import UsageError
from planner.job.written_folder import YOURS
from planner.predict.uncertainty.families import Figure

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
_ABOUT = re.compile(r"^~\s*(\d+(?:\.\d+)?)([kM]?)$")
_THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6}

# For each figure: its measured column, and the column of its prediction before anything was learnt
# from the row.
FIRST_SIGHT: dict[Figure, tuple[str, str]] = {
    "time": ("step_time_s", "first_sight_s"),
    "memory": ("peak_mem_gib", "first_sight_gib"),
}
MEASURED_COLUMNS = {measured: figure for figure, (measured, _) in FIRST_SIGHT.items()}
PLAN_COLUMN = "plan_file"
_FIGURES = ("time", "memory", "fit")

# The shipped runs, one file per source.
PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "runs"
# Shipped fine-tuning runs, which the fits of constants and of full training's error bars do not
# read.
TUNED_RUNS = PUBLISHED.with_name("tuned_runs")
REQUIRED_COLUMNS = ("layers", "hidden", "heads", "seq", "gpu", "num_gpus", "framework")


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One run as text, with typed access; empty cells are None. `line` is 0 for a log."""

    file: str
    line: int
    cells: dict[str, str]

    @property
    def place(self) -> str:
        """`runs.csv line 3`; for a log, which is a single run, its name."""
        return f"{self.file} line {self.line}" if self.line else self.file

    def text(self, column: str) -> str | None:
        """The cell as text; None if it is empty or absent."""
        return self.cells.get(column, "").strip() or None

    def fact(self, column: str) -> str:
        """A fact in lower case, from its own column or a word of `variant`; "" if unknown. If the
        column `software` is empty, the framework's name may state versions and dates."""
        if column == "software" and self.text(column) is None:
            name = (self.text("framework") or "").lower()
            return name if re.search(r"\d", name) else ""
        words = (self.text("variant") or "").lower().split()
        known = words_of("variant")
        said = (known[word][1] for word in words if known.get(word, [""])[0] == column)
        return (self.text(column) or " ".join(said)).lower()

    def says(self, column: str, pattern: str) -> bool:
        """Whether the pattern matches somewhere in a fact."""
        return re.search(pattern, self.fact(column)) is not None

    def number(self, column: str) -> float | None:
        """The cell as a number; None if empty. UsageError names file, line and column."""
        value = self.text(column)
        if value is None:
            return None
        match = _ABOUT.match(value)
        try:
            # `~250k`: an approximate figure.
            number = float(match[1]) * _THOUSANDS[match[2]] if match else float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and value.isascii()):
            raise UsageError(
                f"{self.file} line {self.line}, column {column}: {value!r} is not a number"
            )
        return number

    def integer(self, column: str) -> int | None:
        """The cell as a whole number; None if empty. UsageError as for `number`, or for a
        fraction."""
        value = self.number(column)
        if value is None:
            return None
        if value != (whole := round(value)):
            raise UsageError(
                f"{self.file} line {self.line}, column {column}: {value:g} is not a whole number"
            )
        return whole

    @property
    def doubted(self) -> frozenset[str]:
        """Figures (`time`, `memory`, `fit`) that the row's source contradicts."""
        named = re.findall(r"(?:^|;\s*)([a-z_, ]+):", self.text("doubt") or "")
        words = {word.strip() for names in named for word in names.split(",")}
        return frozenset(item for word in words for item in words_of("doubt").get(word, _FIGURES))

    @property
    def withdraws_time(self) -> bool:
        """Whether the step time must not be used."""
        return "time withdrawn:" in (self.text("doubt") or "")

    @property
    def at_its_word(self) -> MeasuredRow:
        """The row with only the figures that its source contradicts, no longer in doubt except for
        a withdrawn step time."""
        figures = {**MEASURED_COLUMNS, "oom": "fit"}
        trusted = {column: "" for column, figure in figures.items() if figure not in self.doubted}
        doubt = "time withdrawn:" if self.withdraws_time else ""
        return replace(self, cells=self.cells | trusted | {"doubt": doubt})

    @property
    def unnamed(self) -> MeasuredRow:
        """The row without its framework's name, as for an unknown framework."""
        return replace(self, cells=self.cells | {"framework": ""})

    @property
    def ran_out(self) -> bool | None:
        """Whether the run ran out of memory; None if the row does not say, or is in doubt."""
        text = self.text("oom")
        if text in ("-", "none") or "fit" in self.doubted:
            return None
        return yes_or_no(text.removesuffix(".0") if text else None)

    def measurement(self, column: str) -> float | None:
        """A measured figure; None if it is empty or in doubt. The memory of a run that ran out of
        it is not a peak, since the run never reached its peak."""
        figure = MEASURED_COLUMNS[column]
        if figure in self.doubted or (figure == "memory" and self.ran_out):
            return None
        return self.number(column)

    @property
    def source(self) -> str:
        """The publication that the row comes from; the file's name if it does not say."""
        return self.text("source") or Path(self.file).stem


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, in the order of each key's first item."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def spread_out(runs: Sequence[Item], most: int = 60) -> Sequence[Item]:
    """At most `most` runs of a source, evenly spread, since further ones add little."""
    if len(runs) <= most:
        return runs
    return [runs[round(index * len(runs) / most)] for index in range(most)]


def demand_measurements(row: MeasuredRow) -> None:
    """Raise UsageError with file, line and column if a measurement is not a positive number."""
    for column in MEASURED_COLUMNS:
        value = row.number(column)
        if value is not None and value <= 0.0:
            raise UsageError(
                f"{row.file} line {row.line}, column {column}: {value:g} is not above 0; "
                "leave the cell empty where nothing was measured"
            )


def read_rows(path: Path) -> Iterator[MeasuredRow]:
    """Parse the rows of one CSV file, or of all CSV files of a folder. UsageError."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no CSV file in this folder")
    for file in files:
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[MeasuredRow]:
    text = read_text(path)
    header, rows = csv_table(text, str(path), _delimiter(text))
    _demand_columns(path, header)
    line = 0
    for line, cells in rows:
        yield MeasuredRow(path.name, line, _cells(path, cells))
    if not line:
        raise UsageError(f"{path}: a header, but no run below it")


def _delimiter(text: str) -> str:
    """The separator of the header's columns: a comma, or a semicolon or tab as some spreadsheets
    write."""
    header = text.lstrip().partition("\n")[0]
    return "," if "," in header else max(";\t", key=header.count) if header else ","


def _cells(path: Path, cells: dict[str, str]) -> dict[str, str]:
    """The cells of named columns, with a plan file's path resolved relative to the CSV."""
    texts = {key: value for key, value in cells.items() if key}
    plan_file = texts.get(PLAN_COLUMN, "").strip()
    if plan_file:
        texts[PLAN_COLUMN] = str(_plan_beside(path, plan_file))
    return texts


def _plan_beside(path: Path, plan_file: str) -> Path:
    """The plan file that a row names. Rows in a file kept as FILE.yours (when its launch was
    written again) belong to the plan kept with it."""
    kept = re.search(rf"{re.escape(YOURS)}\d*$", path.name)
    beside = path.parent / f"{plan_file}{kept[0] if kept else ''}"
    return beside if beside.is_file() else path.parent / plan_file


def _demand_columns(path: Path, header: Sequence[str] | None) -> None:
    """Raise UsageError if a file is empty or its header lacks a column."""
    if not header:
        raise UsageError(f"{path}: the file is empty; its first line names the columns")
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"{path} line 1: the header lacks {', '.join(missing)}; "
            "see the column list in `planner validate --help`"
        )


_YES = frozenset({"y", "yes", "true", "on", "1", "enabled"})
_NO = frozenset({"n", "no", "false", "off", "0", "disabled", "-", "none"})

_STAGE = re.compile(r"^(?:zero|stage)?[- _=]*([0-3])$")


@cache
def words_of(table: str) -> Any:
    """A table of `words.toml`."""
    return shipped_toml("planner.evidence.runs", "words.toml")[table]


def named(table: str, text: str) -> str | None:
    """The meaning of a text according to the patterns of a table in `words.toml`; None without a
    match."""
    patterns = words_of(table)
    return next((meaning for pattern, meaning in patterns if re.search(pattern, text)), None)


def yes_or_no(text: str | None) -> bool | None:
    """True or False for `y`, `True`, `on`, `1` and their opposites; None for anything else."""
    word = (text or "").strip().lower()
    if word in _YES:
        return True
    return False if word in _NO else None


def zero_stage_named(text: str) -> int | None:
    """The ZeRO stage of a sharding cell: `3`, `ZeRO-3`, `FULL_SHARD` and `HSDP` are stage 3."""
    lower = text.strip().lower()
    if number := _STAGE.match(lower):
        return int(number[1])
    if lower.startswith("none") or yes_or_no(lower) is False:
        return 0
    stage = named("zero", lower)
    return None if stage is None else int(stage)


def recompute_named(text: str) -> str:
    """A recompute cell in this project's words: `full` or `none` if it is a yes or no, or names
    checkpointing of whole blocks in another way; other texts stay."""
    lower = text.strip().lower()
    said = yes_or_no(lower)
    if said is not None:
        return "full" if said else "none"
    whole = (
        r"^(uniform|block|((gradient|activation)[- _])?checkpoint(ing)?|ac|unsloth|offload(ed)?)\b"
    )
    return "full" if re.search(whole, lower) else lower
