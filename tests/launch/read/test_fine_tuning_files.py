"""How people write fine-tuning launches, each a small copy of a public file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from planner.launch.check.assess import Assessment
from tests.launch.read.conftest import ReadFolder, judged

SWIFT = (
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora "
    "--max_length 2048 --torch_dtype bfloat16 --output_dir x"
)
QWEN_VL = """\
torchrun --nproc_per_node=8 qwenvl/train/train_qwen.py --deepspeed zero3.json \\
    --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --tune_mm_vision False --tune_mm_mlp True \\
    --tune_mm_llm True --bf16 --per_device_train_batch_size 1 --model_max_length 2048 \\
    --gradient_checkpointing True --output_dir x"""
LOADS = """\
from transformers import Qwen2_5_VLForConditionalGeneration, Trainer, TrainingArguments
model = Qwen2_5_VLForConditionalGeneration.from_pretrained(args.model_name_or_path)
trainer = Trainer(model=model, args=args)
"""
ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
SFT = """\
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from trl import SFTConfig, SFTTrainer, TrlParser
if shows_images(config):
    model = AutoModelForImageTextToText.from_pretrained(args.model_name_or_path)
else:
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
trainer = SFTTrainer(model=model, args=args)
"""
RECIPE = """\
model_name_or_path: Qwen/Qwen3-4B
dtype: bfloat16
bf16: true
max_length: 4096
per_device_train_batch_size: 2
gradient_checkpointing: true
dataset_text_field: text
output_dir: x
"""
MULTI_GPU = (
    "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
)


def _swift(folder: ReadFolder, text: str) -> Assessment:
    return judged(folder({"sft.sh": text + "\n"}))


def _rules(found: Assessment) -> set[str]:
    return {problem.rule for problem in found.problems}


def _qwen_vl(folder: ReadFolder, more: str = "") -> Assessment:
    files = {"sft.sh": f"{QWEN_VL}{more}\n", "zero3.json": ZERO3}
    return judged(folder(files | {"qwenvl/train/train_qwen.py": LOADS}))


def test_what_an_assistant_calls_itself_is_no_model(folder: ReadFolder) -> None:
    found = _swift(folder, f"{SWIFT} --model_author swift --model_name swift-robot")
    assert found.found.model == "Qwen/Qwen2.5-7B-Instruct"
    named = _swift(folder, SWIFT.replace("--model Qwen/Qwen2.5-7B-Instruct", "--model_name robot"))
    assert [one.text for one in named.problems if one.rule == "model-unknown"] == [
        "the file does not name the model"
    ]


def test_a_script_around_swift_is_known_by_its_settings(folder: ReadFolder) -> None:
    text = SWIFT.replace("swift sft", "python sft_mlp.py").replace("NPROC_PER_NODE=8 ", "")
    text += " --per_device_train_batch_size 1 --learning_rate 1e-4 --gradient_accumulation_steps 1"
    found = _swift(folder, f"{text} --model_author swift --model_name swift-robot")
    assert found.found.model == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(("more", "precision"), [("", "bf16"), (" --torch_dtype float16", "fp16")])
def test_swifts_dtype_goes_before_accelerates_precision(
    folder: ReadFolder, more: str, precision: str
) -> None:
    stated = SWIFT.replace(" --torch_dtype bfloat16", more)
    by_accelerate = stated.replace(
        "NPROC_PER_NODE=8 swift sft", "accelerate launch --config_file fsdp.yaml swift/cli/sft.py"
    )
    fsdp = "distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 8\nfsdp_config: {}\n"
    found = judged(folder({"sft.sh": by_accelerate + "\n", "fsdp.yaml": fsdp})).found
    assert found.precision == precision


def test_swift_2_names_models_in_its_own_words(folder: ReadFolder) -> None:
    text = "NPROC_PER_NODE=2 swift sft --sft_type full --model_type qwen-7b-chat --max_length 4096"
    assert _swift(folder, text).found.model == "qwen-7b-chat"
    # Since ms-swift 3 it is the architecture, beside the model.
    found = _swift(folder, f"{SWIFT} --model_type qwen2_5")
    assert found.found.model == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("variables", "is_told"),
    [("NPROC_PER_NODE=8", False), ("CUDA_VISIBLE_DEVICES=0", False), ("NNODES=1", False),
     ("CUDA_VISIBLE_DEVICES=0,1,2,3", True), ("", True)],
)  # fmt: skip
def test_swift_without_processes_spreads_its_layers(
    folder: ReadFolder, variables: str, is_told: bool
) -> None:
    found = _swift(folder, SWIFT.replace("NPROC_PER_NODE=8", variables).strip())
    assert ("one-process" in _rules(found)) is is_told
    assert (found.plan is None) is is_told


def test_a_class_that_loads_the_tower_is_planned(folder: ReadFolder) -> None:
    found = _qwen_vl(folder)
    assert found.plan is not None, found.problems
    assert found.proposal is not None
    assert found.proposal.request.freeze == ("vision_tower",)
    # Which image is taken for granted is said: the largest that its argument classes let it have.
    assert any("max_pixels = 451,584" in note for note in found.found.assumed)


def test_a_connector_is_the_projector(folder: ReadFolder) -> None:
    started = QWEN_VL.replace(
        "--tune_mm_vision False --tune_mm_mlp True", "--freeze_connector True"
    ).replace("--tune_mm_llm True", "")
    files = {"sft.sh": started, "zero3.json": ZERO3, "qwenvl/train/train_qwen.py": LOADS}
    found = judged(folder(files))
    assert found.proposal is not None, found.problems
    assert found.proposal.request.freeze == ("projector",)


def test_adapters_beside_a_tower_stand_where_the_family_puts_them(folder: ReadFolder) -> None:
    found = _qwen_vl(folder, " --lora_enable True --lora_r 8")
    assert found.proposal is not None, found.problems
    request = found.proposal.request
    assert request.train.startswith("lora:rank=8,alpha=128,targets=q+k+v+o")
    assert request.freeze == ("vision_tower", "projector")


def test_the_size_of_videos_is_asked_for(folder: ReadFolder) -> None:
    found = _qwen_vl(folder, " --video_max_frames 256")
    assert "videos-unknown" in _rules(found)
    assert found.plan is None


def _recipe(
    folder: ReadFolder, text: str, more: Mapping[str, str] = MappingProxyType({})
) -> Assessment:
    started = "accelerate launch --config_file multi_gpu.yaml train.py --config sft.yaml\n"
    files = {"sft.sh": started, "multi_gpu.yaml": MULTI_GPU, "sft.yaml": text, "train.py": SFT}
    return judged(folder({**files, **more}))


def test_a_class_for_images_loads_no_model_of_text(folder: ReadFolder) -> None:
    assert _recipe(folder, RECIPE).plan is not None


def test_the_dtype_counts_beside_accelerates_file(folder: ReadFolder) -> None:
    """Weights, gradients and AdamW's state of 4 B parameters: 2 B each of them, and not 4 B."""
    half = _recipe(folder, RECIPE).plan
    whole = _recipe(folder, RECIPE.replace("dtype: bfloat16\n", "")).plan
    assert half is not None
    assert whole is not None
    assert whole.peak_bytes - half.peak_bytes > 4 * 2 * 4e9 * 0.9


def test_a_trainers_precision_goes_before_accelerates(folder: ReadFolder) -> None:
    stated = _recipe(folder, RECIPE).plan
    without = {"multi_gpu.yaml": MULTI_GPU.replace("bf16", "'no'")}
    other = _recipe(folder, RECIPE, without).plan
    assert stated is not None
    assert other is not None
    assert other.peak_bytes == stated.peak_bytes


def test_a_script_that_is_started_is_the_main_one(folder: ReadFolder) -> None:
    text = """\
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
if __name__ == "__main__":
    model = AutoModelForCausalLM.from_pretrained("meta-llama/Meta-Llama-3-8B")
    config = DPOConfig(output_dir="x", per_device_train_batch_size=1, bf16=True)
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    DPOTrainer(model, ref_model=None, args=config, peft_config=lora, max_length=768).train()
"""
    found = judged(folder({"train_dpo.py": text}))
    assert found.plan is not None, found.problems
    assert found.proposal is not None
    assert found.proposal.request.train.startswith("lora:rank=8")
    # What TRL's trainers once took themselves.
    assert found.proposal.request.seq == 768


@pytest.mark.parametrize(("test", "rank"), [('args.size == "large"', 64), ("args.n > 8", 16)])
def test_a_comparison_of_what_is_known_is_made(folder: ReadFolder, test: str, rank: int) -> None:
    text = f"""\
import argparse
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--size", default="large")
parser.add_argument("--n", default=8)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B-Instruct")
lora = LoraConfig(r=64 if {test} else 16, target_modules=["q_proj"])
model = get_peft_model(model, lora)
training = TrainingArguments(output_dir="x", per_device_train_batch_size=1, bf16=True)
batch = tokenizer(text, truncation=True, max_length=512)
Trainer(model=model, args=training).train()
"""
    found = judged(folder({"train.py": text}))
    assert found.proposal is not None, found.problems
    assert f"rank={rank}" in found.proposal.request.train


def test_a_command_that_only_predicts_is_passed_over(folder: ReadFolder) -> None:
    run = "torchrun --nproc_per_node 8 run_clm.py --bf16 --output_dir x --max_seq_length 1024 "
    trains = f"{run} --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1"
    text = f"{trains} --do_train --do_eval\n{run} --model_name_or_path x/final --do_predict\n"
    assert judged(folder({"run.sh": text})).found.model == "Qwen/Qwen2.5-7B"
