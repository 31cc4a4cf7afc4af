"""Part of the weights, preferences and rewards, as files of Hugging Face's programs ask for them:
what a request holds of them, with each program's own defaults."""

from __future__ import annotations

import json

import pytest

from planner.job.errors import UsageError
from planner.launch.check.assess import Assessment
from tests.launch.read.conftest import ReadFolder, judged, refusals

FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
lora_target: all
per_device_train_batch_size: 2
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
micro_batch_size: 2
bf16: auto
gradient_checkpointing: true
"""
TRL = """\
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_text_field: text
use_peft: true
per_device_train_batch_size: 4
learning_rate: 1e-4
"""
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --learning_rate 1e-5 --output_dir x"
SCRIPT = """\
import argparse, torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="mistralai/Mistral-7B-v0.1")
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                          bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(args.model, quantization_config=bits,
                                             torch_dtype=torch.bfloat16)
model = prepare_model_for_kbit_training(model)
RANK = 8
model = get_peft_model(model, LoraConfig(r=RANK * 2, target_modules=["q_proj", "o_proj"]))
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=args.batch_size,
                              bf16=torch.cuda.is_bf16_supported())
Trainer(model=model, args=arguments).train()
"""
UNSLOTH = """\
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B",
                                                     max_seq_length=4096)
model = FastLanguageModel.get_peft_model(model, r=32)
trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, output_dir="x"))
"""


@pytest.mark.parametrize(
    ("old", "new", "train"),
    [
        ("", "", "lora:rank=8,targets=all-linear"),
        ("finetuning_type: lora", "lora_rank: 16", "lora:rank=16,targets=all-linear"),
        ("lora_target: all", "lora_target: q_proj,v_proj", "lora:rank=8,targets=q+v"),
        ("bf16: true", "bf16: true\nquantization_bit: 4",
         "qlora:rank=8,targets=all-linear,base=nf4-double"),
        ("bf16: true", "bf16: true\nquantization_bit: 8",
         "qlora:rank=8,targets=all-linear,base=int8"),
        ("bf16: true", "bf16: true\nuse_dora: true", "dora:rank=8,targets=all-linear"),
        ("bf16: true", "bf16: true\npure_bf16: true",
         "lora:rank=8,targets=all-linear,adapter=bf16"),
        ("bf16: true", "bf16: true\nadditional_target: embed_tokens,lm_head",
         "lora:rank=8,targets=all-linear,whole=embeddings+head"),
        ("Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct-GPTQ-Int4",
         "qlora:rank=8,targets=all-linear,base=gptq4"),
    ],
)  # fmt: skip
def test_adapters_of_llama_factory(folder: ReadFolder, old: str, new: str, train: str) -> None:
    """Its own defaults, the frozen weights in the type of the products, samples of 2,048 tokens."""
    found = folder({"x.yaml": FACTORY.replace(old, new) if old else FACTORY})
    assert (found.train, found.seq, found.recompute) == (train, 2048, "full")
    assert found.dtype == "bf16"
    assert not found.problems


def test_layers_that_llama_factory_freezes(folder: ReadFolder) -> None:
    text = FACTORY.replace("lora\n", "freeze\nfreeze_trainable_layers: 4\n", 1)
    found = folder({"x.yaml": text})
    assert (found.train, found.freeze) == ("full", ("embeddings", "head", "layers:24"))


def test_adapters_of_axolotl(folder: ReadFolder) -> None:
    found = folder({"x.yml": AXOLOTL})
    assert found.train == "qlora:rank=16,targets=all-linear,base=nf4-double"
    assert (found.seq, found.mbs, found.recompute) == (512, 2, "full")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AXOLOTL.replace("adapter: qlora\n", ""), "not supported without setting an adapter"),
        (AXOLOTL.replace("load_in_4bit: true\n", ""), "Require cfg.load_in_4bit to be True"),
        (FACTORY.replace("lora\n", "full\nquantization_bit: 4\n", 1), "Quantized models can only"),
        (FACTORY.replace("target: all", "target: W_pack"), "not found in the base model"),
        (FACTORY.replace("target: all", "target: 'layers.[0.(q|v)_proj'"), "a regular expression"),
    ],
)
def test_what_programs_refuse(folder: ReadFolder, text: str, words: str) -> None:
    """In their own words."""
    assessment = judged(folder({"x.yml": text}))
    assert assessment.verdict == "will not run"
    assert any(words in problem.text for problem in assessment.errors)


def test_modules_that_the_model_lacks_are_passed_over(folder: ReadFolder) -> None:
    """Beside others that it has: peft says nothing of them."""
    found = folder({"x.yml": FACTORY.replace("target: all", "target: q_proj,W_pack")})
    assert found.train == "lora:rank=8,targets=q"
    assert [(one.severity, one.rule) for one in found.problems] == [("warning", "adapter-targets")]


def test_adapters_of_trl(folder: ReadFolder) -> None:
    """peft's own targets of the family, adapters in bf16 beside packed weights."""
    found = folder({"x.yaml": TRL}, gpus=1)
    assert found.train == "lora:rank=16,targets=q+v,dropout=0.05"
    assert (found.seq, found.recompute, found.precision) == (1024, "full", "bf16")
    packed = folder({"x.yaml": TRL + "load_in_4bit: true\n"}, gpus=1)
    assert packed.train.endswith("base=nf4,adapter=bf16,dropout=0.05")
    assert any("older releases leave it off" in said for said in packed.assumed)
    assert found.objective == "lm:logits=chunked" and "recompute" in found.left_open
    plain = folder({"x.yaml": TRL + "loss_type: nll\n"}, gpus=1)
    assert plain.objective == "lm"


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        (TRL + "lora_target_modules: all-linear\n", "all-linear+experts+router"),
        (TRL + "lora_target_modules: [q_proj, gate_proj, up_proj, down_proj]\n", "q+experts"),
        (AXOLOTL, "all-linear"),
        (AXOLOTL + "lora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]\n",
         "all-linear+experts"),
    ],
)  # fmt: skip
def test_experts_have_adapters_where_peft_reads_their_names(
    folder: ReadFolder, text: str, targets: str
) -> None:
    """Programs that list the linear layers themselves find no experts, which are one tensor."""
    names = ("NousResearch/Meta-Llama-3-8B", "meta-llama/Llama-3.1-8B")
    for name in names:
        text = text.replace(name, "Qwen/Qwen3-30B-A3B")
    assert f"targets={targets}" in folder({"run.yaml": text}).train.split(",")


def test_what_shards_holds_adapters_as_all_that_trains(folder: ReadFolder) -> None:
    """Beside packed weights TRL makes them bf16; DeepSpeed and accelerate cast them again."""
    text = TRL + "load_in_4bit: true\n"
    zero = folder({"x.yaml": text + "deepspeed: zero3.json\n"}, gpus=2)
    assert "adapter=" not in zero.train
    shards = "fsdp: full_shard\nfsdp_config:\n  version: 2\n"
    assert "adapter=" not in folder({"x.yaml": text + shards}, gpus=2).train


def test_losses_of_preferences_by_the_release(folder: ReadFolder) -> None:
    """Since TRL 1.16 they make a chunk of logits at a time, but for those of ORPO and CPO."""
    start = "trl {} --model_name_or_path gpt2 --output_dir x --learning_rate 1e-6"
    text = f"{start} --trl_release {{}}\n"
    objectives = {
        folder({"x.sh": text.format(kind, release)}).objective.partition(":")[2]
        for kind, release in (("dpo", "1.16.0"), ("kto", "1.17"), ("dpo", "1.10"), ("orpo", "1.16"))
    }
    assert objectives == {"reference=copied,logits=chunked", "reference=copied", ""}


def test_adapters_of_swift(folder: ReadFolder) -> None:
    found = folder({"x.sh": f"{SWIFT} --quant_bits 4 --quant_method bnb --lora_rank 64\n"})
    assert found.train == "qlora:rank=64,targets=all-linear,base=nf4-double,dropout=0.05"


def test_a_script_with_peft(folder: ReadFolder) -> None:
    """Options by their defaults, which are named; a command's values win."""
    found = folder({"train.py": SCRIPT}, gpus=1, seq=2048)
    assert found.train == "qlora:rank=16,targets=q+o,base=nf4"
    assert (found.model, found.mbs, found.recompute) == ("mistralai/Mistral-7B-v0.1", 4, "full")
    assert any("batch_size 4, model mistralai/Mistral-7B-v0.1" in said for said in found.assumed)


def test_a_script_with_unsloth(folder: ReadFolder) -> None:
    found = folder({"train.py": UNSLOTH}, gpus=1)
    targets = "q+k+v+o+gate+up+down"
    assert found.train == f"qlora:rank=32,targets={targets},base=nf4-double"
    assert (found.seq, found.recompute) == (4096, "full")
    assert (found.framework, found.activation_offload) == ("unsloth", "checkpoints")
    assert judged(found, "1xH100").verdict == "runs and fits"
    plain = UNSLOTH.replace("r=32", "r=32, use_gradient_checkpointing=True")
    kept = folder({"train.py": plain}, gpus=1)
    assert (kept.framework, kept.activation_offload) == ("unsloth", "off")


def test_weights_packed_by_a_table(folder: ReadFolder) -> None:
    text = SCRIPT.replace("BitsAndBytesConfig(load_in_4bit=True,", "dict_of(x,").replace(
        "quantization_config=bits", "quantization_config=BITS"
    )
    text = text.replace("RANK = 8", 'RANK = 8\nBITS = {"load_in_4bit": True}')
    assert "base=nf4" in folder({"train.py": text}, gpus=1, seq=2048).train


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        (FACTORY.replace("stage: sft", "stage: dpo"), "dpo:reference=adapters-off"),
        (FACTORY.replace("stage: sft", "stage: dpo").replace("lora\n", "full\n", 1),
         "dpo:reference=copied"),
        (FACTORY.replace("stage: sft", "stage: dpo\npref_loss: orpo"), "orpo"),
        (FACTORY.replace("stage: sft", "stage: dpo\npref_loss: simpo"), "simpo"),
        (FACTORY.replace("stage: sft", "stage: rm"), "reward"),
        (FACTORY.replace("stage: sft", "stage: kto"), "kto:reference=adapters-off"),
        (AXOLOTL + "rl: dpo\nprecompute_ref_log_probs: true\n", "dpo:reference=precomputed"),
        (AXOLOTL + "rl: ipo\n", "ipo:reference=adapters-off"),
        (AXOLOTL + "reward_model: true\n", "reward"),
    ],
)  # fmt: skip
def test_preferences(folder: ReadFolder, text: str, objective: str) -> None:
    assert folder({"x.yaml": text}).objective == objective


@pytest.mark.parametrize(
    ("command", "objective"),
    [
        ("trl dpo --model_name_or_path gpt2", "dpo:reference=copied"),
        ("trl kto --model_name_or_path gpt2", "kto:reference=copied"),
        ("trl reward --model_name_or_path gpt2", "reward"),
        ("trl sft --model_name_or_path gpt2", "lm:logits=chunked"),
        ("python train_dpo.py --model_name_or_path gpt2 --use_peft", "dpo:reference=adapters-off"),
        ("swift rlhf --model gpt2 --rlhf_type kto --train_type full", "kto:reference=copied"),
        ("swift rlhf --model gpt2 --train_type full", "dpo:reference=copied"),
    ],
)
def test_preferences_by_the_program(folder: ReadFolder, command: str, objective: str) -> None:
    options = "--per_device_train_batch_size 1 --learning_rate 1e-5 --output_dir x"
    assert folder({"x.sh": f"{command} {options} --num_train_epochs 1\n"}).objective == objective


def test_a_trainer_that_samples_without_vllm_is_refused(folder: ReadFolder) -> None:
    found = folder({"x.py": UNSLOTH.replace("SFTTrainer", "GRPOTrainer")}, gpus=1)
    assert found.rl is not None
    assert "without vLLM" in refusals(found, "1xH100")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("FastLanguageModel", "FastVisionModel", "FastVisionModel, which loads no decoder"),
        ('FastLanguageModel.from_pretrained("unsloth', 'AutoModelForSeq2SeqLM.from_pretrained("x',
         "AutoModelForSeq2SeqLM, which loads no decoder"),
        ("SFTConfig(", "SFTConfig(task_type='seq_cls', ", "task_type: seq_cls"),
    ],
)  # fmt: skip
def test_other_models_are_refused_by_their_class(
    folder: ReadFolder, old: str, new: str, words: str
) -> None:
    assert words in refusals(folder({"x.py": UNSLOTH.replace(old, new)}, gpus=1), "1xH100")


def test_files_that_only_name_a_base_model_are_not_axolotls(folder: ReadFolder) -> None:
    text = "base_model: meta-llama/Llama-3.1-8B\nstage: dpo\nlora:\n  rank: 32\n"
    with pytest.raises(UsageError):
        folder({"x.yaml": text})


def test_a_limit_alone_does_not_say_that_samples_do_not_fit(folder: ReadFolder) -> None:
    """Samples that are padded to the longest of a micro-batch, of which the limit is stated."""

    def read(text: str) -> Assessment:
        script = "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train x.yaml\n"
        return judged(folder({"x.sh": script, "x.yaml": text}))

    text = FACTORY.replace("lora\n", "full\ncutoff_len: 32768\n", 1)
    text = text.replace("Qwen2.5-7B", "Qwen2.5-1.5B").replace("batch_size: 2", "batch_size: 16")
    unpacked = read(text)
    assert unpacked.verdict == "cannot tell"
    assert any(problem.fix.startswith("--lengths") for problem in unpacked.problems)
    assert read(text + "packing: true\n").verdict == "will not fit"
    # What does not fit with short samples either.
    assert read(text.replace("Qwen2.5-1.5B", "Qwen2.5-72B")).verdict == "will not fit"


def test_json_of_training_arguments(folder: ReadFolder) -> None:
    settings = {
        "model_name_or_path": "gpt2", "per_device_train_batch_size": 1, "max_seq_length": 512,
        "use_lora": True, "lora_r": 4, "lora_target_modules": ["c_attn", "c_proj"],
    }  # fmt: skip
    found = folder({"x.json": json.dumps(settings)})
    assert found.train == "lora:rank=4,targets=q+k+v+o+down"


ADAPTER = json.dumps({
    "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "r": 64,
    "target_modules": ["q_proj", "v_proj"], "lora_alpha": 16, "lora_dropout": 0.0,
    "modules_to_save": None, "use_dora": False, "task_type": "CAUSAL_LM",
})  # fmt: skip


def test_an_adapters_file_alone(folder: ReadFolder) -> None:
    """It says what is trained; micro-batch and length are asked for."""
    found = folder({"adapter_config.json": ADAPTER}, gpus=1)
    assert (found.model, found.train) == (
        "Qwen/Qwen2.5-7B-Instruct", "lora:rank=64,alpha=16,targets=q+v",
    )  # fmt: skip
    assert any(problem.rule == "micro-batch" for problem in found.problems)
    told = folder({"adapter_config.json": ADAPTER}, gpus=1, mbs=4, seq=2048)
    assert not any(problem.rule == "micro-batch" for problem in told.problems)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank_pattern", {"q_proj": 8}), ("exclude_modules", ["lm_head"]), ("lora_bias", True),
        ("layer_replication", [[0, 2]]), ("trainable_token_indices", [1, 2]),
    ],
)  # fmt: skip
def test_an_adapter_that_holds_other_weights_is_not_predicted(
    folder: ReadFolder, key: str, value: object
) -> None:
    text = json.dumps(json.loads(ADAPTER) | {key: value})
    refused = folder({"adapter_config.json": text}, gpus=1, mbs=4, seq=2048)
    assert [one.text.partition(":")[0] for one in refused.problems] == [key]
    empty = json.dumps(json.loads(ADAPTER) | {key: type(value)()})
    assert not folder({"adapter_config.json": empty}, gpus=1, mbs=4, seq=2048).problems


@pytest.mark.parametrize("rank", [0, -3, 1.5])
def test_a_rank_that_is_none_does_not_run(folder: ReadFolder, rank: float) -> None:
    text = json.dumps(json.loads(ADAPTER) | {"r": rank})
    found = folder({"adapter_config.json": text}, gpus=1, mbs=4, seq=2048)
    [error] = [one for one in found.problems if one.severity == "error"]
    assert "positive integer" in error.text and error.fix == "r: 16"


@pytest.mark.parametrize(("model", "fits"), [("qwen2.5-7b", True), ("70b", False)])
def test_an_adapter_is_not_one_of_another_model_that_is_named(
    folder: ReadFolder, model: str, fits: bool
) -> None:
    """`--model` beside an adapter's file names the base that it was trained on."""
    found = folder({"adapter_config.json": ADAPTER}, gpus=1, model=model)
    errors = [problem for problem in found.problems if problem.severity == "error"]
    assert [(one.rule, one.fix) for one in errors] == (
        [] if fits else [("adapter-base", "--model Qwen/Qwen2.5-7B-Instruct")]
    )


@pytest.mark.parametrize(
    ("model", "fits"), [("Qwen/Qwen2.5-7B-Instruct", True), ("Qwen/Qwen2.5-14B", False)]
)
def test_training_goes_on_with_an_adapter(folder: ReadFolder, model: str, fits: bool) -> None:
    """As its file has it; one of another base does not load."""
    text = FACTORY.replace("Qwen/Qwen2.5-7B-Instruct", model) + "adapter_name_or_path: old/lora\n"
    found = folder({"x.yaml": text, "old/lora/adapter_config.json": ADAPTER})
    assert found.train.startswith("lora:rank=64,alpha=16,targets=q+v")
    errors = [problem for problem in found.problems if problem.severity == "error"]
    assert [problem.rule for problem in errors] == ([] if fits else ["adapter-base"])


@pytest.mark.parametrize(
    ("lines", "packing"),
    [
        ("", "longest"),
        ("packing: true\n", "pack"),
        ("neat_packing: true\n", "pack-varlen"),
    ],
)
def test_how_samples_become_rows(folder: ReadFolder, lines: str, packing: str) -> None:
    """Asked for where somebody says how long samples are; else every row is as long as allowed."""
    text = FACTORY.replace("lora\n", "full\n", 1).replace("7B", "1.5B") + lines
    plain = folder({"x.yaml": text}, gpus=1)
    assert plain.packing == packing
    assert plain.asked()["packing"] is None
    told = folder({"x.yaml": text}, gpus=1, lengths="mean=300")
    assert (told.asked()["lengths"], told.asked()["packing"]) == ("mean=300", packing)
    assert any("mean=300" in said for said in told.assumed)
    fast, slow = judged(told, "1xH100").plan, judged(plain, "1xH100").plan
    assert fast is not None and slow is not None
    assert (fast.step_time_s < 0.8 * slow.step_time_s) == (packing == "longest")


BESIDE = """\
from dataclasses import dataclass
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser, Trainer
@dataclass
class LoraArguments:
    lora_r: int = 8
    use_adapters: bool = True
    q_lora: bool = False
def train():
    lora_args = parser.parse_args_into_dataclasses()
    bits = BitsAndBytesConfig(load_in_4bit=True) if lora_args.q_lora else None
    model = AutoModelForCausalLM.from_pretrained(NAME, quantization_config=bits)
    if lora_args.q_lora:
        model = prepare_model_for_kbit_training(model)
    if lora_args.use_adapters:
        config = LoraConfig(r=lora_args.lora_r, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, config)
    Trainer(model=model).train()
"""
COMMAND = (
    "python train.py --model_name_or_path meta-llama/Llama-3.2-1B --output_dir out "
    "--max_seq_length 2048 --learning_rate 1e-5 --per_device_train_batch_size 2 --bf16 true"
)


@pytest.mark.parametrize(
    ("options", "train", "recompute"),
    [
        ("", "lora:rank=8,targets=q+v", "none"),
        ("--lora_r 64", "lora:rank=64,targets=q+v", "none"),
        ("--use_adapters False", "full", "none"),
        ("--q_lora True", "qlora:rank=8,targets=q+v,base=nf4", "full"),
    ],
)
def test_the_source_of_a_program_says_what_its_arguments_do_not(
    folder: ReadFolder, options: str, train: str, recompute: str
) -> None:
    """Adapters that a script puts on, where its own tests lead there."""
    found = folder({"a.sh": f"{COMMAND} {options}\n", "train.py": BESIDE}, gpus=1)
    assert (found.train, found.recompute) == (train, recompute)


def test_a_test_of_a_script_that_is_not_known_is_asked_about(folder: ReadFolder) -> None:
    text = BESIDE.replace("lora_args.use_adapters", "adapters_wanted()")
    found = folder({"a.sh": f"{COMMAND}\n", "train.py": text}, gpus=1)
    assert "where adapters_wanted()" in refusals(found, "1xH100")


def test_a_script_goes_on_with_adapters(folder: ReadFolder) -> None:
    """PeftModel's, where they are trained: of the rank that their file has."""
    text = SCRIPT.replace(
        'get_peft_model(model, LoraConfig(r=RANK * 2, target_modules=["q_proj", "o_proj"]))',
        'PeftModel.from_pretrained(model, "old/lora", is_trainable=True)',
    )
    files = {"train.py": text, "old/lora/adapter_config.json": ADAPTER.replace(
        "Qwen/Qwen2.5-7B-Instruct", "mistralai/Mistral-7B-v0.1")}  # fmt: skip
    found = folder(files, gpus=1, seq=2048)
    assert found.train == "qlora:rank=64,alpha=16,targets=q+v,base=nf4"
    assert not [problem for problem in found.problems if problem.severity == "error"]


@pytest.mark.parametrize(
    ("model", "lines", "verdict"),
    [
        ("gpt2", "packing: true", "will not run"),
        ("gpt2", "", "runs and fits"),  # samples may be shorter
        ("Qwen/Qwen2.5-0.5B", "packing: true", "runs and fits"),  # rotary positions go on
    ],
)
def test_rows_beyond_the_table_of_positions(
    folder: ReadFolder, model: str, lines: str, verdict: str
) -> None:
    text = FACTORY.replace("Qwen/Qwen2.5-7B-Instruct", model) + f"cutoff_len: 4096\n{lines}\n"
    assessment = judged(folder({"x.yaml": text}, gpus=1), "1xH100")
    assert assessment.verdict == verdict
    assert any(problem.rule == "positions" for problem in assessment.problems) == (model == "gpt2")


def test_trl_under_accelerate(folder: ReadFolder) -> None:
    """A recipe that the command names, sharded by accelerate's file: TRL's defaults hold."""
    script = "accelerate launch --config_file fsdp.yaml --num_processes 8 sft.py --config x.yaml\n"
    sharding = (
        "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    )
    found = folder({"run.sh": script, "fsdp.yaml": sharding, "x.yaml": TRL})
    assert (found.framework, found.train) == ("hf-fsdp2", "lora:rank=16,targets=q+v,dropout=0.05")
    assert (found.seq, found.recompute, found.packing) == (1024, "full", "longest")
    assert found.objective == "lm:logits=chunked"
