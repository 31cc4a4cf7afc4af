"""A pipeline stage as the cost core describes it: its contents, and its memory in each phase.

All figures come from the core's functions, run as plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from planner.cost import fields as f
from planner.cost import phase_records as records
from planner.cost import stage as core
from planner.cost.light import light, light_records
from planner.cost.phase_passes import passes
from planner.cost.phase_records import LAYER, LAYER_AGAIN, LAYER_LAST, LAYER_SECOND, Pass
from planner.cost.phases import at_rest, gives_back, phase_terms
from planner.cost.schedule import Held, held_microbatches
from planner.cost.tables import Array
from planner.cost.terms import LIVE_PLACES, MEMORY_TERMS, MovingTerms, PhaseTerms
from planner.predict.cost_model import LayoutInputs

_INSIDE = (LAYER, LAYER_AGAIN, LAYER_SECOND, LAYER_LAST)


@dataclass(frozen=True)
class OneLayer:
    """A layer that a phase treats separately from the others. `kind`: its kind; `again`: it
    recomputes; `copies`: number of micro-batches for which it keeps tensors beyond those in
    `KeptCopies`, negative if fewer."""

    kind: int
    again: bool
    copies: float = 0.0


@dataclass(frozen=True)
class Stage:
    """One stage of a layout."""

    inputs: LayoutInputs
    index: int

    @cached_property
    def key(self) -> Any:
        """The stage's row of the key table, with its columns as attributes."""
        return light(self.inputs.key, f.KEY_ROW)

    @cached_property
    def grid(self) -> Any:
        """The stage's row of the shape table, with its columns as attributes."""
        return light(self.inputs.shape, f.SHAPE_ROW)

    @cached_property
    def costs(self) -> Any:
        """Costs of the pieces as objects."""
        return light(self.inputs.costs, f.PIECE_ROW)

    def counts(self, piece: int) -> tuple[float, float]:
        """(number of pieces of a kind on the stage, number of them that recompute)."""
        layout = self.inputs.layout
        count, again = layout.counts[piece, self.index], layout.recomputed[piece, self.index]
        return float(count), float(again)

    @cached_property
    def _inputs(self) -> tuple[Any, ...]:
        inputs = self.inputs
        counts = inputs.layout.counts, inputs.layout.recomputed
        return (*counts, self.costs, self.key, self.grid, inputs.job, inputs.framework)

    @cached_property
    def holds(self) -> Any:
        """Contents of the stage (`planner.cost.phase_records`), as an object."""
        holds = light_records(np.zeros(1, records.GROUP_ROW))[0]
        core.fill_stage(self.index, float(self.index), *(*self._inputs, holds))
        return holds

    @cached_property
    def most(self) -> records.LayerMaxima:
        """Maxima over the kinds of layers on the stage."""
        return core.stage_maxima(self.index, *self._inputs)

    @cached_property
    def held(self) -> Held:
        """Numbers of micro-batches for which the stage keeps activations at once."""
        grid, schedule = self.grid, self.inputs.framework.schedule
        return held_microbatches(float(self.index), grid.pp, grid.vpp, grid.grad_acc, schedule)

    @cached_property
    def rest(self) -> PhaseTerms:
        """Terms of memory in the phase of the optimizer, bytes: no layer is at work."""
        inputs = self.inputs
        return at_rest(self.holds, self.key, self.grid, inputs.job, inputs.framework)

    @cached_property
    def heaviest(self) -> tuple[int, Pass]:
        """The heaviest phase, and the pass to which it belongs."""
        inputs = self.inputs
        phase, within, _ = core.heaviest_phase(
            self.holds, self.most, self.held, True, self.key, self.grid, inputs.job,
            inputs.framework,
        )  # fmt: skip
        return phase, passes(self.held, self.grid.grad_acc, inputs.framework)[within]

    def memory(self) -> Any:
        """The stage's STAGE_* columns on memory, as an object."""
        out = _stage_row()
        core.stage_memory(self.index, float(self.index), *(self.holds, *self._inputs, out))
        return out

    def terms(self, phase: int, one_pass: Pass) -> PhaseTerms:
        """Terms in one phase of a pass, as the core adds them up."""
        inputs = self.inputs
        return phase_terms(
            phase, self.rest, self.holds, self.most, one_pass, self.key, self.grid, inputs.job,
            inputs.framework,
        )  # fmt: skip

    # --- the layer that a phase is about ---------------------------------------------------------

    def phase_detail(self, phase: int, one_pass: Pass) -> tuple[PhaseTerms, tuple[OneLayer, ...]]:
        """(terms of a phase, layers that the phase treats separately). In the terms, each maximum
        inside layers that the core reports as one number is split by name. The layer at work comes
        first; the layers are empty outside the phases inside layers."""
        resting, moving = self.terms(phase, one_pass)
        layers: tuple[OneLayer, ...] = ()
        if phase in _INSIDE and self.holds.layers:
            moving, layers = self._inside(phase, one_pass, moving)
        return PhaseTerms(resting, moving), layers

    def _inside(
        self, phase: int, one_pass: Pass, terms: MovingTerms
    ) -> tuple[MovingTerms, tuple[OneLayer, ...]]:
        """`phase_detail` for a phase inside the layers."""
        if phase == LAYER_LAST:
            return self._at_last(terms)
        at_work = self._at_work(phase, one_pass)
        if at_work.again and self.counts(at_work.kind)[1]:
            remade = self._parts(at_work.kind).remade
            terms = terms._replace(recomputed=remade, working=terms.working - remade)
        if phase != LAYER_SECOND:
            return terms, (at_work,)
        terms, done = self._behind(terms, one_pass)
        return terms, (at_work, done)

    def _at_work(self, phase: int, one_pass: Pass) -> OneLayer:
        """The layer with the largest working set in this phase."""
        most = self.most
        plain = phase == LAYER or (phase == LAYER_SECOND and most.working >= most.working_again)
        making = phase != LAYER_SECOND and one_pass.accumulates == 0.0
        name = ("making" if making else "working") + ("" if plain else "_again")
        return OneLayer(self._kind(name, getattr(most, name)), not plain)

    def _at_last(self, terms: MovingTerms) -> tuple[MovingTerms, tuple[OneLayer, ...]]:
        """Terms and layer of the moment when backward works on its last layer, which is the stage's
        first layer: its activations are still kept, and its gradients do not exist yet."""
        kind = self._kind("last", self.most.last)
        parts, again = self._parts(kind), self.counts(kind)[1] > 0.0
        kept = parts.light if again else parts.kept
        stays = gives_back(self.grid, self.inputs.framework)
        return terms._replace(
            working=terms.working - self.most.last + parts.making,
            recomputed=parts.remade if again else 0.0,
            gradients=terms.gradients - parts.made,
            gathered_weights=terms.gathered_weights + parts.gathered,
            weight_casts=terms.weight_casts + parts.casts,
            activations=terms.activations + (kept if stays else 0.0),
        ), (OneLayer(kind, again, float(stays)),)

    def _behind(self, terms: MovingTerms, one_pass: Pass) -> tuple[MovingTerms, OneLayer]:
        """Terms and layer of the moment when backward has finished its first layer, which is the
        stage's last, and works on the second one."""
        name = "done_making" if one_pass.accumulates == 0.0 else "done"
        change = getattr(self.most, name)
        kind = self._kind(name, change)
        parts, (count, again) = self._parts(kind), self.counts(kind)
        remade = count == again
        gone = 0.0
        if gives_back(self.grid, self.inputs.framework):
            gone = parts.light if remade else parts.kept
        made = parts.made if one_pass.accumulates == 0.0 else 0.0
        changed = terms._replace(
            activations=terms.activations - change - gone,
            gradients=terms.gradients + made,
            gathered_weights=terms.gathered_weights - parts.gathered,
        )
        return changed, OneLayer(kind, remade, -1.0 if gone else 0.0)

    def _kind(self, name: str, value: float) -> int:
        """Index of the first layer kind on the stage whose value of the maximum `name` equals
        `value`."""
        held = (kind for kind in range(self.inputs.job.kinds) if self.counts(kind)[0])
        maxima = ((kind, core.layer_maxima(*self._layer(kind))) for kind in held)
        return next(kind for kind, most in maxima if getattr(most, name) == value)

    def _parts(self, kind: int) -> records.LayerParts:
        return core.layer_parts(*self._layer(kind))

    def _layer(self, kind: int) -> tuple[Any, ...]:
        count, again = self.counts(kind)
        costs, framework = self.costs[kind], self.inputs.framework
        return costs, count - again, again, self.key, self.grid, framework


def _stage_row() -> Any:
    """A row of the table of stages, as an object."""
    return SimpleNamespace(terms=[0.0] * len(MEMORY_TERMS))


def named_terms(stages: Array, inputs: Sequence[LayoutInputs], place: Sequence[int]) -> Array:
    """The table of stages [stage, STAGE_*] with memory terms that the core reports as one maximum
    inside layers split into their parts. `inputs`: one per machine; `place`: the machine of each
    stage."""
    named = stages.copy()
    for index, machine in enumerate(place):
        stage, row = Stage(inputs[machine], index), _stage_row()
        if stage.heaviest[0] in _INSIDE:
            core.fill_terms(stage.phase_detail(*stage.heaviest)[0], row)
            live = list(LIVE_PLACES)
            named[index, live] = np.array(row.terms)[live]
    return named
