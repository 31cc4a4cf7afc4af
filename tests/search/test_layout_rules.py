"""Each layout rule's two forms, held against each other over small exhaustive spaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from ortools.sat.python import cp_model

from constraints.layout import (
    LAYOUT_RULES,
    AnyLayoutRule,
    ApartNumbers,
    LayoutContext,
    OffloadShares,
    block_recomputed,
    block_taken,
    even_split,
    greedy_split,
    make_variables,
    shared_count,
)
from constraints.memory import MemoryNumbers, MomentNumbers, undominated
from constraints.offload import leaving_blocks
from constraints.rule import Layout
from planner.cost.layout import even_block_layers, greedy_block_layers
from planner.search.conflict import layout_conflict
from planner.search.memory_conflict import capacity
from tests.search.brute import every_layout

BACKWARD = MomentNumbers(
    stage=(3, 1),
    layer=((9, 6), (6, 4)),
    freed=((5, 2), (3, -1)),
    working=(3, 1),
    working_recomputed=(5, 2),
    gather=(1, 2),
)
LOSS = replace(BACKWARD, stage=(5, 5), working=(0, 0), working_recomputed=(0, 0), gather=(0, 0))
OPTIMIZER = MomentNumbers(
    stage=(2, 2),
    layer=((8, 9), (8, 9)),
    freed=((0, 0), (0, 0)),
    working=(0, 0),
    working_recomputed=(0, 0),
    gather=(0, 0),
)
MEMORY = MemoryNumbers(unit_bytes=1, limit=30, moments=(BACKWARD, LOSS, OPTIMIZER))


def first_kind(own: MomentNumbers) -> MomentNumbers:
    """The same numbers for a model with one kind of layer."""
    return MomentNumbers(
        own.stage,
        tuple(sizes[:1] for sizes in own.layer),
        tuple(sizes[:1] for sizes in own.freed),
        own.working[:1],
        own.working_recomputed[:1],
        own.gather[:1],
    )


ONE_KIND = replace(MEMORY, moments=tuple(first_kind(own) for own in MEMORY.moments))


def with_mode(own: MomentNumbers) -> MomentNumbers:
    """The same numbers with another mode that frees less and works with less."""
    freed = tuple(tuple(max(0, size - 2) for size in sizes) for sizes in own.freed)
    working = tuple(max(0, size - 1) for size in own.working_recomputed)
    return replace(own, freed_others=(freed,), working_others=(working,))


MIXED = replace(MEMORY, moments=tuple(with_mode(own) for own in MEMORY.moments), limit=20)
MIXED_ONE_KIND = replace(
    ONE_KIND, moments=tuple(with_mode(own) for own in ONE_KIND.moments), limit=17
)


def on_three_stages(own: MomentNumbers, *, apart: bool) -> MomentNumbers:
    """The same numbers with a first stage like the second; the last two hold more and less where
    multi-token prediction is apart, and its moment keeps nothing of layers elsewhere."""
    pinned = (own.stage[0], own.stage[1] + 6 * apart, own.stage[1] + 5 - 4 * apart)
    rows = [(one[0], one[1], one[1]) for one in (own.layer, own.freed)]
    return replace(own, stage=pinned, layer=rows[0], freed=rows[1])


# A moment that only the stage with multi-token prediction has, wherever that is.
PREDICTION = replace(first_kind(OPTIMIZER), stage=(0, 0, 9), layer=((0,), (0,), (8,)),
                     freed=((0,), (0,), (1,)))  # fmt: skip
PREDICTION_APART = replace(PREDICTION, stage=(0, 9, 0), layer=((0,), (8,), (0,)),
                           freed=((0,), (1,), (0,)))  # fmt: skip
WITH_HEAD = replace(
    ONE_KIND,
    moments=(*(on_three_stages(own, apart=False) for own in ONE_KIND.moments), PREDICTION),
)
APART = replace(
    ONE_KIND,
    moments=(*(on_three_stages(own, apart=True) for own in ONE_KIND.moments), PREDICTION_APART),
)
PARTING = LayoutContext(
    3, 1, (0, 0, 0), "any", "none", WITH_HEAD, lone_ends=True, mtp_apart=True,
    apart=ApartNumbers(memory=APART),
)  # fmt: skip


def with_staying(own: MomentNumbers) -> MomentNumbers:
    """The same numbers with layers that hold more if their activations stay."""
    return replace(own, staying=tuple(tuple(size // 2 for size in sizes) for sizes in own.layer))


STAYING = replace(MEMORY, moments=tuple(with_staying(own) for own in MEMORY.moments), limit=26)
STAYING_ONE_KIND = replace(
    ONE_KIND, moments=tuple(with_staying(own) for own in ONE_KIND.moments), limit=28
)

CONTEXTS = [
    LayoutContext(2, 1, (0, 0, 0, 0), layouts, recomputation, ONE_KIND)
    for layouts in ("any", "even-or-ends", "even", "greedy")
    for recomputation in ("none", "all", "shared", "free")
] + [
    LayoutContext(2, 1, (0, 0, 0, 0), "greedy", "none", greedy_costs=(10, 22)),
    LayoutContext(2, 2, (0, 1, 1, 0, 1), "any", "shared", MEMORY),
    LayoutContext(2, 2, (0, 1, 0, 0), "any", "free", MEMORY),
    LayoutContext(2, 1, (1, 0, 0, 1), "any", "all", MEMORY),
    LayoutContext(1, 1, (0, 1, 1), "any", "shared", MEMORY),
    LayoutContext(3, 1, (0, 0, 0, 0, 0), "even-or-ends", "none"),
    LayoutContext(4, 1, (0, 0, 0, 0, 0, 0), "even-or-ends", "none"),
    LayoutContext(2, 2, (0, 0, 0, 0, 0, 0), "even-or-ends", "none"),
    LayoutContext(2, 1, (0, 0, 0), "any", "free", MIXED_ONE_KIND, others=1),
    LayoutContext(3, 1, (0, 0, 0), "any", "none", lone_ends=True),
    LayoutContext(2, 2, (0, 1, 1, 1), "any", "shared", MEMORY, lone_ends=True, head_layers=2),
    LayoutContext(1, 2, (0, 0, 0, 0), "any", "none", lone_ends=True, head_layers=3),
    LayoutContext(1, 2, (0, 1, 1), "any", "free", MIXED, others=1),
    LayoutContext(2, 1, (1, 0, 1), "any", "free", MIXED, others=1),
    PARTING,
    replace(PARTING, recomputation="free", kinds=(0, 0)),
    replace(PARTING, lone_ends=False),
    replace(
        PARTING,
        vpp=2,
        kinds=(0,) * 5,
        memory=None,
        head_layers=3,
        apart=ApartNumbers(head_layers=2, mtp_layers=1),
    ),
    LayoutContext(2, 1, (0, 0, 0, 0), "any", "none", offload_modules=2),
    LayoutContext(2, 2, (0,) * 6, "any", "none", offload_modules=3, lone_ends=True),
    LayoutContext(3, 1, (0,) * 5, "any", "none", offload_modules=2, lone_ends=True),
    LayoutContext(
        2,
        1,
        (0, 0, 0, 0),
        "any",
        "none",
        STAYING_ONE_KIND,
        offload=OffloadShares((0.7, 0.4, 0.1), (2,)),
    ),
    LayoutContext(
        2, 1, (0, 1, 1), "any", "none", STAYING, offload=OffloadShares((0.6, 0.3), (1, 3))
    ),
    LayoutContext(
        1, 2, (0, 1, 0), "any", "all", STAYING, offload=OffloadShares((0.5, 0.3), (0, 2))
    ),
]


def accepted(rule: AnyLayoutRule, layout: Layout, ctx: LayoutContext) -> bool:
    """Whether the solver finds the layout when only this rule and the definitions hold."""
    model = cp_model.CpModel()
    variables = make_variables(model, ctx)
    rule.add(model, variables, ctx)
    if variables.apart is None and layout.mtp_apart:
        return False
    if variables.apart is not None:
        model.add(variables.apart == layout.mtp_apart)
    taken = block_taken(layout, ctx)
    for block, own in enumerate(layout.block_layers):
        model.add(variables.layers[block] == own)
        for count, wanted in zip(variables.taken(), taken or (), strict=False):
            model.add(count[block] == wanted[block])
    if taken is None:
        pairs = zip((layout.recomputed, *layout.others),
                    (variables.recomputed, *variables.others), strict=True)  # fmt: skip
        for counts, blocks in pairs:
            for stage, count in enumerate(counts):
                model.add(sum(blocks[stage :: ctx.pp]) == count)
    if variables.offload is not None and ctx.offload is not None:
        if not may_leave(layout, ctx):
            return False
        index = ctx.offload.fractions.index(layout.offload_fraction)
        model.add(variables.offload.chosen[index] == 1)
        whole, some = leaving_blocks(layout, ctx, ctx.offload)
        for block in range(ctx.blocks):
            model.add(sum(variables.offload.kind_whole[block]) == whole[block])
            model.add(sum(variables.offload.kind_some[block]) == some[block])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return bool(solver.solve(model) == cp_model.OPTIMAL)


def may_leave(layout: Layout, ctx: LayoutContext) -> bool:
    """Whether the layout's fraction is one that the solver has."""
    return ctx.offload is None or layout.offload_fraction in ctx.offload.fractions


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
        if rule.name != "offload-expressible" and not may_leave(layout, ctx):
            continue
        if rule.name != "recompute-expressible" and block_recomputed(layout, ctx) is None:
            continue
        assert accepted(rule, layout, ctx) == rule.check(layout, ctx), layout


def test_every_rule_rejects_something() -> None:
    """A rule whose check accepts everything in all contexts would hide a mistake above."""
    for rule in LAYOUT_RULES:
        assert any(
            not rule.check(layout, ctx)
            for ctx in CONTEXTS
            for layout in every_layout(ctx, 2)
            if sum(layout.block_layers) <= ctx.layers
        ), rule.name


class Instance(NamedTuple):
    """A rule, and the smallest layouts that it accepts and rejects."""

    rule: str
    ctx: LayoutContext
    feasible: Layout
    infeasible: Layout


def split(*blocks: int, vpp: int = 1, again: tuple[int, ...] | None = None) -> Layout:
    pp = len(blocks) // vpp
    return Layout(pp, vpp, blocks, again or (0,) * pp)


def apart(*blocks: int, vpp: int = 1) -> Layout:
    return replace(split(*blocks, vpp=vpp), mtp_apart=True)


def plain(pp: int, layers: int, **changes: Any) -> LayoutContext:
    return replace(LayoutContext(pp, 1, (0,) * layers), **changes)


def parting(pp: int, layers: int, **changes: Any) -> LayoutContext:
    """Where multi-token prediction may stand apart."""
    changes = {"lone_ends": True, "mtp_apart": True, "apart": ApartNumbers()} | changes
    return plain(pp, layers, **changes)


# One stage of one layer that takes 3 units, against a limit of 3 or 2.
def on_stages(*held: int) -> MomentNumbers:
    """Units that stages hold before layers of two."""
    none = tuple((0,) for _ in held)
    return MomentNumbers(held, tuple((2,) for _ in held), none, (0,), (0,), (0,))


ONE_LAYER = MomentNumbers((1,), ((2,),), ((0,),), (0,), (0,), (0,))
STAYS = replace(ONE_LAYER, staying=((1,),))
HALF = OffloadShares((0.5, 0.2), (2,))
INSTANCES = [
    Instance("every-layer-once", plain(1, 1), split(1), split(0)),
    Instance("blocks-not-empty", plain(1, 1), split(1), split(0)),
    # A head alone, an embedding alone; but nobody else, and no whole model.
    Instance("blocks-not-empty", plain(2, 1, lone_ends=True), split(1, 0), split(0)),
    Instance("blocks-not-empty", plain(3, 1, lone_ends=True), split(0, 1, 0), split(1, 0, 0)),
    # Multi-token prediction alone before the head, alone too; but not behind nobody.
    Instance("blocks-not-empty", parting(3, 1), apart(1, 0, 0), apart(1, 0, 0, 0)),
    # No layer behind multi-token prediction; and it does not join the embedding.
    Instance("mtp-expressible", parting(3, 1), apart(0, 1, 0), apart(0, 0, 1)),
    Instance("mtp-expressible", parting(3, 1), apart(1, 0, 0), apart(1, 0)),
    Instance("mtp-expressible", plain(3, 1, lone_ends=True), split(1, 0, 0), apart(1, 0, 0)),
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
    # Multi-token prediction worth one layer beside two, but not worth none.
    Instance("chunks-balanced",
             parting(3, 7, vpp=2, apart=ApartNumbers(head_layers=1, mtp_layers=2)),
             apart(2, 2, 1, 2, 0, 0, vpp=2), apart(1, 2, 2, 2, 0, 0, vpp=2)),
    # Two units of it and one of head and loss, against a limit of 3.
    Instance("stage-memory",
             parting(3, 1, memory=MemoryNumbers(1, 3, (on_stages(1, 1, 4),)),
                     apart=ApartNumbers(memory=MemoryNumbers(1, 3, (on_stages(1, 2, 1),)))),
             apart(1, 0, 0), split(1, 0, 0)),
    Instance("stage-memory",
             parting(3, 1, memory=MemoryNumbers(1, 3, (on_stages(1, 1, 3),)),
                     apart=ApartNumbers(memory=MemoryNumbers(1, 3, (on_stages(1, 2, 1),)))),
             split(1, 0, 0), apart(0, 1, 0)),
    Instance("offload-chunk-layers", plain(1, 2, offload_modules=2), split(2), split(1)),
    Instance("offload-chunk-layers", plain(2, 2, offload_modules=2, lone_ends=True), split(2, 0),
             split(1, 1)),
    Instance("offload-expressible", plain(1, 1, offload=HALF), replace(split(1),
             offload_fraction=0.5), split(1)),
    # Two layers of which one stays: 1 + 2·2 + 1 units.
    Instance("stage-memory", plain(1, 2, offload=HALF, memory=MemoryNumbers(1, 6, (STAYS,))),
             replace(split(2), offload_fraction=0.5), replace(split(2), offload_fraction=0.2)),
    Instance("stage-memory", plain(1, 2, memory=MemoryNumbers(1, 3, (ONE_LAYER,))), split(1),
             split(2)),
]  # fmt: skip


@pytest.mark.parametrize("own", INSTANCES, ids=lambda own: own.rule)
def test_smallest_feasible_and_infeasible_layout(own: Instance) -> None:
    """By the rule's check, and by the solver where the blocks add up to the model."""
    rule = next(rule for rule in LAYOUT_RULES if rule.name == own.rule)
    for layout, legal in ((own.feasible, True), (own.infeasible, False)):
        ctx = replace(own.ctx, pp=layout.pp)
        assert rule.check(layout, ctx) is legal
        assert accepted(rule, layout, ctx) is legal


def test_every_layout_rule_has_its_smallest_instances() -> None:
    assert {own.rule for own in INSTANCES} == {rule.name for rule in LAYOUT_RULES}


@pytest.mark.parametrize("layers", range(1, 40))
def test_even_split_is_the_kernels(layers: int) -> None:
    for blocks in range(1, layers + 1):
        expected = tuple(even_block_layers(layers, blocks, block) for block in range(blocks))
        assert even_split(layers, blocks) == expected


@pytest.mark.parametrize("layers", [1, 2, 7, 32, 80, 126])
@pytest.mark.parametrize("head", [0.0, 0.7, 2.16, 5.0])
def test_greedy_split_is_the_kernels(layers: int, head: float) -> None:
    layer, output = 243_269_632, round(head * 243_269_632)
    for blocks in range(1, min(layers, 16) + 1):
        split = greedy_split(layers, blocks, layer, output)
        assert sum(split) == layers
        assert split == tuple(
            greedy_block_layers(layers, blocks, block, float(layer), float(output))
            for block in range(blocks)
        )


def test_126_layers_on_16_stages() -> None:
    assert even_split(126, 16) == (7, *(8,) * 14, 7)


def test_shared_count_is_megatrons_number() -> None:
    """Blocks of 3 and 1 layers with 2 recomputed each take 2 and 1."""
    assert shared_count(Layout(2, 1, (3, 1), (2, 1))) == 2
    assert shared_count(Layout(2, 1, (3, 3), (2, 1))) is None


def test_conflict_is_minimal() -> None:
    """Two layers that no stage can hold: the layers must be placed, and one stage is too small."""
    backward = MomentNumbers(
        stage=(0, 0),
        layer=((20,), (6,)),
        freed=((0,), (0,)),
        working=(0,),
        working_recomputed=(0,),
        gather=(0,),
    )
    tight = MemoryNumbers(unit_bytes=1, limit=10, moments=(backward,))
    ctx = LayoutContext(2, 1, (0, 0), memory=tight)
    core = layout_conflict(ctx)
    # Stage 0 cannot hold the layer that it must have; the other rules are not to blame.
    assert set(core) == {"blocks-not-empty", "stage-memory[0]"}


def test_no_conflict_where_a_layout_exists() -> None:
    assert layout_conflict(LayoutContext(2, 1, (0, 0, 0))) == ()


@pytest.mark.parametrize(
    ("moments", "kept"),
    [
        ((BACKWARD, LOSS, OPTIMIZER), (BACKWARD, LOSS, OPTIMIZER)),
        ((BACKWARD, replace(BACKWARD, stage=(4, 2))), (replace(BACKWARD, stage=(4, 2)),)),
        ((BACKWARD, replace(BACKWARD, working=(2, 1))), (BACKWARD,)),
        # It keeps less of a plain layer, but more of one that recomputes.
        (
            (BACKWARD, replace(BACKWARD, freed=((4, 2), (3, -1)))),
            (replace(BACKWARD, freed=((4, 2), (3, -1))),),
        ),
    ],
)
def test_moments_that_no_layout_has_as_its_peak_are_dropped(
    moments: tuple[MomentNumbers, ...], kept: tuple[MomentNumbers, ...]
) -> None:
    assert undominated(moments) == kept


def test_a_conflict_has_both_places_of_multi_token_prediction() -> None:
    """Too heavy beside the head and before it: both stages are named. Light enough there: none."""
    beside = MemoryNumbers(1, 3, (on_stages(1, 1, 4),))
    before = MemoryNumbers(1, 3, (on_stages(1, 4, 1),))
    ctx = parting(3, 1, memory=beside, apart=ApartNumbers(memory=before))
    assert sorted(layout_conflict(ctx)) == ["stage-memory[1]", "stage-memory[2]"]
    assert (capacity(ctx, 1), capacity(ctx, 2)) == (1, 1)
    fits = MemoryNumbers(1, 3, (on_stages(1, 3, 1),))
    assert layout_conflict(replace(ctx, apart=ApartNumbers(memory=fits))) == ()
