"""Rules over layouts: which layers are in which block, and how many of them recompute.

Each rule is both a solver constraint (`add`) and a solver-free check of a layout (`check`).
`LAYOUT_RULES` is the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from constraints.layout_context import LayoutContext, block_taken
from constraints.layout_variables import LayoutVariables
from constraints.memory import StageMemoryLimit
from constraints.offload import SEVERAL_MODULES
from constraints.rule import TEXTS, Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

Relations = Callable[[Sequence[Any], LayoutContext, bool], Iterator[Any]]


@dataclass(frozen=True)
class LinearRule:
    """A rule made of linear comparisons of the blocks' layer counts.

    `relations(layers, ctx, standalone)` yields comparisons, either of numbers (giving bools) or of
    the solver's variables. `standalone`: multi-token prediction is in the second-last block, which
    the solver never tries.
    """

    name: str
    sentence: str
    source: str
    relations: Relations

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Add every comparison to the solver's model."""
        for relation in self.relations(variables.layers, ctx, False):
            variables.hold(model, model.add(relation), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Whether a layout satisfies every comparison."""
        return all(self.relations(layout.block_layers, ctx, layout.mtp_standalone))


def layout_rule() -> Callable[[Relations], LinearRule]:
    """Decorator that turns a function into the relations of the rule of that name in
    `rules.toml`."""

    def build(relations: Relations) -> LinearRule:
        name = relations.__name__.replace("_", "-")
        return LinearRule(name, TEXTS[name]["sentence"], TEXTS[name]["source"], relations)

    return build


@layout_rule()
def every_layer_once(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """The blocks are consecutive, so every layer is placed once if their counts add up."""
    yield sum(layers) == ctx.layers


@layout_rule()
def blocks_not_empty(layers: Sequence[Any], ctx: LayoutContext, standalone: bool) -> Iterator[Any]:
    """Each block has at least one layer, unless it may hold embedding or head alone."""
    for block, count in enumerate(layers):
        yield count >= ctx.least_layers(block, standalone)


@layout_rule()
def mtp_expressible(layers: Sequence[Any], ctx: LayoutContext, standalone: bool) -> Iterator[Any]:
    """Multi-token prediction has a block of its own only if the framework can do that, and then no
    layer follows it."""
    if standalone:
        yield ctx.may_part
        yield layers[-1] == 0


@layout_rule()
def split_expressible(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """The blocks equal the framework's split, or the chunks of a stage and the middle stages are
    equal."""
    if ctx.layouts in ("even", "greedy"):
        for count, wanted in zip(layers, ctx.usual_split, strict=True):
            yield count == wanted
    elif ctx.layouts == "even-or-ends":
        alike = [pair for stage in range(ctx.pp) for pair in pairwise(ctx.stage_blocks(stage))]
        for one, other in (*alike, *pairwise(range(1, ctx.pp - 1))):
            yield layers[one] == layers[other]


@layout_rule()
def chunks_balanced(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """Chunks of a stage differ by at most one layer, except that the last block may have fewer. The
    time model of interleaved schedules assumes this; frameworks do not require it."""
    for stage in range(ctx.pp):
        for one, other in combinations(ctx.stage_blocks(stage), 2):
            yield layers[one] - layers[other] <= ctx.fewer_layers(other)
            yield layers[one] - layers[other] >= -1


@layout_rule()
def offload_chunk_layers(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """The chunk that runs backward first on a stage does not have exactly one layer."""
    for stage in range(ctx.pp if ctx.offload_modules >= SEVERAL_MODULES else 0):
        block = ctx.stage_blocks(stage)[-1]
        may_be_empty = ctx.vpp == 1 and not ctx.least_layers(block)
        yield layers[block] != 1 if may_be_empty else layers[block] > 1


@dataclass(frozen=True)
class RecomputeExpressible:
    """Limits the counts of recomputed layers to those that the framework's flags can express."""

    name: str = "recompute-expressible"
    sentence: str = "the framework can write down how many layers of each stage recompute"
    source: str = "Megatron-LM core 0.19, --recompute-method block --recompute-num-layers"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Constrain each block's counts to what the framework can express."""
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
        """At least one layer recomputes; a later chunk of a stage only after the earlier ones are
        full."""
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
        """Whether the counts per stage can result from the mode."""
        return block_taken(layout, ctx) is not None


AnyLayoutRule = LinearRule | RecomputeExpressible | StageMemoryLimit
stage_memory = StageMemoryLimit()
# Rules that a framework needs to run at all, whatever the cost.
EXPRESSIBLE_RULES: tuple[AnyLayoutRule, ...] = (
    every_layer_once,
    blocks_not_empty,
    mtp_expressible,
    split_expressible,
    RecomputeExpressible(),
    offload_chunk_layers,
)
LAYOUT_RULES: tuple[AnyLayoutRule, ...] = (*EXPRESSIBLE_RULES, chunks_balanced, stage_memory)


def broken_but_memory(layout: Layout, ctx: LayoutContext) -> list[str]:
    """Sentences of the rules that a layout breaks, except the memory rule. Its figures are rounded;
    the caller compares memory with the exact peak."""
    return [
        rule.sentence
        for rule in LAYOUT_RULES
        if rule is not stage_memory and not rule.check(layout, ctx)
    ]
