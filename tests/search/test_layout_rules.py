"""Each layout rule's two forms, held against each other over small exhaustive spaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from ortools.sat.python import cp_model

from constraints.layout import LAYOUT_RULES, AnyLayoutRule, RecomputeExpressible, every_layer_once
from constraints.layout_context import (
    LayoutContext,
    block_taken,
    shared_count,
)
from constraints.layout_variables import make_variables
from constraints.memory_numbers import MemoryNumbers, PhaseNumbers, undominated
from constraints.rule import Layout
from planner.cost.layout import usual_split
from planner.search.layout_model import layout_conflict
from tests.search.brute import context, every_layout

BACKWARD = PhaseNumbers(
    stage=(3, 1),
    layer=((9, 6), (6, 4)),
    freed=((5, 2), (3, -1)),
    working=(3, 1),
    working_recomputed=(5, 2),
    gather=(1, 2),
)
LOSS = replace(BACKWARD, stage=(5, 5), working=(0, 0), working_recomputed=(0, 0), gather=(0, 0))
OPTIMIZER = PhaseNumbers(
    stage=(2, 2),
    layer=((8, 9), (8, 9)),
    freed=((0, 0), (0, 0)),
    working=(0, 0),
    working_recomputed=(0, 0),
    gather=(0, 0),
)
MEMORY = MemoryNumbers(unit_bytes=1, limit=30, phases=(BACKWARD, LOSS, OPTIMIZER))
# What a stage holds while a second layer's backward runs, and a first layer's gradients go.
SECOND = replace(BACKWARD, stage=(18, 17), two_layers=True)


def first_kind(phase_numbers: PhaseNumbers) -> PhaseNumbers:
    """The same numbers for a model with one kind of layer."""
    return PhaseNumbers(
        phase_numbers.stage,
        tuple(sizes[:1] for sizes in phase_numbers.layer),
        tuple(sizes[:1] for sizes in phase_numbers.freed),
        phase_numbers.working[:1],
        phase_numbers.working_recomputed[:1],
        phase_numbers.gather[:1],
    )


ONE_KIND = replace(MEMORY, phases=tuple(first_kind(phase) for phase in MEMORY.phases))


# Alone each layer fits.
SINGLE = replace(MEMORY, phases=(BACKWARD, SECOND))


CONTEXTS = [
    context(2, 1, (0, 0, 0, 0), layouts, recomputation, ONE_KIND)
    for layouts in ("any", "even-or-ends", "even", "greedy")
    for recomputation in ("none", "all", "shared", "free")
] + [
    context(2, 1, (0, 0, 0, 0), "greedy", "none", usual_split=usual_split(4, 2, 10.0, 22.0)),
    context(2, 2, (0, 1, 1, 0, 1), "any", "shared", MEMORY),
    context(2, 2, (0, 1, 0, 0), "any", "free", MEMORY),
    context(2, 1, (1, 0, 0, 1), "any", "all", MEMORY),
    context(1, 1, (0, 1, 1), "any", "shared", MEMORY),
    context(3, 1, (0, 0, 0, 0, 0), "even-or-ends", "none"),
    context(4, 1, (0, 0, 0, 0, 0, 0), "even-or-ends", "none"),
    context(2, 2, (0, 0, 0, 0, 0, 0), "even-or-ends", "none"),
    context(2, 1, (0, 0, 0), "any", "free", ONE_KIND),
    context(3, 1, (0, 0, 0), "any", "none", standalone_vocab=True),
    context(2, 2, (0, 1, 1, 1), "any", "shared", MEMORY, standalone_vocab=True, head_layers=2),
    context(1, 2, (0, 0, 0, 0), "any", "none", standalone_vocab=True, head_layers=3),
    context(1, 2, (0, 1, 1), "any", "free", MEMORY),
    context(2, 1, (1, 0, 1), "any", "free", MEMORY),
    context(2, 1, (0, 0, 0, 0), "any", "none", offload_modules=2),
    context(2, 1, (0, 1, 1), "any", "free", SINGLE, standalone_vocab=True),
    context(2, 1, (0, 1, 0), "any", "all", SINGLE),
    context(2, 2, (0,) * 6, "any", "none", offload_modules=3, standalone_vocab=True),
    context(3, 1, (0,) * 5, "any", "none", offload_modules=2, standalone_vocab=True),
]


def accepted(rule: AnyLayoutRule, layout: Layout, ctx: LayoutContext) -> bool:
    """Whether the solver finds the layout when only this rule and the definitions hold."""
    model = cp_model.CpModel()
    variables = make_variables(model, ctx)
    rule.add(model, variables, ctx)
    if set(layout.recomputed) - set(ctx.modes):
        return False  # a mode for which there are no variables
    taken = block_taken(layout, ctx)
    for block, block_layer in enumerate(layout.block_layers):
        model.add(variables.layers[block] == block_layer)
        for wanted in taken or ():
            model.add(variables.recomputed[block] == wanted[block])
    if taken is None:
        for mode in ctx.modes:
            for stage, count in enumerate(layout.recomputed.get(mode, (0,) * ctx.pp)):
                model.add(sum(variables.recomputed[stage :: ctx.pp]) == count)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return bool(solver.solve(model) == cp_model.OPTIMAL)


@pytest.mark.parametrize("rule", LAYOUT_RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("number", range(len(CONTEXTS)))
def test_add_and_check_agree(rule: AnyLayoutRule, number: int) -> None:
    ctx = CONTEXTS[number]
    largest = 2 if ctx.blocks > 2 else ctx.layers
    wanted_sum = rule.name not in ("every-layer-once", "blocks-not-empty")
    for layout in every_layout(ctx, largest):
        if sum(layout.block_layers) > ctx.layers:
            continue  # positions beyond the last layer do not exist
        if wanted_sum and sum(layout.block_layers) != ctx.layers:
            continue
        if rule.name != "recompute-expressible" and block_taken(layout, ctx) is None:
            continue
        assert accepted(rule, layout, ctx) == rule.check(layout, ctx), layout


def test_later_chunks_recompute_only_once_the_earlier_ones_are_full() -> None:
    """All that the solver finds is what the rule can express, and the other way round."""
    ctx = plain(1, 3, vpp=2, recomputation="free")
    model, solver = cp_model.CpModel(), cp_model.CpSolver()
    variables = make_variables(model, ctx)
    for rule in (every_layer_once, RecomputeExpressible()):
        rule.add(model, variables, ctx)
    counts, found = [*variables.layers, *variables.recomputed], set[tuple[int, ...]]()
    while solver.solve(model) == cp_model.OPTIMAL:
        values = tuple(map(solver.value, counts))
        found.add(values)
        model.add_forbidden_assignments(counts, [values])
    legal = [one for one in every_layout(ctx) if sum(one.block_layers) == ctx.layers]
    told = [(layout.block_layers, block_taken(layout, ctx)) for layout in legal]
    assert found == {(*layers, *taken[0]) for layers, taken in told if taken}


# The solver leaves multi-token prediction with the head.
SOLVED_RULES = [rule for rule in LAYOUT_RULES if rule.name != "mtp-expressible"]


class Instance(NamedTuple):
    """A rule, and the smallest layouts that it accepts and rejects."""

    rule: str
    ctx: LayoutContext
    feasible: Layout
    infeasible: Layout


def split(*blocks: int, vpp: int = 1, again: tuple[int, ...] | None = None) -> Layout:
    pp = len(blocks) // vpp
    return Layout(pp, vpp, blocks, {"full": again} if again else {})


def standalone(*blocks: int, vpp: int = 1) -> Layout:
    return replace(split(*blocks, vpp=vpp), mtp_standalone=True)


def plain(pp: int, layers: int, **changes: Any) -> LayoutContext:
    return context(pp, changes.pop("vpp", 1), (0,) * layers, **changes)


def parting(pp: int, layers: int, **changes: Any) -> LayoutContext:
    """Where multi-token prediction may stand apart."""
    return plain(pp, layers, standalone_vocab=True, mtp_standalone=True, **changes)


# One stage of one layer that takes 3 units, against a limit of 3 or 2.
ONE_LAYER = PhaseNumbers((1,), ((2,),), ((0,),), (0,), (0,), (0,))
INSTANCES = [
    Instance("every-layer-once", plain(1, 1), split(1), split(0)),
    Instance("blocks-not-empty", plain(1, 1), split(1), split(0)),
    # A head alone, an embedding alone; but nobody else, and no whole model.
    Instance("blocks-not-empty", plain(2, 1, standalone_vocab=True), split(1, 0), split(0)),
    Instance(
        "blocks-not-empty", plain(3, 1, standalone_vocab=True), split(0, 1, 0), split(1, 0, 0)
    ),
    Instance("split-expressible", plain(2, 3, layouts="even"), split(2, 1), split(1, 2)),
    Instance("split-expressible", plain(2, 3, layouts="greedy"), split(2, 1), split(1, 2)),
    Instance("split-expressible", plain(4, 5, layouts="even-or-ends"), split(2, 1, 1, 1),
             split(1, 2, 1, 1)),
    Instance("recompute-expressible", plain(1, 1), split(1), split(1, again=(1,))),
    Instance("recompute-expressible", plain(1, 1, recomputation="all"), split(1, again=(1,)),
             split(1)),
    Instance("recompute-expressible", plain(2, 2, recomputation="shared"),
             split(1, 1, again=(1, 1)), split(1, 1, again=(1, 0))),
    Instance("recompute-expressible", plain(2, 2, recomputation="free"),
             split(1, 1, again=(1, 0)), split(1, 1)),
    Instance("chunks-balanced", plain(1, 3, vpp=2), split(2, 1, vpp=2), split(3, 0, vpp=2)),
    # A head worth two layers beside none, but not beside three.
    Instance("chunks-balanced", plain(1, 3, vpp=2, head_layers=2), split(2, 0, vpp=2),
             split(3, 0, vpp=2)),
    Instance("offload-chunk-layers", plain(1, 4, vpp=2, offload_modules=2), split(1, 3, vpp=2),
             split(3, 1, vpp=2)),
    Instance("offload-chunk-layers", plain(2, 2, offload_modules=2, standalone_vocab=True),
             split(2, 0),
             split(1, 1)),
    Instance("stage-memory", plain(1, 2, memory=MemoryNumbers(1, 3, (ONE_LAYER,))), split(1),
             split(2)),
]  # fmt: skip


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda item: item.rule)
def test_smallest_feasible_and_infeasible_layout(instance: Instance) -> None:
    """By the rule's check, and by the solver where the blocks add up to the model."""
    rule = next(rule for rule in LAYOUT_RULES if rule.name == instance.rule)
    for layout, legal in ((instance.feasible, True), (instance.infeasible, False)):
        ctx = replace(instance.ctx, pp=layout.pp)
        assert rule.check(layout, ctx) is legal
        assert accepted(rule, layout, ctx) is legal


def test_every_layout_rule_has_its_smallest_instances() -> None:
    assert {instance.rule for instance in INSTANCES} == {rule.name for rule in SOLVED_RULES}


@pytest.mark.parametrize(
    ("ctx", "layout", "legal"),
    [
        # No layer behind multi-token prediction; and it does not join the embedding.
        (parting(3, 1), standalone(0, 1, 0), True),
        (parting(3, 1), standalone(0, 0, 1), False),
        (parting(3, 1), standalone(1, 0, 0), True),
        (parting(2, 1), standalone(1, 0), False),
        (plain(3, 1, standalone_vocab=True), split(1, 0, 0), True),
        (plain(3, 1, standalone_vocab=True), standalone(1, 0, 0), False),
    ],
)
def test_where_multi_token_prediction_may_stand(
    ctx: LayoutContext, layout: Layout, legal: bool
) -> None:
    rule = next(rule for rule in LAYOUT_RULES if rule.name == "mtp-expressible")
    assert rule.check(layout, ctx) is legal


def test_prediction_before_the_head_may_be_alone_in_its_block() -> None:
    rule = next(rule for rule in LAYOUT_RULES if rule.name == "blocks-not-empty")
    assert rule.check(standalone(1, 0, 0), parting(3, 1))
    assert not rule.check(standalone(1, 0, 0, 0), parting(4, 1))
    assert not rule.check(split(1, 0, 0), parting(3, 1))


def test_shared_count_is_megatrons_number() -> None:
    """Blocks of 3 and 1 layers with 2 recomputed each take 2 and 1."""
    assert shared_count(Layout(2, 1, (3, 1), {"full": (2, 1)})) == 2
    assert shared_count(Layout(2, 1, (3, 3), {"full": (2, 1)})) is None


def test_conflict_is_minimal() -> None:
    """Two layers that no stage can hold: the layers must be placed, and one stage is too small."""
    backward = PhaseNumbers(
        stage=(0, 0),
        layer=((20,), (6,)),
        freed=((0,), (0,)),
        working=(0,),
        working_recomputed=(0,),
        gather=(0,),
    )
    tight = MemoryNumbers(unit_bytes=1, limit=10, phases=(backward,))
    ctx = context(2, 1, (0, 0), memory=tight)
    core = layout_conflict(ctx)
    # Stage 0 cannot hold the layer that it must have; the other rules are not to blame.
    assert set(core) == {"blocks-not-empty", "stage-memory[0]"}


def test_no_conflict_where_a_layout_exists() -> None:
    assert layout_conflict(context(2, 1, (0, 0, 0))) == ()


@pytest.mark.parametrize(
    ("phases", "kept"),
    [
        ((BACKWARD, LOSS, OPTIMIZER), (BACKWARD, LOSS, OPTIMIZER)),
        ((BACKWARD, replace(BACKWARD, stage=(4, 2))), (replace(BACKWARD, stage=(4, 2)),)),
        ((BACKWARD, replace(BACKWARD, working=(2, 1))), (BACKWARD,)),
        # Not every stage has a second layer.
        ((BACKWARD, SECOND), (BACKWARD, SECOND)),
        ((BACKWARD, replace(BACKWARD, two_layers=True)), (BACKWARD,)),
        # It keeps less of a plain layer, but more of one that recomputes.
        (
            (BACKWARD, replace(BACKWARD, freed=((4, 2), (3, -1)))),
            (replace(BACKWARD, freed=((4, 2), (3, -1))),),
        ),
    ],
)
def test_moments_that_no_layout_has_as_its_peak_are_dropped(
    phases: tuple[PhaseNumbers, ...], kept: tuple[PhaseNumbers, ...]
) -> None:
    assert undominated(phases) == kept
