"""A lower bound on the step time of one shape whose layers are of several kinds.

`planner.cost.sharp_bounds` lets every block of a stage be as cheap as the cheapest run of layers,
all at once. Here each stage holds whole blocks: of sizes that its chunks may have, each with the
kinds of some run of the model's layers; and all stages together hold every layer of each kind.
Where blocks start is left open, so no layout is lost and the bound holds. It needs no solver; it is
made for the few shapes that come first in a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress
from math import inf

import numpy as np

from constraints.layout import LayoutContext
from planner.cost import linear
from planner.cost.tables import Array
from planner.search.block_holdings import Holding, Holdings
from planner.search.block_memory import StagesThatHold
from planner.search.terms import ShapeTerms

# Multiples of the mean stage's seconds up to which stages are looked at, one after the other.
CAPS = (1.04, 1.1, 1.25, 1.6, 2.5)

_PASSES = [linear.TERM_FORWARD, linear.TERM_BACKWARD]


def applies(ctx: LayoutContext) -> bool:
    """Whether this bound says more than those of the cost core."""
    several = ctx.kind_count > 1 and ctx.blocks > 1 and ctx.offload is None
    return several and ctx.placement == "straight" and ctx.recomputation != "free"


@dataclass(frozen=True)
class Bound:
    """`step_s`: a lower bound in seconds. `stage_layers`: how many layers each stage holds where
    it is attained, as far as this bound looks; () if it says only that more is not needed.
    `apart`: the same of layouts with multi-token prediction apart, where both are possible and
    bounded; `step_s` and `stage_layers` are then those of layouts that have it with the head."""

    step_s: float
    stage_layers: tuple[int, ...] = ()
    apart: Bound | None = None

    @property
    def least_s(self) -> float:
        """A lower bound wherever multi-token prediction stands, s."""
        return self.step_s if self.apart is None else min(self.step_s, self.apart.step_s)

    def over(self, before: Bound | None) -> Bound:
        """This bound, with the layers of an earlier one of the shape where it has none."""
        if before is None:
            return self
        apart = None if self.apart is None else self.apart.over(before.apart)
        return Bound(
            max(self.step_s, before.step_s), self.stage_layers or before.stage_layers, apart
        )


# Says nothing.
NO_BOUND = Bound(0.0)


def least_step(terms: ShapeTerms, ctx: LayoutContext, enough_s: float) -> Bound:
    """No layout of the shape within its memory limit has a shorter step.

    At most `enough_s`: more is not asked for. Of each place of multi-token prediction.
    """
    least = _least_step(terms, ctx, enough_s, False)
    if terms.apart is None or not ctx.may_part:
        return least
    scalars = terms.scalars.copy()
    scalars[linear.SCALAR_FIXED_S] += terms.apart.more_fixed_s
    moved = replace(terms, stage=terms.apart.stage, scalars=scalars)
    other = _least_step(moved, replace(ctx, memory=ctx.memory_of(True)), enough_s, True)
    return replace(least, apart=other)


def _least_step(terms: ShapeTerms, ctx: LayoutContext, enough_s: float, apart: bool) -> Bound:
    """`least_step` with multi-token prediction in the block before the last, or with the head."""
    if ctx.recomputation != "shared":
        return BlockBound(terms, ctx, 0, StagesThatHold(ctx), apart).least_step(enough_s)
    # With all layers first: what that takes leaves little to look at with fewer.
    memory = StagesThatHold(ctx)
    own = BlockBound(terms, ctx, ctx.layers, memory, apart)
    least = own.least_step(enough_s)
    for each in range(own.longest_block(least.step_s) - 1, 0, -1):
        fewer = BlockBound(terms, ctx, each, memory, apart).least_step(least.step_s)
        if fewer.step_s < least.step_s:
            least = fewer
    return least


@dataclass(frozen=True)
class Option:
    """What a stage may hold at one place: its least seconds, and the least that it adds to a step
    whose slowest stage is given (each the least on its own)."""

    slowest_s: float
    adds_s: float


Options = dict[int, Option]
_NOTHING = Option(inf, inf)


@dataclass(frozen=True)
class BlockBound:
    """The stages of a shape; `each`: layers of every block that recompute ("shared" only);
    `apart`: multi-token prediction stands in the block before the last."""

    terms: ShapeTerms
    ctx: LayoutContext
    each: int
    memory: StagesThatHold
    apart: bool = False

    def least_step(self, enough_s: float) -> Bound:
        """Least step time, at most `enough_s`."""
        most_s = self.slowest_within_s(enough_s)
        for cap in CAPS:
            cap_s = min(most_s, cap * self.plain_s / self.ctx.pp)
            options = self.all_options(cap_s)
            slowest_s = self.slowest_stage_s(options)
            if slowest_s < inf:
                return self._step(options, slowest_s, cap_s, most_s, enough_s)
            if cap_s == most_s:
                return Bound(enough_s)
        return Bound(min(enough_s, self.weight * cap_s + self.floor_s + self.rest_s))

    def _step(
        self, options: list[Options], slowest_s: float, cap_s: float, most_s: float, enough_s: float
    ) -> Bound:
        """The least step whose slowest stage takes `slowest_s` or longer, at most `enough_s`."""
        least_s = self.weight * slowest_s + self.rest_s
        if least_s + self.floor_s >= enough_s:
            return Bound(enough_s)
        step_s = least_s + self.least_added_s(options, slowest_s, cap_s, most_s)
        if step_s >= enough_s:
            return Bound(enough_s)
        return Bound(step_s, self.attained(options, slowest_s))

    # --- the step: weight * slowest stage + what each stage adds + rest ---------------------------

    @property
    def weight(self) -> float:
        """Steps of the slowest stage that the others wait for."""
        return self.terms.grad_acc - self.terms.bubble_share

    @cached_property
    def plain_s(self) -> float:
        """Forward and backward of a micro-batch through the model, s, as far as it is certain."""
        stages = range(self.ctx.pp)
        layers_s = sum(
            count * min(self.layer_s(stage)[kind] for stage in stages)
            for kind, count in enumerate(self.ctx.totals)
        )
        return layers_s + float(self.terms.stage[:, _PASSES].sum())

    @property
    def floor_s(self) -> float:
        """What the stages add at least, whatever they hold."""
        return self.terms.bubble_share * self.plain_s

    @cached_property
    def rest_s(self) -> float:
        """Seconds of a step besides the passes: its constants, and a mean stage's update."""
        terms, column = self.terms, linear.TERM_OPTIMIZER
        update_s = float(terms.stage[:, column].sum()) + sum(
            count * min(float(terms.layer_of(own)[kind, column]) for own in range(self.ctx.pp))
            for kind, count in enumerate(self.ctx.totals)
        )
        return float(terms.scalars[linear.SCALAR_FIXED_S]) + update_s / self.ctx.pp

    def slowest_within_s(self, step_s: float) -> float:
        """Longest that the slowest stage may take in a step of this length."""
        return (step_s - self.rest_s - self.floor_s) / self.weight

    def layer_s(self, stage: int) -> list[float]:
        """Seconds of a layer of each kind; where all layers recompute, with that."""
        again = [linear.TERM_RECOMPUTE] if self.ctx.recomputation == "all" else []
        seconds: list[float] = self.terms.layer_of(stage)[:, _PASSES + again].sum(axis=1).tolist()
        return seconds

    def again_s(self, stage: int) -> list[float]:
        """Seconds more of a layer of each kind that is counted as recomputed besides."""
        if self.ctx.recomputation != "shared":
            return [0.0] * self.ctx.kind_count
        seconds: list[float] = self.terms.layer_of(stage)[:, linear.TERM_RECOMPUTE].tolist()
        return seconds

    def longest_block(self, step_s: float) -> int:
        """Most layers of a block in such a step; the stage's other chunks have one less."""
        slowest_s = self.slowest_within_s(step_s)
        layer_s = min(chain.from_iterable(self.layer_s(own) for own in range(self.ctx.pp)))
        beside = max(0, self.ctx.vpp - 2)
        room = min(slowest_s / layer_s, float(self.ctx.layers * (1 + beside)))
        return min(self.ctx.layers, int((room + beside) / (1 + beside) + 1e-9))

    def exposed_s(self, held: Holding) -> float:
        """Traffic at the end of the step that nothing hides on the first stage, at least.

        The other stages' may find more room, in the drain of the pipeline.
        """
        terms, framework = self.terms, self.terms.framework
        kinds = self.ctx.kind_count
        sums = terms.stage[0] + sum(
            count * row for count, row in zip(held[:kinds], terms.layer_of(0), strict=True)
        )
        again = held[:kinds] if self.ctx.recomputation == "all" else held[kinds:]
        again_s = sum(
            count * float(row[linear.TERM_RECOMPUTE])
            for count, row in zip(again, terms.layer_of(0), strict=True)
        )
        reduce_s = float(sums[linear.TERM_REDUCE] + terms.scalars[linear.SCALAR_REDUCE_BASE])
        gather_s = float(
            sums[linear.TERM_ALL_GATHER] + terms.scalars[linear.SCALAR_ALL_GATHER_BASE]
        )
        backward_s = float(sums[linear.TERM_BACKWARD] - sums[linear.TERM_TAKEN_BACKWARD]) + again_s
        forward_s = float(sums[linear.TERM_FORWARD] - sums[linear.TERM_TAKEN_FORWARD])
        return (
            max(0.0, (1.0 - framework.hide_gradient_reduction) * reduce_s, reduce_s - backward_s)
            + max(0.0, (1.0 - framework.hide_parameter_gather) * gather_s, gather_s - forward_s)
            + float(sums[linear.TERM_SHARED])
        )

    # --- what stages may hold ---------------------------------------------------------------------

    def slowest_stage_s(self, options: list[Options]) -> float:
        """Least seconds of the slowest stage; infinite if the stages cannot hold all layers."""
        different = {id(own): own for own in options}.values()
        times = sorted({own.slowest_s for each in different for own in each.values()})
        if not times or not self.holds_all(options, times[-1]):
            return inf
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if self.holds_all(options, times[middle]):
                high = middle
            else:
                low = middle + 1
        return times[low]

    def least_added_s(
        self, options: list[Options], least_s: float, cap_s: float, most_s: float
    ) -> float:
        """What stages add at least to a step whose slowest stage takes `least_s` or longer.

        A slowest stage that takes longer costs its own seconds, so only a little longer counts.
        """
        saved_s = self.added_s(options, least_s) - self.floor_s
        slower_s = min(most_s, least_s + saved_s / self.weight)
        if slower_s > cap_s:
            options = self.all_options(slower_s)
        beyond_s = self.weight * (slower_s - least_s) + self.floor_s
        return min(self.added_s(options, slower_s), beyond_s)

    def all_options(self, cap_s: float) -> list[Options]:
        """`options` of every stage, without those that leave the others too many layers.

        One object for stages that have the same.
        """
        ctx, kinds = self.ctx, self.ctx.kind_count
        held = [self.held(own[0], cap_s) for own in self.groups]
        most = [max((sum(one[:kinds]) for one in own), default=0) for own in held]
        spare = sum(len(own) * top for own, top in zip(self.groups, most, strict=True)) - ctx.layers
        found: list[Options] = [{}] * ctx.pp
        for group, own, top in zip(self.groups, held, most, strict=True):
            enough = {one: each for one, each in own.items() if sum(one[:kinds]) >= top - spare}
            fitting = [self.memory.stages(one) for one in enough]
            known: dict[tuple[int, ...], Options] = {}
            for stage in group:
                fits = tuple(stages >> stage & 1 for stages in fitting)
                if fits not in known:
                    known[fits] = self.options(stage, compress(enough.items(), fits))
                found[stage] = known[fits]
        return found

    def holds_all(self, options: list[Options], most_s: float) -> bool:
        """Whether stages that take at most so long can hold all layers, of every kind."""
        reached = 1
        quick: dict[int, list[int]] = {}
        for each in options:
            if id(each) not in quick:
                quick[id(each)] = [place for place, own in each.items() if own.slowest_s <= most_s]
            after = 0
            for place in quick[id(each)]:
                after |= reached << place
            reached = after
        return bool(reached >> self.place(self.ctx.totals) & 1)

    def added_s(self, options: list[Options], most_s: float) -> float:
        """Least that stages which take at most so long, and hold all layers, add to a step."""
        return float(self.reached_s(options, most_s)[-1][-1])

    def attained(self, options: list[Options], most_s: float) -> tuple[int, ...]:
        """Layers of each stage where `added_s` is attained."""
        reached = self.reached_s(options, most_s)
        at, stages = len(reached[0]) - 1, list[int]()
        for before, each in zip(reversed(reached[:-1]), reversed(options), strict=True):
            ways = [
                (before[at - place] + own.adds_s, place)
                for place, own in each.items()
                if own.slowest_s <= most_s and place <= at
            ]
            _, place = min(ways)
            at -= place
            stages.append(place % (self.ctx.layers + 1))
        return tuple(reversed(stages))

    def reached_s(self, options: list[Options], most_s: float) -> list[Array]:
        """[stage][place]: least that the first stages add if they hold so many layers, s."""
        end = self.place(self.ctx.totals)
        start = np.full(end + 1, inf)
        start[0] = 0.0
        reached = [start]
        for each in options:
            after = np.full(end + 1, inf)
            for place, own in each.items():
                if own.slowest_s <= most_s and place <= end:
                    total_s = reached[-1][: end + 1 - place] + own.adds_s
                    after[place:] = np.minimum(after[place:], total_s)
            reached.append(after)
        return reached

    def place(self, counts: Holding) -> int:
        """A number for so many layers of each kind; that of a sum is the sum of the numbers.

        Kinds after the first count together: a relaxation where there are more than two.
        """
        return counts[0] * (self.ctx.layers + 1) + sum(counts)

    def options(self, stage: int, held: Iterable[tuple[Holding, float]]) -> Options:
        """By `place`, what a stage may hold, of what fits its memory (with the seconds of each)."""
        kinds = self.ctx.kind_count
        found: Options = {}
        for one, seconds in held:
            adds_s = self.terms.bubble_share * seconds
            if stage == 0:
                adds_s += self.exposed_s(one)
            place = self.place(one[:kinds])
            known = found.get(place, _NOTHING)
            found[place] = Option(min(known.slowest_s, seconds), min(known.adds_s, adds_s))
        return found

    @cached_property
    def groups(self) -> list[list[int]]:
        """Stages that have the same blocks, and the same seconds for them; memory may differ."""
        found: dict[tuple[object, ...], list[int]] = {}
        for stage in range(self.ctx.pp):
            alike = min(stage, 1) + (stage == self.ctx.pp - 1)
            if self.apart and stage == self.ctx.pp - 2:
                alike = -1
            key = (alike, *self.layer_s(stage), *self.again_s(stage), self._ends_s(stage))
            found.setdefault(key, []).append(stage)
        return list(found.values())

    def held(self, stage: int, cap_s: float) -> dict[Holding, float]:
        """What a stage has time for, and its seconds."""
        per_layer = (*self.layer_s(stage), *self.again_s(stage))
        ends_s = self._ends_s(stage)
        found = self._holdings.within(stage, per_layer, cap_s - ends_s)
        return {own: ends_s + seconds for own, seconds in found.items()}

    def _ends_s(self, stage: int) -> float:
        return float(self.terms.stage[stage, _PASSES].sum())

    @cached_property
    def _holdings(self) -> Holdings:
        return Holdings(self.ctx, self.each, self.apart)
