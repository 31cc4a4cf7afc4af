"""Shapes that a trial leaves out, and when a chain of trials ends."""

from __future__ import annotations

import time
from io import StringIO
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constraints.rule import Layout
from planner.cost import fields as f
from planner.job.request import Request
from planner.report.draw import console, draw
from planner.report.fit import nothing_fits_report
from planner.search.costed import CostedJob, cost_job
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.limit_results import Effort, Until
from planner.search.search import find_plans
from planner.search.trial import cost_light, least_state_bytes

JOBS = [
    {"model": "llama-3-8b", "gpus": "8xH100", "framework": "megatron-core"},
    {"model": "llama-3-8b", "gpus": "16xH100", "framework": "torchtitan"},
    {"model": "llama-3-8b", "gpus": "8xA100", "framework": "deepspeed"},
    {"model": "mixtral-8x7b", "gpus": "16xH100", "optimizer_offload": 0.5},
    {"model": "deepseek-v2-lite", "gpus": "16xH100", "framework": "megatron-core"},
]


@pytest.fixture(scope="module")
def moe() -> CostedJob:
    """Shapes of a model with a dense layer before its MoE layers, one block a stage."""
    limits = {"vpp": (1,), "mbs": (1,)}
    job = Request(model="deepseek-v2-lite", gpus="16xH100", gbs=64, limits=limits)
    return cost_job(job.resolve())


@pytest.mark.parametrize("job", JOBS)
def test_no_layout_holds_less_than_the_state_bound(job: dict[str, object]) -> None:
    costed = cost_job(Request(**{"gbs": 64} | job).resolve())
    least = least_state_bytes(costed.cost_model, costed.candidates.columns)
    assert (least > 0).all()
    assert (least <= costed.costed.steps[:, f.STEP_PEAK_BYTES]).all()


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=40, deadline=None)
def test_nor_does_an_uneven_one(moe: CostedJob, pick: int, data: st.DataObject) -> None:
    """Layers spread at random: also those that the mean over stages says nothing about."""
    row = pick % len(moe.candidates.columns["pp"])
    columns = {name: values[[row]] for name, values in moe.candidates.columns.items()}
    pp, vpp = int(columns["pp"][0]), int(columns["vpp"][0])
    layers = moe.job.model.layers
    cuts = data.draw(
        st.lists(st.integers(1, layers - 1), min_size=pp - 1, max_size=pp - 1, unique=True)
    )
    cut_points = [0, *sorted(cuts), layers]
    stages = [high - low for low, high in pairwise(cut_points)]
    layout = Layout(pp, 1, tuple(stages))
    assert vpp == 1
    explorer = moe.explorer(Effort())
    least = least_state_bytes(moe.cost_model, columns)[0]
    assert least <= explorer.cost(row, layout).peak


def test_only_shapes_that_cannot_fit_are_left_out() -> None:
    job = Request(model="mixtral-8x7b", gpus="16xH100", gbs=64).resolve()
    everything, light = cost_job(job), cost_light(job, 16)
    assert light is not None
    fits = everything.costed.steps[:, f.STEP_PEAK_BYTES] <= job.hbm_limit_bytes
    kept = light.costed.steps[:, f.STEP_PEAK_BYTES] <= job.hbm_limit_bytes
    assert len(kept) < len(fits)
    assert kept.sum() == fits.sum() > 0
    np.testing.assert_allclose(
        np.sort(light.costed.steps[kept, f.STEP_TIME]),
        np.sort(everything.costed.steps[fits, f.STEP_TIME]),
    )
    assert cost_light(job, 17) is None
    assert cost_light(Request(model="405b", gpus="8xH100", gbs=64).resolve()) is None


def test_a_chain_ends_with_its_deadline() -> None:
    until = Until(time.perf_counter() - 1.0)
    assert until.over("gpus")
    assert until.over("gpus")
    assert until.over("offload")
    assert until.untried == ("gpus", "offload")
    assert until.stopped == "time-limit"
    left = until.seconds_left()
    assert left is not None
    assert left > 0
    assert not Until().over("gpus")
    assert Until().seconds_left() is None


def test_the_time_limit_also_ends_the_search_for_relaxations() -> None:
    request = Request(
        model="llama-3-8b", gpus="2xH100", gbs=16, recompute=("none",), require=("pp<=4",)
    )
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, time_limit_s=1e-3)
    why = caught.value.why
    assert why.stopped == "time-limit"
    assert {"gpus", "optimizer", "sequence"} <= set(why.untried)
    assert why.relaxations == ()
    # What was not decided in time is not called a conflict.
    assert all("not decided in time" in rule.text for rule in why.conflict[:-1])
    assert "time limit came first" in why.cut
    assert why.cut in why.sentences()
    assert "The time limit came first" in _text(why)
    # Nor is it said of changes that none was found where none was tried.
    assert "None of the changes" not in _text(why)
    assert "exclude each other" not in _text(why)


def _text(why: WhyNothingFits) -> str:
    stream = StringIO()
    draw(nothing_fits_report(why), console(stream))
    return stream.getvalue()


def test_choices_without_effect_are_said_to_be_left_out() -> None:
    """405 B parameters on one node fit no way: the figures are not of what was allowed."""
    request = Request(model="405b", gpus="8xH100", gbs=16, recompute=("none",))
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request)
    (memory,) = caught.value.why.conflict
    assert "with full recompute" in memory.text
    assert memory.text.endswith("Left out here: --recompute none; nothing fits with or without")
