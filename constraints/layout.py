"""Rules over layouts: which layers sit in which block, and how many of them recompute.

Each rule is said twice, to the solver (`add`) and as a check that knows no solver. The list
`LAYOUT_RULES` is the registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from typing import TYPE_CHECKING, Literal

from constraints.memory import MemoryNumbers, StageMemory
from constraints.rule import Layout, Placement, stage_blocks

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, Constraint, CpModel, IntVar, LinearExpr

    # What sums of decision variables are; narrower than the solver's own alias, which admits
    # every numpy integer.
    Expression = LinearExpr | int

LayoutShape = Literal["any", "even-or-ends", "even", "greedy"]
# How many layers run again in backward: none; all; one count for every block (Megatron's block
# method), of which a shorter block takes all it has; or a count a stage, filled chunk by chunk.
Recomputation = Literal["none", "all", "shared", "free"]


@dataclass(frozen=True)
class LayoutContext:
    """The numbers of one shape that layout rules read.

    `kinds`: index of each layer's kind, first to last. `memory` None: unlimited.
    """

    pp: int
    vpp: int
    kinds: tuple[int, ...]
    layouts: LayoutShape = "any"
    recomputation: Recomputation = "none"
    memory: MemoryNumbers | None = None
    placement: Placement = "straight"

    @property
    def blocks(self) -> int:
        """Blocks of consecutive layers: pp·vpp."""
        return self.pp * self.vpp

    def stage_blocks(self, stage: int) -> tuple[int, ...]:
        """Blocks of one stage."""
        return stage_blocks(stage, self.pp, self.vpp, self.placement)

    @property
    def layers(self) -> int:
        """Transformer layers of the model."""
        return len(self.kinds)

    @property
    def kind_count(self) -> int:
        """Distinct kinds of layers."""
        return max(self.kinds) + 1

    @cached_property
    def prefix(self) -> tuple[tuple[int, ...], ...]:
        """prefix[kind][n]: how many of the first n layers are of that kind."""
        return tuple(
            tuple(accumulate((int(own == kind) for own in self.kinds), initial=0))
            for kind in range(self.kind_count)
        )

    def counts(self, layout: Layout) -> list[list[int]]:
        """[stage][kind]: layers of each kind on each stage."""
        return self._per_stage(layout, layout.block_layers)

    def recomputed_counts(self, layout: Layout) -> list[list[int]]:
        """[stage][kind]: recomputed layers; those at the start of a block go first."""
        return self._per_stage(layout, block_recomputed(layout, self) or (0,) * self.blocks)

    def _per_stage(self, layout: Layout, takes: Sequence[int]) -> list[list[int]]:
        starts = accumulate(layout.block_layers, initial=0)
        blocks = []
        for start, take in zip(starts, takes, strict=False):
            end = min(start + take, self.layers)
            blocks.append([row[end] - row[min(start, self.layers)] for row in self.prefix])
        return [
            [sum(kind) for kind in zip(*(blocks[b] for b in self.stage_blocks(s)), strict=True)]
            for s in range(self.pp)
        ]


def block_recomputed(layout: Layout, ctx: LayoutContext) -> tuple[int, ...] | None:
    """Recomputed layers of each block; None where the recomputation cannot be expressed."""
    if ctx.recomputation == "none":
        return None if any(layout.recomputed) else (0,) * len(layout.block_layers)
    if ctx.recomputation == "all":
        return layout.block_layers if layout.recomputed == layout.stage_layers else None
    if ctx.recomputation == "shared":
        return _shared_recomputed(layout)
    return _filled_recomputed(layout)


def shared_count(layout: Layout) -> int | None:
    """The smallest count N with which every block recomputes min(N, its layers); None if none."""
    for count in range(1, max(layout.block_layers) + 1):
        taken = [min(count, layers) for layers in layout.block_layers]
        if layout.per_stage(taken) == layout.recomputed:
            return count
    return None


def _shared_recomputed(layout: Layout) -> tuple[int, ...] | None:
    count = shared_count(layout)
    return None if count is None else tuple(min(count, n) for n in layout.block_layers)


def _filled_recomputed(layout: Layout) -> tuple[int, ...] | None:
    """Each stage's count, taken from its first chunk on."""
    if not any(layout.recomputed):
        return None
    taken = [0] * len(layout.block_layers)
    for stage, wanted in enumerate(layout.recomputed):
        left = wanted
        for block in layout.stage_blocks(stage):
            taken[block] = min(left, layout.block_layers[block])
            left -= taken[block]
        if left:
            return None
    return tuple(taken)


def even_split(layers: int, blocks: int) -> tuple[int, ...]:
    """Layers of each block, as even as possible; the shorter ones at the two ends in turn."""
    base, extra = divmod(layers, blocks)
    if not extra:
        return (base,) * blocks
    short = blocks - extra
    first, last = short // 2, short - short // 2
    return (base,) * first + (base + 1,) * extra + (base,) * last


@dataclass(frozen=True)
class LayoutVariables:
    """Decision variables of a layout. Index b is a block, k a kind.

    `kind_layers[b][k]`, `kind_recomputed[b][k]` are derived from `layers` and `recomputed` and
    the model's sequence of kinds. `assumed`: literals that switch rules on, by name, when a
    conflict is to be explained; None otherwise.
    """

    layers: list[IntVar]
    recomputed: list[IntVar]
    kind_layers: list[list[Expression]]
    kind_recomputed: list[list[Expression]]
    assumed: dict[str, BoolVarT] | None = field(default=None)

    def stage(
        self, per_block: list[list[Expression]], stage: int, ctx: LayoutContext
    ) -> list[Expression]:
        """Sums by kind over the chunks of a stage."""
        own = [per_block[block] for block in ctx.stage_blocks(stage)]
        return [sum(chunk) for chunk in zip(*own, strict=True)]

    def hold(self, model: CpModel, constraint: Constraint, name: str) -> None:
        """Make a constraint switchable under a rule's name, when conflicts are explained."""
        if self.assumed is None:
            return
        if name not in self.assumed:
            self.assumed[name] = model.new_bool_var(name)
        constraint.only_enforce_if(self.assumed[name])


def make_variables(model: CpModel, ctx: LayoutContext, explain: bool = False) -> LayoutVariables:
    """Create the variables, and tie kinds to positions in the model's sequence of layers."""
    blocks = range(ctx.blocks)
    layers = [model.new_int_var(0, ctx.layers, f"layers[{b}]") for b in blocks]
    recomputed = [model.new_int_var(0, ctx.layers, f"recomputed[{b}]") for b in blocks]
    if ctx.kind_count == 1:
        kind_layers: list[list[Expression]] = [[own] for own in layers]
        kind_recomputed: list[list[Expression]] = [[own] for own in recomputed]
    else:
        starts = _starts(model, layers, ctx)
        kind_layers = _kinds_between(model, starts[:-1], starts[1:], ctx)
        stops = [
            _position(model, start + taken, ctx)
            for start, taken in zip(starts, recomputed, strict=False)
        ]
        kind_recomputed = _kinds_between(model, starts[:-1], stops, ctx)
    assumed: dict[str, BoolVarT] | None = {} if explain else None
    return LayoutVariables(layers, recomputed, kind_layers, kind_recomputed, assumed)


def _position(model: CpModel, expression: Expression, ctx: LayoutContext) -> IntVar:
    position = model.new_int_var(0, ctx.layers, "")
    model.add(position == expression)
    return position


def _starts(model: CpModel, layers: list[IntVar], ctx: LayoutContext) -> list[IntVar]:
    """Position of each block's first layer, and the end of the last block."""
    starts = [model.new_constant(0)]
    for own in layers:
        starts.append(_position(model, starts[-1] + own, ctx))
    return starts


def _kinds_between(
    model: CpModel, starts: list[IntVar], stops: list[IntVar], ctx: LayoutContext
) -> list[list[Expression]]:
    """Layers of each kind between two positions, by look-up in the prefix counts."""

    def before(position: IntVar, kind: int) -> IntVar:
        count = model.new_int_var(0, ctx.layers, "")
        model.add_element(position, list(ctx.prefix[kind]), count)
        return count

    kinds = range(ctx.kind_count)
    return [
        [before(stop, kind) - before(start, kind) for kind in kinds]
        for start, stop in zip(starts, stops, strict=True)
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
    """A chunk with the embedding or the loss alone is not searched."""

    name: str = "blocks-not-empty"
    sentence: str = "every block holds at least one transformer layer"
    source: str = "Narayanan et al. 2021, arXiv 2104.04473, section 2.2"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:  # noqa: ARG002
        """At least one layer in each block."""
        for own in variables.layers:
            variables.hold(model, model.add(own >= 1), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:  # noqa: ARG002
        """At least one layer in each block."""
        return all(own >= 1 for own in layout.block_layers)


@dataclass(frozen=True)
class SplitExpressible:
    """What the framework's flags can say about the split of layers."""

    name: str = "split-expressible"
    sentence: str = "the framework can write down the split of layers over blocks"
    source: str = (
        "Megatron-LM core 0.19, --pipeline-model-parallel-layout and "
        "--decoder-first/last-pipeline-num-layers; planner/frameworks"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Fix the blocks to the even split, or tie those that must be equal."""
        layers = variables.layers
        if ctx.layouts in ("even", "greedy"):
            for own, wanted in zip(layers, even_split(ctx.layers, ctx.blocks), strict=True):
                variables.hold(model, model.add(own == wanted), self.name)
        elif ctx.layouts == "even-or-ends":
            for one, other in _equal_blocks(ctx):
                variables.hold(model, model.add(layers[one] == layers[other]), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """The blocks are the even split, or those that must be equal are."""
        layers = layout.block_layers
        if ctx.layouts in ("even", "greedy"):
            return layers == even_split(ctx.layers, ctx.blocks)
        if ctx.layouts == "even-or-ends":
            return all(layers[one] == layers[other] for one, other in _equal_blocks(ctx))
        return True


def _equal_blocks(ctx: LayoutContext) -> Iterator[tuple[int, int]]:
    """Pairs of blocks that hold the same number: chunks of a stage, and the middle stages."""
    for stage in range(ctx.pp):
        own = ctx.stage_blocks(stage)
        yield from pairwise(own)
    for stage in range(2, ctx.pp - 1):
        yield stage - 1, stage


@dataclass(frozen=True)
class ChunksBalanced:
    """What the time of an interleaved schedule takes for granted; not a limit of frameworks."""

    name: str = "chunks-balanced"
    sentence: str = "the chunks of a stage differ by at most one layer"
    source: str = (
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2: the bubble shrinks by vpp if a "
        "stage's chunks take equal time"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Every pair of chunks of a stage, in both directions."""
        for one, other in _same_stage(ctx):
            difference = variables.layers[one] - variables.layers[other]
            variables.hold(model, model.add(difference <= 1), self.name)
            variables.hold(model, model.add(difference >= -1), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Every pair of chunks of a stage."""
        layers = layout.block_layers
        return all(abs(layers[one] - layers[other]) <= 1 for one, other in _same_stage(ctx))


def _same_stage(ctx: LayoutContext) -> Iterator[tuple[int, int]]:
    """Pairs of blocks on one stage."""
    for stage in range(ctx.pp):
        yield from combinations(ctx.stage_blocks(stage), 2)


@dataclass(frozen=True)
class RecomputeExpressible:
    """What the framework's flags can say about recomputed layers."""

    name: str = "recompute-expressible"
    sentence: str = "the framework can write down how many layers of each stage recompute"
    source: str = "Megatron-LM core 0.19, --recompute-method block --recompute-num-layers"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Tie each block's count to what its mode demands."""
        pairs = list(zip(variables.recomputed, variables.layers, strict=True))
        if ctx.recomputation == "none":
            for again, _ in pairs:
                model.add(again == 0)
        elif ctx.recomputation == "all":
            for again, own in pairs:
                model.add(again == own)
        elif ctx.recomputation == "shared":
            count = model.new_int_var(1, ctx.layers, "shared_count")
            for again, own in pairs:
                model.add_min_equality(again, [count, own])
        else:
            self._add_free(model, variables, ctx)

    def _add_free(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Some layer recomputes; a stage's later chunk only once the earlier ones are full."""
        again, layers = variables.recomputed, variables.layers
        model.add(sum(again) >= 1)
        for own, most in zip(again, layers, strict=True):
            model.add(own <= most)
        for stage in range(ctx.pp):
            blocks = ctx.stage_blocks(stage)
            for earlier, block in pairwise(blocks):
                used = model.new_bool_var("")
                model.add(again[block] <= ctx.layers * used)
                model.add(again[earlier] == layers[earlier]).only_enforce_if(used)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """The counts per stage come from the mode."""
        return block_recomputed(layout, ctx) is not None


AnyLayoutRule = (
    EveryLayerOnce
    | BlocksNotEmpty
    | SplitExpressible
    | RecomputeExpressible
    | ChunksBalanced
    | StageMemory
)
stage_memory = StageMemory()
# What a framework can run at all, whatever it costs.
EXPRESSIBLE_RULES: tuple[AnyLayoutRule, ...] = (
    EveryLayerOnce(),
    BlocksNotEmpty(),
    SplitExpressible(),
    RecomputeExpressible(),
)
LAYOUT_RULES: tuple[AnyLayoutRule, ...] = (*EXPRESSIBLE_RULES, ChunksBalanced(), stage_memory)
