"""Good layouts of models whose kinds of layers mix, found by walking from layout to layout.

If chunks are short and kinds hardly repeat, CP-SAT often finds no layout within its share of the
work. The walk moves one or two layers at a time between blocks, each time to the best of some
random neighbours that were visited least (a tabu search, Glover 1989). A step is good if it reduces
the excess of the stages over the wanted seconds and bytes. Once all are within these, fewer seconds
are wanted. The walk proves nothing; it gives CP-SAT a plan to beat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.cost.tables import Array
from planner.search.block_holdings import Integers
from planner.search.limit_results import Spent
from planner.search.stages import StageSeconds, StagesThatHold
from planner.search.terms import ShapeTerms

# Steps of a short walk and of a long one, and number of neighbours per step.
STEPS, MOST_STEPS, NEIGHBOURS = 100, 400, 128
# Numbers of blocks for which a walk is worthwhile.
_MOST_BLOCKS = 256
# Weight of excess bytes, as a share of the limit, relative to that of seconds.
_OF_MEMORY = 2.0
# A layout this close to the bound ends a walk.
_NEAR = 5e-4
# The next target is this far from the current one towards the bound.
_TOWARDS = 0.5
# Seconds of work per step: a constant, and per block of a neighbour and kind of layer.
STEP_S, BLOCK_S = 4e-4, 1.5e-8


def applies(ctx: LayoutContext) -> bool:
    """Whether a walk may find what CP-SAT might not: kinds that mix, and several possible
    blocks."""
    free = ctx.layouts == "any" and ctx.placement == "straight" and not ctx.offload_modules
    counted = ctx.recomputation != "free"
    return free and counted and not ctx.in_order and 1 < ctx.blocks <= _MOST_BLOCKS


@dataclass(frozen=True)
class Walk:
    """A walk through the layouts of a shape. A state is a row of the layers of each block, and how
    many of each block recompute ("shared" only, else 0)."""

    terms: ShapeTerms
    ctx: LayoutContext
    spent: Spent

    def layouts(
        self, start: tuple[int, ...], each: int, within_s: tuple[float, float], steps: int
    ) -> Iterator[Layout]:
        """Layouts within the memory limit, each with a shorter slowest stage than the last.

        `start`, `each`: layers of each block, and recomputing ones. `within_s`: the bound on the
        step time and the time to beat. `steps`: most steps of the walk.
        """
        random, state = np.random.default_rng(steps), np.array([*start, each])
        seen, states = Counter[bytes](), state[None]
        least_s, wanted_s = (self.seconds.slowest_within_s(one_s) for one_s in within_s)
        mean_s, best_s = self.seconds.plain_s / self.ctx.pp, wanted_s
        # A step of one micro-batch waits for no stage, so nothing is known about the slowest one.
        least_s = max(least_s, mean_s) if least_s < inf else mean_s
        for _ in range(steps):
            if self.spent.is_over or not len(states) or wanted_s <= 0.0:
                break
            stage_s, share = self._held(states)
            slowest_s = stage_s.max(axis=1)
            best = int(np.argmin(np.where(share.max(axis=1) <= 1.0, slowest_s, inf)))
            if share[best].max() <= 1.0 and slowest_s[best] < best_s:
                best_s = float(slowest_s[best])
                yield self._layout(states[best])
                wanted_s = best_s + _TOWARDS * (least_s - best_s)
                if best_s <= least_s * (1.0 + _NEAR):
                    break
            late = np.maximum(0.0, stage_s / wanted_s - 1.0).sum(axis=1)
            heavy = np.maximum(0.0, share - 1.0).sum(axis=1)
            state = states[int(np.argmin(late + _OF_MEMORY * heavy))]
            seen[state.tobytes()] += 1
            states = self._least_seen(self._neighbours(state, random), seen)

    @cached_property
    def seconds(self) -> StageSeconds:
        """The stages' seconds as functions of their layers."""
        return StageSeconds(self.terms, self.ctx)

    @cached_property
    def _memory(self) -> StagesThatHold:
        return StagesThatHold(self.ctx)

    @cached_property
    def _prefix(self) -> Integers:
        """[n, kind]: counts among the first n layers."""
        return np.array(self.ctx.prefix, dtype=np.int64).T

    @cached_property
    def _least(self) -> tuple[Integers, Integers]:
        """([block] fewest layers, [block] how many fewer it may have than others of its stage)."""
        blocks = range(self.ctx.blocks)
        least = [self.ctx.least_layers(block) for block in blocks]
        return np.array(least), np.array([self.ctx.fewer_layers(block) for block in blocks])

    def _neighbours(self, state: Integers, random: np.random.Generator) -> Integers:
        """Legal states in which one or two layers moved to other blocks, or every block recomputes
        one layer more or less."""
        states = np.tile(state, (NEIGHBOURS + 2, 1))
        moved = np.arange(NEIGHBOURS)
        for some in (moved, moved[::2]):
            to, of = random.integers(0, self.ctx.blocks, (2, len(some)))
            states[some, to] += 1
            states[some, of] -= 1
        if self.ctx.recomputation == "shared":
            states[::4, -1] += random.integers(-1, 2, len(states[::4]))
            states[NEIGHBOURS:, -1] += [-1, 1]
        return states[self._legal(states)]

    def _legal(self, states: Integers) -> NDArray[np.bool_]:
        """[state]: whether no block is too short and the chunks of each stage are balanced."""
        blocks, (least, fewer) = states[:, :-1], self._least
        shape = (len(states), self.ctx.vpp, self.ctx.pp)
        chunks = blocks.reshape(shape)
        longest = chunks.max(axis=1)
        short = (chunks + fewer.reshape(shape[1:])).min(axis=1)
        # The last block may be shorter than the others, or longer by one layer at most.
        others = chunks.copy()
        others[:, -1, -1] = np.where(self.ctx.vpp > 1, self.ctx.layers, others[:, -1, -1])
        balanced = (longest <= short) & (longest <= others.min(axis=1) + 1)
        again = states[:, -1] >= (self.ctx.recomputation == "shared")
        return np.asarray((blocks >= least).all(axis=1) & balanced.all(axis=1) & again)

    @staticmethod
    def _least_seen(states: Integers, seen: Counter[bytes]) -> Integers:
        """The states that the walk has visited least often."""
        times = np.array([seen[state.tobytes()] for state in states], dtype=np.int64)
        return np.asarray(states[times == times.min(initial=MOST_STEPS)])

    def _held(self, states: Integers) -> tuple[Array, Array]:
        """[state, stage]: seconds of a micro-batch, and shares of the memory limit."""
        ctx, sizes = self.ctx, states[:, :-1]
        self.spent.work_s += STEP_S + BLOCK_S * sizes.size * ctx.kind_count
        ends = np.cumsum(sizes, axis=1)
        starts = ends - sizes
        layers = self._prefix[ends] - self._prefix[starts]
        again = layers * (ctx.recomputation == "all")
        if ctx.recomputation == "shared":
            taken = np.minimum(sizes, states[:, -1:])
            again = self._prefix[starts + taken] - self._prefix[starts]
        blocks = np.concatenate([layers, again], axis=2)
        held = blocks.reshape(len(states), ctx.vpp, ctx.pp, -1).sum(axis=1)
        stage_s = self.seconds.vocab_s + np.einsum("nsk,sk->ns", held, self.seconds.number_s)
        return stage_s, self._memory.peaks(held)

    def _layout(self, state: Integers) -> Layout:
        ctx, sizes, each = self.ctx, state[:-1].tolist(), int(state[-1])
        layout = Layout(ctx.pp, ctx.vpp, tuple(sizes), {}, ctx.placement)
        if ctx.recomputation in ("none", "free"):
            return layout
        taken = sizes if ctx.recomputation == "all" else [min(each, size) for size in sizes]
        again = {mode: layout.per_stage(taken) for mode in ctx.modes[:1]}
        return Layout(ctx.pp, ctx.vpp, tuple(sizes), again, ctx.placement)
