"""Hugging Face settings, wherever they stand: full fine-tuning predicted, the rest refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli.program import planner_command
from planner.job.errors import CannotTellError
from tests.launch.read.conftest import ReadFolder, judged, refusals

ZERO3 = json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}})
FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3.json
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
adapter:
lora_r: 32
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 2
bf16: auto
gradient_checkpointing: true
sample_packing: true
fsdp: [full_shard, auto_wrap]
fsdp_config:
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
"""
TRAINER = (
    "torchrun --nproc_per_node 1 train.py --model_name_or_path meta-llama/Llama-3.2-1B "
    "--max_seq_length 4096 --learning_rate 1e-5 --output_dir out"
)
PYTHON = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
open("mark", "w")
NAME = "mistralai/Mistral-7B-v0.1"
model = AutoModelForCausalLM.from_pretrained(NAME)
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4,
    gradient_checkpointing=True, bf16=True, learning_rate=RATE,
    deepspeed={"zero_optimization": {"stage": 2}},
)
Trainer(model=model, args=arguments).train()
"""


@pytest.mark.parametrize(
    ("file", "stage"),
    [("ds_z2_config.json", 2), ("zero3.json", 3), ("stage1_bf16.json", 1), ("zero_2.json", 2),
     ("zero3_offload.json", None), ("ds_config.json", None), ("fuzz30.json", None)],
)  # fmt: skip
def test_a_file_that_is_not_at_hand_may_say_its_stage(
    folder: ReadFolder, file: str, stage: int | None
) -> None:
    """Assumed and said; what is offloaded, no name tells."""
    found = folder({"run/x.yaml": FACTORY.replace("ds_z3.json", file)})
    said = [text for text in found.assumed if "by the name of" in text]
    missing = [problem for problem in found.problems if problem.rule == "deepspeed-config"]
    if stage is None:
        assert missing and not said
    else:
        assert found.zero == stage and said and not missing


def test_a_stage_that_is_stated_is_not_called_assumed(folder: ReadFolder) -> None:
    """A file that is not at hand, whose name says nothing, beside a stage that is given."""
    text = FACTORY.replace("ds_z3.json", "gone.json") + "zero_stage: 2\n"
    found = folder({"run/x.yaml": text})
    assert found.zero == 2
    assert not any("by the name of" in said for said in found.assumed)


LIGER = "enable_liger_kernel: true"
LIGER_LAYERS = "liger_rope: true\nliger_rms_norm: true\nliger_glu_activation: true"


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        (LIGER, "Qwen/Qwen2.5-7B-Instruct", ("liger-kernels",)),
        (LIGER.replace("true", "false"), "Qwen/Qwen2.5-7B-Instruct", ()),
        # Its experts, and its norms, are not counted under Liger: the loss alone.
        (LIGER, "Qwen/Qwen3-30B-A3B", ("fused-linear-loss",)),
        (LIGER, "google/gemma-2-9b", ("fused-linear-loss",)),
        (f"{LIGER_LAYERS}\nliger_fused_linear_cross_entropy: true", "Qwen/Qwen2.5-7B-Instruct",
         ("liger-kernels",)),
        ("liger_fused_linear_cross_entropy: true", "Qwen/Qwen2.5-7B-Instruct",
         ("fused-linear-loss",)),
        (LIGER_LAYERS, "Qwen/Qwen2.5-7B-Instruct", ()),
    ],
)  # fmt: skip
def test_kernels_of_liger(
    folder: ReadFolder, settings: str, model: str, words: tuple[str, ...]
) -> None:
    text = FACTORY.replace("bf16", f"{settings}\nbf16", 1)
    found = folder({"run/x.yaml": text.replace("Qwen/Qwen2.5-7B-Instruct", model)})
    assert found.variations == words


def test_liger_makes_no_logits(folder: ReadFolder) -> None:
    plain = judged(folder({"run/x.yaml": FACTORY})).plan
    for settings in (LIGER, "liger_fused_linear_cross_entropy: true"):
        text = FACTORY.replace("bf16", f"{settings}\nbf16", 1)
        fused = judged(folder({"run/x.yaml": text})).plan
        assert plain is not None
        assert fused is not None
        assert fused.step_time_s < plain.step_time_s
        assert fused.stages[0].peak < plain.stages[0].peak


def test_llama_factory(folder: ReadFolder) -> None:
    found = folder({"run/x.yaml": FACTORY, "examples/deepspeed/ds_z3.json": ZERO3})
    assert (found.framework, found.zero, found.model) == (
        "deepspeed", 3, "Qwen/Qwen2.5-7B-Instruct",
    )  # fmt: skip
    # LLaMA-Factory recomputes unless it is told not to.
    assert (found.mbs, found.grad_acc, found.seq, found.recompute) == (1, 4, 4096, "full")
    assert judged(found).plan is not None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("finetuning_type: full", "finetuning_type: oft", "OFT"),
        ("stage: sft", "stage: ppo", "PPO"),
        ("stage: sft", "stage: sft\nuse_galore: true", "GaLore"),
        ("stage: sft", "stage: sft\nuse_new_loss: true", "use_new_loss"),
        ("Qwen2.5-7B-Instruct", "Qwen9-7B", "does not know the model Qwen/Qwen9-7B"),
        ("ds_z3.json", "gone.json", "gone.json is not beside the file"),
    ],
)
def test_refused_by_name(folder: ReadFolder, old: str, new: str, words: str) -> None:
    text = FACTORY.replace(old, new)
    found = folder({"run/x.yaml": text, "examples/deepspeed/ds_z3.json": ZERO3})
    assert words in refusals(found)
    assert judged(found).verdict == "cannot tell"


def test_axolotl(folder: ReadFolder) -> None:
    """What is left of LoRA's settings means nothing without an adapter."""
    found = folder({"x.yml": AXOLOTL})
    assert (found.framework, found.zero, found.mbs, found.recompute) == ("fsdp1", 3, 2, "full")
    assert judged(found).verdict == "runs and fits"
    quantised = AXOLOTL.replace("adapter:", "adapter: qlora\nload_in_4bit: true")
    assert folder({"x.yml": quantised}).train == "qlora:rank=32,targets=all-linear,base=nf4-double"
    assert "nowhere unless it is told where" in refusals(folder({"x.yml": quantised}))
    assert folder({"x.yml": AXOLOTL + "rl: dpo\n"}).objective == "dpo:reference=copied"


def test_training_arguments_in_python(folder: ReadFolder) -> None:
    found = folder({"train.py": PYTHON}, seq=2048)
    assert (found.framework, found.zero, found.mbs, found.grad_acc) == ("deepspeed", 2, 2, 4)
    assert (found.model, found.recompute) == ("mistralai/Mistral-7B-v0.1", "full")
    assert judged(found, "8xH100").plan is not None
    with pytest.raises(CannotTellError, match="from the command line"):
        folder({"t.py": "from transformers import TrainingArguments, Trainer\n"})


def test_a_trainer_script_and_its_deepspeed_file(folder: ReadFolder) -> None:
    command = (
        "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --output_dir out "
        "--model_max_length 2048 --bf16 True --gradient_checkpointing True"
    )
    found = folder({"t.sh": f"{command} --deepspeed conf/z3.json\n", "conf/z3.json": ZERO3})
    assert (found.zero, found.world, found.model) == (3, 8, "meta-llama/Llama-2-7b-hf")
    sharded = folder({"t.sh": f'{command} --fsdp "full_shard auto_wrap"\n'})
    assert (sharded.framework, sharded.zero, sharded.seq) == ("fsdp1", 3, 2048)
    assert judged(sharded).verdict == "runs and fits"
    lora = folder({"t.sh": f"{command} --lora_enable True\n"})
    assert lora.train == "lora:rank=8,targets=q+v"
    other = folder({"t.sh": command.replace("train.py", "train_dpo.py")})
    assert other.objective == "dpo:reference=copied"


_OPEN = {"enabled": "auto"}
_AUTO = {"bf16": _OPEN, "fp16": _OPEN}


@pytest.mark.parametrize(
    ("switch", "tables", "precision"),
    [("fp16", _AUTO, "fp16"), ("bf16", _AUTO, "bf16"), ("fp16", {"fp16": _OPEN}, "fp16"),
     ("fp16", {}, "fp16"), ("bf16", {}, "bf16"), ("fp16", {"fp16": {"enabled": True}}, "fp16"),
     ("bf16", {"bf16": {"enabled": True}, "fp16": {"enabled": False}}, "bf16")],
)  # fmt: skip
def test_a_switch_of_the_trainer_fills_the_type_that_deepspeed_leaves_open(
    folder: ReadFolder, switch: str, tables: dict[str, object], precision: str
) -> None:
    """Wherever the switch stands: in a command, a recipe, or as accelerate's own option."""
    zero = json.dumps({"zero_optimization": {"stage": 2}, **tables})
    given = "--model_name_or_path gpt2 --per_device_train_batch_size 1 --output_dir out"
    start = f"deepspeed --num_gpus=8 train.py {given} --deepspeed ds_z3.json"
    recipe = FACTORY.replace("bf16: true", f"{switch}: true").replace("examples/deepspeed/", "")
    for name, text in (
        ("a.sh", f"{start} --{switch}\n"),
        ("b.sh", f"{start} --{switch} True\n"),
        ("c.yaml", recipe),
        ("d.sh", f"accelerate launch --num_processes 8 --use_deepspeed --mixed_precision {switch} "
                 f"--deepspeed_config_file ds_z3.json train.py {given}\n"),
    ):  # fmt: skip
        found = folder({name: text, "ds_z3.json": zero})
        assert (found.framework, found.zero, found.precision) == ("deepspeed", 2, precision), name


def test_accelerate_with_deepspeed_and_a_recipe(folder: ReadFolder) -> None:
    found = folder(
        {
            "t.sh": "accelerate launch --config_file conf/z2.yaml --num_processes 8 sft.py "
            "--config recipe.yaml --gradient_accumulation_steps 2",
            "conf/z2.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\n"
            "num_processes: 8\ndeepspeed_config:\n  zero_stage: 2\n",
            "recipe.yaml": "model_name_or_path: Qwen/Qwen2.5-1.5B\nmax_length: 4096\n"
            "per_device_train_batch_size: 2\n",
        }
    )
    assert (found.framework, found.zero, found.mbs, found.grad_acc) == ("deepspeed", 2, 2, 2)
    assert (found.model, found.seq, found.precision) == ("Qwen/Qwen2.5-1.5B", 4096, "bf16")
    assert judged(found).plan is not None


def test_a_recipe_alone_does_not_say_how_it_is_sharded(folder: ReadFolder) -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-1.5B\nmax_length: 4096\nlearning_rate: 1e-5\n"
    assert "how it is sharded" in refusals(folder({"config_full.yaml": text}))


def test_nothing_is_written_into_settings(folder: ReadFolder, tmp_path: Path) -> None:
    """A change is said, and left to the reader of the report."""
    folder({"x.yml": AXOLOTL.replace("micro_batch_size: 2", "micro_batch_size: 64")})
    result = CliRunner().invoke(
        planner_command, ["check", str(tmp_path / "x.yml"), "--gpus", "8xH100", "--fix"]
    )
    assert result.exit_code == 1, result.output
    assert "nothing to write" in result.output
    assert not (tmp_path / "x.yml.fixed").exists()


@pytest.mark.parametrize(
    ("name", "text", "formats"),
    [
        ("a.yaml", AXOLOTL.partition("fsdp:")[0], ("bf16", "bf16")),
        ("a.yaml", AXOLOTL.partition("bf16:")[0] + "float16: true\nbf16: false\n",
         ("fp16", "bf16")),
        ("a.yaml", AXOLOTL.partition("bf16:")[0] + "float16: true\nfp16: true\n", ("fp16", "amp")),
        ("a.yaml", AXOLOTL.partition("bf16:")[0] + "bf16: false\n", ("fp32", "fp32")),
        ("a.sh", f"{TRAINER} --torch_dtype bfloat16", ("bf16", "bf16")),
        ("a.sh", f"{TRAINER} --torch_dtype float16", ("fp16", "bf16")),
        ("a.sh", f"{TRAINER} --torch_dtype float16 --fp16 True", ("fp16", "amp")),
        ("a.sh", f"{TRAINER} --bf16 True", ("bf16", "amp")),
    ],
)  # fmt: skip
def test_weights_of_16_bits_are_told_from_autocast(
    folder: ReadFolder, name: str, text: str, formats: tuple[str, str]
) -> None:
    found = folder({name: text}, gpus=1)
    assert (found.precision, found.dtype) == formats
    assert judged(found, "1xH100").plan is not None


@pytest.mark.parametrize("program", ["train.py", "own/train.py", "-m own.train"])
@pytest.mark.parametrize(
    ("source", "verdict"),
    [("from cut_cross_entropy.transformers import cce_patch\n", "cannot tell"),
     ("from liger_kernel.transformers import apply_liger_kernel_to_llama\n", "cannot tell"),
     ("import torch\n", "will not fit")],
)  # fmt: skip
def test_a_program_beside_the_script_may_compute_its_loss_in_pieces(
    folder: ReadFolder, program: str, source: str, verdict: str
) -> None:
    # Padded to their limit: shorter samples would fit.
    command = TRAINER.replace("train.py", program) + " --bf16 --per_device_train_batch_size 64"
    command += " --pad_to_max_length true"
    path = program if program.endswith(".py") else "own/train.py"
    result = judged(folder({"a.sh": command, path: source}, gpus=1), "1xH100")
    assert result.verdict == verdict
