"""`planner tune` played on recorded sweeps: what learning is worth, against not learning.

A group is 12 or more recorded runs of one source that a search would have chosen among
(`planner.tune.groups`); a step time or that it ran out of memory is known of each. Only these can
be tried, and one out of memory costs a trial. Nothing that was fitted has seen the group's source:
constants, error bars and how errors go together are those without it, a framework that no other
source has measured is predicted as a stranger's.

After k trials a plan is recommended, tried or not. Its regret is its measured step time over the
least of the group, less one; one that ran out of memory counts as the slowest run of its group.
Beside the loop (`planner.tune.value`) stand the order of the prediction, Optuna's TPE and random
trials (`planner.tune.strategies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.evidence.runs.rows import PUBLISHED, TUNED_RUNS, MeasuredRow, grouped, read_rows
from planner.job.errors import UsageError
from planner.tune.errors import Array
from planner.tune.groups import group_of
from planner.tune.recorded import FEWEST_RUNS, Sweep, at_their_word, distinct, sweeps_of
from planner.tune.strategies import (
    MOST,
    Played,
    Strategy,
    at_random,
    by_prediction,
    by_tpe,
    loop,
)

# Trials after which regret is reported.
TRIALS = (0, 1, 2, 3, 5, 10)
# Regrets at which GPU-seconds are compared.
LEVELS = (0.05, 0.03, 0.02, 0.01, 0.005)
LOOP, ORDER = "planner tune", "order of the prediction"
STRATEGIES: dict[str, Strategy] = {
    LOOP: loop, ORDER: by_prediction, "Optuna's TPE": by_tpe, "random": at_random,
}  # fmt: skip
_RESAMPLES = 4000


@dataclass(frozen=True)
class Means:
    """One way of choosing over all groups, by number of trials: mean over sources of their groups'
    mean regret, the worst group's, and GPU-hours, averaged alike. `reached`: GPU-hours at which the
    mean regret is at most a level, None where it never is."""

    name: str
    regret: dict[int, float]
    worst: dict[int, float]
    gpu_hours: dict[int, float]
    reached: dict[float, float | None]


@dataclass(frozen=True)
class Ratio:
    """Mean regret of the loop over that of the prediction's order, with the ends of its 90 %
    interval by a paired bootstrap over groups."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupReplay:
    """A group: its runs, those of them out of memory, and regrets of each way of choosing by number
    of trials; `stopped`: trials after which the loop would have ended."""

    group: str
    source: str
    runs: int
    out_of_memory: int
    regret: dict[str, dict[int, float]]
    stopped: int | None


@dataclass(frozen=True)
class Table:
    """Groups that were replayed. `gain`: of the loop over the prediction's order, by number of
    trials, where the order has any regret left; `ends_after`: trials after which the loop ends by
    itself, mean over groups (`MOST` where it does not), and `regret_then`, as the means are."""

    groups: tuple[GroupReplay, ...] = ()
    sources: int = 0
    means: tuple[Means, ...] = ()
    gain: dict[int, Ratio] = field(default_factory=dict)
    ends_after: float = 0.0
    regret_then: float = 0.0


@dataclass(frozen=True)
class ReplayReport:
    """The replay of undoubted runs. `doubtful`: of the groups that have runs whose sources
    contradict them, these taken at their word; `rows`: distinct ones that were read."""

    rows: int
    undoubted: Table
    doubtful: Table

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def replay(paths: Sequence[Path] = (), *, with_tpe: bool = True) -> ReplayReport:
    """The loop on every group of the files' runs, of those that ship where none is given.
    `with_tpe`: beside Optuna's TPE, which needs Optuna. UsageError where no group is large enough.
    """
    rows = distinct(row for path in paths or (PUBLISHED, TUNED_RUNS) for row in read_rows(path))
    sweeps = sweeps_of([row for row in rows if not row.doubted])
    doubtful = sweeps_of(_at_word(rows))
    if not sweeps and not doubtful:
        raise UsageError(
            f"no group of {FEWEST_RUNS} or more runs that agree in model, GPU, number of GPUs, "
            "sequence, batch, precision, framework and source: there is nothing to choose among"
        )
    chosen = {name: way for name, way in STRATEGIES.items() if with_tpe or way is not by_tpe}
    return ReplayReport(len(rows), table_of(sweeps, chosen), table_of(doubtful, chosen))


def _at_word(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """All rows of the groups that have any in doubt, at their word."""
    groups = {group_of(row) for row in rows if row.doubted}
    return [at_their_word(row) for row in rows if group_of(row) in groups]


def table_of(sweeps: Sequence[Sweep], strategies: Mapping[str, Strategy] = STRATEGIES) -> Table:
    """All ways of choosing on some groups."""
    if not sweeps:
        return Table()
    played = {name: [play(sweep) for sweep in sweeps] for name, play in strategies.items()}
    sources = [sweep.group.source for sweep in sweeps]
    stops = [MOST if one.stopped is None else one.stopped for one in played[LOOP]]
    then = [one.regrets[stop] for one, stop in zip(played[LOOP], stops, strict=True)]
    return Table(
        groups=tuple(
            _of_group(sweep, {name: played[name][at] for name in played})
            for at, sweep in enumerate(sweeps)
        ),
        sources=len(set(sources)),
        means=tuple(_means(name, found, sources) for name, found in played.items()),
        gain=dict(_gains(_regrets(played[LOOP]), _regrets(played[ORDER]), sources)),
        ends_after=float(np.mean(stops)),
        regret_then=float(source_weights(sources) @ np.array(then)),
    )


def _of_group(sweep: Sweep, played: Mapping[str, Played]) -> GroupReplay:
    regret = {
        name: {trials: float(one.regrets[trials]) for trials in TRIALS}
        for name, one in played.items()
    }
    gone = int((~sweep.ran).sum())
    group = sweep.group
    return GroupReplay(
        str(group), group.source, len(sweep.seconds), gone, regret, played[LOOP].stopped
    )


def _regrets(played: Sequence[Played]) -> Array:
    return np.array([one.regrets for one in played])


def source_weights(sources: Sequence[str]) -> Array:
    """The weight of each group in the mean over sources of their groups' means, (groups,)."""
    counts = {source: len(members) for source, members in grouped(sources, str).items()}
    return np.array([1.0 / (len(counts) * counts[source]) for source in sources])


def _means(name: str, played: Sequence[Played], sources: Sequence[str]) -> Means:
    weights, regrets = source_weights(sources), _regrets(played)
    regret = weights @ regrets
    hours = weights @ np.array([one.gpu_s for one in played]) / 3600.0
    return Means(
        name,
        {trials: float(regret[trials]) for trials in TRIALS},
        {trials: float(regrets[:, trials].max()) for trials in TRIALS},
        {trials: float(hours[trials]) for trials in TRIALS},
        {level: _reached(level, regret, hours) for level in LEVELS},
    )


def _reached(level: float, regret: Array, hours: Array) -> float | None:
    """GPU-hours until the mean regret stays at a level or below."""
    above = np.flatnonzero(regret > level)
    first = int(above[-1]) + 1 if len(above) else 0
    return float(hours[first]) if first < len(hours) else None


def _gains(loop_regret: Array, order: Array, sources: Sequence[str]) -> Iterator[tuple[int, Ratio]]:
    """Ratios of mean regrets, and their bootstrap: groups drawn again, with both regrets."""
    generator = np.random.default_rng(0)
    count = len(sources)
    draws = [generator.integers(0, count, count) for _ in range(_RESAMPLES)]
    weights = np.array([_drawn_weights(draw, sources) for draw in draws])
    plain = source_weights(sources)
    for trials in TRIALS:
        ours, theirs = loop_regret[:, trials], order[:, trials]
        if plain @ theirs <= 0.0:
            continue
        drawn = (weights @ ours)[weights @ theirs > 0.0] / (weights @ theirs)[weights @ theirs > 0]
        low, high = np.quantile(drawn, (0.05, 0.95))
        yield trials, Ratio(float(plain @ ours / (plain @ theirs)), float(low), float(high))


def _drawn_weights(draw: NDArray[np.int64], sources: Sequence[str]) -> Array:
    """Weights of the groups in one resample, (groups,)."""
    weights = source_weights([sources[int(at)] for at in draw])
    return np.asarray(np.bincount(draw, weights, minlength=len(sources)), dtype=np.float64)
