"""Rules over shapes, the rules that conflict, and the layouts of `constraints.layout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli

from constraints.context import RuleContext
from constraints.errors import ConstraintError
from constraints.numbers import Columns, Mask

ShapeTest = Callable[[Columns, RuleContext], Mask | bool]
Wording = Callable[[RuleContext], str]
Breach = Callable[[Columns, RuleContext], str]


@dataclass(frozen=True)
class ShapeRule:
    """A rule over shapes.

    `sentence` says what the rule demands, `source` where it comes from. `test` answers for all
    shapes at once, or with one bool if the answer is the same for all. `wording` is the sentence
    with the numbers of a context. A rule that combines others has `breach`, which says which of
    them a shape breaks, and where.
    """

    name: str
    sentence: str
    source: str
    test: ShapeTest
    wording: Wording
    breach: Breach | None = None

    def mask(self, columns: Columns, ctx: RuleContext) -> Mask:
        """True where a shape satisfies the rule, one bool per row."""
        obeyed = np.asarray(self.test(columns, ctx), dtype=np.bool_)
        return np.broadcast_to(obeyed, columns["tp"].shape)

    def explain(self, ctx: RuleContext) -> str:
        """The rule's demand, with the numbers of this context."""
        return self.wording(ctx)

    def why(self, columns: Columns, ctx: RuleContext) -> str:
        """The demand that the first of these shapes breaks."""
        return self.breach(columns, ctx) if self.breach else self.explain(ctx)


TEXTS: Mapping[str, Mapping[str, Any]] = tomli.loads(
    Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
)


def shape_rule(
    wording: Wording | None = None, breach: Breach | None = None
) -> Callable[[ShapeTest], ShapeRule]:
    """Decorator that turns a function into the test of the rule of that name in `rules.toml`.

    `wording`: function for a text that needs the numbers of a context.
    """

    def build(test: ShapeTest) -> ShapeRule:
        name = test.__name__.replace("_", "-")
        texts = TEXTS[name]

        def worded(ctx: RuleContext) -> str:
            words = texts["wording"]
            if not isinstance(words, str):
                case = str(attrgetter(words["by"])(ctx)).lower()
                words = words.get(case) or words["other"]
            return str(words.format(ctx=ctx))

        return ShapeRule(name, texts["sentence"], texts["source"], test, wording or worded, breach)

    return build


# Placement of blocks: block b on stage b mod pp; in a V, with the second half coming back (ZB-V,
# DualPipeV); or twice, with a second copy of the model from the other end (DualPipe).
Placement = Literal["straight", "folded", "mirrored"]


def stage_blocks(stage: int, pp: int, vpp: int, placement: Placement) -> tuple[int, ...]:
    """Blocks of one stage, in the order in which a micro-batch passes them."""
    if placement == "folded" and vpp > 1:
        return (stage, 2 * pp - 1 - stage)
    if placement == "mirrored" and pp > 1:
        return (stage, pp - 1 - stage)
    return tuple(range(stage, pp * vpp, pp))


@dataclass(frozen=True)
class Layout:
    """The layers of each block, in pipeline order: `block_layers`.

    `recomputed`: for each recompute mode in use, the number of layers of each stage that run again
    in it. They are the first layers of the stage, in the order of `LayoutContext.modes`.
    `mtp_standalone`: multi-token prediction is in the second-last block, and the last one holds
    head and loss; otherwise all three share the last block.
    """

    # Rejects unknown fields when read from files.
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (pydantic reads a plain class attribute)

    pp: int
    vpp: int
    block_layers: tuple[int, ...]
    recomputed: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    placement: Placement = "straight"
    mtp_standalone: bool = False

    def __post_init__(self) -> None:
        if len(self.block_layers) != self.pp * self.vpp:
            raise ConstraintError(
                f"block_layers has {len(self.block_layers)} entries; "
                f"pp={self.pp} times vpp={self.vpp} makes {self.pp * self.vpp} blocks"
            )
        for mode, counts in self.recomputed.items():
            if len(counts) != self.pp:
                raise ConstraintError(
                    f"recomputed[{mode!r}] has {len(counts)} entries; give one for each of "
                    f"{self.pp} stages"
                )

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each stage, summed over its chunks."""
        return self.per_stage(self.block_layers)

    @property
    def stage_recomputed(self) -> tuple[int, ...]:
        """Layers of each stage that run again in backward, in any mode."""
        return tuple(map(sum, zip((0,) * self.pp, *self.recomputed.values(), strict=True)))

    @property
    def is_even(self) -> bool:
        """Whether all blocks have the same number of layers."""
        return len(set(self.block_layers)) <= 1

    def per_stage(self, per_block: Sequence[int]) -> tuple[int, ...]:
        """Sums over the blocks of each stage."""
        return tuple(
            sum(per_block[block] for block in self.stage_blocks(stage)) for stage in range(self.pp)
        )

    def stage_blocks(self, stage: int) -> tuple[int, ...]:
        """Blocks of one stage."""
        return stage_blocks(stage, self.pp, self.vpp, self.placement)


def minimal_conflict(
    columns: Columns, ctx: RuleContext, rules: Sequence[ShapeRule]
) -> tuple[ShapeRule, ...]:
    """A minimal set of rules that together reject every shape; empty if a shape passes.

    `columns` must be the enumeration of shapes before any rule was applied.
    """
    return conflict_of(rejections(columns, ctx, rules), rules)


def rejections(columns: Columns, ctx: RuleContext, rules: Sequence[ShapeRule]) -> Mask:
    """Whether each rule (a row) rejects each shape (a column)."""
    return np.stack([~rule.mask(columns, ctx) for rule in rules])


def conflict_of(rejects: Mask, rules: Sequence[ShapeRule]) -> tuple[ShapeRule, ...]:
    """`minimal_conflict` of the shapes whose `rejections` are given.

    Deletion filter (Chinneck and Dravnieks 1991, ORSA J. Computing 3, p. 157): drop a rule
    whenever the others still reject everything. It goes from the last rule to the first, so of
    two that could each explain the conflict the earlier is named.
    """
    times_rejected = rejects.sum(axis=0)
    if not times_rejected.all():
        return ()
    kept: list[ShapeRule] = []
    for rule, rejected in zip(reversed(rules), rejects[::-1], strict=True):
        without = times_rejected - rejected
        if without.all():
            times_rejected = without
        else:
            kept.append(rule)
    return tuple(reversed(kept))
