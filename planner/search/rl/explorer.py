"""Finds the shortest step within a memory limit, and a bound that no step beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from planner.job.rl.job import RlJob
from planner.predict.rl.step import RlStep
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.search.limit_results import TIE, Ending, Progress
from planner.search.rl.bounds import SAME, Bounds, Floats, Options
from planner.search.rl.costs import Costs
from planner.search.rl.engines import EngineLimits, engine_layouts
from planner.search.rl.master import Way, choose
from planner.search.rl.sides import (
    Alone,
    Group,
    groups_of,
    joined,
    leaves_of,
    memory_share,
)
from planner.search.rl.trainers import Trainer, TrainerSide, trainer_sides

# Most trainers that are costed in full, so that a search without a time limit ends. The gap reports
# what is left.
MOST_COSTED = 1500
# Shares of the room beside a trainer at which an engine is sought.
_ROOMS = (1.0, 0.9, 0.8, 0.65)
# Number of pairs that are costed together between two calls of the solver.
PAIRS_AT_ONCE = 12
# The core sums all rows at once in another order than one row alone, so seconds differ by rounding.
_ROUNDING = 1e-6
# Most bytes of a trainer outside all tensors: CUDA context, communicator buffers.
_STAYING = 6.0 * 2.0**30
# A row costed alone never has fewer than this share of the bytes that it has when all rows are
# costed at once.
_MOVED, _HELD = 0.3, 0.9
# Least part that an engine fills of its share of a GPU's memory.
_HELD_AT_LEAST = 0.9


@dataclass(frozen=True)
class Pair:
    """A trainer and an engine of a group, costed together. `share`: memory share of the fullest GPU
    of either side."""

    group: Group
    trainer: Trainer
    step: RlStep
    share: float


@dataclass(frozen=True)
class Within:
    """The shortest step whose GPUs are filled up to `share`; None if there is none. No such step
    takes less than `bound_s`."""

    share: float
    pair: Pair | None
    bound_s: float

    @property
    def gap(self) -> float:
        """The largest share of the step that a better plan could save."""
        if self.pair is None:
            return 0.0 if self.bound_s == inf else 1.0
        return max(0.0, 1.0 - self.bound_s / self.pair.step.step_s)


@dataclass
class RlExplorer:
    """The placements, splits, trainers and engines of one job.

    `jobs`: the job at each token limit. `refused`: why a number of GPUs has no trainer. `costed`:
    trainers costed in full. `engines`: engines that fit.
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
    most_s: float = inf
    # Whether a pair took less time than its sides alone suggest; the bounds are then invalid.
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
        alone = Alone(job, group, side.configuration(0), self.costs)
        layouts = engine_layouts(job, group.engine_gpus, group.placement, self.limits)
        if not layouts:
            return
        for leaves in leaves_of(job, group.placement):
            shares = np.array([_HELD_AT_LEAST * one.kv_share for one in layouts])
            yield Options(
                group, leaves, side, alone, layouts,
                Bounds(
                    self._bounds_s(side, alone, leaves=leaves),
                    self._bounds_share(side, alone, leaves=leaves),
                    np.zeros(len(side.row), dtype=bool),
                ),
                Bounds(np.zeros(len(layouts)), shares, np.zeros(len(layouts), dtype=bool)),
                self._beside(side, group, leaves=leaves),
                most,
            )  # fmt: skip

    def _bounds_s(self, side: TrainerSide, alone: Alone, *, leaves: bool) -> Floats:
        """Lower bounds on the seconds of every row's side. Resident bytes that belong to no tensor
        do not move to the host."""
        if not leaves:
            return side.seconds * (1.0 - _ROUNDING)
        moved = np.maximum(0.0, _MOVED * (side.resident - _STAYING))
        return (side.seconds + alone.leaving_s(1.0) * moved) * (1.0 - _ROUNDING)

    def _bounds_share(self, side: TrainerSide, alone: Alone, *, leaves: bool) -> Floats:
        """Lower bounds on the share of the trainer's memory that each row needs, for itself and for
        what engines leave there."""
        usable = self.jobs[0].trainer.cluster.gpu.hbm_usable_bytes
        first = side.trainer(0, self.costs)
        left = 0.0 if first is None else alone.left_bytes(first.training)
        return _HELD * ((side.least if leaves else side.peaks) + left) / usable

    def _beside(self, side: TrainerSide, group: Group, *, leaves: bool) -> Floats:
        """Lower bounds on the share of a GPU that each row occupies while engines sample."""
        usable = self.jobs[0].trainer.cluster.gpu.hbm_usable_bytes
        if leaves or group.placement == "separate":
            return np.zeros(len(side.row))
        beside: Floats = _MOVED * np.maximum(0.0, side.resident - _STAYING) / usable
        return beside

    @property
    def no_engine_fits(self) -> bool:
        """Whether every engine was costed and none fits."""
        return all(
            bool(one.engines.exact.all() and np.isinf(one.engines.seconds).all())
            for one in self.options
        )

    # --- one limit --------------------------------------------------------------------------------

    def within(self, share: float, most_s: float = inf) -> Within:
        """The shortest step whose GPUs are filled up to a share. Steps of `most_s` or more are not
        searched for."""
        self.most_s = most_s
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
        """The shortest known step within a share; the lightest among equals."""
        fitting = [pair for pair in self.pairs if pair.share <= share + SAME]
        return min(fitting, key=lambda pair: (pair.step.step_s, pair.share), default=None)

    def _target(self, share: float) -> float:
        """Seconds that a step must beat."""
        best = self.best(share)
        return self.most_s if best is None else min(self.most_s, best.step.step_s * (1.0 - TIE))

    @property
    def _over(self) -> bool:
        return self.ending.is_over or self.costed >= MOST_COSTED

    def _refine(self, share: float) -> None:
        """Cost in full, most promising first, every trainer and engine whose bound may beat the
        best step."""
        while not self._over:
            waiting = (
                (*options.next_open(share), number) for number, options in enumerate(self.options)
            )
            bound, side, place, number = min(waiting, default=(inf, "", 0, 0))
            if bound >= self._target(share):
                return
            options = self.options[number]
            if side == "engine":
                self._cost_engine(options, place)
            else:
                self._cost(options, place)
                self._join_best(options, place, share)

    def _cost_engine(self, options: Options, place: int) -> None:
        """Cost an engine in full. Similar engines with less room are no faster, nor are those with
        fewer concurrent sequences if none of these loses its cache, so their bounds rise too."""
        layout, way = options.layouts[place], self.limits.way if self.limits else ""
        found, engines = options.alone.engine(layout, way), options.engines
        engines.seconds[place] = found.seconds
        engines.shares[place] = found.share
        engines.exact[place] = True
        options.changed()
        if found.seconds == inf:
            return
        self.engines += 1
        for other, one in enumerate(options.layouts):
            fewer = one.sequences < layout.sequences and not found.preempts
            alike = replace(one, kv_share=layout.kv_share, sequences=layout.sequences) == layout
            less = one.kv_share <= layout.kv_share and (one.sequences == layout.sequences or fewer)
            if alike and less and not engines.exact[other]:
                engines.seconds[other] = max(engines.seconds[other], found.seconds)

    def _cost(self, options: Options, row: int) -> None:
        """Cost a trainer in full and replace its bounds."""
        trainer, bounds = options.side.trainer(row, self.costs), options.trainers
        self.costed += 1
        bounds.exact[row] = True
        options.changed()
        if trainer is None:
            bounds.shares[row] = inf
            return
        seconds = options.alone.trainer_s(trainer.training, leaves=options.leaves)
        self.broken |= seconds < bounds.seconds[row] * (1.0 - 1e-6)
        bounds.seconds[row], least = seconds, bounds.shares[row]
        bounds.shares[row] = options.alone.trainer_share(trainer.training, leaves=options.leaves)
        self.broken |= bounds.shares[row] < least * (1.0 - 1e-6)
        if options.group.placement == "colocated":
            beside = options.alone.beside_share(trainer.training, leaves=options.leaves)
            options.beside[row] = max(options.beside[row], beside)
        if self.progress is not None:
            self.progress("trainers costed", self.costed, self.costed)

    def _join_best(self, options: Options, row: int, share: float) -> None:
        """Cost a trainer with the engine that its bound assumes, if that may beat the best. If that
        engine only just fits by its bound, it rarely fits surely enough, so one with more room is
        tried next."""
        room = share - float(options.beside[row])
        known = len(self.pairs)
        for part in _ROOMS:
            engines = np.where(options.engines.exact, options.engines.within(part * room), inf)
            engine = int(np.argmin(engines))
            bound = float(options.joint(options.trainer_s(share)[row], engines[engine]))
            if bound >= self._target(share):
                return
            self._join(options, row, engine)
            if len(self.pairs) > known:
                return

    def _join(self, options: Options, row: int, engine: int) -> None:
        """Cost a trainer and an engine together."""
        if (row, engine) in options.known:
            return
        options.known.add((row, engine))
        trainer = options.side.trainer(row, self.costs)
        if trainer is None:
            return
        step = joined(
            trainer.job, options.group, trainer, options.layouts[engine], self.costs,
            leaves=options.leaves, way=self.limits.way if self.limits else "",
        )  # fmt: skip
        self.broken |= step.step_s < options.bound(row, engine) * (1.0 - 1e-6)
        if step.fits and step.fit_probability >= trainer.job.trainer.fit_probability:
            self.pairs.append(Pair(options.group, trainer, step, memory_share(step)))

    def _join_next(self, share: float) -> None:
        """Cost the next pairs in order of their bounds."""
        open_pairs = sorted(
            (options.bound(row, engine), number, row, engine)
            for number, options in enumerate(self.options)
            for row, engine in self._open(options, share)
        )
        for bound, number, row, engine in open_pairs[:PAIRS_AT_ONCE]:
            if bound < self._target(share):
                self._join(self.options[number], row, engine)

    def _open(self, options: Options, share: float) -> Iterator[tuple[int, int]]:
        """Pairs of exact sides that were not costed together and whose bound beats the best
        step."""
        target = self._target(share)
        rows, engines = self._useful(options, share)
        for row in rows:
            for engine in engines:
                known = (row, engine) in options.known
                able = options.fits_together(row, engine, share)
                if able and not known and options.bound(row, engine) < target:
                    yield row, engine

    def _useful(self, options: Options, share: float) -> tuple[list[int], list[int]]:
        """Exact trainers and engines that may beat the best step with the best partner."""
        target = self._target(share)
        rows = options.trainers.exact & (options.bounds(share) < target)
        engines = options.engines.exact & (options.engine_bounds(share) < target)
        return np.flatnonzero(rows).tolist(), np.flatnonzero(engines).tolist()

    # --- the solver -------------------------------------------------------------------------------

    def _choose(self, share: float) -> tuple[Options, int, int] | None:
        """The pair that the solver picks next; None if none is left or time is up."""
        target = self._target(share)
        if self._over:
            return None
        ways, numbers = list[Way](), list[int]()
        for number, options in enumerate(self.options):
            if way := self._way(options, share):
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
        """An upper bound on the seconds of any pair."""
        return max(
            max(one for _, one in way.trainers) + max(two for _, two in way.engines)
            for way in ways
        ) * (1.0 + 1e-3)  # fmt: skip

    def _way(self, options: Options, share: float) -> Way | None:
        """The sides of a group that may beat the best step."""
        rows, engines = self._useful(options, share)
        if not rows or not engines:
            return None
        return Way(
            [(row, float(options.trainers.seconds[row])) for row in rows],
            [(engine, float(options.engines.seconds[engine])) for engine in engines],
            options.group.together,
            frozenset(
                (row, engine)
                for row in rows
                for engine in engines
                if (row, engine) in options.known or not options.fits_together(row, engine, share)
            ),
        )

    def _bound(self, share: float, best: Pair | None) -> float:
        """A lower bound on the seconds of every step. If nothing is left that could beat the best
        known one, that one's seconds less the share TIE."""
        if self.broken:
            return 0.0
        known = inf if best is None else best.step.step_s
        if not self._over:
            return known if best is None else known * (1.0 - TIE)
        rest = [options.next_open(share)[0] for options in self.options]
        rest += [
            options.bound(row, engine)
            for options in self.options
            for row, engine in self._open(options, share)
        ]
        return min([known, *rest])
