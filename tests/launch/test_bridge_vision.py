"""Vision-language models with Megatron-Bridge: the start script, and what is refused by name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from planner.launch.contract import Launch
from planner.launch.dialects.megatron import bridge_writer
from planner.launch.dialects.megatron.bridge_vision import CONFIG, SCRIPT
from planner.launch.plans import refusals_of
from tests.launch.plans import default_argv
from tests.launch.round_trip import assert_same, read_back
from tests.launch.torch_contract import reasons
from tests.launch.torch_plans import case, launch_of


def launch(model: str, more: dict[str, Any], **degrees: int) -> Launch:
    usual = {"tp": 2, "pp": 2, "zero": 1, "grad_acc": 4} | degrees
    item = case("seen", model, "8xH100", more={"images": "2x640x480"} | more, **usual)
    return launch_of(item, "megatron-bridge", "megatron-bridge")


CASES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "copied": ("qwen2.5-vl-7b", {}, {}),
    "frozen": ("qwen2.5-vl-7b", {"freeze": ("vision_tower",)}, {"vpp": 2}),
    "split": ("qwen3-vl-8b", {"freeze": ("vision_tower", "projector")}, {"cp": 2, "pp": 1}),
    "experts": ("qwen3-vl-30b-a3b", {}, {"ep": 4, "tp": 1, "pp": 1}),
    "adapters": ("qwen2.5-vl-7b", {"train": "lora"}, {"pp": 1}),
    "apply to both": ("qwen3-vl-8b", {"train": "lora"}, {"pp": 1}),
    "text": ("qwen3-vl-8b", {"images": "none"}, {}),
    "usual": ("qwen2.5-vl-3b", {"images": None, "seq": 8192}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_read_back(name: str, tmp_path: Path) -> None:
    model, more, degrees = CASES[name]
    written = launch(model, more, **degrees)
    assert reasons(written) == ""
    files = bridge_writer.files(written)
    ast.parse(files[SCRIPT])
    assert max(map(len, files[SCRIPT].splitlines())) <= 100
    assert CONFIG in files
    back = read_back(written, tmp_path / "run")
    assert_same(written, back)
    assert back.assessment.job is not None
    assert back.assessment.job.model.vision == written.job.model.vision


def test_the_parts_and_the_step_are_said() -> None:
    words = set(default_argv(bridge_writer.command(launch(*CASES["split"][:2], cp=2, pp=1))))
    assert {
        "model.freeze_vision_model=true", "model.freeze_vision_projection=true",
        "model.freeze_language_model=false", "model.position_embedding_type=mrope",
        "model.calculate_per_token_loss=true", "ddp.average_in_collective=false",
    } <= words  # fmt: skip
    steps = {"split": "qwen3_vl_step", "copied": "vlm_step"}
    for name, step in steps.items():
        model, more, degrees = CASES[name]
        script = bridge_writer.files(launch(model, more, **degrees))[SCRIPT]
        assert f"{step} import forward_step" in script


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        ("gemma-3-4b", {}, "written for Qwen2.5-VL and Qwen3-VL, not for gemma-3-4b"),
        ("qwen2.5-vl-7b", {"freeze": ("embeddings",)}, "freezes whole parts, not embeddings"),
        ("qwen3-vl-8b", {"train": "lora", "freeze": ("vision_tower",)}, "apply to both"),
        ("qwen2.5-vl-7b", {"lengths": "mean=900"}, "rows of one length"),
    ],
)
def test_refused_by_name(model: str, more: dict[str, Any], reason: str) -> None:
    (refusal,) = refusals_of(launch(model, {"images": "1x640x480"} | more))
    assert reason in refusal.reason
