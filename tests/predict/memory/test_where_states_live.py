"""Gradients that never wait, and optimizer states in unified memory: bytes and seconds by hand."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluate
from planner.predict.links import link_inputs
from planner.predict.plan import Degrees, Plan
from planner.search.search import find_plans
from tests.configurations import memory_footprint

PARAMETERS = 8_030_261_248
LAYERS = 32
ONE_LAYER = (PARAMETERS - 2 * 128_256 * 4096 - 4096) / LAYERS


def torchtune(gpus: str = "1xA100", gbs: int = 2, **fields: object) -> Request:
    return Request(
        model="llama-3.1-8b", gpus=gpus, gbs=gbs, seq=2048, framework="torchtune", **fields
    )


def planned(request: Request, degrees: Degrees) -> Plan:
    return evaluate(request, degrees, "full")


ONE = Degrees(mbs=2)
SHARDED = Degrees(dp=8, zero=3, mbs=2)


def test_no_gradient_waits_for_the_optimizer() -> None:
    """On one GPU 2 bytes a parameter less in the update, and one layer's gradients in backward."""
    plain = memory_footprint(torchtune(), ONE, "full")
    freed = memory_footprint(torchtune(use=("optimizer-in-backward",)), ONE, "full")
    before, after = (one.heaviest.phase("optimizer") for one in (plain, freed))
    assert before.terms["gradients"] == 2 * PARAMETERS
    assert after.terms["gradients"] == 0.0
    peak = freed.heaviest.peak
    assert peak.terms["gradients"] == 0.0
    assert peak.terms["working"] > 2 * ONE_LAYER
    assert freed.total_bytes < plain.total_bytes - 1.5 * PARAMETERS


def test_sharded_gradients_are_reduced_and_gone() -> None:
    """FSDP2: those in flight stay, of the layer that is being reduced; no share of them waits."""
    use = ("optimizer-in-backward",)
    plain = memory_footprint(torchtune("8xA100", 16), SHARDED, "full").heaviest
    freed = memory_footprint(torchtune("8xA100", 16, use=use), SHARDED, "full").heaviest
    assert plain.phase("optimizer").terms["gradients"] == pytest.approx(PARAMETERS / 4, rel=1e-3)
    assert freed.phase("optimizer").terms["gradients"] == 0.0
    assert freed.peak.terms["reduction"] == pytest.approx(plain.peak.terms["reduction"])


def test_it_needs_one_micro_batch() -> None:
    with pytest.raises(UsageError, match=r"needs grad_acc == 1.*give --gbs 2, or degrees") as error:
        planned(torchtune(gbs=4, use=("optimizer-in-backward",)), Degrees(mbs=2, grad_acc=2))
    assert "leave --with optimizer-in-backward out" in str(error.value)


def test_states_with_room_stay() -> None:
    """Unified memory changes nothing where all fits: outside what torch allocates, same peak."""
    usual, paged = (
        planned(torchtune(optimizer=name), ONE) for name in ("adamw-8bit", "paged-adamw-8bit")
    )
    assert paged.optimizer_offload == 0.0
    assert paged.peak_bytes == pytest.approx(usual.peak_bytes, rel=0.01)
    states = PARAMETERS * 2 * (1 + 4 / 256)
    assert usual.allocated_bytes - paged.allocated_bytes == pytest.approx(states, rel=1e-3)
    assert paged.time.optimizer_s == pytest.approx(usual.time.optimizer_s)


def test_states_without_room_come_and_go() -> None:
    """All of them cross the link for each update; the peak has none."""
    request = torchtune("1xRTX4090", optimizer="paged-adamw-8bit", use=("optimizer-in-backward",))
    plan = planned(request, ONE)
    there = planned(request.model_copy(update={"optimizer": "adamw-8bit"}), ONE)
    states = PARAMETERS * 2 * (1 + 4 / 256)
    assert plan.optimizer_offload == 1.0
    assert not there.fits
    assert there.peak_bytes - plan.peak_bytes == pytest.approx(states, rel=0.02)
    rate = link_inputs(request.resolve().cluster).host_bytes_per_s
    assert plan.time.optimizer_s - there.time.optimizer_s == pytest.approx(states / rate, rel=0.02)
    # torchtune, README: 18.9 GiB allocated, 1,650 tokens/s.
    assert plan.allocated_bytes / 2**30 == pytest.approx(18.9, rel=0.06)
    assert plan.tokens_per_s == pytest.approx(1650, rel=0.1)
    assert plan.optimizer_flags == ""


def test_a_search_has_states_in_both_places() -> None:
    """What it finds, `evaluate` costs alike."""
    request = torchtune("1xA100", optimizer="paged-adamw", recompute=("full",))
    plans = find_plans(request).plans
    for plan in plans:
        again = evaluate(decided_request(request, plan), plan.degrees, plan.recompute)
        assert again.step_time_s == pytest.approx(plan.step_time_s)
        assert again.optimizer_offload == plan.optimizer_offload
    assert {plan.optimizer_offload for plan in plans} <= {0.0, 1.0}


def test_what_does_not_go_with_paged_states() -> None:
    with pytest.raises(UsageError, match="does not run bitsandbytes' paged optimizers; give adamw"):
        Request(model="llama-3.1-8b", gpus="8xH100", gbs=8, optimizer="paged-adamw").resolve()
    with pytest.raises(UsageError, match="leave the option out, or give 1"):
        torchtune(optimizer="paged-adamw", optimizer_offload=0.5).resolve()
