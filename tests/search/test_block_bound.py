"""The bound by whole blocks against every layout, and what a solve starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from constraints.layout import LAYOUT_RULES
from constraints.layout_context import Recomputation
from constraints.memory_numbers import MemoryNumbers
from constraints.rule import Layout
from planner.search.block_bound import NO_BOUND, applies, least_step
from planner.search.block_holdings import Block, Recompute, run_codes, sequence
from planner.search.fractional_bound import Prices, least_step_s
from planner.search.layout_model import SolverOptions, chunks, solve_layout
from planner.search.limit_results import Spent
from planner.search.stages import StageSeconds, StagesThatHold
from planner.search.terms import memory_numbers
from tests.search.brute import context, step_time_s
from tests.search.test_layout_model import GIB, best_by_exhaustion, synthetic_terms


@settings(max_examples=14, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(2, 1), (2, 2), (3, 1)]),
    st.sampled_from(["none", "all", "shared", "free"]),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.floats(4.0, 12.0),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
@example(259, (2, 2), "none", [0, 0, 0, 0, 1, 1], 11.0, 0.0, True)
def test_no_layout_beats_the_bound(
    seed: int,
    degrees: tuple[int, int],
    recomputation: Recomputation,
    order: list[int],
    limit_gib: float,
    traffic: float,
    standalone_vocab: bool,
) -> None:
    kinds = tuple(int(np.unique(order).searchsorted(item)) for item in order)
    terms = synthetic_terms(seed, *degrees, max(kinds) + 1, traffic=traffic)
    ctx = context(
        *degrees,
        kinds,
        recomputation=recomputation,
        memory=with_second_layer(memory_numbers(terms, limit_gib * GIB)),
        standalone_vocab=standalone_vocab,
        head_layers=1 + seed % 3,
    )
    best = best_by_exhaustion(terms, ctx)
    seconds, memory, prices = StageSeconds(terms, ctx), StagesThatHold(ctx), dict[object, Prices]()
    by_prices_s = least_step_s(seconds, memory, 1e3, prices, Spent())
    assert by_prices_s <= min(1e3, best * (1.0 + 1e-9))
    # Any prices will do: those of a shape with less memory.
    tight = with_second_layer(memory_numbers(terms, 0.9 * limit_gib * GIB))
    less = StagesThatHold(replace(ctx, memory=tight))
    least_step_s(seconds, less, 1e3, prices, Spent())
    assert least_step_s(seconds, memory, 1e3, prices, Spent()) == pytest.approx(by_prices_s)
    assert least_step_s(seconds, memory, 0.9 * by_prices_s, prices, Spent()) <= best
    if recomputation == "free":
        return
    found = least_step(terms, ctx, np.inf)
    assert found.step_s <= best * (1.0 + 1e-9)
    enough = 0.5 * (found.step_s + 0.01)
    assert least_step(terms, ctx, enough).step_s == pytest.approx(min(enough, found.step_s))


def with_second_layer(memory: MemoryNumbers) -> MemoryNumbers:
    """The numbers with a moment that holds most, on stages of two layers and more."""
    heavy = replace(memory.phases[0], stage=tuple(2 * size for size in memory.phases[0].stage))
    return replace(memory, phases=(*memory.phases, replace(heavy, two_layers=True)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_memory_of_all_stages_at_once_is_that_of_each(seed: int, counts: list[int]) -> None:
    layers, again = counts[:2], [min(pair) for pair in zip(counts[:2], counts[2:], strict=True)]
    terms = synthetic_terms(seed, 4, 2, 2)
    for limit_gib in (4.0, 7.0, 10.0, 20.0):
        memory = with_second_layer(memory_numbers(terms, limit_gib * GIB))
        ctx = context(4, 2, (0, 1) * 4, recomputation="shared", memory=memory)
        held = np.array([[*layers, *again], [0] * 4, [1, 0, 0, 0], [0, 1, 0, 1]])
        stages = [0, 1, 2, 3]
        expected = [
            [memory.peak(stage, taken[:2], taken[2:]) <= memory.limit for taken in held.tolist()]
            for stage in stages
        ]
        assert StagesThatHold(ctx).fits(stages, held).tolist() == expected
    assert StagesThatHold(replace(ctx, memory=None)).fits([0, 2], held).all()


def alternating(recomputation: Recomputation, limit_gib: float = 60.0) -> tuple:  # type: ignore[type-arg]
    """Two kinds in turn, one twice as slow, on 4 stages of 2 chunks: 16 layers, no heavy ends."""
    terms = synthetic_terms(7, 4, 2, 2, grad_acc=16)
    layers = terms.layers.copy()
    layers[:, 1] = 2.0 * layers[:, 0]
    terms = replace(terms, layers=layers, stage=0.0 * terms.stage)
    ctx = context(
        4,
        2,
        (0, 1) * 8,
        recomputation=recomputation,
        memory=memory_numbers(terms, limit_gib * GIB),
    )
    return terms, ctx


@pytest.mark.parametrize("recomputation", ["none", "all"])
def test_layers_in_turn_are_bounded_exactly(recomputation: Recomputation) -> None:
    """Two layers of each block, one of each kind: nothing is better, and the bound says so."""
    terms, ctx = alternating(recomputation)
    even = Layout(4, 2, (2,) * 8, dict.fromkeys(ctx.modes, (4,) * 4))
    found = least_step(terms, ctx, np.inf)
    assert all(rule.check(even, ctx) for rule in LAYOUT_RULES)
    assert found.step_s == pytest.approx(step_time_s(terms, even, ctx), rel=1e-9)
    assert found.stage_layers == (4,) * 4


def test_what_memory_excludes_raises_the_bound() -> None:
    """The lightest limit at which something fits is bounded higher than a wide one."""
    terms, ctx = alternating("shared", 60.0)
    tight, limit_gib = ctx, 60.0
    while solve_layout(terms, tight).status == "optimal":
        limit_gib *= 0.95
        last, tight = tight, replace(ctx, memory=memory_numbers(terms, limit_gib * GIB))
    found = solve_layout(terms, last)
    assert found.layout is not None
    tight_s = least_step(terms, last, np.inf).step_s
    assert least_step(terms, ctx, np.inf).step_s < tight_s
    assert tight_s <= step_time_s(terms, found.layout, last)


def test_where_it_applies() -> None:
    one_kind = context(2, 1, (0, 0))
    several = replace(one_kind, kinds=(0, 1))
    assert applies(several)
    assert applies(one_kind)
    assert not applies(replace(several, pp=1))
    assert not applies(replace(several, recomputation="free"))
    assert not applies(replace(several, placement="mirrored"))
    assert {"none", "all", "shared", "free"} == set(get_args(Recomputation))


@pytest.mark.parametrize(
    ("layers", "head", "expected"),
    [
        ((8, 8, 8, 6), 3, (4, 4, 4, 4, 4, 4, 4, 2)),
        ((5, 5, 4, 2), 1, (3, 3, 2, 1, 2, 2, 2, 1)),
        ((4, 4, 4, 4), 0, (2, 2, 2, 2, 2, 2, 2, 2)),
    ],
)
def test_a_start_is_a_legal_split(
    layers: tuple[int, ...], head: int, expected: tuple[int, ...]
) -> None:
    kinds = (0,) * sum(layers)
    ctx = context(4, 2, kinds, head_layers=head, standalone_vocab=True)
    blocks = chunks(layers, ctx)
    assert blocks == expected
    layout = Layout(4, 2, blocks)
    assert layout.stage_layers == layers
    assert all(rule.check(layout, ctx) for rule in LAYOUT_RULES)


def test_a_start_changes_no_optimum() -> None:
    terms, ctx = alternating("none")
    plain = solve_layout(terms, ctx, SolverOptions())
    started = solve_layout(terms, ctx, SolverOptions(), start=(3, 5, 3, 5))
    assert plain.status == started.status == "optimal"
    assert plain.layout is not None and started.layout is not None
    plain_s = step_time_s(terms, plain.layout, ctx)
    assert step_time_s(terms, started.layout, ctx) == pytest.approx(plain_s, rel=2e-3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_later_starts_of_a_run_repeat_earlier_ones(
    order: list[int], times: int, first: int, width: int, size: int
) -> None:
    """No start is left out of those that a block's width allows."""
    model = sequence((0, 1, *order * times * 3))
    width = min(width, model.layers - first)
    block = Block("middle", first, width, 1, 0)
    found = run_codes(model, block, Recompute("shared", 2), size)
    held, again = model.prefix
    assert found == {
        held[start + size] - held[start] + again[start + min(2, size)] - again[start]
        for start in range(first, first + width - size + 1)
    }


def test_a_bound_that_is_out_of_time_says_nothing() -> None:
    terms, ctx = alternating("shared", 60.0)
    assert least_step(terms, ctx, np.inf, spent=Spent(deadline=0.0)) == NO_BOUND
