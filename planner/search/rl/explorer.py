"""Finds the shortest step within a limit on memory, and the bound that no other step beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.job.rl.job import RlJob
from planner.predict.rl.step import RlStep
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.search.limit_results import TIE, Ending, Progress
from planner.search.rl.costs import Costs
from planner.search.rl.engines import EngineLimits
from planner.search.rl.master import Way, choose
from planner.search.rl.sides import (
    Alone,
    Engine,
    Group,
    groups_of,
    joined,
    leaves_of,
    memory_share,
)
from planner.search.rl.trainers import Trainer, TrainerSide, trainer_sides

Floats = NDArray[np.float64]
# Trainers that are costed in full at most, so that a search without a time limit ends; what is left
# then is said as a gap.
MOST_COSTED = 6000
# Pairs that are costed together between two words of the solver.
PAIRS_AT_ONCE = 12
# The core costs all rows at once in another order than one alone: seconds differ by rounding.
_ROUNDING = 1e-6
# Bytes outside all tensors that a trainer has at most: context, buffers of communicators.
_STAYING = 6.0 * 2.0**30
# Of the bytes of rows that are costed at once, a share that no row falls below.
_MOVED, _HELD = 0.9, 0.99
# What two figures that are the same may differ by.
_SAME = 1e-9


@dataclass(frozen=True)
class Pair:
    """A trainer and an engine of a group, costed together. `share`: of the memory of the fullest
    GPU of either side; `leaves`: whether the trainer's tensors go to the host meanwhile."""

    group: Group
    trainer: Trainer
    engine: Engine
    step: RlStep
    share: float


@dataclass(frozen=True)
class Within:
    """The shortest step whose GPUs are filled to `share` at most, None if there is none; no step
    takes less than `bound_s`."""

    share: float
    pair: Pair | None
    bound_s: float

    @property
    def gap(self) -> float:
        """Share of the step that a better plan could save at most."""
        if self.pair is None:
            return 0.0 if self.bound_s == inf else 1.0
        return max(0.0, 1.0 - self.bound_s / self.pair.step.step_s)


@dataclass
class Options:
    """The sides of one group. `seconds`, `shares`: of each row of the trainer's side, with its
    tensors staying (`leaves` False) or leaving: bounds until the row is costed in full, which
    `exact` says; `most`: share of its memory that a trainer may fill so as to fit surely enough;
    `known`: pairs of (row, engine) that are costed together."""

    group: Group
    leaves: bool
    side: TrainerSide
    alone: Alone
    engines: tuple[Engine, ...]
    seconds: Floats
    shares: Floats
    exact: NDArray[np.bool_]
    most: float
    known: set[tuple[int, int]] = field(default_factory=set)

    def engines_within(self, share: float) -> list[int]:
        """Engines whose GPUs are filled to a share at most."""
        return [at for at, one in enumerate(self.engines) if one.share <= share + _SAME]

    def least_engine_s(self, share: float) -> float:
        """Seconds of the fastest engine within a share."""
        return min((self.engines[at].seconds for at in self.engines_within(share)), default=inf)

    def bounds(self, share: float) -> Floats:
        """Of each trainer, seconds that a step with it takes at least."""
        least = self.least_engine_s(share)
        whole = np.maximum(self.seconds, least) if self.group.together else self.seconds + least
        return np.where(self.shares <= min(share, self.most) + _SAME, whole, inf)

    def bound(self, row: int, engine: int) -> float:
        """Seconds of a step of a trainer and an engine at least."""
        one, two = float(self.seconds[row]), self.engines[engine].seconds
        return max(one, two) if self.group.together else one + two


@dataclass
class RlExplorer:
    """One job's placements, splits, trainers and engines.

    `jobs`: the job at each limit of tokens; `refused`: why a number of GPUs has no trainer;
    `costed`: trainers in full; `engines`: that fit.
    """

    jobs: tuple[RlJob, ...]
    costs: Costs
    ending: Ending
    limits: EngineLimits | None = None
    progress: Progress | None = None
    seed: int = 0
    options: list[Options] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    sides: dict[int, TrainerSide] = field(default_factory=dict)
    refused: str = ""
    costed: int = 0
    engines: int = 0
    # Whether a pair took less than its sides alone say: bounds are then none.
    broken: bool = False

    def __post_init__(self) -> None:
        job = self.jobs[0]
        groups = groups_of(job)
        counts = sorted({group.trainer_gpus for group in groups}, reverse=True)
        self.sides, self.refused = trainer_sides(self.jobs, counts, self.costs)
        for group in groups:
            if group.trainer_gpus in self.sides:
                self.options += self._options(group, self.sides[group.trainer_gpus])

    def _options(self, group: Group, side: TrainerSide) -> Iterator[Options]:
        job = self.jobs[0]
        usable = job.trainer.cluster.gpu.hbm_usable_bytes
        most = likely_limit_bytes(job.trainer, job.trainer.fit_probability) / usable
        some = side.configuration(0)
        alone = Alone(job, group, some, self.costs)
        fitting = tuple(alone.engines(self.limits))
        self.engines += len(fitting)
        engines = undominated(fitting)
        for leaves in leaves_of(group.placement) if engines else ():
            yield Options(
                group, leaves, side, alone, engines, self._bounds_s(side, alone, leaves=leaves),
                self._bounds_share(side, alone, leaves=leaves),
                np.zeros(len(side.row), dtype=bool), most,
            )  # fmt: skip

    def _bounds_s(self, side: TrainerSide, alone: Alone, *, leaves: bool) -> Floats:
        """Seconds of every row's side at least: what of its resident bytes no tensor holds does
        not go to the host."""
        if not leaves:
            return side.seconds * (1.0 - _ROUNDING)
        moved = np.maximum(0.0, _MOVED * (side.resident - _STAYING))
        return (side.seconds + alone.leaving_s(1.0) * moved) * (1.0 - _ROUNDING)

    def _bounds_share(self, side: TrainerSide, alone: Alone, *, leaves: bool) -> Floats:
        """Of the trainer's memory, what every row holds at least: with what the engine leaves there,
        as of the first row."""
        usable = self.jobs[0].trainer.cluster.gpu.hbm_usable_bytes
        peaks: Floats = side.peaks / usable
        first = side.trainer(0, self.costs)
        if first is None:
            return peaks
        beside = alone.trainer_share(first.training, leaves=leaves) - float(peaks[0])
        return (peaks + max(0.0, beside)) * _HELD

    # --- one limit --------------------------------------------------------------------------------

    def within(self, share: float) -> Within:
        """The shortest step whose GPUs are filled to a share at most."""
        while True:
            self._refine(share)
            best = self.best(share)
            chosen = self._choose(share)
            if chosen is None:
                return Within(share, best, self._bound(share, best))
            options, row, engine = chosen
            self._join(options, row, engine)
            self._join_next(share)

    def best(self, share: float) -> Pair | None:
        """The shortest step that is known within a share; of equals the lightest."""
        fitting = [pair for pair in self.pairs if pair.share <= share + _SAME]
        return min(fitting, key=lambda pair: (pair.step.step_s, pair.share), default=None)

    def _target(self, share: float) -> float:
        """Seconds that a step must beat."""
        best = self.best(share)
        return inf if best is None else best.step.step_s * (1.0 - TIE)

    @property
    def _over(self) -> bool:
        return self.ending.is_over or self.costed >= MOST_COSTED

    def _refine(self, share: float) -> None:
        """Cost in full, most promising first, every trainer whose bound may beat the best step."""
        while not self._over:
            waiting = [
                (float(bounds[row]), number, row)
                for number, options in enumerate(self.options)
                for bounds in [np.where(options.exact, inf, options.bounds(share))]
                for row in [int(np.argmin(bounds))]
            ]
            bound, number, row = min(waiting, default=(inf, 0, 0))
            if bound >= self._target(share):
                return
            self._cost(self.options[number], row)
            self._join_best(self.options[number], row, share)

    def _cost(self, options: Options, row: int) -> None:
        """A trainer in full, in the place of its bounds."""
        trainer = options.side.trainer(row, self.costs)
        self.costed += 1
        options.exact[row] = True
        if trainer is None:
            options.shares[row] = inf
            return
        seconds = options.alone.trainer_s(trainer.training, leaves=options.leaves)
        self.broken |= seconds < options.seconds[row] * (1.0 - 1e-6)
        options.seconds[row] = seconds
        options.shares[row] = options.alone.trainer_share(trainer.training, leaves=options.leaves)
        if self.progress is not None:
            self.progress("trainers costed", self.costed, self.costed)

    def _join_best(self, options: Options, row: int, share: float) -> None:
        """Cost a trainer with the engine that its bound takes, if that may beat the best."""
        able = options.engines_within(share)
        if options.bounds(share)[row] == inf or not able:
            return
        engine = min(able, key=partial(options.bound, row))
        if options.bound(row, engine) < self._target(share):
            self._join(options, row, engine)

    def _join(self, options: Options, row: int, engine: int) -> None:
        """Cost a trainer and an engine together."""
        if (row, engine) in options.known:
            return
        options.known.add((row, engine))
        trainer = options.side.trainer(row, self.costs)
        if trainer is None:
            return
        step = joined(
            trainer.job, options.group, trainer, options.engines[engine], self.costs,
            leaves=options.leaves, way=self.limits.way if self.limits else "",
        )  # fmt: skip
        self.broken |= step.step_s < options.bound(row, engine) * (1.0 - 1e-6)
        if step.fits and step.fit_probability >= trainer.job.trainer.fit_probability:
            share = memory_share(step)
            self.pairs.append(Pair(options.group, trainer, options.engines[engine], step, share))

    def _join_next(self, share: float) -> None:
        """Cost the next pairs by their bounds."""
        open_pairs = sorted(
            (options.bound(row, engine), number, row, engine)
            for number, options in enumerate(self.options)
            for row, engine in self._open(options, share)
        )
        for bound, number, row, engine in open_pairs[:PAIRS_AT_ONCE]:
            if bound < self._target(share):
                self._join(self.options[number], row, engine)

    def _open(self, options: Options, share: float) -> Iterator[tuple[int, int]]:
        """Pairs that are not known, and whose bound beats the best step."""
        target = self._target(share)
        able = options.engines_within(share)
        for row in np.flatnonzero(options.exact & (options.bounds(share) < target)).tolist():
            for engine in able:
                known = (row, engine) in options.known
                if not known and options.bound(row, engine) < target:
                    yield row, engine

    # --- the solver -------------------------------------------------------------------------------

    def _choose(self, share: float) -> tuple[Options, int, int] | None:
        """The pair that the solver takes next; None where none is left, or no time."""
        target = self._target(share)
        if self._over:
            return None
        ways, numbers = list[Way](), list[int]()
        for number, options in enumerate(self.options):
            if way := self._way(options, share, target):
                ways.append(way)
                numbers.append(number)
        if not ways:
            return None
        best_s = target if target < inf else self._largest(ways)
        found = choose(ways, best_s, self.seed, self.ending.seconds_left)
        if found.pair is None:
            return None
        number, row, engine = found.pair
        return self.options[numbers[number]], row, engine

    @staticmethod
    def _largest(ways: Sequence[Way]) -> float:
        """Seconds that no pair exceeds."""
        return max(
            max(one for _, one in way.trainers) + max(two for _, two in way.engines)
            for way in ways
        ) * (1.0 + 1e-3)  # fmt: skip

    def _way(self, options: Options, share: float, target: float) -> Way | None:
        """The sides of a group that may beat the best step."""
        rows = np.flatnonzero(options.exact & (options.bounds(share) < target)).tolist()
        able = options.engines_within(share)
        if not rows or not able:
            return None
        least = float(options.seconds[rows].min())
        together = options.group.together
        engines = [
            (at, options.engines[at].seconds)
            for at in able
            if (max if together else sum)((least, options.engines[at].seconds)) < target
        ]
        if not engines:
            return None
        trainers = [(row, float(options.seconds[row])) for row in rows]
        return Way(trainers, engines, together, frozenset(options.known))

    def _bound(self, share: float, best: Pair | None) -> float:
        """Seconds that no step takes less than: the best known one's, where nothing is left that
        could beat it."""
        if self.broken:
            return 0.0
        known = inf if best is None else best.step.step_s
        if not self._over:
            return known if best is None else known * (1.0 - TIE)
        rest = [
            float(np.where(options.exact, inf, options.bounds(share)).min())
            for options in self.options
        ]
        rest += [
            options.bound(row, engine)
            for options in self.options
            for row, engine in self._open(options, share)
        ]
        return min([known, *rest])


def undominated(engines: Sequence[Engine]) -> tuple[Engine, ...]:
    """Engines of which none is both faster and lighter than another of the same degrees: only the
    share of the KV cache and the number of sequences differ there, so all else of a step is the
    same."""
    kept = list[Engine]()
    for one in sorted(engines, key=lambda engine: (engine.seconds, engine.share)):
        alike = (other for other in kept if _degrees(other) == _degrees(one))
        if all(other.share > one.share for other in alike):
            kept.append(one)
    return tuple(kept)


def _degrees(engine: Engine) -> tuple[int, ...]:
    layout = engine.layout
    return layout.tp, layout.pp, layout.ep, layout.dp
