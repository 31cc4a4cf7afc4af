"""Measured runs of vision-language models: which tower, what is frozen, how many image tokens."""

from __future__ import annotations

import pytest

from planner.evidence.runs.doubts import with_open_facts
from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.predict import predict_rows
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
    # A photo of 640 by 480 pixels where nothing or a limit alone is stated: 23x17 and two around.
    photo = _mapped().job.model.images
    assert photo.tokens == pytest.approx(393 / 2048)
    assert (
        _mapped(image_tokens="at most 1280 an image (MAX_PIXELS 1003520)").job.model.images == photo
    )
    assert _mapped(image_tokens="at most 64 an image").job.model.images.tokens == 64 / 2048
    assert _mapped(image_tokens="1280").job.model.images.tokens == pytest.approx(1280 / 2048)
    assert _mapped(image_tokens="the largest").job.model.images.usual
    assert not _mapped(image_tokens="none").job.model.images.patches


def test_images_and_what_is_frozen_are_predicted_over_where_nobody_states_them() -> None:
    row = MeasuredRow("made_up.csv", 2, ROW)
    (one,) = with_open_facts(predict_rows([row]))
    opened = {fact.name: fact for fact in one.opened}
    assert {"image_tokens", "frozen"} <= opened.keys()
    effects = {value.cell: value.effects["memory"] for value in opened["image_tokens"].values}
    assert effects["none"] < effects["one of 640x480"] == 0.0 < effects["the largest"]
    stated = {"image_tokens": "1280", "vision": "Qwen2.5-VL ViT 0.67B, frozen"}
    (one,) = with_open_facts(predict_rows([MeasuredRow("made_up.csv", 2, ROW | stated)]))
    assert not {"image_tokens", "frozen"} & {fact.name for fact in one.opened}


def test_memory_of_an_unnamed_card_is_predicted_and_nothing_else() -> None:
    cells = ROW | {"gpu": "", "gpu_mem_gb": "", "step_time_s": "3"}
    (one,) = predict_rows([MeasuredRow("made_up.csv", 2, cells)])
    assert one.error is None
    assert one.memory_bytes() is not None
    assert (one.step_time_s, one.fits, one.fit_probability) == (None, None, None)
    # A time alone says nothing then.
    (one,) = predict_rows([MeasuredRow("made_up.csv", 2, cells | {"peak_mem_gib": ""})])
    assert one.error == "gpu is not stated"


def test_text_beside_images_completes_a_sample() -> None:
    cells = ROW | {"seq": "", "image_tokens": "576", "sequences": "padded to longest"}
    (one,) = predict_rows([MeasuredRow("made_up.csv", 2, cells)])
    assert one.error is None
    assert one.job.seq == 576 + 128
    assert "128 tokens of text beside the images" in one.completed


@pytest.mark.parametrize(
    ("name", "known"),
    [("Qwen2.5-VL-7B-Instruct-GPTQ-Int4", "qwen2.5-vl-7b"),
     ("Qwen2.5-VL-7B-bnb-4bit", "qwen2.5-vl-7b"),
     ("Pixtral-12B-2409", "pixtral-12b"), ("llava1_6-mistral-7b-instruct", "llava-v1.6-mistral-7b"),
     ("internvl-chat-v1_5", "internvl2-26b")],
)  # fmt: skip
def test_names_of_checkpoints(name: str, known: str) -> None:
    assert _mapped(model=name).job.model.vision == load_model(known).spec.vision


@pytest.mark.parametrize(
    "cells",
    [{"model": "CogVLM2-19B"}, {"model": "llama-3-8b"}, {"frozen": "vision_tower, audio tower"}],
)
def test_an_unknown_tower_is_refused_by_name(cells: dict[str, str]) -> None:
    with pytest.raises(UnpredictableRowError, match=r"the tower of .* is not known"):
        _mapped(**cells)
