"""What of a plan is the vision tower's."""

from __future__ import annotations

import pytest

from planner.job.request import Request
from planner.predict.evaluate import Proposal
from planner.predict.layer_profile import step_profile
from planner.predict.plan import Degrees
from planner.search.vision_share import Share, vision_shares

ONE = Degrees(dp=1, tp=1, pp=1, cp=1, ep=1, vpp=1, zero=0, mbs=2, grad_acc=2)


def shares(recompute: str = "none", **changes: object) -> tuple[dict[str, Share], float]:
    """The shares of a plan by name, and its step time."""
    given = {
        "model": "qwen2.5-vl-3b", "gpus": "1xH100", "framework": "hf-transformers", "gbs": 4,
        "seq": 2048, "train": "lora", "images": "1x1024x768",
    }  # fmt: skip
    proposal = Proposal(Request.model_validate(given | changes), ONE, recompute)
    plan, job = proposal.plan(), proposal.request.resolve()
    found = vision_shares(job, plan, step_profile(job, plan))
    return {one.name: one for one in found}, plan.step_time_s


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_tower_s_seconds_are_what_images_add(recompute: str) -> None:
    seen, step = shares(recompute)
    _, blind = shares(recompute, images="none")
    spent = seen["vision_tower_s"].amount + seen["projector_s"].amount
    assert spent == pytest.approx(step - blind, rel=0.05)
    assert seen["vision_tower_s"].share == pytest.approx(seen["vision_tower_s"].amount / step)


def test_a_frozen_tower_keeps_nothing_and_holds_its_weights() -> None:
    trained, _ = shares()
    frozen, _ = shares(freeze=("vision_tower", "projector"))
    # But for the tables of its rotary positions.
    assert frozen["vision_tower_bytes"].amount < 0.01 * trained["vision_tower_bytes"].amount
    assert frozen["vision_weights_bytes"].amount > 1e9
    assert frozen["vision_tower_s"].amount < trained["vision_tower_s"].amount


def test_a_step_without_images_has_no_shares() -> None:
    assert shares(images="none")[0] == {}
    assert shares(model="qwen2.5-3b", images=None)[0] == {}
