"""The memory of a configuration, stage by stage and step by step."""

from __future__ import annotations

import pytest

from planner import Degrees, Request
from planner.predict.memory.account import Footprint, dropless_worst_case, worst_expert_load
from planner.predict.memory.terms import phase_rows
from planner.report.charts.memory import memory_figure
from tests.configurations import memory_footprint

CASES = {
    "one GPU": ("gpt2", "nanogpt", Degrees(mbs=12), "none"),
    "interleaved": ("llama-3-8b", "megatron-core", Degrees(tp=2, pp=4, vpp=2, grad_acc=8), "none"),
    "experts": (
        "mixtral-8x7b",
        "megatron-core",
        Degrees(pp=4, ep=4, dp=4, zero=1, grad_acc=8),
        "layernorm",
    ),
}


def _footprint(name: str) -> Footprint:
    model, framework, degrees, recompute = CASES[name]
    words = {"model": model, "gpus": f"{degrees.gpus}xH100", "framework": framework}
    return memory_footprint(Request(**words, gbs=degrees.gbs), degrees, recompute)


def test_each_stage_has_one_peak_and_the_steps_in_order() -> None:
    footprint = _footprint("interleaved")
    for account in footprint.stages:
        rows = phase_rows(account)
        assert sum(row.is_peak for row in rows) == 1
        assert [row.step for row in rows] == sorted(row.step for row in rows)
        assert max(row.phase.total_bytes for row in rows) == account.allocated_bytes


def test_the_first_step_starts_without_optimizer_state() -> None:
    account = _footprint("one GPU").heaviest
    first, later = account.first_step[0].terms, account.later_steps[0].terms
    assert first["optimizer state"] == 0
    # GPT-2 has 124,439,808 parameters, and nanoGPT pads its 50,257 tokens to 50,304; AdamW keeps
    # two fp32 moments under autocast.
    padded = 124_439_808 + 47 * 768
    assert later["optimizer state"] == 8 * padded
    assert later["weights"] == 4 * padded


def test_dropless_routing_may_send_an_expert_group_to_one_rank() -> None:
    footprint = _footprint("experts")
    worst = dropless_worst_case(footprint.configuration)
    assert worst is not None
    # 8 experts, two on each of the 4 ranks, top-2: all copies of every token of the group.
    assert worst.configuration.job.expert_imbalance == 4
    assert worst.total_bytes > footprint.total_bytes


@pytest.mark.parametrize(
    ("ep", "load"),
    [
        (1, 1.0),
        (4, 4.0),
        # One expert a rank gets at most one of a token's two copies: 8 · 1/2.
        (8, 4.0),
    ],
)
def test_worst_load_of_a_rank(ep: int, load: float) -> None:
    job = Request(model="mixtral-8x7b", gpus="8xH100", gbs=8).resolve()
    assert worst_expert_load(job, Degrees(ep=ep, dp=8)) == load


def test_a_dense_model_has_no_worst_load() -> None:
    assert dropless_worst_case(_footprint("one GPU").configuration) is None


def test_the_picture_shows_the_same_bytes() -> None:
    footprint = _footprint("experts")
    figure = memory_figure(footprint, footprint.stages)
    for panel, account in zip(figure.panels, footprint.stages, strict=True):
        peak = next(bar for bar in panel.bars if bar.is_peak)
        assert peak.total_bytes == pytest.approx(account.total_bytes)
        assert (panel.interval is not None) == (account is footprint.heaviest)
        assert panel.shows_limit
