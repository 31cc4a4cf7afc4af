"""The memory of a configuration: equal to `evaluate`, and sums that add up."""

from __future__ import annotations

import pytest

from planner import Degrees, Request, evaluate
from planner.predict.memory.footprint import (
    Footprint,
    dropless_worst_case,
    memory_footprint,
    worst_expert_load,
)
from planner.predict.memory.tensors import kept_tensors
from planner.predict.memory.terms import peak_parts, phase_rows
from planner.report.figures.memory import memory_figure

CASES = {
    "one GPU": ("gpt2", "nanogpt", Degrees(mbs=12), "none"),
    "interleaved": ("llama-3-8b", "megatron-core", Degrees(tp=2, pp=4, vpp=2, grad_acc=8), "none"),
    "recompute": ("llama-3-8b", "megatron-core", Degrees(tp=2, pp=4, grad_acc=8), "full"),
    "experts": (
        "mixtral-8x7b",
        "megatron-core",
        Degrees(pp=4, ep=4, dp=4, zero=1, grad_acc=8),
        "layernorm",
    ),
    "sharded": ("llama-3-8b", "torchtitan", Degrees(dp=8, zero=3, grad_acc=2), "none"),
    "gpipe": ("llama-3-8b", "torchtitan", Degrees(pp=4, dp=2, zero=3, grad_acc=8), "none"),
    "zb-h2": ("llama-3-8b", "zero-bubble", Degrees(pp=4, dp=2, zero=1, grad_acc=8), "none"),
    "eager": ("gpt2", "hf-transformers", Degrees(mbs=2, grad_acc=3), "none"),
}


def _request(name: str) -> tuple[Request, Degrees, str]:
    model, framework, degrees, recompute = CASES[name]
    attention = "eager" if name == "eager" else "flash"
    request = Request(
        model=model,
        gpus=f"{degrees.gpus}xH100",
        gbs=degrees.gbs,
        framework=framework,
        seq=None if model != "gpt2" else 1024,
        attention=attention,
        schedule=name if name in ("gpipe", "zb-h2") else None,
    )
    return request, degrees, recompute


def _footprint(name: str) -> Footprint:
    return memory_footprint(*_request(name))


@pytest.mark.parametrize("name", CASES)
def test_the_total_is_what_evaluate_says(name: str) -> None:
    request, degrees, recompute = _request(name)
    plan = evaluate(request, degrees, recompute)
    footprint = memory_footprint(request, degrees, recompute)
    assert footprint.total_bytes == plan.peak_bytes
    assert footprint.heaviest.stage == plan.heaviest_stage
    assert footprint.fits == plan.fits
    assert footprint.fit_probability == plan.fit_probability
    assert footprint.interval == plan.peak_interval
    assert [stage.total_bytes for stage in footprint.stages] == [
        stage.peak for stage in plan.stages
    ]


@pytest.mark.parametrize("name", CASES)
def test_parts_add_up_to_the_total_of_every_stage(name: str) -> None:
    footprint = _footprint(name)
    for account in footprint.stages:
        parts = peak_parts(footprint, account)
        assert sum(part.size_bytes for part in parts) == pytest.approx(account.total_bytes)
        kept = sum(part.size_bytes for part in parts if part.of == "activations")
        pooled = sum(part.size_bytes for part in parts if part.name == "other")
        assert kept <= account.peak.terms["activations"] <= kept + pooled + 1.0


@pytest.mark.parametrize("name", CASES)
def test_kept_tensors_add_up_in_every_phase(name: str) -> None:
    footprint = _footprint(name)
    seen = 0
    for account in footprint.stages:
        for row in phase_rows(account):
            tensors = kept_tensors(footprint.configuration.job, account.core, row.phase)
            term = row.phase.terms.get("activations", 0.0)
            assert sum(tensor.size_bytes for tensor in tensors) == pytest.approx(term, abs=1.0)
            seen += bool(tensors)
    assert seen


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
    # GPT-2 has 124,439,808 parameters; AdamW keeps two fp32 moments under autocast.
    assert later["optimizer state"] == 8 * 124_439_808
    assert later["weights"] == 4 * 124_439_808


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
