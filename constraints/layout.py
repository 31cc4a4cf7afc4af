"""Rules over layouts: which layers sit in which block, and how many of them recompute.

Each rule is said twice, to the solver (`add`) and as a check that knows no solver. The list
`LAYOUT_RULES` is the registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from constraints.layout_context import (
    LayoutContext,
    LayoutShape,
    Recomputation,
    block_taken,
    even_split,
    greedy_costs,
    greedy_split,
    shared_count,
)
from constraints.layout_variables import LayoutVariables, make_variables
from constraints.memory import StageMemory
from constraints.offload import OffloadChunks
from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

__all__ = [
    "EXPRESSIBLE_RULES",
    "LAYOUT_RULES",
    "AnyLayoutRule",
    "LayoutContext",
    "LayoutShape",
    "LayoutVariables",
    "Recomputation",
    "block_taken",
    "broken_but_memory",
    "even_split",
    "greedy_costs",
    "greedy_split",
    "make_variables",
    "shared_count",
    "stage_memory",
]


@dataclass(frozen=True)
class EveryLayerOnce:
    """Blocks follow each other, so every layer is placed once if the blocks add up."""

    name: str = "every-layer-once"
    sentence: str = "every layer is placed in exactly one block"
    source: str = "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Blocks add up to the model."""
        variables.hold(model, model.add(sum(variables.layers) == ctx.layers), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Blocks add up to the model."""
        return sum(layout.block_layers) == ctx.layers


@dataclass(frozen=True)
class BlocksNotEmpty:
    """The ends of the pipeline may do without layers where the framework can write that."""

    name: str = "blocks-not-empty"
    sentence: str = (
        "every block holds at least one transformer layer, but for the embedding's and the head's "
        "where the framework lets them be alone"
    )
    source: str = (
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Megatron-LM core 0.19, "
        "PipelineParallelLayerLayout (stages E and L)"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """At least one layer in each block that may not be alone."""
        for block, layer in enumerate(variables.layers):
            variables.hold(model, model.add(layer >= ctx.least_layers(block)), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """At least one layer in each block that may not be alone."""
        return all(
            block_layer >= ctx.least_layers(block, layout.mtp_standalone)
            for block, block_layer in enumerate(layout.block_layers)
        )


@dataclass(frozen=True)
class MtpExpressible:
    """Multi-token prediction with the head, or in a block of its own kind before it."""

    name: str = "mtp-expressible"
    sentence: str = (
        "multi-token prediction is in the block of head and loss or, where the framework lets it, "
        "in the block before, which is not on the embedding's stage; head and loss are then alone"
    )
    source: str = (
        "Megatron-LM core 0.19, PipelineParallelLayerLayout.validate_layer_layout "
        "(mtp_standalone): `m` after all layers, all in one block, the last of its rank, which is "
        "not the first"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Nothing to add: the solver leaves multi-token prediction with the head."""

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """No layer behind multi-token prediction, where it may be apart at all."""
        return not layout.mtp_standalone or (ctx.may_part and layout.block_layers[-1] == 0)


@dataclass(frozen=True)
class SplitExpressible:
    """What the framework's flags can say about the split of layers."""

    name: str = "split-expressible"
    sentence: str = "the framework can write down the split of layers over blocks"
    source: str = (
        "Megatron-LM core 0.19, --pipeline-model-parallel-layout and "
        "--decoder-first/last-pipeline-num-layers; planner/job/frameworks"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Fix the blocks to the framework's split, or tie those that must be equal."""
        layers = variables.layers
        if ctx.layouts in ("even", "greedy"):
            for layer, wanted in zip(layers, ctx.usual_split, strict=True):
                variables.hold(model, model.add(layer == wanted), self.name)
        elif ctx.layouts == "even-or-ends":
            for one, other in _equal_blocks(ctx):
                variables.hold(model, model.add(layers[one] == layers[other]), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """The blocks are the framework's split, or those that must be equal are."""
        layers = layout.block_layers
        if ctx.layouts in ("even", "greedy"):
            return layers == ctx.usual_split
        if ctx.layouts == "even-or-ends":
            return all(layers[one] == layers[other] for one, other in _equal_blocks(ctx))
        return True


def _equal_blocks(ctx: LayoutContext) -> Iterator[tuple[int, int]]:
    """Pairs of blocks that hold the same number: chunks of a stage, and the middle stages."""
    for stage in range(ctx.pp):
        stage_blocks = ctx.stage_blocks(stage)
        yield from pairwise(stage_blocks)
    for stage in range(2, ctx.pp - 1):
        yield stage - 1, stage


@dataclass(frozen=True)
class ChunksBalanced:
    """What the time of an interleaved schedule takes for granted; not a limit of frameworks."""

    name: str = "chunks-balanced"
    sentence: str = (
        "the chunks of a stage differ by at most one layer; that with the head may have fewer, as "
        "many as take the time of head, loss and multi-token prediction"
    )
    source: str = (
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2: the bubble shrinks by vpp if a "
        "stage's chunks take equal time"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Every pair of chunks of a stage, in both directions."""
        for one, other in _same_stage(ctx):
            difference = variables.layers[one] - variables.layers[other]
            most = ctx.fewer_layers(other)
            variables.hold(model, model.add(difference <= most), self.name)
            variables.hold(model, model.add(difference >= -1), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Every pair of chunks of a stage."""
        layers = layout.block_layers
        return all(
            -1 <= layers[one] - layers[other] <= ctx.fewer_layers(other)
            for one, other in _same_stage(ctx)
        )


def _same_stage(ctx: LayoutContext) -> Iterator[tuple[int, int]]:
    """Pairs of blocks on one stage, the earlier one first."""
    for stage in range(ctx.pp):
        yield from combinations(ctx.stage_blocks(stage), 2)


@dataclass(frozen=True)
class RecomputeExpressible:
    """What the framework's flags can say about recomputed layers."""

    name: str = "recompute-expressible"
    sentence: str = "the framework can write down how many layers of each stage recompute"
    source: str = "Megatron-LM core 0.19, --recompute-method block --recompute-num-layers"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Tie each block's counts to what the framework can say."""
        pairs = zip(variables.recomputed, variables.layers, strict=False)
        if ctx.recomputation == "free":
            self._add_free(model, variables, ctx)
        elif ctx.recomputation == "all":
            for again, layers in pairs:
                model.add(again == layers)
        elif ctx.recomputation == "shared":
            shared = model.new_int_var(1, ctx.layers, "shared_count")
            for again, layers in pairs:
                model.add_min_equality(again, [shared, layers])

    def _add_free(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Some layer recomputes; a stage's later chunk only once the earlier ones are full."""
        taken, layers = variables.recomputed, variables.layers
        model.add(sum(taken) >= 1)
        for count, most in zip(taken, layers, strict=True):
            model.add(count <= most)
        for stage in range(ctx.pp):
            for earlier, block in pairwise(ctx.stage_blocks(stage)):
                used = model.new_bool_var("")
                model.add(taken[block] <= ctx.layers * used)
                model.add(taken[earlier] == layers[earlier]).only_enforce_if(used)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """The counts per stage come from the mode."""
        return block_taken(layout, ctx) is not None


AnyLayoutRule = (
    EveryLayerOnce
    | BlocksNotEmpty
    | MtpExpressible
    | SplitExpressible
    | RecomputeExpressible
    | ChunksBalanced
    | OffloadChunks
    | StageMemory
)
stage_memory = StageMemory()
# What a framework can run at all, whatever it costs.
EXPRESSIBLE_RULES: tuple[AnyLayoutRule, ...] = (
    EveryLayerOnce(),
    BlocksNotEmpty(),
    MtpExpressible(),
    SplitExpressible(),
    RecomputeExpressible(),
    OffloadChunks(),
)
LAYOUT_RULES: tuple[AnyLayoutRule, ...] = (*EXPRESSIBLE_RULES, ChunksBalanced(), stage_memory)


def broken_but_memory(layout: Layout, ctx: LayoutContext) -> list[str]:
    """Sentences of the rules that a layout does not obey, but for that of memory, whose figures are
    rounded: who has the layout's peak compares that."""
    return [
        rule.sentence
        for rule in LAYOUT_RULES
        if rule is not stage_memory and not rule.check(layout, ctx)
    ]
