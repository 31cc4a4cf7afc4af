"""`planner tune` replayed on recorded sweeps: how much learning from trials gains.

A group is 12 or more recorded runs of one source among which a search would have chosen
(`planner.tune.groups`), each with a known step time or out of memory. Only these can be tried, and
one out of memory costs a trial. Nothing was fitted to the group's source: constants, error bars and
error covariances are those without it, and a framework that no other source has measured is
predicted as an unknown one.

After k trials a plan is recommended, tried or not. Its regret is its measured step time divided by
the least of the group, minus one; one that ran out of memory counts as the slowest run of its
group. The loop (`planner.tune.value`) is compared with the order of the prediction, Optuna's TPE
and random trials (`planner.tune.strategies`).
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
# Levels of regret at which GPU-hours are compared.
LEVELS = (0.05, 0.03, 0.02, 0.01, 0.005)
LOOP, ORDER = "planner tune", "order of the prediction"
STRATEGIES: dict[str, Strategy] = {
    LOOP: loop, ORDER: by_prediction, "Optuna's TPE": by_tpe, "random": at_random,
}  # fmt: skip
_RESAMPLES = 4000


@dataclass(frozen=True)
class Means:
    """One strategy over all groups. The first three fields are by number of trials. `regret`: mean
    over sources of the mean over each source's groups; `worst`: that of the worst group;
    `gpu_hours`: averaged like `regret`. `reached`: for each level of regret, the GPU-hours after
    which the mean regret stays at or below it, None if it never does."""

    name: str
    regret: dict[int, float]
    worst: dict[int, float]
    gpu_hours: dict[int, float]
    reached: dict[float, float | None]


@dataclass(frozen=True)
class Ratio:
    """Mean regret of the loop divided by that of the prediction's order, with the ends of its 90 %
    interval from a paired bootstrap over groups."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupReplay:
    """A group: its number of runs, those out of memory, and the regrets of each strategy by number
    of trials; `stopped`: number of trials after which the loop would have ended."""

    group: str
    source: str
    runs: int
    out_of_memory: int
    regret: dict[str, dict[int, float]]
    stopped: int | None


@dataclass(frozen=True)
class Table:
    """Groups that were replayed. `gain`: ratio of the loop's regret to that of the prediction's
    order, by number of trials, if the order has any regret left; `ends_after`: trials after which
    the loop ends by itself, mean over groups (`MOST` if it does not); `regret_then`: the regret
    then, averaged like the `means`."""

    groups: tuple[GroupReplay, ...] = ()
    sources: int = 0
    means: tuple[Means, ...] = ()
    gain: dict[int, Ratio] = field(default_factory=dict)
    ends_after: float = 0.0
    regret_then: float = 0.0


@dataclass(frozen=True)
class ReplayReport:
    """The replay of undoubted runs. `doubtful`: the replay of the groups with runs that their
    sources contradict, using the contradicted figures; `rows`: number of distinct runs that were
    read."""

    rows: int
    undoubted: Table
    doubtful: Table

    def document(self) -> dict[str, Any]:
        """The report as plain records for JSON."""
        return asdict(self)


def replay(paths: Sequence[Path] = (), *, with_tpe: bool = True) -> ReplayReport:
    """Replay every group of the files' runs, or of the shipped runs if no file is given.
    `with_tpe`: also compare with Optuna's TPE, which needs Optuna. UsageError if no group is large
    enough."""
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
    """All rows of every group that contains a doubted run. Doubted rows have the figures that their
    source contradicts."""
    groups = {group_of(row) for row in rows if row.doubted}
    return [at_their_word(row) for row in rows if group_of(row) in groups]


def table_of(sweeps: Sequence[Sweep], strategies: Mapping[str, Strategy] = STRATEGIES) -> Table:
    """All strategies on some groups."""
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
    """Weights of the groups for a mean over sources of their groups' means, (groups,)."""
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
    """GPU-hours after which the mean regret stays at or below a level; None if it never does."""
    above = np.flatnonzero(regret > level)
    first = int(above[-1]) + 1 if len(above) else 0
    return float(hours[first]) if first < len(hours) else None


def _gains(loop_regret: Array, order: Array, sources: Sequence[str]) -> Iterator[tuple[int, Ratio]]:
    """Ratios of mean regrets by number of trials, with a bootstrap that draws groups and keeps the
    two regrets of a group together."""
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
