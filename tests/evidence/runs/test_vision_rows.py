"""Measured runs of vision-language models: which tower, what is frozen, how many image tokens."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow
from planner.job.models.catalog import load_model

ROW = {
    "source": "tests", "model": "Qwen2.5-VL-7B-Instruct", "seq": "2048", "gpu": "A100-80GB",
    "gpu_mem_gb": "80", "num_gpus": "1", "mbs": "1", "gbs": "16", "precision": "bf16",
    "framework": "ms-swift (HF Trainer)", "tuning": "lora", "lora_rank": "8",
    "lora_targets": "all-linear", "vision": "Qwen2.5-VL ViT 0.67B", "recompute": "full",
    "peak_mem_gib": "18",
}  # fmt: skip


def _mapped(**cells: str) -> MappedRow:
    return map_row(MeasuredRow("made_up.csv", 2, {**ROW, **cells}))


def test_the_language_model_is_the_catalogues_where_the_row_leaves_it_out() -> None:
    model = _mapped().job.model
    known = load_model("qwen2.5-vl-7b").spec
    assert (model.layers, model.hidden, model.vision) == (28, 3584, known.vision)
    assert _mapped(layers="4", hidden="512", heads="8").job.model.layers == 4


@pytest.mark.parametrize(
    ("cells", "frozen"),
    [
        ({}, ()),
        ({"frozen": "vision_tower, projector"}, ("vision_tower", "projector")),
        ({"frozen": "vision_tower (freeze_vit default true)"}, ("vision_tower",)),
        ({"vision": "vision tower frozen"}, ("vision_tower",)),
    ],
)
def test_what_is_frozen(cells: dict[str, str], frozen: tuple[str, ...]) -> None:
    job = _mapped(**cells).job
    assert job.tuning.frozen == frozen
    assert job.model.vision is not None
    assert job.model.vision.frozen == ("vision_tower" in frozen)


def test_the_tokens_of_a_samples_images() -> None:
    stated = _mapped(image_tokens="at most 1280 an image (MAX_PIXELS 1003520)").job.model.images
    assert stated.tokens == pytest.approx(1280 / 2048)
    assert not stated.usual
    assert _mapped().job.model.images.usual


@pytest.mark.parametrize("name", ["Qwen2.5-VL-7B-Instruct-GPTQ-Int4", "Qwen2.5-VL-7B-bnb-4bit"])
def test_names_of_packed_checkpoints(name: str) -> None:
    assert _mapped(model=name).job.model.vision == load_model("qwen2.5-vl-7b").spec.vision


@pytest.mark.parametrize(
    "cells",
    [{"model": "CogVLM2-19B"}, {"model": "llama-3-8b"}, {"frozen": "vision_tower, audio tower"}],
)
def test_an_unknown_tower_is_refused_by_name(cells: dict[str, str]) -> None:
    with pytest.raises(UnpredictableRowError, match=r"the tower of .* is not known"):
        _mapped(**cells)
