"""Recorded sweeps as candidates that can be tried, predicted as if their source were unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.evidence.learn.linear import equations
from planner.evidence.learn.priors import model_without
from planner.evidence.runs.left_out import left_out
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.rows import MeasuredRow, grouped
from planner.tune.belief import Belief
from planner.tune.candidates import Candidate, recorded_candidates
from planner.tune.errors import Array
from planner.tune.groups import Group, group_of

# Fewest runs in a group.
FEWEST_RUNS = 12
# Cost of a trial: seconds until its first step, and its number of steps.
START_S, STEPS = 300.0, 20
# Columns with the origin of a row, and figures that follow from others.
_NO_FACTS = frozenset(
    {
        "source_ref", "notes", "tflops_per_gpu", "tokens_per_s_per_gpu", "mfu_pct", "peak_mem_gb",
        "mem_kind", "from_memory", "first_sight_s", "first_sight_gib", "trust", "doubt",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A group: its candidates, measured seconds of a step of each (inf: out of memory), (n,), and
    the belief before any trial."""

    group: Group
    candidates: tuple[Candidate, ...]
    seconds: Array
    belief: Belief

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Whether each candidate ran, rather than running out of memory."""
        return np.isfinite(self.seconds)

    def regret(self, place: int) -> float:
        """Measured seconds of a step of a recommended candidate divided by the least in the group,
        minus one; a candidate that ran out of memory counts as the slowest."""
        worst = float(self.seconds[self.ran].max())
        seconds = float(self.seconds[place]) if self.ran[place] else worst
        return seconds / float(self.seconds.min()) - 1.0

    def gpu_s(self, place: int) -> float:
        """GPU-seconds that a trial of a candidate takes, from its measured step."""
        steps_s = STEPS * float(self.seconds[place]) if self.ran[place] else 0.0
        return self.candidates[place].gpus * (START_S + steps_s)

    def expected_gpu_s(self) -> dict[str, float]:
        """GPU-seconds that a trial of each candidate is expected to take, by key."""
        return {one.key: one.gpus * (START_S + STEPS * one.step_s) for one in self.candidates}


def distinct(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Each run once, even if several files contain it; doubted if one of them doubts it."""
    found: dict[frozenset[tuple[str, str]], MeasuredRow] = {}
    for row in rows:
        cells = ((name, text.strip()) for name, text in row.cells.items() if name not in _NO_FACTS)
        facts = frozenset((name, text) for name, text in cells if text)
        if facts not in found or row.doubted:
            found[facts] = row
    return list(found.values())


def at_their_word(row: MeasuredRow) -> MeasuredRow:
    """The row, with the figures that its source contradicts taken as true; a withdrawn step time is
    removed. A row without doubt stays as it is."""
    if not row.doubted:
        return row
    gone = {"step_time_s": ""} if row.withdraws_time else {}
    return replace(row, cells=row.cells | gone | {"doubt": ""})


def sweeps_of(rows: Iterable[MeasuredRow]) -> list[Sweep]:
    """The sweeps of all groups of rows that are large enough."""
    known = grouped(filter(_is_known, rows), group_of).values()
    large = [row for members in known if len(members) >= FEWEST_RUNS for row in members]
    predictions = [one for one in unseen(large) if one.step_time_s is not None]
    groups = grouped(predictions, lambda one: group_of(one.row))
    return [
        sweep_of(group, members)
        for group, members in groups.items()
        if len(members) >= FEWEST_RUNS and any(_seconds(one.row) < np.inf for one in members)
    ]


def sweep_of(group: Group, predictions: Sequence[Prediction]) -> Sweep:
    """A group of runs with the belief about them, fitted without their source."""
    candidates = recorded_candidates(predictions)
    slopes = equations(predictions, "time", model_without(group.source)).slopes
    belief = Belief.of(candidates, without=group.source, slopes=slopes)
    seconds = np.array([_seconds(one.row) for one in predictions])
    return Sweep(group, tuple(candidates), seconds, belief)


def _is_known(row: MeasuredRow) -> bool:
    """Whether a row states its step time, or that it ran out of memory."""
    return bool(row.ran_out) or row.measurement("step_time_s") is not None


def _seconds(row: MeasuredRow) -> float:
    measured = row.measurement("step_time_s")
    return np.inf if row.ran_out or measured is None else measured


def unseen(rows: Sequence[MeasuredRow]) -> list[Prediction]:
    """Rows as predicted without their source; refused ones are dropped. If nothing was fitted to a
    source, the usual prediction stays."""
    predictions = [one for one in predict_rows(rows) if one.error is None]
    known = {_place(one.row): one for one in left_out(predictions)}
    return [replace(known.get(_place(one.row), one), row=one.row) for one in predictions]


def _place(row: MeasuredRow) -> tuple[str, str, int]:
    return row.source, row.file, row.line
