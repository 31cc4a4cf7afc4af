"""What rules and layouts are built from: sequences of kinds, moments of a step, words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints.condition import user_condition
from constraints.layout_context import LayoutContext
from constraints.memory_numbers import PhaseNumbers, undominated
from constraints.numbers import Capabilities
from constraints.registry import RULES
from constraints.rule import Layout
from tests.constraints.shapes import ANYTHING, DENSE, context

ONE_LAYER = PhaseNumbers((5,), ((4,),), ((2,),), (3,), (3,), (1,))
WORDING = {rule.name: rule.explain for rule in RULES}


@pytest.mark.parametrize(
    ("kinds", "period"),
    [((0,) * 4, 1), ((0, 1, 0, 1), 2), ((0, 0, 1, 0, 0, 1, 0), 3), ((0, 1, 1), 3), ((0, 1), 2)],
)
def test_period_of_kinds(kinds: tuple[int, ...], period: int) -> None:
    assert LayoutContext(1, 1, kinds).period == period


def test_other_modes_take_layers_behind_the_recomputed_ones() -> None:
    ctx = LayoutContext(2, 1, (0, 0, 1, 1, 1, 1), recomputation="free", modes=("full", "mlp"))
    layout = Layout(2, 1, (3, 3), recomputed={"full": (1, 2), "mlp": (2, 0)})
    assert ctx.counts(layout) == [[2, 1], [0, 3]]
    assert ctx.mode_counts(layout) == [[[1, 0], [0, 2]], [[1, 1], [0, 0]]]


def test_a_moment_below_another_in_every_term_is_dropped() -> None:
    larger = replace(ONE_LAYER, stage=(6,))
    assert undominated([ONE_LAYER, larger]) == (larger,)
    lighter = replace(larger, freed=((3,),))
    assert undominated([ONE_LAYER, lighter]) == (ONE_LAYER, lighter)


def test_exchange_names_the_ranks_asked_for() -> None:
    ctx = replace(context(), context_kinds=("a2a+p2p",))
    (said,) = {text for rule in RULES if "ranks of an all-to-all" in (text := rule.explain(ctx))}
    assert said.startswith("a2a+p2p: tp times")
    assert said.replace(":", " over 2 ranks:", 1) in {
        rule.explain(replace(ctx, context_inner=2)) for rule in RULES
    }

    latent = replace(ctx, model=replace(DENSE, has_mla=True))
    rule = WORDING["context-exchange"]
    assert "12 heads and 4 key/value heads" in rule(ctx)
    assert "12 heads;" in rule(latent)


@pytest.mark.parametrize(
    ("schedule", "chunks", "microbatches"),
    [
        (None, "any vpp", "any grad_acc"),
        ("1f1b", "needs vpp = 1", "any grad_acc"),
        ("interleaved", "needs vpp > 1", "any grad_acc"),
        ("zb-h1", "needs vpp of at least 1", "any grad_acc"),
        ("zb-v", "needs vpp = 2 and pp > 1", "at least 2·pp - 1"),
        ("dualpipe", "needs vpp = 1", "even grad_acc of at least 2·pp"),
        ("dualpipev", "needs vpp = 2 and pp > 1", "grad_acc of at least 2·pp"),
    ],
)
def test_schedules_say_what_they_need(schedule: str | None, chunks: str, microbatches: str) -> None:
    ctx = context(schedule=schedule)
    assert WORDING["schedule-chunks"](ctx).endswith(chunks)
    assert WORDING["schedule-microbatches"](ctx).endswith(microbatches)


def test_hybrid_sharding_says_what_is_missing() -> None:
    explain = WORDING["hybrid-sharding-supported"]
    without, third = (
        replace(context(), framework=ANYTHING.model_copy(update={"hybrid_least_zero": least}))
        for least in (4, 3)
    )
    assert "has no hybrid sharding" in explain(without)
    assert "needs zero of at least 3" in explain(third)


def test_a_condition_is_called_as_it_was_given() -> None:
    given = user_condition("require", "pp <= 4")
    assert (given.option, given.words) == ('--require "pp <= 4"', "require pp <= 4")
    assert user_condition("fix", "mbs=4").option == "--fix mbs=4"
    brought = replace(given, of="--within plan.json")
    assert brought.option == brought.words == "--within plan.json, which needs pp <= 4"


def test_nothing_is_assumed_of_a_model_or_a_framework() -> None:
    assert not (DENSE.tied_embeddings or DENSE.has_mla or DENSE.sliding_window)
    least = Capabilities(zero_stages=(0,))
    usual = {"tensor", "pipeline", "vocabulary_padded", "tied_pipeline", "mtp_split",
             "zero3_with_tensor"}  # fmt: skip
    assert {name for name, value in least if value is True} == usual
