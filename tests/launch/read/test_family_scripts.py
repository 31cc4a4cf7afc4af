"""The training scripts of families of vision-language models: LLaVA, 2U1's, Qwen's, InternVL's."""

from __future__ import annotations

import pytest

from planner.launch.check.assess import Assessment
from tests.launch.read.conftest import ReadFolder, judged

ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
COMMON = (
    "--deepspeed zero3.json --bf16 True --per_device_train_batch_size 1 --output_dir x "
    "--gradient_checkpointing True --model_max_length 2048 --learning_rate 1e-5"
)
LLAVA = (
    f"deepspeed --num_gpus 8 llava/train/train_mem.py {COMMON} "
    "--model_name_or_path lmsys/vicuna-7b-v1.5 --vision_tower openai/clip-vit-large-patch14-336 "
    "--mm_projector_type mlp2x_gelu --mm_vision_select_layer -2"
)
MERGER = (
    f"deepspeed --num_gpus 8 src/train/train_sft.py {COMMON} "
    "--model_id Qwen/Qwen2.5-VL-3B-Instruct --image_max_pixels 1003520"
)
INTERNVL = (
    "torchrun --nproc_per_node=8 internvl/train/internvl_chat_finetune.py "
    "--model_name_or_path OpenGVLab/InternVL3-8B --force_image_size 448 --max_dynamic_patch 6 "
    "--down_sample_ratio 0.5 --max_seq_length 8192 --grad_checkpoint True --bf16 True "
    "--per_device_train_batch_size 1 --output_dir x --learning_rate 4e-5 --deepspeed zero3.json"
)


def _read(folder: ReadFolder, text: str) -> Assessment:
    return judged(folder({"sft.sh": f"{text}\n", "zero3.json": ZERO3}))


@pytest.mark.parametrize(
    ("more", "train", "freeze"),
    [
        ("", "full", ("vision_tower",)),
        ("--tune_mm_mlp_adapter True", "full", ("vision_tower", "language_model")),
        ("--freeze_mm_mlp_adapter True", "full", ("vision_tower", "projector")),
        ("--unfreeze_mm_vision_tower True", "full", ()),
        ("--mm_tunable_parts mm_vision_tower,mm_mlp_adapter", "full", ("language_model",)),
        ("--lora_enable True --lora_r 128",
         "lora:rank=128,alpha=16,targets=all-linear,dropout=0.05,whole=projector",
         ("vision_tower",)),
    ],
)  # fmt: skip
def test_llava_trains_what_its_switches_say(
    folder: ReadFolder, more: str, train: str, freeze: tuple[str, ...]
) -> None:
    found = _read(folder, f"{LLAVA} {more}")
    assert found.proposal is not None, found.problems
    request = found.proposal.request
    assert (request.model, request.train, request.freeze) == ("llava-1.5-7b", train, freeze)


def test_llavas_tiles_make_another_model(folder: ReadFolder) -> None:
    tiles = _read(folder, f"{LLAVA} --image_aspect_ratio anyres")
    assert tiles.found.model == "llava-v1.6-vicuna-7b"
    # A language model that nobody has put this tower before is refused by the tower's name.
    other = _read(folder, LLAVA.replace("lmsys/vicuna-7b-v1.5", "mistralai/Mixtral-8x7B-v0.1"))
    assert other.plan is None
    assert any(one.text.startswith("vision_tower: ") for one in other.problems)


@pytest.mark.parametrize(
    ("more", "train", "freeze"),
    [
        ("--freeze_vision_tower False --freeze_llm False --freeze_merger False", "full", ()),
        ("--freeze_vision_tower True --freeze_llm True --freeze_merger False", "full",
         ("vision_tower", "language_model")),
        ("--lora_enable True --freeze_llm True --freeze_vision_tower True --freeze_merger False",
         "whole=projector", ("vision_tower",)),
        ("--lora_enable True --freeze_llm True --freeze_vision_tower False --freeze_merger False",
         "whole=vision_tower+projector", ()),
        ("--lora_enable True --vision_lora True --freeze_llm True --freeze_vision_tower True "
         "--freeze_merger True", "rank=64", ()),
    ],
)  # fmt: skip
def test_beside_adapters_a_frozen_language_model_is_their_base(
    folder: ReadFolder, more: str, train: str, freeze: tuple[str, ...]
) -> None:
    found = _read(folder, f"{MERGER} {more}")
    assert found.proposal is not None, found.problems
    assert train in found.proposal.request.train
    assert found.proposal.request.freeze == freeze
    assert found.proposal.request.images == "1x1001x1001"


def test_internvl_puts_adapters_by_their_rank(folder: ReadFolder) -> None:
    more = "--freeze_llm True --freeze_mlp True --freeze_backbone True --use_llm_lora 16"
    found = _read(folder, f"{INTERNVL} {more}")
    assert found.proposal is not None, found.problems
    request = found.proposal.request
    assert request.train == "lora:rank=16,alpha=32,targets=all-linear,dropout=0.05"
    assert request.freeze == ("vision_tower", "projector")
    # Six squares of 448 pixels.
    assert request.images == "1x1344x896"
    whole = _read(
        folder, f"{INTERNVL} --freeze_llm False --freeze_mlp False --freeze_backbone True"
    )
    assert whole.proposal is not None
    assert (whole.proposal.request.train, whole.proposal.request.freeze) == (
        "full",
        ("vision_tower",),
    )


def test_an_area_that_is_no_number_is_an_error(folder: ReadFolder) -> None:
    text = MERGER.replace("1003520", "lots")
    found = _read(folder, f"{text} --freeze_merger False")
    assert [one.rule for one in found.problems if one.severity == "error"] == ["whole-number"]


SCRIPT = """\
import yaml
from transformers import AutoModelForVision2Seq, Trainer, TrainingArguments
from parts import load_config, with_lora

config = load_config()
model = AutoModelForVision2Seq.from_pretrained(config["model"]["name"])
model = with_lora(model, config["lora"])
args = TrainingArguments(
    output_dir="x", per_device_train_batch_size=config["training"]["batch"], bf16=True
)
Trainer(model=model, args=args)
"""
PARTS = """\
import yaml
from peft import LoraConfig, get_peft_model

def load_config(path="sft.yaml"):
    with open(path) as file:
        return yaml.safe_load(file)

def with_lora(model, settings):
    return get_peft_model(model, LoraConfig(r=settings["r"], target_modules=settings["modules"]))
"""
RECIPE = """\
model: {name: Qwen/Qwen2-VL-2B-Instruct}
lora: {r: 4, modules: [q_proj, v_proj]}
training: {batch: 2}
"""


def test_a_script_is_read_with_its_recipe_and_its_modules(folder: ReadFolder) -> None:
    files = {"train.py": SCRIPT, "parts.py": PARTS, "sft.yaml": RECIPE}
    found = judged(folder(files))
    assert found.proposal is not None, found.problems
    request = found.proposal.request
    assert (request.model, found.proposal.degrees.mbs) == ("Qwen/Qwen2-VL-2B-Instruct", 2)
    assert request.train.startswith("lora:rank=4") and "targets=q+v" in request.train


MEGATRON = """\
model: Qwen/Qwen3.5-4B
tuner_type: lora
lora_rank: 8
target_modules: all-linear
dataset:
  - 'AI-ModelScope/alpaca-gpt4-data-en#500'
  - 'AI-ModelScope/LaTeX_OCR#2000'
max_length: 2048
loss_scale: ignore_empty_think
micro_batch_size: 1
global_batch_size: 4
tensor_model_parallel_size: 1
recompute_granularity: full
recompute_method: uniform
recompute_num_layers: 1
freeze_vit: true
freeze_aligner: true
"""


def test_megatron_swift_reads_its_yaml_alone_and_by_its_command(folder: ReadFolder) -> None:
    command = "NPROC_PER_NODE=4 megatron sft configs/sft.yaml\n"
    for files in (
        {"sft.yaml": MEGATRON},
        {"run.sh": command, "configs/sft.yaml": MEGATRON},
    ):
        found = judged(folder(files), "4xH100")
        assert found.proposal is not None, found.problems
        request = found.proposal.request
        assert request.framework == "megatron-bridge"
        assert request.train.startswith("lora:rank=8")
        assert request.freeze == ("vision_tower", "projector")
        assert (found.proposal.degrees.mbs, request.seq) == (1, 2048)
        assert not [one.text for one in found.problems if one.severity in ("warning", "error")]


GEMMA = """\
from transformers import AutoModelForImageTextToText
from trl import SFTConfig, SFTTrainer
model = AutoModelForImageTextToText.from_pretrained("google/gemma-3-4b-it")
args = SFTConfig(output_dir="x", per_device_train_batch_size=1, max_length=1024, bf16=True)
SFTTrainer(model=model, args=args)
"""
UNSLOTH = """\
from unsloth import FastVisionModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastVisionModel.from_pretrained("unsloth/Qwen2.5-VL-7B-Instruct")
model = FastVisionModel.get_peft_model(
    model, finetune_vision_layers=False, finetune_language_layers=True, r=16, lora_alpha=16
)
args = SFTConfig(output_dir="x", per_device_train_batch_size=2, max_length=2048)
SFTTrainer(model=model, args=args)
"""


def test_a_class_of_vision_loads_the_tower_beside_a_language_model(folder: ReadFolder) -> None:
    found = judged(folder({"sft.py": GEMMA}), "1xH100")
    assert found.proposal is not None, found.problems
    assert found.proposal.request.images == "1x896x896"
    assert not any(one.rule == "checkpoint-tower" for one in found.problems)


def test_unsloths_parts_are_those_that_it_is_told_to_tune(folder: ReadFolder) -> None:
    found = judged(folder({"sft.py": UNSLOTH}), "1xH100")
    assert found.proposal is not None, found.problems
    request = found.proposal.request
    assert (request.framework, request.freeze) == ("unsloth", ("vision_tower", "projector"))
    assert "targets=all-linear" in request.train


def test_axolotl_loads_the_tower_wherever_a_checkpoint_has_one(folder: ReadFolder) -> None:
    text = (
        "base_model: Qwen/Qwen3.5-4B\nsequence_len: 1024\nmicro_batch_size: 1\nbf16: true\n"
        "datasets: [{path: x, type: chat_template}]\n"
    )
    plain = judged(folder({"a.yaml": text}), "1xH100")
    assert plain.found.images == "none"
    shown = judged(folder({"b.yaml": f"{text}processor_type: AutoProcessor\n"}), "1xH100")
    assert shown.found.images == "1x1280x1024"
    frozen = judged(folder({"c.yaml": f"{text}freeze_mm_modules: true\n"}), "1xH100")
    assert frozen.found.freeze == ("vision_tower", "projector")
