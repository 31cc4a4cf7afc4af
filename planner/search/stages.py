"""Seconds and memory shares of the stages of a shape, as functions of the layers they hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import copysign, inf

import numpy as np
from numpy.typing import NDArray

from constraints.layout_context import LayoutContext
from planner.cost import linear
from planner.cost.tables import Array
from planner.search.block_holdings import Block, Integers, stage_blocks
from planner.search.terms import ShapeTerms

_PASSES = list(linear.BOTH_PASSES)


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of the stages of a shape. A step takes

    weight * slowest stage + what each stage adds + rest.
    """

    terms: ShapeTerms
    ctx: LayoutContext

    @property
    def weight(self) -> float:
        """How often the other stages wait for the slowest one in a step."""
        return self.terms.grad_acc - self.terms.bubble_share

    @cached_property
    def plain_s(self) -> float:
        """Seconds of a micro-batch's forward and backward through the whole model, without
        uncertain parts."""
        layers_s = float(np.array(self.ctx.totals) @ self.layer_s.min(axis=0))
        return layers_s + float(self.vocab_s.sum())

    @property
    def floor_s(self) -> float:
        """Least seconds that the stages add, whatever they hold."""
        return self.terms.bubble_share * self.plain_s

    @cached_property
    def rest_s(self) -> float:
        """Seconds of a step besides the passes: constants, and the update of a mean stage."""
        terms, column = self.terms, linear.TERM_OPTIMIZER
        stages = range(self.ctx.pp)
        layer_s = np.min([terms.layers[stage][:, column] for stage in stages], axis=0)
        update_s = float(terms.stage[:, column].sum()) + float(np.array(self.ctx.totals) @ layer_s)
        return float(terms.scalars[linear.SCALAR_FIXED_S]) + update_s / self.ctx.pp

    def slowest_within_s(self, step_s: float) -> float:
        """Longest time of the slowest stage in a step of this length."""
        left_s = step_s - self.rest_s - self.floor_s
        return left_s / self.weight if self.weight else copysign(inf, left_s)

    @cached_property
    def vocab_s(self) -> Array:
        """[stage] seconds of the pieces pinned to the stage."""
        return np.asarray(self.terms.stage[:, _PASSES].sum(axis=1))

    @cached_property
    def layer_s(self) -> Array:
        """[stage, kind] seconds of a layer, including recomputation if all layers recompute."""
        again = [linear.TERM_RECOMPUTE] if self.ctx.recomputation == "all" else []
        return self._per_layer(_PASSES + again)

    @cached_property
    def number_s(self) -> Array:
        """[stage, number of a holding] seconds that one more of each adds."""
        some = self.ctx.recomputation in ("shared", "free")
        again_s = self._per_layer([linear.TERM_RECOMPUTE])
        return np.concatenate([self.layer_s, again_s * float(some)], axis=1)

    def _per_layer(self, columns: list[int]) -> Array:
        stages = range(self.ctx.pp)
        return np.array([self.terms.layers[stage][:, columns].sum(axis=1) for stage in stages])

    def longest_block(self, step_s: float) -> int:
        """Most layers of a block in a step of this length; the stage's other chunks have one
        less."""
        slowest_s = self.slowest_within_s(step_s)
        beside = max(0, self.ctx.vpp - 2)
        most_layers = min(
            slowest_s / float(self.layer_s.min()), float(self.ctx.layers * (1 + beside))
        )
        return min(self.ctx.layers, int((most_layers + beside) / (1 + beside) + 1e-9))

    def groups(self, most_layers: int) -> list[tuple[tuple[Block, ...], list[int]]]:
        """Stages that may hold the same layers (up to `most_layers`) in the same seconds, with
        their blocks. Their memory may differ."""
        if most_layers not in self._groups:
            found: dict[tuple[object, ...], tuple[tuple[Block, ...], list[int]]] = {}
            for stage in range(self.ctx.pp):
                blocks, vocab_s = (
                    stage_blocks(self.ctx, stage, most_layers),
                    float(self.vocab_s[stage]),
                )
                # Machines of equal speed may send different traffic.
                layer = self.terms.layers[stage].tobytes()
                key = blocks, vocab_s, self.number_s[stage].tobytes(), layer
                found.setdefault(key, (blocks, []))[1].append(stage)
            self._groups[most_layers] = list(found.values())
        return self._groups[most_layers]

    @cached_property
    def _groups(self) -> dict[int, list[tuple[tuple[Block, ...], list[int]]]]:
        return {}

    def boundary_s(self, stage: int, held: Integers) -> tuple[Array, Array]:
        """([holding] exposed traffic of a stage at the end of the step, [holding] seconds of its
        drain, in which the stages after it can hide theirs).

        A stage exposes its traffic minus the drain of the stages before it. The stage that exposes
        most decides the step.
        """
        terms, kinds = self.terms, self.ctx.kind_count
        layer = terms.layers[stage]
        sums = terms.stage[stage] + held[:, :kinds] @ layer
        again = held[:, :kinds] if self.ctx.recomputation == "all" else held[:, kinds:]
        backward_s = sums[:, linear.TERM_BACKWARD] + again @ layer[:, linear.TERM_RECOMPUTE]
        reduce_s = sums[:, linear.TERM_REDUCE] + terms.scalars[linear.SCALAR_REDUCE_BASE]
        gather_s = sums[:, linear.TERM_ALL_GATHER] + terms.scalars[linear.SCALAR_ALL_GATHER_BASE]
        passes, (hide_reduce, hide_gather) = terms.boundary_passes, terms.boundary_hidden
        window_s = passes * backward_s - sums[:, linear.TERM_TAKEN_BACKWARD]
        shown_s = _exposed(reduce_s, hide_reduce, window_s)
        window_s = passes * sums[:, linear.TERM_FORWARD] - sums[:, linear.TERM_TAKEN_FORWARD]
        shown_s += _exposed(gather_s, hide_gather, window_s)
        return shown_s + sums[:, linear.TERM_SHARED], backward_s / self.ctx.vpp


def _exposed(seconds: Array, hidden: float, window_s: Array) -> Array:
    """Seconds that cannot be hidden, or have no room to hide."""
    return np.maximum(0.0, np.maximum((1.0 - hidden) * seconds, seconds - window_s))


class StagesThatHold:
    """The memory rule of `constraints.memory`, for layouts with one recompute mode and without
    offload."""

    def __init__(self, ctx: LayoutContext) -> None:
        self.pp, self.kinds, self.memory = ctx.pp, ctx.kind_count, ctx.memory
        if ctx.memory is None:
            return
        phases = ctx.memory.phases
        # [phase, stage] of the pinned pieces; [phase, stage, number of a holding] of one more of
        # each.
        self._pinned = np.array([phase.stage for phase in phases], dtype=np.int64)
        per_layer = np.array([phase.layer for phase in phases], dtype=np.int64)
        freed = np.array([phase.freed for phase in phases], dtype=np.int64)
        self._each = np.concatenate([per_layer, -freed], axis=2)
        # [phase, number of a holding]: buffers of which only the largest present counts.
        self._working = np.array(
            [(*phase.working, *phase.working_recomputed) for phase in phases], dtype=np.int64
        )
        self._gather = np.array([phase.gather for phase in phases], dtype=np.int64)
        none = ((0,) * self.kinds,) * 2
        self._done = np.array([phase.done or none for phase in phases], dtype=np.int64)
        self._two_layers = np.array([phase.two_layers for phase in phases])
        self._ordered = any(phase.ordered for phase in phases)

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """([phase, stage] of the pinned pieces, [phase, stage, number of a holding] of one more of
        each), as shares of the limit, in phases that every stage has. Buffers that are counted
        once, whatever the number of layers, are left out."""
        if self.memory is None:
            return np.zeros((0, self.pp)), np.zeros((0, self.pp, 2 * self.kinds))
        always = ~self._two_layers
        return self._pinned[always] / self.memory.limit, self._each[always] / self.memory.limit

    def fits(self, stages: list[int], held: Integers) -> NDArray[np.bool_]:
        """[stage, holding]: whether the stage's memory can hold it."""
        if self.memory is None:
            return np.ones((len(stages), len(held)), dtype=np.bool_)
        sizes = self._each[:, stages] @ held.T + self._pinned[:, stages, None]
        sizes += self._once(held)[:, None]
        spared = self._spared(held)
        return np.asarray((spared[:, None] | (sizes <= self.memory.limit)).all(axis=0))

    def peaks(self, held: Integers) -> Array:
        """[layout, stage] shares of the limit. `held`: [layout, stage, number of a holding]."""
        if self.memory is None:
            return np.zeros(held.shape[:2])
        flat, phases = held.reshape(-1, held.shape[2]), (-1, *held.shape[:2])
        sizes = np.einsum("psk,nsk->pns", self._each, held) + self._pinned[:, None]
        sizes += self._once(flat).reshape(phases)
        sizes[self._spared(flat).reshape(phases)] = 0
        return np.asarray(sizes.max(axis=0) / max(1, self.memory.limit))

    def _spared(self, held: Integers) -> NDArray[np.bool_]:
        """[phase, holding]: whether the holding does not have the phase."""
        few = held[:, : self.kinds].sum(axis=1) < 2
        return np.asarray(self._two_layers[:, None] & few)

    def _once(self, held: Integers) -> Integers:
        """[phase, holding]: memory that is counted once, however many layers there are."""
        there = held > 0
        working = np.where(there, self._working[:, None], 0).max(axis=2)
        gather = np.where(there[:, : self.kinds], self._gather[:, None], 0).max(axis=2)
        plain = held[:, : self.kinds] > held[:, self.kinds :]
        if self._ordered:
            # Only of the last kind present.
            later = np.cumsum(there[:, self.kinds - 1 :: -1], axis=1)[:, ::-1] > 1
            plain, there = plain & ~later, there & ~np.tile(later, 2)
        left = np.concatenate([plain, there[:, self.kinds :] & ~plain], axis=1)
        done = np.where(left, self._done.reshape(len(self._done), 1, -1), 0).max(axis=2)
        return np.asarray(working + gather + done)
