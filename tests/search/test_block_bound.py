"""The bound by whole blocks against every layout, and what a solve starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constraints.layout import LAYOUT_RULES, ApartNumbers, LayoutContext, Recomputation
from constraints.rule import Layout
from planner.search import places
from planner.search.block_bound import applies, least_step
from planner.search.block_memory import StagesThatHold
from planner.search.layout_model import LayoutSolution, SolverOptions, solve_layout
from planner.search.layout_start import chunks
from planner.search.places import solve_places
from planner.search.terms import memory_numbers
from tests.search.brute import step_time_s
from tests.search.test_layout_model import (
    GIB,
    best_by_exhaustion,
    parting_context,
    synthetic_terms,
    with_mtp,
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(2, 1), (2, 2), (3, 1)]),
    st.sampled_from(["none", "all", "shared"]),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.floats(4.0, 12.0),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
def test_no_layout_beats_the_bound(
    seed: int,
    degrees: tuple[int, int],
    recomputation: Recomputation,
    order: list[int],
    limit_gib: float,
    traffic: float,
    lone_ends: bool,
) -> None:
    kinds = tuple(int(np.unique(order).searchsorted(own)) for own in order)
    terms = synthetic_terms(seed, *degrees, max(kinds) + 1, traffic=traffic)
    ctx = LayoutContext(
        *degrees,
        kinds,
        recomputation=recomputation,
        memory=memory_numbers(terms, limit_gib * GIB),
        lone_ends=lone_ends,
        head_layers=1 + seed % 3,
    )
    found = least_step(terms, ctx, np.inf)
    best = best_by_exhaustion(terms, ctx)
    assert found.step_s <= best * (1.0 + 1e-9)
    enough = 0.5 * (found.step_s + 0.01)
    assert least_step(terms, ctx, enough).step_s == pytest.approx(min(enough, found.step_s))


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(3, 1), (4, 1)]),
    st.sampled_from(["none", "all"]),
    st.lists(st.integers(0, 1), min_size=5, max_size=5),
    st.floats(0.3, 3.0),
    st.floats(0.3, 3.0),
)
def test_none_with_multi_token_prediction_apart_either(
    seed: int,
    degrees: tuple[int, int],
    recomputation: Recomputation,
    order: list[int],
    module: float,
    loss: float,
) -> None:
    kinds = tuple(int(np.unique(order).searchsorted(own)) for own in order)
    pp, vpp = degrees
    terms = with_mtp(synthetic_terms(seed, pp, vpp, max(kinds) + 1), seed, module, loss)
    ctx = parting_context(terms, kinds, recomputation, (5.0 + seed % 7) * GIB)
    found = least_step(terms, ctx, np.inf)
    assert found.least_s <= best_by_exhaustion(terms, ctx) * (1.0 + 1e-9)
    kept = best_by_exhaustion(terms, replace(ctx, mtp_apart=False))
    assert found.step_s <= kept * (1.0 + 1e-9)
    assert found.apart is not None
    solved = solve_places(terms, ctx, SolverOptions(), (0.0, np.inf), found)
    apart = solve_layout(terms, ctx, apart=True)
    assert found.apart.step_s <= min(apart.step_s, apart.bound_s) * (1.0 + 2e-3)
    expected = solve_layout(terms, ctx)
    assert solved.status == expected.status
    assert solved.bound_s <= best_by_exhaustion(terms, ctx) * (1.0 + 1e-9)
    if solved.layout is None:
        return
    assert all(rule.check(solved.layout, ctx) for rule in LAYOUT_RULES)
    assert step_time_s(terms, solved.layout, ctx) <= best_by_exhaustion(terms, ctx) * (1.0 + 3e-3)
    # Nothing is faster than the best by more than its gap: neither place has an answer there.
    beaten = solve_places(terms, ctx, SolverOptions(), (0.0, 0.99 * solved.bound_s), found)
    assert beaten.status == "infeasible"
    assert beaten.bound_s == 0.99 * solved.bound_s


def test_a_place_that_cannot_be_faster_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    terms, ctx = alternating("none")
    heavy = with_mtp(terms, 1, 6.0, 6.0)
    ctx = replace(ctx, lone_ends=True, mtp_apart=True, apart=heavy.apart_numbers(60.0 * GIB))
    known = least_step(heavy, ctx, np.inf)
    assert known.apart is not None
    assert known.apart.step_s < 0.95 * known.step_s
    asked: list[bool | None] = []

    def recorded(*given: object) -> LayoutSolution:
        asked.append(given[-1])  # type: ignore[arg-type]
        return solve_layout(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "solve_layout", recorded)
    found = solve_places(heavy, ctx, SolverOptions(), (0.0, 0.99 * known.step_s), known)
    assert set(asked) == {True}
    assert found.layout is not None
    assert found.layout.mtp_apart
    none = solve_places(heavy, ctx, SolverOptions(), (0.0, 0.99 * known.apart.step_s), known)
    assert none.status == "infeasible"
    assert set(asked) == {True}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_memory_of_all_stages_at_once_is_that_of_each(seed: int, counts: list[int]) -> None:
    layers, again = counts[:2], [min(pair) for pair in zip(counts[:2], counts[2:], strict=True)]
    terms = synthetic_terms(seed, 4, 2, 2)
    for limit_gib in (4.0, 7.0, 10.0, 20.0):
        memory = memory_numbers(terms, limit_gib * GIB)
        ctx = LayoutContext(4, 2, (0, 1) * 4, recomputation="shared", memory=memory)
        expected = [memory.peak(stage, layers, again) <= memory.limit for stage in range(4)]
        stages = StagesThatHold(ctx).stages((*layers, *again))
        assert [bool(stages >> stage & 1) for stage in range(4)] == expected
    assert StagesThatHold(replace(ctx, memory=None)).stages((9, 9, 9, 9)) == 0b1111


def test_a_heavy_prediction_is_bounded_where_it_stands_apart() -> None:
    terms, ctx = alternating("none")
    heavy = with_mtp(terms, 1, 6.0, 6.0)
    ctx = replace(ctx, lone_ends=True, mtp_apart=True, apart=heavy.apart_numbers(60.0 * GIB))
    kept = replace(ctx, mtp_apart=False)
    assert least_step(heavy, ctx, np.inf).least_s < 0.95 * least_step(heavy, kept, np.inf).step_s


def alternating(recomputation: Recomputation, limit_gib: float = 60.0) -> tuple:  # type: ignore[type-arg]
    """Two kinds in turn, one twice as slow, on 4 stages of 2 chunks: 16 layers, no heavy ends."""
    terms = synthetic_terms(7, 4, 2, 2, grad_acc=16)
    layer = terms.layer.copy()
    layer[1] = 2.0 * layer[0]
    terms = replace(terms, layer=layer, stage=0.0 * terms.stage)
    ctx = LayoutContext(
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
    even = Layout(4, 2, (2,) * 8, (4,) * 4 if recomputation == "all" else (0,) * 4)
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
    own = solve_layout(terms, last)
    assert own.layout is not None
    tight_s = least_step(terms, last, np.inf).step_s
    assert least_step(terms, ctx, np.inf).step_s < tight_s
    assert tight_s <= step_time_s(terms, own.layout, last)


def test_where_it_applies() -> None:
    one_kind = LayoutContext(2, 1, (0, 0))
    several = replace(one_kind, kinds=(0, 1))
    assert applies(several)
    assert not applies(one_kind)
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
    ctx = LayoutContext(4, 2, kinds, head_layers=head, lone_ends=True)
    blocks = chunks(layers, ctx)
    assert blocks == expected
    layout = Layout(4, 2, blocks, (0,) * 4)
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


def test_a_start_with_multi_token_prediction_apart_is_a_legal_split() -> None:
    """Head and loss alone in their block, prediction with what its time leaves."""
    own = ApartNumbers(head_layers=3, mtp_layers=2)
    changes = {"lone_ends": True, "mtp_apart": True, "apart": own}
    for vpp, stages, expected in (
        (2, (6, 6, 4, 2), (3, 3, 3, 2, 3, 3, 1, 0)),
        (1, (6, 6, 4, 0), (6, 6, 4, 0)),
    ):
        ctx = replace(LayoutContext(4, vpp, (0,) * sum(stages), head_layers=3), **changes)
        blocks = chunks(stages, ctx, True)
        assert blocks == expected
        layout = Layout(4, vpp, blocks, (0,) * 4, mtp_apart=True)
        assert layout.stage_layers == stages
        assert all(rule.check(layout, ctx) for rule in LAYOUT_RULES)
