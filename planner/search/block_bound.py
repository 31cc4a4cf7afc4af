"""A lower bound on the step time of one shape, computed from whole blocks of layers.

`planner.cost.tight_bounds` lets every block of a stage be as cheap as the cheapest run of layers,
all at the same time. Here each stage holds whole blocks: their sizes are ones that its chunks may
have, and their kinds those of some run of the model's layers. All stages together hold every layer
of each kind. Where exactly a block starts is left open, so no layout is excluded and the bound is
valid. It needs no solver, and is used for the few shapes that come first in a search.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from constraints.layout_context import LayoutContext
from planner.cost import compiled
from planner.cost.tables import Array
from planner.search.block_holdings import Block, Integers, Recompute, holdings, sequence
from planner.search.limit_results import Spent
from planner.search.stages import StageSeconds, StagesThatHold
from planner.search.terms import ShapeTerms

# Stages are examined up to this multiple of the mean stage's seconds.
MOST_OF_MEAN = 2.5
# Number of first stages each of which may expose the most traffic at the end of a step.
SHOWS = 6
# Number of starts of unlike runs up to which this bound takes no more than seconds over a stage's
# chunks, and milliseconds in one chunk.
_MOST_STARTS = 64
_FEW_STARTS = 16
# Number of layers up to which it takes seconds, however they are mixed.
_FEW_LAYERS = 64
# Most places that the layers of all stages may have together.
_MOST_PLACES = 1 << 16
# Iterations that improve the stages' weights, and the precision at which they stop.
_TURNS = 6
_NEAR = 2e-3

# Seconds of work: per place of all stages and option; per group of stages, holding and stage; per
# sum of runs formed, and per call that formed some.
TOGETHER_S, GROUP_S, HELD_S, SUM_S, CALL_S = 3e-10, 2e-4, 7e-8, 2e-8, 3e-5
# Rounding tolerance for the seconds of a stage that is only just fast enough.
_SAME = 1e-12


def applies(ctx: LayoutContext) -> bool:
    """Whether this bound is valid for layouts of a shape, there are several of them, and it is
    worth its time."""
    shared = ctx.recomputation == "shared"
    plain = ctx.placement == "straight" and ctx.recomputation != "free"
    # If kinds hardly repeat, chunks with some recomputing layers may have millions of sums.
    few = ctx.layers <= _FEW_LAYERS or sum(sequence(ctx.kinds).repeats) * ctx.vpp <= _MOST_STARTS
    choice = few if shared else ctx.blocks > 1
    return plain and choice and sequence(ctx.kinds).coded


def is_quick(ctx: LayoutContext) -> bool:
    """Whether kinds of layers repeat enough to try this bound before any other."""
    return sum(sequence(ctx.kinds).repeats) <= _FEW_STARTS


@dataclass(frozen=True)
class Bound:
    """`step_s`: a lower bound in seconds. `stage_layers`: layers of each stage in the layout that
    attains it, as far as this bound can tell; empty if it only shows that the target cannot be
    beaten."""

    step_s: float
    stage_layers: tuple[int, ...] = ()

    def over(self, before: Bound | None) -> Bound:
        """This bound, taking the layers from an earlier bound of the same shape if it has none."""
        if before is None:
            return self
        return Bound(max(self.step_s, before.step_s), self.stage_layers or before.stage_layers)


# The bound says nothing.
NO_BOUND = Bound(0.0)


def least_step(
    terms: ShapeTerms,
    ctx: LayoutContext,
    enough_s: float,
    each_s: Array | None = None,
    spent: Spent | None = None,
) -> Bound:
    """A lower bound on the step time of every layout of the shape within its memory limit.

    The search stops at `enough_s`, because a higher bound is not needed. `each_s[n - 1]`: known
    bounds if every block recomputes n layers ("shared" only). `spent`: counts the work; what is not
    examined before it runs out gives no bound.
    """
    seconds, memory, spent = StageSeconds(terms, ctx), StagesThatHold(ctx), spent or Spent()
    if ctx.recomputation != "shared":
        return BlockBound(seconds, memory, 0, spent).least_step(enough_s)
    # All layers come first, because their cost leaves few smaller cases to examine.
    least = BlockBound(seconds, memory, ctx.layers, spent).least_step(enough_s)
    for each in range(seconds.longest_block(least.step_s) - 1, 0, -1):
        if each_s is not None and each_s[each - 1] >= least.step_s:
            continue
        if spent.is_over:
            return NO_BOUND
        fewer = BlockBound(seconds, memory, each, spent).least_step(least.step_s)
        if fewer.step_s < least.step_s:
            least = fewer
    return least


@dataclass(frozen=True, eq=False)
class Options:
    """The options of every stage. For each option: its place (`BlockBound.place`), its seconds, the
    traffic that it exposes at the end of a step, and the seconds of its drain
    (`StageSeconds.boundary_s`).

    `of_stage[stage]`: range of its options; several stages may share one.
    """

    of_stage: Integers
    places: Integers
    taken_s: Array
    shown_s: Array
    drained_s: Array

    @cached_property
    def by_stage(self) -> tuple[Options, Integers]:
        """The options, with separate copies for the stages that may expose the most traffic; and
        the stage of each option (`SHOWS` for all others)."""
        count, rows = len(self.places), self.of_stage.copy()
        items, stages = [np.arange(count)], [np.full(count, SHOWS)]
        for stage in range(min(SHOWS, len(rows))):
            items.append(np.arange(*self.of_stage[stage]))
            stages.append(np.full(len(items[-1]), stage))
            rows[stage] = count, count + len(items[-1])
            count += len(items[-1])
        taken = np.concatenate(items)
        split = Options(
            rows, self.places[taken], self.taken_s[taken], self.shown_s[taken],
            self.drained_s[taken],
        )  # fmt: skip
        return split, np.concatenate(stages)


@dataclass(frozen=True)
class BlockBound:
    """The bound of one shape. `each`: layers of every block that recompute ("shared" only)."""

    seconds: StageSeconds
    memory: StagesThatHold
    each: int
    spent: Spent

    @property
    def ctx(self) -> LayoutContext:
        """The numbers of the shape that layout rules read."""
        return self.seconds.ctx

    def least_step(self, enough_s: float) -> Bound:
        """Lower bound on the step time, at most `enough_s`."""
        seconds = self.seconds
        most_s = seconds.slowest_within_s(enough_s)
        cap_s = min(most_s, MOST_OF_MEAN * seconds.plain_s / self.ctx.pp)
        options = self.options(cap_s)
        slowest_s = self.slowest_stage_s(options)
        if slowest_s == inf and cap_s < most_s:
            least_s = seconds.weight * cap_s + seconds.floor_s + seconds.rest_s
            return Bound(min(enough_s, least_s))
        if slowest_s == inf:
            return Bound(enough_s)
        least_s = seconds.weight * slowest_s + seconds.rest_s
        if least_s + seconds.floor_s >= enough_s:
            return Bound(enough_s)
        step_s = least_s + self.least_added_s(options, slowest_s, cap_s, most_s)
        if step_s >= enough_s:
            return Bound(enough_s)
        return Bound(step_s, self.least_added(options, slowest_s)[1])

    def least_added_s(self, options: Options, least_s: float, cap_s: float, most_s: float) -> float:
        """Least time that the stages add to a step whose slowest stage takes `least_s` or longer.

        A slowest stage that takes longer costs its own extra seconds, so only slightly longer ones
        matter. 0 if no stage waits for it; at most `most_s`.
        """
        weight, floor_s = self.seconds.weight, self.seconds.floor_s
        saved_s = self.least_added(options, least_s)[0] - floor_s
        if weight == 0.0 or weight * (most_s - least_s) <= saved_s:
            slower_s, beyond_s = most_s, inf
        else:
            slower_s = least_s + saved_s / weight
            beyond_s = weight * (slower_s - least_s) + floor_s
        if slower_s > cap_s:
            options = self.options(slower_s)
        return min(self.least_added(options, slower_s)[0], beyond_s)

    # --- stages together --------------------------------------------------------------------------

    def slowest_stage_s(self, options: Options) -> float:
        """Least seconds of the slowest stage; infinite if the stages cannot hold all layers."""
        return self._least_together(options.of_stage, options.places, options.taken_s, True)[0]

    def least_added(self, options: Options, most_s: float) -> tuple[float, tuple[int, ...]]:
        """(seconds, layers of each stage): the least time that stages of at most `most_s` seconds
        add to a step while they hold all layers.

        They add the traffic of the stage that exposes most. This is at least any weighted mean over
        the stages, and the best mean is close to it. Each iteration moves some weight to the stage
        that exposes most.
        """
        weights = np.eye(1, SHOWS)[0]
        best: tuple[float, tuple[int, ...]] = (-inf, ())
        for turn in range(_TURNS):
            least_s, layers, shown_s = self._with_weights(options, most_s, weights)
            if least_s > best[0]:
                best = least_s, layers
            shows = weights > 0.0
            mean_s = float(weights[shows] @ shown_s[shows])
            if least_s == inf or shown_s.max() - mean_s <= _NEAR * least_s:
                break
            weights = weights + (np.eye(SHOWS)[np.argmax(shown_s)] - weights) / (turn + 2.0)
        return best

    def _with_weights(
        self, options: Options, most_s: float, weights: Array
    ) -> tuple[float, tuple[int, ...], Array]:
        """(seconds, layers of each stage, seconds that each of the first stages exposes) for the
        options with which the stages add least, at one weighted mean of the exposed seconds."""
        item, stages = options.by_stage
        behind = np.append(weights.sum() - np.cumsum(weights), 0.0)
        adds_s = self.seconds.terms.bubble_share * item.taken_s - behind[stages] * item.drained_s
        adds_s += np.append(weights, 0.0)[stages] * item.shown_s
        adds_s[item.taken_s > most_s] = inf
        total_s, chosen = self._least_together(item.of_stage, item.places, adds_s, False)
        if total_s == inf:
            return inf, (), weights
        first = chosen[:SHOWS]
        shown_s = np.full(SHOWS, -inf)
        shown_s[: len(first)] = item.shown_s[first] - np.cumsum(item.drained_s[first])
        shown_s[: len(first)] += item.drained_s[first]
        layers = tuple((item.places[chosen] % (self.ctx.layers + 1)).tolist())
        return total_s, layers, shown_s

    def _least_together(
        self, of_stage: Integers, places: Integers, seconds: Array, largest: bool
    ) -> tuple[float, Integers]:
        """The least total time of all stages, and the option of each stage that gives it."""
        looked_at = (self.end + 1) * int((of_stage[:, 1] - of_stage[:, 0]).sum())
        self.spent.work_s += TOGETHER_S * looked_at
        together = np.empty((self.ctx.pp + 1, self.end + 1))
        chosen = np.zeros(self.ctx.pp, dtype=np.int64)
        compiled.least_together(of_stage, places, seconds, largest, together, chosen)
        return float(together[-1, -1]), chosen

    # --- what stages may hold ---------------------------------------------------------------------

    @cached_property
    def end(self) -> int:
        """The place of all layers together."""
        return int(self.place(np.array([self.ctx.totals]))[0])

    def place(self, counts: Integers) -> Integers:
        """A number for these layer counts by kind. The number of a sum is the sum of the numbers.

        Digits: layers of the rarest kind first, the total last. If that gives too many numbers,
        common kinds have no digit, which relaxes the problem.
        """
        number = np.zeros(len(counts), dtype=np.int64)
        for kind in self._rare_kinds:
            number = number * (self.ctx.totals[kind] + 1) + counts[:, kind]
        return np.asarray(number * (self.ctx.layers + 1) + counts.sum(axis=1))

    @cached_property
    def _rare_kinds(self) -> list[int]:
        """All kinds but the most numerous, rarest first, as many as `_MOST_PLACES` allow."""
        order = np.argsort(self.ctx.totals, kind="stable")[:-1]
        places = (self.ctx.layers + 1) * np.cumprod(np.array(self.ctx.totals)[order] + 1)
        return [int(kind) for kind in order[places <= _MOST_PLACES]]

    def options(self, cap_s: float) -> Options:
        """Everything that each stage may hold within a time."""
        parts = [_NONE]
        numbers = [0] * self.ctx.pp
        for blocks, stages in self.seconds.groups(self._most_layers(cap_s)):
            held = self._held(blocks, cap_s - float(self.seconds.vocab_s[stages[0]]))
            self.spent.work_s += GROUP_S + HELD_S * len(held) * (4 + len(stages))
            taken_s = self.seconds.vocab_s[stages[0]] + held @ self.seconds.number_s[stages[0]]
            quick = taken_s <= cap_s * (1.0 + _SAME)
            held, taken_s = held[quick], taken_s[quick]
            known: dict[bytes, int] = {}
            for stage, fits in zip(stages, self.memory.fits(stages, held), strict=True):
                key = fits.tobytes()
                if key not in known:
                    known[key] = len(parts)
                    parts.append(self._option(stage, held[fits], taken_s[fits]))
                numbers[stage] = known[key]
        offsets = np.cumsum([0, *(len(part[0]) for part in parts)])
        places, taken, shown, drained = (np.concatenate(item) for item in zip(*parts, strict=True))
        of_stage = np.stack([offsets[numbers], offsets[1:][numbers]], axis=1)
        return Options(of_stage, places, taken, shown, drained)

    def _option(
        self, stage: int, held: Integers, taken_s: Array
    ) -> tuple[Integers, Array, Array, Array]:
        """Places and seconds of the options of a stage, their exposed traffic, and the seconds of
        their drain."""
        shown_s = drained_s = np.zeros_like(taken_s)
        if stage < SHOWS:
            shown_s, drained_s = self.seconds.boundary_s(stage, held)
        return self.place(held[:, : self.ctx.kind_count]), taken_s, shown_s, drained_s

    def _most_layers(self, cap_s: float) -> int:
        """Most layers that any stage has time for."""
        most_layers = cap_s / float(self.seconds.layer_s.min())
        return int(max(0.0, min(most_layers * (1.0 + _SAME), float(self.ctx.layers))))

    def _held(self, blocks: tuple[Block, ...], most_s: float) -> Integers:
        """[holding, number]: a superset of the layers that a stage's blocks may hold within a
        time."""
        most_layers = self._most_layers(most_s)
        recompute = Recompute(self.ctx.recomputation, min(self.each, most_layers))
        found = holdings(sequence(self.ctx.kinds), blocks, recompute, most_layers)
        key = blocks, recompute, most_layers
        if key not in self.spent.held:  # later ones are found in the cache
            self.spent.held.add(key)
            self.spent.work_s += SUM_S * found.sums + CALL_S * found.calls
        return found.numbers


# No options.
_NONE = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0)
