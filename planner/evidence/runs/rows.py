"""Reading measured runs: one CSV row a run, in the documented column format.

Columns: `layers, hidden, ffn, heads, kv_heads, vocab, act, moe, seq, gpu, num_gpus, gpus_per_node,
tp, pp, vpp, cp, ep, dp, zero, seq_parallel, mbs, gbs, precision, recompute, flash, framework`
describe the run; `step_time_s, peak_mem_gib, oom` were measured (`mem_kind`, `mem_scope` say what
was read, on which stage); `schedule, kernel, software, layers_per_stage, head_stage` and the
facts of `docs/measured_runs.md` state what the rest cannot; what is empty is unknown. `doubt` says
which figures the row's source contradicts (`time: ...`, `time, memory: ...`, `layout: ...`); a time
that is withdrawn (`time withdrawn: ...`) is not compared at all.

`source, source_ref, model, notes` say where a row is from. No prediction depends on them: they
group and label. `first_sight_s`, `first_sight_gib` are what was predicted before the row had taught
anything, as far as that was kept: error bars are judged by it. Unknown columns are kept. A row that
names a plan file (`plan_file`, relative to the CSV) is predicted from the first plan in it; what
the other columns say of the configuration is then for tables only.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hardware.files import read_text
from planner.job.errors import UsageError

_ABOUT = re.compile(r"^~\s*(\d+(?:\.\d+)?)([kM]?)$")
_THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6}

# Measured columns, and the figure that each is.
MEASURED_COLUMNS = {"step_time_s": "time", "peak_mem_gib": "memory"}
# Of each figure the measured column, and the one of what was predicted before the row was known.
FIRST_SIGHT = {
    "time": ("step_time_s", "first_sight_s"),
    "memory": ("peak_mem_gib", "first_sight_gib"),
}
PLAN_COLUMN = "plan_file"
# Words of the column `variant`, for tables without these columns: column, and what it then says.
_VARIANTS = {
    "compile": ("compile", "y"), "eager": ("compile", "n"), "async_tp": ("overlap", "async_tp"),
    "moe_a2a_overlap": ("overlap", "ep"), "cuda_graph": ("cuda_graphs", "y"),
    "deepep": ("ep_dispatch", "deepep"), "hybridep": ("ep_dispatch", "hybridep"),
}  # fmt: skip
# What a doubt names, and the figures that it touches; one about the configuration touches all.
_DOUBTED = {
    "time": ("time",), "time withdrawn": ("time",), "memory": ("memory",), "oom": ("fit",),
    "mfu": (),
}  # fmt: skip
_FIGURES = ("time", "memory", "fit")

# The runs that ship, a file a source.
PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "runs"
REQUIRED_COLUMNS = ("layers", "hidden", "heads", "seq", "gpu", "num_gpus", "framework")


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One run as text, with typed access; empty cells are None."""

    file: str
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str | None:
        """Cell as text, None when empty or absent."""
        return self.cells.get(column, "").strip() or None

    def fact(self, column: str) -> str:
        """A fact in lower case, from its own column or a word of `variant`; "" where unknown."""
        words = (self.text("variant") or "").lower().split()
        said = (_VARIANTS[word][1] for word in words if _VARIANTS.get(word, "")[:1] == (column,))
        return (self.text(column) or " ".join(said)).lower()

    def says(self, column: str, pattern: str) -> bool:
        """Whether a fact has words that match."""
        return re.search(pattern, self.fact(column)) is not None

    def number(self, column: str) -> float | None:
        """Cell as a number, None when empty; UsageError names file, line and column otherwise."""
        value = self.text(column)
        if value is None:
            return None
        match = _ABOUT.match(value)
        try:
            # `~250k`: an approximate figure.
            number = float(match[1]) * _THOUSANDS[match[2]] if match else float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(
                f"{self.file} line {self.line}, column {column}: {value!r} is not a number"
            )
        return number

    def integer(self, column: str) -> int | None:
        """Cell as a whole number, None when empty."""
        value = self.number(column)
        return None if value is None else round(value)

    @property
    def doubted(self) -> frozenset[str]:
        """Figures (`time`, `memory`, `fit`) that the row's source contradicts."""
        named = re.findall(r"(?:^|;\s*)([a-z_, ]+):", self.text("doubt") or "")
        words = {word.strip() for names in named for word in names.split(",")}
        return frozenset(item for word in words for item in _DOUBTED.get(word, _FIGURES))

    @property
    def withdraws_time(self) -> bool:
        """Whether the step time must not be used."""
        return "time withdrawn:" in (self.text("doubt") or "")

    @property
    def at_its_word(self) -> MeasuredRow:
        """The row with its doubted figures alone, but for a step time that is withdrawn."""
        figures = {**MEASURED_COLUMNS, "oom": "fit"}
        trusted = {column: "" for column, figure in figures.items() if figure not in self.doubted}
        doubt = "time withdrawn:" if self.withdraws_time else ""
        return replace(self, cells=self.cells | trusted | {"doubt": doubt})

    @property
    def unnamed(self) -> MeasuredRow:
        """The row without its framework's name, as of one that nobody knows."""
        return replace(self, cells=self.cells | {"framework": ""})

    @property
    def ran_out(self) -> bool | None:
        """Whether the run ran out of memory; None where the row does not say, or not surely."""
        text = self.text("oom")
        if text in ("-", "none") or "fit" in self.doubted:
            return None
        return yes_or_no(text.removesuffix(".0") if text else None)

    def measurement(self, column: str) -> float | None:
        """A measured figure, None when empty or in doubt; what a run held that ran out of memory
        is no peak: it never got there."""
        figure = MEASURED_COLUMNS[column]
        if figure in self.doubted or (figure == "memory" and self.ran_out):
            return None
        return self.number(column)

    @property
    def source(self) -> str:
        """Which publication the row is from; the file's name when it does not say."""
        return self.text("source") or Path(self.file).stem


def demand_measurements(row: MeasuredRow) -> None:
    """UsageError names file, line and column of a measurement that is no positive number."""
    for column in MEASURED_COLUMNS:
        value = row.number(column)
        if value is not None and value <= 0.0:
            raise UsageError(
                f"{row.file} line {row.line}, column {column}: {value:g} is not above 0; "
                "leave the cell empty where nothing was measured"
            )


def read_rows(path: Path) -> Iterator[MeasuredRow]:
    """Rows of one CSV file, or of all CSV files of a folder. Raises UsageError."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no CSV file in this folder")
    for file in files:
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[MeasuredRow]:
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    try:
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        _demand_columns(path, reader.fieldnames)
        for cells in reader:
            yield MeasuredRow(
                path.name,
                reader.line_num,
                _cells(path, cells),
            )
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num}: not CSV ({error})") from None
    if reader.line_num <= 1:
        raise UsageError(f"{path}: a header, but no run below it")


def _delimiter(text: str) -> str:
    """What separates the columns of the header: a comma, or what spreadsheets write instead."""
    header = text.lstrip().partition("\n")[0]
    return "," if "," in header else max(";\t", key=header.count) if header else ","


def _cells(path: Path, cells: dict[str, str | None]) -> dict[str, str]:
    """Cells as text; the path of a plan file from where the CSV lies."""
    texts = {key: value or "" for key, value in cells.items() if key}
    plan_file = texts.get(PLAN_COLUMN, "").strip()
    if plan_file:
        texts[PLAN_COLUMN] = str(path.parent / plan_file)
    return texts


def _demand_columns(path: Path, header: Sequence[str] | None) -> None:
    """UsageError if a file is empty or its header lacks a column."""
    if not header:
        raise UsageError(f"{path}: the file is empty; its first line names the columns")
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"{path} line 1: the header lacks {', '.join(missing)}; "
            "see the column list in `planner validate --help`"
        )


# The many ways in which tables spell one setting. A text that is not known gives None: the caller
# then takes a stated default or refuses the row, and never guesses in silence.
_YES = frozenset({"y", "yes", "true", "on", "1", "enabled"})
_NO = frozenset({"n", "no", "false", "off", "0", "disabled", "-", "none"})

# First match wins: a pattern in the precision cell, and the arithmetic of linear layers.
_PRECISIONS = (
    (r"nv_?fp4", "nvfp4"),
    (r"mxfp8", "mxfp8"),
    (r"fp8|float8|e4m3|e5m2", "fp8"),
    (r"tf32", "tf32"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|\bhalf\b|\bamp\b|\bo[12]\b", "fp16"),
    (r"fp32|float32|\bfull\b|\b32\b", "fp32"),
)

# First match wins: a pattern in the sharding cell, and the ZeRO stage. PyTorch's names are those of
# torch.distributed.fsdp.ShardingStrategy; HSDP shards everything inside its groups.
_ZERO = (
    (r"no_?shard|^ddp", 0),
    (r"no reshard|shard_grad_op|hybrid_shard_zero2|zero[- _]?2|optim_grads$", 2),
    (r"zero[- _]?1|dist(ributed)?[- _]?opt|overlapped-dist", 1),
    (r"zero[- _]?3|fsdp|hsdp|full_?shard|hybrid_?shard|optim_grads_params", 3),
    (r"zero[- _]?0", 0),
)
_STAGE = re.compile(r"^(?:zero|stage)?[- _=]*([0-3])$")


def yes_or_no(text: str | None) -> bool | None:
    """`y`, `True`, `on`, `1` and their opposites; None for anything else."""
    word = (text or "").strip().lower()
    if word in _YES:
        return True
    return False if word in _NO else None


def precision_named(text: str) -> str | None:
    """Arithmetic that a precision cell names: `amp_bf16`, `bfloat16` and `bf16-mixed` are bf16."""
    lower = text.lower()
    return next((name for pattern, name in _PRECISIONS if re.search(pattern, lower)), None)


def zero_stage_named(text: str) -> int | None:
    """ZeRO stage that a sharding cell names: `3`, `ZeRO-3`, `FULL_SHARD` and `HSDP` are stage 3."""
    lower = text.strip().lower()
    if stage := _STAGE.match(lower):
        return int(stage[1])
    if lower.startswith("none") or yes_or_no(lower) is False:
        return 0
    return next((stage for pattern, stage in _ZERO if re.search(pattern, lower)), None)


def recompute_named(text: str) -> str:
    """A recompute cell with a bare yes or no, and checkpointing of whole blocks by other names,
    in this project's words (`full`, `none`); other texts as they are."""
    lower = text.strip().lower()
    said = yes_or_no(lower)
    if said is not None:
        return "full" if said else "none"
    whole = r"^(uniform|block|(gradient|activation)[- _]checkpoint(ing)?|checkpoint(ing)?|ac)\b"
    return "full" if re.search(whole, lower) else lower
