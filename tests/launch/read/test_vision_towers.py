"""Vision-language models in Hugging Face files: what is frozen, how large images are."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.models.catalog import load_model
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.given import read_given
from planner.launch.read.found import Hints
from tests.launch.read.conftest import ReadFolder, judged

FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
image_max_pixels: 262144
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
learning_rate: 1e-4
output_dir: x
bf16: true
"""
SWIFT = (
    "MAX_PIXELS=1003520 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --train_type lora "
    "--learning_rate 1e-4 --max_length 2048 --output_dir x"
)
ALL = ("vision_tower", "projector")


def _judged(folder: ReadFolder, name: str, text: str) -> Assessment:
    return judged(folder({name: text}))


def _frozen(found: Assessment) -> tuple[str, ...]:
    assert found.proposal is not None, found
    return found.proposal.request.freeze


@pytest.mark.parametrize(
    ("more", "frozen"),
    [
        ("", ALL),
        ("freeze_vision_tower: false\n", ("projector",)),
        # Its adapters reach no projector but Qwen3-VL's, whose layers have names of the tower's.
        ("freeze_vision_tower: false\nfreeze_multi_modal_projector: false\n", ("projector",)),
        ("freeze_vision_tower: false\nfreeze_multi_modal_projector: false\n"
         "model_name_or_path: Qwen/Qwen3-VL-4B-Instruct\n", ()),
        ("freeze_vision_tower: false\nfreeze_multi_modal_projector: false\n"
         "finetuning_type: full\n", ()),
        ("freeze_language_model: true\nfreeze_multi_modal_projector: false\n"
         "finetuning_type: full\n", ("vision_tower", "language_model")),
    ],
)  # fmt: skip
def test_llamafactory_freezes_the_tower_unless_told(
    folder: ReadFolder, more: str, frozen: tuple[str, ...]
) -> None:
    said = [line for line in FACTORY.splitlines() if line.partition(":")[0] not in more]
    text = "\n".join(said) + f"\n{more}"
    assert _frozen(_judged(folder, "sft.yaml", text)) == frozen


@pytest.mark.parametrize(
    ("more", "frozen"),
    [("", ALL), (" --freeze_vit false", ("projector",)),
     (" --freeze_vit false --freeze_aligner false", ())],
)  # fmt: skip
def test_swift_freezes_the_tower_unless_told(
    folder: ReadFolder, more: str, frozen: tuple[str, ...]
) -> None:
    assert _frozen(_judged(folder, "sft.sh", SWIFT + more + "\n")) == frozen


def test_trl_freezes_nothing(folder: ReadFolder) -> None:
    text = (
        "trl sft --model_name_or_path llava-hf/llava-1.5-7b-hf --learning_rate 1e-5 "
        "--per_device_train_batch_size 1 --max_length 1024 --output_dir x\n"
    )
    found = _judged(folder, "sft.sh", text)
    assert _frozen(found) == ()
    assert found.proposal is not None
    # Nothing says how large images are, so that the family's usual one counts.
    assert found.proposal.request.resolve().model.images.usual


@pytest.mark.parametrize(
    ("name", "text", "images"),
    [
        ("sft.yaml", FACTORY, "1x512x512"),
        # Its own limit, 768 x 768.
        ("sft.yaml", FACTORY.replace("image_max_pixels: 262144\n", ""), "1x768x768"),
        ("sft.sh", f"{SWIFT}\n", "1x1001x1001"),
    ],
)
def test_images_are_as_large_as_the_program_lets_them_be(
    folder: ReadFolder, name: str, text: str, images: str
) -> None:
    found = _judged(folder, name, text)
    assert found.proposal is not None
    assert found.proposal.request.images == images
    assert any(images.removeprefix("1x") in note for note in found.found.assumed)


def test_a_frozen_tower_leaves_adapters_on_the_language_model(folder: ReadFolder) -> None:
    from planner.predict.ops.trained import held_parameters

    found = _judged(folder, "sft.yaml", FACTORY)
    assert found.proposal is not None
    # What LLaMA-Factory prints of this file.
    assert held_parameters(found.proposal.request.resolve()).trained == 20_185_088


def test_a_text_model_has_no_parts_to_freeze(folder: ReadFolder) -> None:
    text = FACTORY.replace("Qwen2.5-VL-7B", "Qwen2.5-7B")
    found = _judged(folder, "sft.yaml", text)
    assert _frozen(found) == ()
    assert load_model("qwen2.5-7b").spec.vision is None


def test_images_that_the_caller_says_are_of_every_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
        '"zero_optimization": {"stage": 3}}'
    )
    said = Hints(model="qwen2.5-vl-7b", seq=2048, grad_acc=1, images="1x640x480")
    found = read_given([str(path)], said, 1, "8xH100", None).found
    assert found.images == "1x640x480"
    text = tmp_path / "text.yaml"
    text.write_text(FACTORY.replace("Qwen2.5-VL-7B", "Qwen2.5-7B"))
    given = read_given([str(text)], Hints(images="1x640x480"), 1, "1xH100", None)
    judgement = assess(given.found, given.gpus, given.cluster)
    assert judgement.verdict == "cannot tell"
    assert any("reads only text" in problem.text for problem in judgement.problems)
