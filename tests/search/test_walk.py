"""A walk through layouts against every layout, and what it does for models whose kinds mix."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from constraints.layout import LAYOUT_RULES
from constraints.layout_context import LayoutContext, Recomputation
from constraints.rule import Layout
from planner.search.limit_results import Spent
from planner.search.stages import StageSeconds, StagesThatHold
from planner.search.terms import ShapeTerms, memory_numbers
from planner.search.walk import STEPS, Walk, applies
from tests.search.brute import context, legal_layouts
from tests.search.test_layout_model import GIB, synthetic_terms

KINDS = (0, 1, 0, 2, 1, 0)


def job(
    seed: int, vpp: int, recomputation: Recomputation, limit_gib: float
) -> tuple[ShapeTerms, LayoutContext]:
    """Two stages of six layers of three kinds; the head's block may be short."""
    terms = synthetic_terms(seed, 2, vpp, max(KINDS) + 1)
    memory = memory_numbers(terms, limit_gib * GIB)
    ctx = context(
        2, vpp, KINDS, recomputation=recomputation, memory=memory,
        standalone_vocab=bool(seed % 2), head_layers=2,
    )  # fmt: skip
    return terms, ctx


CASES = list(product(range(2), (1, 2), ("none", "all", "shared")))


def slowest_s(seconds: StageSeconds, layout: Layout) -> float:
    """Seconds of a micro-batch on the slowest stage of a layout."""
    held = np.array(
        [*zip(seconds.ctx.counts(layout), seconds.ctx.recomputed_counts(layout), strict=True)]
    )
    rows = held.reshape(len(held), -1)
    return float((seconds.vocab_s + (rows * seconds.number_s).sum(axis=1)).max())


@pytest.mark.parametrize(("seed", "vpp", "recomputation"), CASES)
def test_a_walk_finds_the_shortest_slowest_stage(
    seed: int, vpp: int, recomputation: Recomputation
) -> None:
    terms, ctx = job(seed, vpp, recomputation, 8.0)
    seconds, each = StageSeconds(terms, ctx), int(recomputation == "shared")
    legal = [slowest_s(seconds, layout) for layout in legal_layouts(ctx)]

    def walk() -> list[Layout]:
        spent = Spent()
        found = list(Walk(terms, ctx, spent).layouts(ctx.usual_split, each, (1e-3, 1e3), STEPS))
        assert spent.work_s > 0.0
        return found

    found = walk()
    assert all(rule.check(layout, ctx) for layout in found for rule in LAYOUT_RULES)
    times = [slowest_s(seconds, layout) for layout in found]
    assert times == sorted(times, reverse=True)
    assert min(times, default=np.inf) == pytest.approx(min(legal, default=np.inf))
    assert walk() == found


@pytest.mark.parametrize("vpp", [1, 2])
def test_a_walk_may_visit_what_the_rules_allow(vpp: int) -> None:
    terms, ctx = job(1, vpp, "none", 1e3)
    walk = Walk(terms, ctx, Spent())
    legal = {layout.block_layers for layout in legal_layouts(ctx)}
    sizes = [one for one in product(range(7), repeat=2 * vpp) if sum(one) == len(KINDS)]
    states = np.array([[*one, 0] for one in sizes])
    allowed = walk._legal(states)
    assert {one for one, good in zip(sizes, allowed, strict=True) if good} == legal


def test_shares_of_the_limit_say_what_fits() -> None:
    _, ctx = job(0, 1, "shared", 6.0)
    memory = StagesThatHold(ctx)
    held = np.array(
        [[2, 1, 0, 1, 0, 0], [3, 2, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0], [4, 3, 1, 4, 3, 1]]
    )
    both = np.stack([held, held], axis=1)
    assert (memory.fits([0, 1], held) == (memory.peaks(both) <= 1.0).T).all()


def test_it_walks_only_where_kinds_mix() -> None:
    assert applies(context(2, 2, KINDS))
    assert not applies(context(2, 2, (0,) * 6))
    assert not applies(context(2, 2, (0, 0, 1, 1, 1, 1)))
    assert not applies(context(2, 2, KINDS, layouts="even"))
    assert not applies(context(2, 2, KINDS, recomputation="free"))


def test_a_layout_says_what_recomputes() -> None:
    _, ctx = job(0, 2, "shared", 1e3)
    layouts = list(
        Walk(*job(0, 2, "shared", 1e3), Spent()).layouts((2, 2, 1, 1), 1, (1e-9, 1e9), 2)
    )
    assert layouts
    assert all(isinstance(one, Layout) and set(one.recomputed) == {ctx.modes[0]} for one in layouts)
