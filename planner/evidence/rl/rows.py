"""Measured runs of reinforcement learning: one CSV row per run, in the columns of
`docs/measured_rl.md`.

The meaning of a row's numbers depends on the framework and on words in the notes, which only this
module reads: whether a time of generation includes the transfer of weights, whether the time of an
asynchronous run is the trainer's wait, which passes a time of log-probabilities covers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hardware.files import csv_table, read_text
from planner.evidence.runs.rows import MeasuredRow
from planner.job.errors import UsageError
from planner.predict.rl.plan import PhaseName

# Columns that identify a table of such runs, and a table of upper bounds.
RUN_COLUMNS = ("framework", "model", "num_gpus", "rollout_tp", "generation_s", "step_s")
BOUND_COLUMNS = ("model", "step_s_bound", "mem_gb_bound", "rollout_tp")
Figure = Literal["step", "generation", "training", "logprobs", "transfer", "memory"]
FIGURES: tuple[Figure, ...] = (
    "step", "generation", "training", "logprobs", "transfer", "memory"
)  # fmt: skip
# The shipped runs.
PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "rl_runs"

_NUMBER = r"([\d.]+)"
# A whole rollout, including the transfer of weights before it and the engine's sleep after it.
_ROLLOUT: tuple[PhaseName, ...] = ("transfer", "wake", "generation", "sleep")


@dataclass(frozen=True, slots=True)
class Timed:
    """Measured seconds of these phases together; of a whole step if `phases` is empty."""

    figure: Figure
    seconds: float
    phases: tuple[PhaseName, ...] = ()


@dataclass(frozen=True, slots=True)
class RlRow(MeasuredRow):
    """One run."""

    def noted(self, pattern: str) -> float | None:
        """The number that stands in the notes at the place of `N` in a pattern, as in `logprob mbs
        N`; None if nothing matches."""
        found = re.search(pattern.replace("N", _NUMBER), self.text("notes") or "")
        return float(found[1].rstrip(".")) if found else None

    def notes_say(self, pattern: str) -> bool:
        """Whether the notes have words that match."""
        return re.search(pattern, self.text("notes") or "", re.IGNORECASE) is not None

    @property
    def is_separate(self) -> bool:
        """Whether trainer and engine run on separate GPUs."""
        return self.text("placement") == "separate"

    @property
    def is_asynchronous(self) -> bool:
        """Whether samples may come from older weights."""
        return "async" in self.fact("asynchrony")

    @property
    def is_trainer_alone(self) -> bool:
        """Whether the trainer was measured alone, on samples that were not generated."""
        return self.says("algorithm", "trainer step only|training phase only")

    @property
    def is_transfer_alone(self) -> bool:
        """Whether only the transfer of weights was measured."""
        return self.says("algorithm", "weight sync only")

    @property
    def resamples(self) -> bool:
        """Whether a step contains several batches of generation."""
        return self.notes_say("several generation batches")

    def seconds(self, column: str) -> float | None:
        """A time; None if the cell is empty. UsageError for a negative one."""
        value = self.number(column)
        if value is not None and value < 0.0:
            raise UsageError(
                f"{self.file} line {self.line}, column {column}: {value:g} is not above 0; leave "
                "the cell empty where nothing was measured"
            )
        return value

    def timed(self) -> Iterator[Timed]:
        """Every time in the row that this module can interpret."""
        step = self.seconds("step_s")
        if step and not self.is_trainer_alone:
            yield Timed("step", step)
        if (generation := self._generation()) is not None:
            yield generation
        if seconds := self.seconds("train_s"):
            yield Timed("training", seconds, ("return", "update", "critic_update", "leave"))
        yield from self._logprobs()
        if (seconds := self.seconds("sync_s")) and not self.says("doubt", "trainer-visible"):
            yield Timed("transfer", seconds, ("transfer",))

    def _generation(self) -> Timed | None:
        """The time of generation. None for an asynchronous run, which states the trainer's wait
        instead."""
        seconds = self.seconds("generation_s")
        if not seconds or self.is_asynchronous or self.notes_say("exposed|wait for samples"):
            return None
        whole = self.noted(r"rollout phase incl\. weight resharding/wake N s")
        if self.resamples and whole:
            # The timer covers one of several batches, or all of them; the rollout's timer covers
            # their sum.
            return Timed("generation", whole, _ROLLOUT)
        if pure := self.noted(r"pure generate N s inside gen"):
            return Timed("generation", pure, ("generation",))
        if self.notes_say("gen includes old logprob"):
            return Timed("generation", seconds, (*_ROLLOUT, "old_logprobs"))
        if self.notes_say("is pure generate time"):
            return Timed("generation", seconds, ("generation",))
        # verl's timer `gen` includes waking and the transfer of weights until 2026.
        is_verl = self.says("framework", "verl")
        return Timed("generation", seconds, _ROLLOUT if is_verl else ("generation",))

    def _logprobs(self) -> Iterator[Timed]:
        """Times of log-probabilities. NeMo's timer counts policy and reference together."""
        old, reference = self.seconds("logprob_s"), self.seconds("ref_s")
        both = self.says("framework", "nemo")
        if old:
            phases: tuple[PhaseName, ...] = ("old_logprobs", "reference")
            yield Timed("logprobs", old, phases if both else phases[:1])
        if reference:
            yield Timed("logprobs", reference, ("reference",))


def is_rl_table(path: Path) -> bool:
    """Whether a CSV file has the header of a table of measured reinforcement-learning runs, or of
    upper bounds on them."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        names = stream.readline().strip().split(",")
    return _has(names, RUN_COLUMNS) or _has(names, BOUND_COLUMNS)


def rl_tables(paths: Sequence[Path]) -> list[Path]:
    """The tables of such runs among files and folders."""
    files = (sorted(path.glob("*.csv")) if path.is_dir() else [path] for path in paths)
    return [file for some in files for file in some if is_rl_table(file)]


def is_bounds_table(path: Path) -> bool:
    """Whether a table of such runs contains upper bounds."""
    return _has(read_text(path).partition("\n")[0].strip().split(","), BOUND_COLUMNS)


def read_rl_rows(path: Path) -> list[RlRow]:
    """Parse the rows of one table. UsageError for a table without a run or without its columns."""
    header, rows = csv_table(read_text(path), str(path))
    needed = BOUND_COLUMNS if _has(header or (), BOUND_COLUMNS) else RUN_COLUMNS
    missing = [name for name in needed if name not in (header or ())]
    if missing:
        raise UsageError(f"{path} line 1: the header lacks {', '.join(missing)}")
    found = [
        RlRow(path.name, line, {name: text for name, text in cells.items() if name})
        for line, cells in rows
    ]
    if not found:
        raise UsageError(f"{path}: a header, but no run below it")
    return found


def _has(names: Sequence[str], needed: Sequence[str]) -> bool:
    return set(needed) <= set(names)
