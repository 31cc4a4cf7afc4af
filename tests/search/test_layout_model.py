"""CP-SAT layouts against exhaustion, on synthetic costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constraints.layout_context import LayoutContext
from constraints.memory_numbers import MemoryNumbers
from planner.cost import linear
from planner.cost.linear_memory import MemoryPhases
from planner.cost.schedule import SCHEDULE_ALL_FORWARD_FIRST
from planner.search.layout_model import SolverOptions, solve_layout
from planner.search.terms import ShapeTerms, memory_numbers
from tests.search.brute import context, framework_inputs, legal_layouts, step_time_s

GIB = 2.0**30


def synthetic_terms(
    seed: int, pp: int, vpp: int, kinds: int = 1, grad_acc: int = 4, traffic: float = 0.0
) -> ShapeTerms:
    """A shape with random costs: layers of some milliseconds and some hundred MiB."""
    rng = np.random.default_rng(seed)

    def times(rows: int) -> np.ndarray:
        terms = np.zeros((rows, linear.TERM_COLUMNS))
        terms[:, linear.TERM_FORWARD] = rng.uniform(1e-3, 3e-3, rows)
        terms[:, linear.TERM_BACKWARD] = rng.uniform(2e-3, 6e-3, rows)
        terms[:, linear.TERM_OPTIMIZER] = rng.uniform(1e-4, 5e-4, rows)
        terms[:, linear.TERM_REDUCE] = traffic * rng.uniform(1e-3, 9e-3, rows)
        terms[:, linear.TERM_ALL_GATHER] = traffic * rng.uniform(1e-3, 5e-3, rows)
        terms[:, linear.TERM_TAKEN_FORWARD] = traffic * rng.uniform(0.0, 1e-3, rows)
        terms[:, linear.TERM_TAKEN_BACKWARD] = traffic * rng.uniform(0.0, 2e-3, rows)
        terms[:, linear.TERM_SHARED] = traffic * rng.uniform(0.0, 1e-3, rows)
        return terms

    layer = times(kinds)
    layer[:, linear.TERM_RECOMPUTE] = rng.uniform(1e-3, 3e-3, kinds)
    stage = np.zeros((pp, linear.TERM_COLUMNS))
    stage[[0, -1]] += times(2)
    scalars = np.zeros(linear.SCALAR_COLUMNS)
    scalars[linear.SCALAR_FIXED_S] = 0.01
    scalars[linear.SCALAR_REDUCE_BASE] = traffic * 1e-3
    return ShapeTerms(
        pp=pp,
        vpp=vpp,
        grad_acc=grad_acc,
        layers=np.repeat(layer[None], pp, axis=0),
        stage=stage,
        memory=synthetic_memory(rng, pp, kinds, grad_acc),
        scalars=scalars,
        rooms=np.array([[0.0, 1.04]] * pp),
        framework=framework_inputs(
            fragmentation=0.04, hide_gradient_reduction=0.9, hide_parameter_gather=1.0
        ),
        bubble_share=1.0 / vpp,
    )


def synthetic_memory(rng: np.random.Generator, pp: int, kinds: int, grad_acc: int) -> MemoryPhases:
    """A layer's backward, the loss, and the optimizer; some hundred MiB a layer."""
    in_flight = np.minimum(grad_acc, np.arange(pp, 0, -1.0))[:, None]
    persistent = rng.uniform(0.5, 1.5, kinds) * GIB
    saved = rng.uniform(0.2, 1.0, kinds) * GIB
    dropped = rng.uniform(0.1, 0.9, kinds) * saved
    working = rng.uniform(0.0, 0.3, kinds) * GIB
    gather = rng.uniform(0.0, 0.3, kinds) * GIB
    vocab_layers = rng.uniform(0.5, 1.5, pp) * GIB
    layer = persistent + in_flight * saved
    update = np.broadcast_to(persistent + rng.uniform(0.0, 0.5, kinds) * GIB, layer.shape)
    none, nothing = np.zeros(kinds), np.zeros_like(layer)
    return MemoryPhases(
        stage=np.array(
            [vocab_layers, vocab_layers + rng.uniform(0.0, 0.5, pp) * GIB, vocab_layers]
        ),
        layer=np.array([layer, layer, update]),
        freed=np.array([in_flight * dropped, in_flight * dropped, nothing]),
        working=np.array([working, none, none]),
        working_again=np.array([working + dropped, none, none]),
        gather=np.array([gather, none, none]),
        done=np.array([none - dropped, none, none]),
        done_again=np.zeros((3, kinds)),
    )


def best_by_exhaustion(terms: ShapeTerms, ctx: LayoutContext) -> float:
    return min(
        (step_time_s(terms, legal_layout, ctx) for legal_layout in legal_layouts(ctx)),
        default=np.inf,
    )


def agree(terms: ShapeTerms, ctx: LayoutContext) -> None:
    expected = best_by_exhaustion(terms, ctx)
    solution = solve_layout(terms, ctx)
    if np.isinf(expected):
        assert solution.status == "infeasible"
        return
    assert solution.status == "optimal"
    assert solution.layout is not None
    found = step_time_s(terms, solution.layout, ctx)
    # 1e-3 of gap, and times rounded to 1/2000 of a layer.
    assert found == pytest.approx(expected, rel=2e-3)
    assert solution.bound_s <= expected * (1 + 1e-9)
    assert solution.bound_s >= expected * (1 - 3e-3)


cases = st.tuples(
    st.integers(0, 10_000),
    st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2)]),
    st.integers(4, 6),
    st.floats(3.0, 14.0),
    st.sampled_from(["none", "all", "shared", "free"]),
    st.sampled_from(["any", "even", "even-or-ends"]),
    st.sampled_from([0.0, 1.0]),
)


@settings(max_examples=25, deadline=None)
@given(cases)
def test_one_kind_equals_exhaustion(case: tuple[object, ...]) -> None:
    seed, (pp, vpp), layers, limit_gib, recomputation, layouts, traffic = case  # type: ignore[misc]
    terms = synthetic_terms(seed, pp, vpp, traffic=traffic)
    memory = memory_numbers(terms, limit_gib * GIB)
    agree(terms, context(pp, vpp, (0,) * layers, layouts, recomputation, memory))


@settings(max_examples=25, deadline=None)
@given(cases, st.lists(st.integers(0, 1), min_size=6, max_size=6))
def test_two_kinds_equal_exhaustion(case: tuple[object, ...], order: list[int]) -> None:
    seed, (pp, vpp), layers, limit_gib, recomputation, layouts, traffic = case  # type: ignore[misc]
    kinds = (0, 1, *order)[:layers]
    terms = synthetic_terms(seed, pp, vpp, kinds=2, traffic=traffic)
    memory = memory_numbers(terms, limit_gib * GIB)
    agree(terms, context(pp, vpp, kinds, layouts, recomputation, memory))


def with_heavy_vocab(terms: ShapeTerms, embedding: float, head: float) -> ShapeTerms:
    """The shape with ends that take as long as so many layers."""
    stage = terms.stage.copy()
    passes = [linear.TERM_FORWARD, linear.TERM_BACKWARD]
    stage[0, passes] += embedding * terms.layer[0, passes]
    stage[-1, passes] += head * terms.layer[0, passes]
    return replace(terms, stage=stage)


@settings(max_examples=25, deadline=None)
@given(
    cases,
    st.sampled_from([(0.0, 3.0), (2.0, 0.0), (2.0, 2.5)]),
    st.integers(0, 3),
    st.sampled_from([(0, 0, 0, 0, 0), (0, 1, 1, 1, 1), (0, 1, 0, 1, 0)]),
)
def test_standalone_vocab_layers_equal_exhaustion(
    case: tuple[object, ...], vocab_layers: tuple[float, float], head: int, order: tuple[int, ...]
) -> None:
    """The embedding alone in the first block, the head alone in the last, both, or neither."""
    seed, (pp, vpp), layers, limit_gib, recomputation, _, traffic = case  # type: ignore[misc]
    kinds = order[: min(layers, 4 if vpp > 1 else 5)]  # type: ignore[operator]
    plain = synthetic_terms(seed, pp, vpp, kinds=max(kinds) + 1, traffic=traffic)
    terms = with_heavy_vocab(plain, *vocab_layers)
    memory = memory_numbers(terms, limit_gib * GIB)
    ctx = context(pp, vpp, kinds, "any", recomputation, memory, standalone_vocab=True)
    agree(terms, replace(ctx, head_layers=head))
    kept = best_by_exhaustion(terms, replace(ctx, standalone_vocab=False))
    assert best_by_exhaustion(terms, ctx) <= kept


def test_a_heavy_head_stays_alone_and_a_heavy_embedding_too() -> None:
    """Ends that take longer than a fair share of the layers leave their block without any."""
    ctx = context(4, 1, (0,) * 6, standalone_vocab=True)
    heavy = with_heavy_vocab(synthetic_terms(1, 4, 1, grad_acc=64), 4.0, 4.0)
    solution = solve_layout(heavy, ctx)
    assert solution.layout is not None
    assert solution.layout.block_layers == (0, 3, 3, 0)
    without = solve_layout(heavy, replace(ctx, standalone_vocab=False))
    assert without.layout is not None
    assert min(without.layout.block_layers) == 1
    assert solution.bound_s < without.bound_s


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.37, 0.8]), st.booleans())
def test_other_schedules_equal_exhaustion(seed: int, share: float, all_forward: bool) -> None:
    """A bubble share that is no simple fraction, GPipe, and blocks that lie in a V."""
    terms = synthetic_terms(seed, 3, 1, traffic=1.0)
    if all_forward:
        code = SCHEDULE_ALL_FORWARD_FIRST
        framework = terms.framework._replace(schedule=code)
        terms = replace(terms, framework=framework)
    else:
        terms = replace(terms, bubble_share=share)
    memory = memory_numbers(terms, 10 * GIB)
    agree(terms, context(3, 1, (0,) * 6, "any", "free", memory))
    folded = replace(synthetic_terms(seed, 2, 2), bubble_share=share, placement="folded")
    memory = memory_numbers(folded, 9 * GIB)
    agree(folded, context(2, 2, (0,) * 6, "any", "none", memory, "folded"))


def test_head_makes_the_last_stage_shorter() -> None:
    """A head that costs two layers takes two layers off the last of four stages."""
    terms = synthetic_terms(1, 4, 1, grad_acc=64)
    stage = np.zeros_like(terms.stage)
    passes = [linear.TERM_FORWARD, linear.TERM_BACKWARD]
    stage[-1, passes] = 2 * terms.layer[0, passes]
    ctx = context(4, 1, (0,) * 30)
    solution = solve_layout(replace(terms, stage=stage), ctx)
    assert solution.layout is not None
    assert solution.layout.block_layers == (8, 8, 8, 6)


def test_equal_options_give_equal_layouts() -> None:
    terms = synthetic_terms(7, 8, 1)
    free = context(8, 1, (0,) * 61, recomputation="free")
    ctx = replace(free, memory=memory_numbers(terms, 40 * GIB))
    first, second = (solve_layout(terms, ctx, SolverOptions(3, 5.0)) for _ in range(2))
    assert first.layout == second.layout
    assert first.status == "optimal"


def test_seeds_agree_on_the_step_time() -> None:
    terms = synthetic_terms(11, 4, 2)
    ctx = context(4, 2, (0,) * 18, "any", "shared", memory_numbers(terms, 20 * GIB))
    one, two = (solve_layout(terms, ctx, SolverOptions(seed, 5.0)) for seed in (1, 2))
    assert one.layout is not None
    assert two.layout is not None
    times = [step_time_s(terms, item, ctx) for item in (one.layout, two.layout)]
    assert times[0] == pytest.approx(times[1], rel=2e-3)


def test_memory_rounds_to_the_safe_side() -> None:
    """What fits in whole units fits in bytes, with every term rounded up."""
    terms = synthetic_terms(3, 2, 1)
    numbers: MemoryNumbers = memory_numbers(terms, 20 * GIB)
    backward = numbers.phases[0]
    exact = terms.memory.layer[0, 0, 0]
    assert 0 <= backward.layer[0][0] * numbers.unit_bytes - exact < numbers.unit_bytes
    freed = terms.memory.freed[0, 0, 0]
    assert 0 <= freed - backward.freed[0][0] * numbers.unit_bytes < numbers.unit_bytes
