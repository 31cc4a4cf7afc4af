"""A reader never says more than it read: what is left to fill in, to give too, or to a program
itself leaves "cannot tell", and the advice that is printed then works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.job.errors import CannotTellError
from planner.launch.check.given import read_given
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch
from planner.launch.read.yaml_text import as_yaml, filled, read_yaml
from tests.launch.read.conftest import ReadFolder, judged, refusals

NANOTRON = """\
general: {project: p, run: r, seed: 1}
model:
  dtype: bfloat16
  init_method: {std: 0.02}
  model_config:
    is_llama_config: true
    hidden_size: 2048
    num_hidden_layers: 24
    num_attention_heads: 16
    num_key_value_heads: 16
    intermediate_size: 5632
    vocab_size: 32000
    max_position_embeddings: 2048
optimizer:
  zero_stage: 0
  weight_decay: 0.1
  clip_grad: 1.0
  accumulate_grad_in_fp32: true
  learning_rate_scheduler: {learning_rate: 0.0005}
  optimizer_factory: {name: adamW, torch_adam_is_fused: true}
tokens:
  {train_steps: 9, micro_batch_size: 4, batch_accumulation_per_replica: 4, sequence_length: 2048}
parallelism:
  dp: 8
  tp: 1
  pp: 1
  recompute_layer: true
"""
FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
deepspeed: z3.json
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 2
bf16: true
gradient_checkpointing: true
deepspeed: z3.json
"""
TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
ACCELERATE = """\
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
"""
ZERO3 = json.dumps({
    "zero_optimization": {"stage": 3}, "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
})  # fmt: skip
TRAINER = json.dumps({
    "model_name_or_path": "meta-llama/Llama-3.2-1B-Instruct", "output_dir": "out", "bf16": True,
    "per_device_train_batch_size": 8, "model_max_length": 2048, "gradient_checkpointing": True,
    "deepspeed": "z3.json",
})  # fmt: skip
MODEL = {"model": "llama-3.1-8b", "seq": 2048, "recompute": "full"}
# Of each dialect: file, text, what is left to fill in, its value, hints.
DIALECTS = [
    ("config.yaml", NANOTRON, "recompute_layer: ", "true", {}),
    ("config.yaml", NANOTRON, "hidden_size: ", "2048", {}),
    ("x.yaml", FACTORY, "cutoff_len: ", "4096", {}),
    ("x.yaml", FACTORY, "model_name_or_path: ", "Qwen/Qwen2.5-7B-Instruct", {}),
    ("x.yaml", FACTORY, "per_device_train_batch_size: ", "1", {}),
    ("x.yaml", FACTORY, "deepspeed: ", "z3.json", {}),
    ("x.yaml", AXOLOTL, "micro_batch_size: ", "2", {}),
    ("x.yaml", AXOLOTL, "gradient_checkpointing: ", "true", {}),
    ("x.toml", TITAN, "mode = ", "full", {}),
    ("x.toml", TITAN, "flavor = ", "8B", {}),
    ("a.yaml", ACCELERATE, "fsdp_activation_checkpointing: ", "true",
     {"model": "llama-3.1-8b", "seq": 2048, "mbs": 1}),
    ("z.json", ZERO3, '"stage": ', "3", MODEL),
    ("t.json", TRAINER, '"per_device_train_batch_size": ', "8", {}),
]  # fmt: skip
PLACEHOLDERS = [
    '"{{NAME}}"', '"{{ NAME }}"', '"${NAME}"', '"${oc.env:NAME}"', '"$NAME"', '"<NAME>"',
    '"{NAME}"',
]  # fmt: skip


def with_value(text: str, key: str, value: str) -> str:
    """A file's text with another value for a key."""
    return re.sub(
        rf"({re.escape(key)})(\"[^\"]*\"|[^,}}\s]+)", lambda m: m[1] + value, text, count=1
    )


@pytest.mark.parametrize(
    ("placeholder", "file", "text", "key", "value", "hints"),
    [
        *((placeholder, *DIALECTS[2]) for placeholder in PLACEHOLDERS),
        *(
            (PLACEHOLDERS[at % len(PLACEHOLDERS)], *dialect)
            for at, dialect in enumerate(DIALECTS)
            if at != 2
        ),
    ],
)
def test_a_placeholder_is_named_and_its_advice_works(
    folder: ReadFolder,
    placeholder: str,
    file: str,
    text: str,
    key: str,
    value: str,
    hints: dict[str, object],
) -> None:
    """In every dialect, in every spelling: the file, the line and the key; `--env` fills it in."""
    files = {file: with_value(text, key, placeholder), "z3.json": ZERO3}
    hints = {"gpus": 8, **hints}
    found = folder(files, **hints)
    missing = [problem for problem in found.problems if problem.severity == "missing"]
    (said,) = [problem for problem in missing if "a placeholder" in problem.text]
    line = files[file][: files[file].index(placeholder)].count("\n") + 1
    assert said.places[0].endswith(f"{file}:{line}")
    assert said.fix == "--env NAME=VALUE"
    assert judged(found).verdict == "cannot tell"
    advised = folder(files, environment={"NAME": value}, **hints)
    plain = folder({file: text, "z3.json": ZERO3}, **hints)
    assert judged(advised).verdict == judged(plain).verdict != "cannot tell"
    assert judged(advised).plan == judged(plain).plan


@pytest.mark.parametrize("written", ["{{ SIZE }}", "{SIZE}", "???", "<your size>"])
def test_placeholders_without_quotes(folder: ReadFolder, written: str) -> None:
    """As templates have them: `{{ X }}` is no YAML, `{X}` would be a table."""
    found = folder({"x.yaml": FACTORY.replace("4096", written), "z3.json": ZERO3})
    assert "cutoff_len is a placeholder" in refusals(found)


def test_a_template_keeps_its_places() -> None:
    text = "a: {{ X }}\nb: {name}  # why\nc: {d: 1}\n"
    made = as_yaml(text)
    assert len(made) == len(text)
    assert read_yaml(text).content == {"a": "{ X }", "b": "$name", "c": {"d": 1}}


@pytest.mark.parametrize("text", ["<pad>", "<s>", "<|endoftext|>", "a < b", "cost$", "{}", "$5"])
def test_what_is_no_placeholder(text: str) -> None:
    assert filled(text, {}).value == text


def test_a_setting_stands_for_another_and_a_default_for_itself() -> None:
    assert filled("${model.seq}", {"model.seq": 4096}).value == "4096"
    assert filled("${oc.env:SEQ,2048}", {}).value == "2048"


OWN = "torchrun --nproc_per_node=8 train_sft.py --model_name_or_path Qwen/Qwen2.5-7B \\\n"
OWN += (
    "    --per_device_train_batch_size 1 --output_dir o --max_seq_length 1024 --bf16 \\\n    {}\n"
)


@pytest.mark.parametrize(
    "options",
    ["--use_deepspeed --deepspeed_offload_optimizer", "--zero3", "--use_fsdp true",
     "--shard_model 1", "--cpu_offload True"],
)  # fmt: skip
def test_a_program_shards_by_options_of_its_own(folder: ReadFolder, options: str) -> None:
    """Its JSON is asked for, and giving it as the advice says makes a prediction."""
    found = folder({"run.sh": OWN.format(options)})
    assessed = judged(found)
    assert assessed.verdict == "cannot tell"
    (said,) = [problem for problem in assessed.problems if problem.rule == "own-option"]
    names = re.findall(r"--(\w+)", options)
    assert all(f"--{name}" in said.text for name in names) and said.places[0].endswith("run.sh:3")
    assert said.fix.startswith("--deepspeed FILE.json in place of")
    advised = folder({"run.sh": OWN.format("--deepspeed z3.json"), "z3.json": ZERO3})
    assert judged(advised).plan is not None


@pytest.mark.parametrize("option", ["--qlora_bits 4", "--freeze_layers 8", "--train_adapter true",
                                    "--tensor_parallel 2"])  # fmt: skip
def test_a_program_trains_otherwise_by_options_of_its_own(folder: ReadFolder, option: str) -> None:
    found = folder({"run.sh": OWN.format(option)})
    assert judged(found).verdict == "cannot tell" and option.split(maxsplit=1)[0] in refusals(found)


@pytest.mark.parametrize("option", ["--use_deepspeed false", "--lora_path_name x", "--my_seed 3"])
def test_options_that_decide_nothing_are_listed(folder: ReadFolder, option: str) -> None:
    """None is dropped: each is named in a note, and the prediction stands."""
    found = folder({"run.sh": OWN.format(option)})
    if "lora_path" not in option:
        assert judged(found).plan is not None
    assert any(option.split(maxsplit=1)[0][2:] in problem.text for problem in found.problems)


@pytest.mark.parametrize(
    ("text", "severity"),
    [(FACTORY, "error"), (AXOLOTL, "missing"), (TRAINER, "missing")],
)
def test_a_misspelt_setting_that_decides(folder: ReadFolder, text: str, severity: str) -> None:
    """LLaMA-Factory's parser refuses it; in others a program of one's own may have it."""
    key = "gradient_accumulation_steps" if text != TRAINER else "per_device_train_batch_size"
    name = "x.json" if text == TRAINER else "x.yaml"
    added = text.replace(key, f"{key[:-1]}")
    found = folder({name: added, "z3.json": ZERO3})
    (said,) = [problem for problem in found.problems if problem.rule == "unknown-option"]
    assert (said.severity, said.fix) == (severity, key)


# --- several files of one launch ------------------------------------------------------------------

LAUNCH = {
    "run.sh": "torchrun --nproc_per_node=8 train.py config.json\n",
    "config.json": TRAINER,
    "z3.json": ZERO3,
}
ACCELERATED = {
    "run.sh": "accelerate launch --config_file fsdp.yaml train.py config.yaml\n",
    "fsdp.yaml": ACCELERATE,
    "config.yaml": "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\n"
    "max_length: 2048\noutput_dir: o\n",
}


def written(tmp_path: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return [str(tmp_path / name) for name in files]


@pytest.mark.parametrize("files", [LAUNCH, ACCELERATED])
def test_the_files_of_one_launch_are_one(tmp_path: Path, files: dict[str, str]) -> None:
    """The folder, its script, all files in any order, and the configurations without a script."""
    paths = written(tmp_path, files)
    given = [[str(tmp_path)], paths[:1], paths, paths[::-1], paths[1:]]
    plans = [judged(read_launch_of(one)).plan for one in given]
    assert plans[0] is not None and plans == [plans[0]] * len(plans)


def read_launch_of(paths: list[str]) -> Found:
    return read_given(paths, Hints(gpus=8), 1, "8xH100", None).found


def test_a_deepspeed_file_that_nothing_names_still_shards(tmp_path: Path) -> None:
    plain = TRAINER.replace('"deepspeed": "z3.json"', '"seed": 1')
    found = read_launch(written(tmp_path, {**LAUNCH, "config.json": plain}), Hints(gpus=8))
    assert found.framework == "deepspeed" and found.zero == 3


def test_several_launches_are_not_one(tmp_path: Path) -> None:
    paths = written(tmp_path, {"a.json": TRAINER, "b.yaml": AXOLOTL})
    with pytest.raises(ValueError, match="several configurations"):
        read_launch(paths, Hints())


def test_a_table_with_a_trainers_settings_is_no_deepspeed_file(folder: ReadFolder) -> None:
    """Whatever it calls its model: `bf16: true` is a Trainer's."""
    text = TRAINER.replace("model_name_or_path", "llm_checkpoint")
    found = folder({"config.json": text, "z3.json": ZERO3}, model="llama-3.2-1b")
    assert judged(found).verdict == "runs and fits"


# --- what a second copy, a paged state or a host holds --------------------------------------------


def test_a_second_copy_of_the_weights(folder: ReadFolder) -> None:
    """ZeRO++: states are sharded over all, an eighth of the 16-bit weights lies beside them."""
    zero = {"stage": 3, "zero_hpz_partition_size": 8}
    text = ZERO3.replace('{"stage": 3}', json.dumps(zero))
    found = folder({"z.json": text}, gpus=16, **MODEL)
    plan, plain = (judged(one, "16xA100").plan
                   for one in (found, folder({"z.json": ZERO3}, gpus=16, **MODEL)))  # fmt: skip
    assert found.shard == 0 and found.variations == ("hpz-8",)
    assert plan is not None and plain is not None
    assert plan.peak_bytes > plain.peak_bytes
    assert judged(folder({"z.json": text}, gpus=12, **MODEL), "12xA100").verdict == "will not run"
    odd = text.replace('"zero_hpz_partition_size": 8', '"zero_hpz_partition_size": 5')
    assert judged(folder({"z.json": odd}, gpus=40, **MODEL), "40xA100").verdict == "cannot tell"
    odd = text.replace('"zero_hpz_partition_size": 8', '"zero_hpz_partition_size": 4')
    beyond = judged(folder({"z.json": odd}, gpus=12, **MODEL), "2x6xA100")
    assert beyond.verdict == "will not run"
    assert any("give 3 or 6" in problem.text for problem in beyond.errors)


@pytest.mark.parametrize(
    ("zero", "variations", "share", "rule"),
    [
        ({"offload_param": {"device": "cpu"}}, ("parameter-offload",), 0.0, ""),
        ({"offload_param": {"device": "nvme", "nvme_path": "/nvme"}}, ("parameter-nvme",), 0.0, ""),
        ({"offload_param": {"device": "nvme"}}, ("parameter-nvme",), 0.0, "nvme-path"),
        ({"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "ratio": 0.5},
          "offload_param": {"device": "cpu"}}, ("parameter-offload", "optimizer-nvme"), 1.0, ""),
        ({"offload_optimizer": {"device": "nvme"}}, ("optimizer-nvme",), 1.0, "nvme-path"),
        ({"stage": 2, "offload_param": {"device": "cpu"}}, (), 0.0, "offload-param-stage"),
        ({"stage": 2, "offload_optimizer": {"device": "nvme"}}, (), 1.0, "offload-optimizer-stage"),
    ],
)  # fmt: skip
def test_where_deepspeed_puts_weights_and_states(
    folder: ReadFolder,
    zero: dict[str, object],
    variations: tuple[str, ...],
    share: float,
    rule: str,
) -> None:
    text = ZERO3.replace('{"stage": 3}', json.dumps({"stage": 3} | zero))
    found = folder({"z.json": text}, gpus=8, **MODEL)
    assert (found.variations, found.optimizer_offload) == (variations, share)
    assert [problem.rule for problem in found.problems] == ([rule] if rule else [])
    assert judged(found, "8xA100").plan is not None or rule == "nvme-path"


@pytest.mark.parametrize(
    "setting",
    ["use_tiled_mlp: true", "auto_find_batch_size: true", "layer_offloading: true"],
)  # fmt: skip
def test_what_saves_memory_and_is_not_modelled_never_fails_to_fit(
    folder: ReadFolder, setting: str
) -> None:
    big = FACTORY.replace("Qwen2.5-7B", "Qwen2.5-72B").replace("deepspeed: z3.json\n", "")
    found = folder({"x.yaml": f"{big}ddp_timeout: 1\n{setting}\n"})
    assert judged(found).verdict == "cannot tell"
    assert any(setting.split(":", maxsplit=1)[0] in said.text for said in judged(found).problems)


# --- lengths and packing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        (FACTORY, "packing: true", "samples are packed"),
        (FACTORY, "neat_packing: true", "samples are packed"),
        (FACTORY, "packing: false", "samples are not packed"),
        (FACTORY, "", "samples are not packed"),
        (FACTORY.replace("sft", "pt"), "", "stage: pt packs"),
        (AXOLOTL, "sample_packing: true", "samples are packed"),
        (AXOLOTL, "pad_to_sequence_len: true", "padded to the longest"),
        (AXOLOTL, "group_by_length: true", "of like length"),
        (AXOLOTL, "padding_free: true", "without padding"),
    ],
)
def test_what_is_assumed_of_lengths(
    folder: ReadFolder, text: str, setting: str, words: str
) -> None:
    """One line, with the setting that it comes from and the length."""
    found = folder({"x.yaml": text + setting, "z3.json": ZERO3})
    (said,) = [one for one in found.assumed if "longest allowed" in one or "packed" in one]
    assert words in said and "4,096 tokens" in said
    assert setting in said or "not packed" in said


def test_a_template_of_helm_cannot_be_told(folder: ReadFolder) -> None:
    with pytest.raises(CannotTellError, match="a template"):
        folder({"a.yaml": "kind: Job\nspec:\n  {{- if .Values.x }}\n  x: 1\n"})


AUTO = ZERO3.replace('gpu": 1', 'gpu": "auto"').replace('steps": 1', 'steps": "auto"')


@pytest.mark.parametrize(("file", "text"), [("z.json", AUTO), ("a.yaml", ACCELERATE)])
def test_the_batch_of_a_program_is_asked_for(folder: ReadFolder, file: str, text: str) -> None:
    """`auto`, and what a file of sharding cannot say: never a micro-batch of 1 in silence."""
    known = {"gpus": 8, "model": "llama-3.2-1b", "seq": 2048}
    found = folder({file: text}, **known)
    (said,) = judged(found).unpredictable
    assert (said.rule, said.fix) == ("micro-batch", "--mbs N")
    assert judged(folder({file: text}, mbs=1, **known)).verdict == "runs and fits"


def test_a_program_that_is_not_read_may_recompute(folder: ReadFolder) -> None:
    """What does not fit without recomputation is not said not to fit, until somebody says so."""
    known = {"gpus": 8, "model": "llama-3.1-8b", "seq": 32768}
    assessed = judged(folder({"z.json": ZERO3}, **known))
    assert assessed.verdict == "cannot tell"
    assert "--recompute full, or none" in {problem.fix for problem in assessed.problems}
    told = folder({"z.json": ZERO3}, recompute="none", **known)
    assert judged(told).verdict == "will not fit"


def test_what_only_the_profile_lacks_is_not_refused_by_the_framework(folder: ReadFolder) -> None:
    """fp8 under FSDP2 of Hugging Face runs, and is not modelled."""
    text = AXOLOTL.replace(
        "deepspeed: z3.json", "fsdp_version: 2\nfsdp_config: {offload_params: false}"
    )
    found = folder({"x.yaml": text.replace("bf16: true", "fp8: true")})
    assert judged(found).verdict == "cannot tell"


@pytest.mark.parametrize("name", ["flux", "qwen3_vl", "llama-siglip"])
def test_torchtitan_trains_other_models_too(folder: ReadFolder, name: str) -> None:
    found = folder({"x.toml": TITAN.replace("llama3", name)}, gpus=8)
    assert f"{name} 8B is not a language model" in refusals(found)
