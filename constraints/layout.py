"""Rules over layouts: which layers sit in which block, and how many of them recompute.

Each rule is a constraint of the solver (`add`), and a check of a layout that knows no solver. The
list `LAYOUT_RULES` is the registry.
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
    """A rule that compares sums of the blocks' layers.

    `relations(layers, ctx, standalone)`: comparisons that must hold, of numbers (then bools) as of
    the solver's variables; `standalone`: multi-token prediction stands in the last block but one,
    which no solver tries.
    """

    name: str
    sentence: str
    source: str
    relations: Relations

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Every relation, of variables."""
        for relation in self.relations(variables.layers, ctx, False):
            variables.hold(model, model.add(relation), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Whether every relation holds in a layout."""
        return all(self.relations(layout.block_layers, ctx, layout.mtp_standalone))


def layout_rule() -> Callable[[Relations], LinearRule]:
    """Decorator: the function under it has the relations of the rule that `rules.toml` has by its
    name."""

    def build(relations: Relations) -> LinearRule:
        name = relations.__name__.replace("_", "-")
        return LinearRule(name, TEXTS[name]["sentence"], TEXTS[name]["source"], relations)

    return build


@layout_rule()
def every_layer_once(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """Blocks follow each other, so every layer is placed once if the blocks add up."""
    yield sum(layers) == ctx.layers


@layout_rule()
def blocks_not_empty(layers: Sequence[Any], ctx: LayoutContext, standalone: bool) -> Iterator[Any]:
    """At least one layer in each block that may not be alone."""
    for block, count in enumerate(layers):
        yield count >= ctx.least_layers(block, standalone)


@layout_rule()
def mtp_expressible(layers: Sequence[Any], ctx: LayoutContext, standalone: bool) -> Iterator[Any]:
    """No layer behind multi-token prediction, where it may be apart at all."""
    if standalone:
        yield ctx.may_part
        yield layers[-1] == 0


@layout_rule()
def split_expressible(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """The blocks are the framework's split; or chunks of a stage are equal, and middle stages."""
    if ctx.layouts in ("even", "greedy"):
        for count, wanted in zip(layers, ctx.usual_split, strict=True):
            yield count == wanted
    elif ctx.layouts == "even-or-ends":
        alike = [pair for stage in range(ctx.pp) for pair in pairwise(ctx.stage_blocks(stage))]
        for one, other in (*alike, *pairwise(range(1, ctx.pp - 1))):
            yield layers[one] == layers[other]


@layout_rule()
def chunks_balanced(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """What the time of an interleaved schedule takes for granted; not a limit of frameworks."""
    for stage in range(ctx.pp):
        for one, other in combinations(ctx.stage_blocks(stage), 2):
            yield layers[one] - layers[other] <= ctx.fewer_layers(other)
            yield layers[one] - layers[other] >= -1


@layout_rule()
def offload_chunk_layers(layers: Sequence[Any], ctx: LayoutContext, _: bool) -> Iterator[Any]:
    """Not one layer in the chunk of a stage that runs backward first."""
    for stage in range(ctx.pp if ctx.offload_modules >= SEVERAL_MODULES else 0):
        block = ctx.stage_blocks(stage)[-1]
        may_be_empty = ctx.vpp == 1 and not ctx.least_layers(block)
        yield layers[block] != 1 if may_be_empty else layers[block] > 1


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


AnyLayoutRule = LinearRule | RecomputeExpressible | StageMemoryLimit
stage_memory = StageMemoryLimit()
# What a framework can run at all, whatever it costs.
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
    """Sentences of the rules that a layout does not obey, but for that of memory, whose figures are
    rounded: who has the layout's peak compares that."""
    return [
        rule.sentence
        for rule in LAYOUT_RULES
        if rule is not stage_memory and not rule.check(layout, ctx)
    ]
