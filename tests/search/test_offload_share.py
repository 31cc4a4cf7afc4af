"""Which share of the activations leaves the GPU: decided by CP-SAT, against exhaustion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constraints.layout import LAYOUT_RULES, LayoutContext, OffloadShares
from constraints.offload import kept_groups
from constraints.rule import Layout
from hardware import load_gpu
from planner.cost import fields as f
from planner.cost import linear
from planner.errors import UsageError
from planner.evaluate import evaluate
from planner.plan import Degrees
from planner.plan_file import read_plan_file, to_json
from planner.report.search import search_report
from planner.request import Request
from planner.result import SearchResult
from planner.search.arrays import plain_context
from planner.search.costed import cost_job
from planner.search.explorer import TIE, Effort
from planner.search.memory_conflict import layout_rules, memory_rule
from planner.search.offload_share import (
    MOST_FRACTIONS,
    StayingTerms,
    cost_any_layout,
    fractions,
    row_shares,
)
from planner.search.search import search
from planner.search.shares import cost_shares
from planner.search.terms import ShapeTerms, layout_context, memory_numbers, shape_terms
from planner.search.what_if import what_if
from tests.search.brute import step_time_s
from tests.search.test_layout_model import agree, synthetic_terms

GIB = 2.0**30
MODULES = ("core_attn", "attn_proj")
# Two stages of 24 layers with 10.35 GiB: too little with nothing on the host.
LEFT_GIB = 10.35
TIGHT = Request(
    model="gpt2-medium", gpus="2xA100", gbs=32, seq=1024, recompute=("none",),
    hbm_reserve=f"{load_gpu('a100').hbm_usable_bytes / GIB - LEFT_GIB}GiB",
    limits={"pp": (2,), "vpp": (1,), "mbs": (8,)},
    activation_offload=",".join(MODULES), activation_offload_fraction="search",
)  # fmt: skip
DEGREES = Degrees(pp=2, mbs=8, grad_acc=4)
# Of 12 layers of two modules each, those that keep whole layers.
TRIED = tuple(round(1.0 - (2 * stay + 0.5) / 24, 4) for stay in range(1, 12))


def with_staying(terms: ShapeTerms, seed: int, groups: tuple[int, ...]) -> ShapeTerms:
    """The shape with layers that take less and hold more if their activations stay, where there
    are any."""
    rng = np.random.default_rng(seed)
    layer = terms.layer.copy()
    passes = [linear.TERM_FORWARD, linear.TERM_BACKWARD]
    own = np.array(groups) > 0
    layer[:, passes] *= np.where(own[:, None], rng.uniform(0.3, 1.0, (len(layer), 2)), 1.0)
    return replace(terms, staying=StayingTerms(layer, terms.memory.freed * own))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2)]),
    st.floats(4.0, 16.0),
    st.sampled_from(["none", "all"]),
    st.sampled_from([(0, 0, 0, 0, 0), (0, 0, 1, 1, 1), (0, 1, 0, 1, 1)]),
    st.sampled_from([(1, 1), (2, 3), (0, 2)]),
    st.lists(st.floats(0.05, 0.99), min_size=1, max_size=3, unique=True),
    st.sampled_from([0.0, 1.0]),
)
def test_the_share_equals_exhaustion(
    seed: int, degrees: tuple[int, int], limit_gib: float, recomputation: str,
    kinds: tuple[int, ...], groups: tuple[int, ...], tried: list[float], traffic: float,
) -> None:  # fmt: skip
    """Every split of the layers at every fraction, one kind of layer and two."""
    pp, vpp = degrees
    kinds = kinds[: 4 if vpp > 1 else 5]
    plain = synthetic_terms(seed, pp, vpp, kinds=max(kinds) + 1, traffic=traffic)
    own = groups if max(kinds) else groups[1:]
    terms = with_staying(plain, seed, own)
    memory = memory_numbers(terms, limit_gib * GIB)
    shares = OffloadShares(tuple(sorted(tried, reverse=True)), own)
    ctx = LayoutContext(pp, vpp, kinds, "any", recomputation, memory, offload=shares)  # type: ignore[arg-type]
    agree(terms, ctx)


@pytest.fixture(scope="module")
def tight() -> SearchResult:
    return search(TIGHT)


class Costed(NamedTuple):
    """A layout at a fraction."""

    step_time_s: float
    peak_bytes: float


def at_fraction(fraction: float | None) -> Request:
    if fraction is None:
        none = {"activation_offload": "off", "activation_offload_fraction": 1.0}
        return TIGHT.model_copy(update=none)
    return TIGHT.model_copy(update={"activation_offload_fraction": fraction})


@pytest.fixture(scope="module")
def plans() -> list[Costed]:
    """All layouts of the one shape at each fraction that is tried, and with all on the host."""
    found = []
    for fraction in (*TRIED, 1.0):
        explorer = cost_job(at_fraction(fraction).resolve()).explorer(Effort())
        row = int(np.flatnonzero(explorer.columns["zero"] == 0)[0])
        for first in range(2, 23):
            layout = Layout(2, 1, (first, 24 - first), (0, 0), offload_fraction=fraction)
            point = explorer.cost(row, layout)
            found.append(Costed(point.pace * DEGREES.gbs, point.peak))
    return found


def test_the_search_equals_exhaustion(tight: SearchResult, plans: list[Costed]) -> None:
    explorer = cost_shares(TIGHT.resolve()).explorer(Effort())
    rungs = explorer.explore()
    assert [own.cost_model.job.offload_fraction for own in explorer.explorers] == ["search", 1.0]
    shares = set()
    for rung in rungs:
        fitting = [own.step_time_s for own in plans if own.peak_bytes <= rung.limit_bytes]
        assert (rung.point is None) == (not fitting)
        if rung.point is not None:
            found = rung.point.pace * DEGREES.gbs
            assert min(fitting) * (1.0 - 1e-9) <= found <= min(fitting) * (1.0 + TIE)
            assert rung.bound * DEGREES.gbs <= min(fitting) * (1.0 + 1e-9)
            shares.add(rung.point.layout.offload_fraction)
    assert len(shares) > 1
    assert tight.proven


def test_a_share_is_faster_than_all_where_all_is_too_much(tight: SearchResult) -> None:
    """Nothing on the host does not fit; all of it takes longer than the share that is found."""
    limit = tight.plans[0].limit_bytes
    sizes = [
        evaluate(at_fraction(None), DEGREES, "none", (first, 24 - first)).peak_bytes
        for first in range(1, 24)
    ]
    assert min(sizes) > limit
    best = tight.plans[0]
    assert best.activation_offload_fraction in TRIED
    assert best.layout.stage_layers(2) != (0, 0)
    whole = search(at_fraction(1.0)).plans[0]
    assert best.step_time_s < 0.9 * whole.step_time_s


@pytest.mark.parametrize("model", ["gpt2-medium", "mixtral-8x7b"])
def test_the_solver_never_promises_too_much(model: str) -> None:
    """Layouts of a shape at each fraction: the kernel's bytes within the solver's, its seconds not
    below the solver's terms by more than rounding, nor above."""
    request = TIGHT.model_copy(
        update={"model": model, "gpus": "8xH100", "gbs": 64, "hbm_reserve": "0", "limits":
                {"pp": (4,), "tp": (2,), "vpp": (1,), "dp": (1,)}}
    )  # fmt: skip
    costed = cost_job(replace(request.resolve(), offload_fraction="search", fraction_open=False))
    model_, columns = costed.cost_model, costed.candidates.columns
    shares = row_shares(costed.job, columns, 0)
    assert shares is not None
    terms = shape_terms(model_, costed.costed, 0, "none")
    unlimited = layout_context(
        terms, costed.job.model, costed.job.framework, costed.job.recompute[0], 1e15, shares
    )
    layers = costed.job.model.layers
    for fraction in shares.fractions:
        for blocks in ((layers // 4,) * 4, (layers // 4 - 2, *(layers // 4,) * 2, layers // 4 + 2)):
            layout = Layout(4, 1, blocks, (0,) * 4, offload_fraction=fraction)
            ctx = replace(plain_context(costed.job, 4, 1, "none"), offload=shares)
            own = cost_any_layout(model_, costed.costed, 0, layout, ctx)
            promised = step_time_s(terms, layout, unlimited)
            assert own.step[f.STEP_TIME] == pytest.approx(promised, rel=1e-9)
            stays = unlimited.staying_counts(layout)[0]
            assert unlimited.memory is not None
            unit = unlimited.memory.unit_bytes
            for stage, counts in enumerate(unlimited.counts(layout)):
                held = unlimited.memory.peak(stage, counts, [0], [], stays[stage]) * unit
                exact = own.stages[stage, f.STAGE_ALLOCATED]
                assert exact <= held <= exact + 80 * unit


def test_bounds_hold_for_every_fraction(plans: list[Costed]) -> None:
    """Shapes are costed as no layout of theirs is: faster and lighter than any."""
    job = replace(TIGHT.resolve(), offload_fraction="search", fraction_open=False)
    costed = cost_job(job)
    step = costed.costed.steps[0]
    for plan in plans:
        assert step[f.STEP_TIME_BOUND] <= plan.step_time_s * (1.0 + 1e-9)
        assert step[f.STEP_PEAK_BOUND] <= plan.peak_bytes * (1.0 + 1e-9)


def test_files_and_notes_have_the_share(tight: SearchResult, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(to_json(tight), encoding="utf-8")
    assert read_plan_file(path) == tight
    plan = tight.plans[0]
    decided = tight.request.for_plan(plan)
    assert decided.activation_offload_fraction == plan.activation_offload_fraction
    again = evaluate(decided, plan.degrees, plan.recompute, plan.layout.block_layers)
    assert again.step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)
    assert again.peak_bytes == plan.peak_bytes
    text = " ".join(str(search_report(tight).blocks).split())
    assert "of core_attn + attn_proj on the host" in text
    assert "fetches ahead" in text


def test_more_memory_may_need_less_on_the_host(tight: SearchResult) -> None:
    plan = tight.plans[0]
    found = what_if(TIGHT, TIGHT.resolve(), plan)
    memory = next(own for own in found.rows if own.name == "hbm")
    assert memory.step_time_s is not None
    assert memory.step_time_s < plan.step_time_s
    assert memory.activation_offload_fraction < plan.activation_offload_fraction


def test_why_nothing_fits_speaks_of_the_share() -> None:
    """At 0.4 the even layout of the lightest shape needs what `evaluate` says; all would fit."""
    little = {"hbm_reserve": f"{load_gpu('a100').hbm_usable_bytes / GIB - 9.9}GiB"}
    request = at_fraction(0.4).model_copy(update=little)
    shares = cost_shares(request.resolve())
    own, explorer = shares.lightest, shares.explorer(Effort()).explorers[0]
    text = memory_rule(own, explorer).text
    needed = evaluate(at_fraction(0.4), DEGREES).peak_bytes / GIB
    assert f"needs {needed:.1f} GiB without recompute, 40% of core_attn + attn_proj" in text
    rules = {rule.name: rule.text for rule in layout_rules(own, explorer)}
    assert "stage 0 holds at most 11, stage 1 holds at most 12" in rules["stage-memory"]


def test_any_number_of_workers_finds_the_same() -> None:
    costed = cost_shares(TIGHT.resolve())
    found = [costed.explorer(Effort(workers=own)).explore() for own in (1, 3)]
    assert found[0] == found[1]


@pytest.mark.parametrize(("layers", "groups"), [(1, 2), (2, 1), (6, 2), (40, 3), (126, 7), (5, 0)])
def test_fractions_keep_whole_layers(layers: int, groups: int) -> None:
    found = fractions(layers, groups)
    assert 1 <= len(found) <= MOST_FRACTIONS
    assert list(found) == sorted(found, reverse=True)
    assert all(0.0 < own < 1.0 for own in found)
    if layers > 1 and groups:
        assert all(kept_groups(layers * groups, own) % groups == 0 for own in found)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"activation_offload": "off", "activation_offload_fraction": 0.5}, "a share of nothing"),
        ({"activation_offload_fraction": 0.0}, "give --activation-offload off"),
        ({"activation_offload_fraction": 1.5}, "a number above 0 and up to 1"),
        (
            {"framework": "torchtune", "activation_offload": "checkpoints", "recompute": ("full",),
             "activation_offload_fraction": 0.5},
            "torchtune offloads all layers or none; a fraction is there in",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_shared(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        TIGHT.model_copy(update=changes).resolve()


def test_only_a_search_decides() -> None:
    with pytest.raises(UsageError, match="only a search decides the share"):
        evaluate(TIGHT, DEGREES)


def test_every_rule_holds_for_what_is_found(tight: SearchResult) -> None:
    """The rules' checks, which know no solver, accept each plan's layout."""
    for plan in tight.plans:
        own, job = plan.layout, tight.request.for_plan(plan).resolve()
        ctx = plain_context(job, 2, 1, "none")
        layout = Layout(2, 1, own.block_layers, own.recomputed,
                        offload_fraction=plan.activation_offload_fraction)  # fmt: skip
        if plan.activation_offload_fraction < 1.0:
            ctx = replace(ctx, offload=OffloadShares((), (2,)))
        assert all(rule.check(layout, ctx) for rule in LAYOUT_RULES)
