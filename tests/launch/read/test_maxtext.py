"""MaxText's files and commands, read: public configurations for GPUs in the fewest settings, each
with the verdict that was expected of it before it was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.job.errors import CannotTellError
from planner.launch.check.assess import Assessment, assess
from planner.launch.dialects.maxtext.settings import keys, model_config, model_names
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch

BASE = "base_config: base.yml\nhardware: gpu\nmax_segments_per_seq: 32\nattention: cudnn_flash_te\n"
# AI-Hypercomputer/gpu-recipes, src/frameworks/a3ultra/maxtext-configs,
# llama3-1-70b-256gpus-a3u-bf16.yaml; a step took 15.516 s there.
RECIPE_70B = (
    BASE
    + """\
model_name: llama3.1-70b
dcn_data_parallelism: 2
dcn_fsdp_parallelism: 16
ici_fsdp_parallelism: 8
per_device_batch_size: 2
max_target_length: 8192
remat_policy: save_dot_with_context_except_mlp
"""
)
# The same, a4/maxtext-configs/llama3-1-405b-256gpus-a4-fp8.yaml: 28.294 s.
RECIPE_405B = RECIPE_70B.replace("70b", "405b").replace(
    "save_dot_with_context_except_mlp", "full\nquantization: fp8"
)
TRAIN = "python3 -m maxtext.trainers.pre_train.train"
# NVIDIA/JAX-Toolbox at bcbbfa578, docs/frameworks/maxtext: example_slurm.sub, nvfp4_example.sh.
TOOLBOX = (
    "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.90\n"
    f"{TRAIN} src/maxtext/configs/base.yml model_name=llama2-7b per_device_batch_size=2 steps=15 "
    "remat_policy=minimal_flash attention=cudnn_flash_te max_target_length=4096 "
    "hardware=gpu_multiprocess run_name=demo\n"
)
NVFP4 = (
    "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.9\n"
    f"{TRAIN} maxtext/configs/base.yml hardware=gpu model_name=llama3-8b steps=50 "
    "remat_policy=minimal_with_context_and_quantization attention=cudnn_flash_te dtype=bfloat16 "
    "max_target_length=8192 per_device_batch_size=4 ici_fsdp_parallelism=4 "
    "override_model_config=True quantization=te_nvfp4_no_rht max_segments_per_seq=32\n"
)


def read(tmp_path: Path, text: str, gpus: str, name: str = "") -> Assessment:
    """A YAML, or a script where it starts a program, on a machine."""
    path = tmp_path / (name or ("train.sh" if "python3" in text else "run.yml"))
    path.write_text(text)
    count = int(gpus.partition("x")[0])
    found = read_launch([path], Hints(gpus=count, gpus_per_node=min(8, count)))
    return assess(found, gpus)


def rules(found: Assessment, severity: str = "error") -> list[str]:
    return [one.rule for one in found.problems if one.severity == severity]


PUBLIC = (
    (RECIPE_70B, "256xH200", 15.516, (256, 128, 2), "save_dot_with_context_except_mlp", "bf16"),
    (RECIPE_405B, "256xB200", 28.294, (256, 128, 2), "full", "fp8"),
    (TOOLBOX, "8xH100", None, (8, 0, 2), "minimal_with_context", "bf16"),
    (NVFP4, "4xB200", None, (4, 0, 4), "minimal_with_context", "nvfp4"),
)


@pytest.mark.parametrize(("text", "gpus", "step_s", "sizes", "mode", "precision"), PUBLIC)
def test_public_configurations_run_and_fit(
    tmp_path: Path, text: str, gpus: str, step_s: float | None, sizes: Any, mode: str,
    precision: str,
) -> None:  # fmt: skip
    found = read(tmp_path, text, gpus)
    assert rules(found) == rules(found, "missing") == rules(found, "warning") == []
    plan, job = found.plan, found.job
    assert plan is not None
    assert job is not None
    assert plan.fits
    assert (plan.degrees.dp, plan.degrees.shard, plan.degrees.mbs) == sizes
    assert (plan.degrees.zero, plan.recompute, job.precision) == (3, mode, precision)
    if step_s is not None:
        assert plan.step_time_s == pytest.approx(step_s, rel=0.1)


# MaxText's scripts for A3 of 0.2.5 name files that are not there, and a setting that is none.
SHIPPED = f"{TRAIN} $PWD/src/maxtext/configs/gpu/models/llama2_7b.yml dcn_data_parallelism=16 "


def test_a_configuration_that_maxtext_ships_is_known(tmp_path: Path) -> None:
    """configs/gpu/models/llama2_7b.yml: four sequences of 4,096 on each GPU, sharded in a node."""
    found = read(tmp_path, SHIPPED + "ici_fsdp_parallelism=8\n", "128xH100")
    assert found.plan is not None
    assert (found.plan.degrees.mbs, found.plan.degrees.shard, found.plan.seq) == (4, 8, 4096)
    assert found.plan.recompute == "minimal_with_context"
    assert rules(found, "warning") == ["memory-fraction"]


def test_any_other_configuration_is_asked_for(tmp_path: Path) -> None:
    script = f"{TRAIN} $PWD/src/maxtext/configs/models/gpu/llama2_7b.yml ici_fsdp_parallelism=8\n"
    with pytest.raises(CannotTellError, match=r"MaxText 0\.2\.5 does not ship; give that file too"):
        read(tmp_path, script, "8xH100")


def test_a_word_that_sets_nothing_is_refused(tmp_path: Path) -> None:
    """`enable_checkpointing: False` in configs/gpu/a3/llama_3.1_405b/128vm.sh of 0.2.5."""
    found = read(tmp_path, SHIPPED + "enable_checkpointing: False\n", "128xH100")
    texts = [one.text for one in found.problems if one.rule == "unknown-option"]
    assert texts[0].startswith("enable_checkpointing:: MaxText 0.2.5 has no such setting")
    assert texts[1].startswith("False: MaxText 0.2.5")


def test_attention_of_transformer_engine_asks_for_segments(tmp_path: Path) -> None:
    found = read(tmp_path, RECIPE_70B.replace("max_segments_per_seq: 32\n", ""), "256xH200")
    assert rules(found) == ["required-option"]
    assert "would fit" in found.verdict or found.plan is not None


WRONG = (
    ("remat_polcy: full\n", "unknown-option"),
    ("gradient_accumulation_steps: two\n", "option-value"),
    ("opt_type: adam\n", "option-value"),
    ("remat_policy: most\n", "option-value"),
    ("model_name: llama3.1-7b\n", "option-value"),
    ("per_device_batch_size: 0.3\n", "batch-size"),
    ("shard_optimizer_over_data: true\n", "zero-stage"),
    ("quantization: fp8\ngradient_accumulation_steps: 2\n", "precision"),
    ("ici_pipeline_parallelism: 2\nici_fsdp_parallelism: 4\nnum_pipeline_microbatches: 3\n"
     "num_layers_per_pipeline_stage: 16\nper_device_batch_size: 3\n", "microbatches"),
    ("base_emb_dim: 4100\nbase_num_query_heads: 41\nbase_num_kv_heads: 41\nhead_dim: 100\n",
     "shard-width"),
)  # fmt: skip


@pytest.mark.parametrize(("more", "rule"), WRONG)
def test_what_maxtext_refuses_is_an_error(tmp_path: Path, more: str, rule: str) -> None:
    text = BASE + "max_target_length: 4096\nper_device_batch_size: 1\n"
    for line in more.splitlines():
        name = line.partition(":")[0]
        text = "".join(one for one in text.splitlines(True) if not one.startswith(f"{name}:"))
    assert rule in rules(read(tmp_path, text + more, "8xH100"))


UNMODELLED = (
    ("remat_policy: save_qkv_proj\n", "more memory than predicted, faster"),
    ("remat_policy: none\n", "more memory than predicted"),
    ("remat_policy: custom\nout_proj: device\n", "more memory than predicted, faster"),
    ("num_vocab_tiling: 4\n", "logits in pieces"),
    ("mu_dtype: bfloat16\n", "less memory than predicted"),
    ("model_name: mixtral-8x7b\nmegablox: false\nsparse_matmul: false\n", "every expert"),
)


@pytest.mark.parametrize(("more", "why"), UNMODELLED)
def test_what_is_not_counted_is_said(tmp_path: Path, more: str, why: str) -> None:
    text = BASE + "max_target_length: 1024\nper_device_batch_size: 1\n" + more
    found = read(tmp_path, text, "8xH100")
    assert rules(found) == []
    assert any(why in one for _, one in found.found.unmodelled)


CUSTOM = (
    ("", "full"),
    ("query_proj: device\nkey_proj: device\nvalue_proj: device\nout_proj: device\n",
     "save_dot_except_mlp"),
    ("query_proj: device\nkey_proj: device\nvalue_proj: device\nout_proj: device\n"
     "context: device\nmlpwi_0: device\nmlpwi_1: device\nmlpwo: device\n", "minimal_with_context"),
)  # fmt: skip


@pytest.mark.parametrize(("tensors", "mode"), CUSTOM)
def test_a_policy_of_single_tensors_is_the_mode_that_keeps_the_same(
    tmp_path: Path, tensors: str, mode: str
) -> None:
    text = BASE + "max_target_length: 1024\nremat_policy: custom\n" + tensors
    found = read(tmp_path, text, "8xH100").found
    assert (found.recompute, found.unmodelled) == (mode, ())


NOT_PREDICTED = (
    ("hardware: tpu\n", "only GPUs are predicted"),
    ("remat_policy: minimal_offloaded\n", "activations in host memory"),
    ("use_sft: true\n", "supervised fine-tuning"),
    ("lora:\n  enable_lora: true\n", "adapters"),
    ("opt_type: sgd\n", "opt_type sgd"),
    ("ici_context_usp_ulysses_parallelism: 2\nici_fsdp_parallelism: 4\n", "context_usp_ulysses"),
    ("ici_pipeline_parallelism: 2\nici_fsdp_parallelism: 4\n", "circular pipelines (8 repeats)"),
)


@pytest.mark.parametrize(("more", "what"), NOT_PREDICTED)
def test_what_no_prediction_has_is_named(tmp_path: Path, more: str, what: str) -> None:
    text = BASE.replace("hardware: gpu\n", "") if more.startswith("hardware") else BASE
    found = read(tmp_path, text + "max_target_length: 1024\n" + more, "8xH100")
    texts = [one.text for one in found.problems if one.rule == "not-predictable"]
    assert any(what in one for one in texts), texts


def test_open_axes_follow_from_the_machine(tmp_path: Path) -> None:
    """base.yml: FSDP inside a node, replicas over nodes."""
    text = BASE + "max_target_length: 1024\nper_device_batch_size: 1\n"
    found = read(tmp_path, text, "32xH100")
    assert (found.found.dp, found.found.shard, found.found.zero) == (32, 8, 3)
    path = tmp_path / "run.yml"
    alone = read_launch([path], Hints())
    missing = [one.text for one in alone.problems if one.severity == "missing"]
    assert "ici_fsdp_parallelism is -1: it follows from the number of GPUs of a node" in missing[0]
    assert alone.world is None


def test_a_models_settings_are_its_own(tmp_path: Path) -> None:
    """A command may not change them; a file does so in vain: the model's are merged last."""
    words = "hardware=gpu model_name=llama3-8b {}base_mlp_dim=8192\n"
    text = f"{TRAIN} MaxText/configs/base.yml {words}"
    assert "model-override" in rules(read(tmp_path, text.format(""), "8xH100"))
    free = read(tmp_path, text.format("override_model_config=true "), "8xH100")
    assert "model-override" not in rules(free)
    assert free.found.shape is not None
    assert free.found.shape.ffn == 8192
    file = read(tmp_path, BASE + "max_target_length: 1024\nper_device_batch_size: 1\n"
                "model_name: llama3-8b\nbase_mlp_dim: 8192\n", "8xH100")  # fmt: skip
    assert rules(file, "warning") == ["model-override"]
    assert file.found.shape is not None
    assert file.found.shape.ffn == 14336


def test_the_environment_sets_what_begins_with_m(tmp_path: Path) -> None:
    script = (
        "export M_MAX_TARGET_LENGTH=8192\n"
        f"{TRAIN} configs/base.yml hardware=gpu model_name=llama3-8b per_device_batch_size=1\n"
    )
    assert read(tmp_path, script, "8xH100").found.seq == 8192


# Parameters in billions, of the models' cards or config.json.
SIZES = {
    "llama2-7b": 6.74, "llama3.1-405b": 405.9, "mistral-7b": 7.24, "mixtral-8x22b": 140.6,
    "gemma-7b": 8.54, "gemma2-27b": 27.2, "gemma3-12b": 11.8, "qwen2.5-14b": 14.8,
    "qwen3-32b": 32.8, "qwen3-235b-a22b": 235.1, "deepseek2-16b": 15.7, "deepseek3-671b": 671.0,
    "kimi-k2-1t": 1026.0, "gpt-oss-120b": 116.8, "gpt3-175b": 175.0, "olmo3-32b": 32.2,
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_models_have_the_size_that_they_are_known_by(name: str, tmp_path: Path) -> None:
    from planner.predict.ops.table import parameter_count

    path = tmp_path / "run.yml"
    path.write_text(BASE + f"model_name: {name}\nmax_target_length: 2048\n")
    shape = read_launch([path], Hints(gpus=8, gpus_per_node=8)).shape
    assert shape is not None
    assert parameter_count(shape).total / 1e9 == pytest.approx(SIZES[name], rel=0.02)


def test_every_model_is_read_or_its_block_is_named(tmp_path: Path) -> None:
    for name in model_names():
        path = tmp_path / "run.yml"
        path.write_text(BASE + f"model_name: {name}\nmax_target_length: 2048\n")
        found = read_launch([path], Hints(gpus=8, gpus_per_node=8))
        block = (model_config(name) or {})["decoder_block"]
        unread = [one.text for one in found.problems if one.rule == "model-unknown"]
        assert found.shape is not None or unread == [f"MaxText's decoder_block {block} is not read"]


def test_settings_have_defaults_of_their_types() -> None:
    for name, key in keys().items():
        if key.default not in (None, ""):
            assert key.read(key.default) == key.default, name


SLURM = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node={tasks}\nsrun "


@pytest.mark.parametrize(("hardware", "tasks"), [("gpu", 1), ("gpu_multiprocess", 8)])
def test_a_task_is_a_node_or_a_gpu(tmp_path: Path, hardware: str, tasks: int) -> None:
    """One process drives all GPUs of its node (`hardware: gpu`), or one each."""
    words = "model_name=llama3-8b per_device_batch_size=1 max_segments_per_seq=32"
    script = SLURM.format(tasks=tasks) + f"{TRAIN} configs/base.yml hardware={hardware} {words}\n"
    found = read(tmp_path, script, "16xH100", "train.sbatch")
    assert rules(found) == []
    assert found.plan is not None
    assert found.plan.degrees.dp == 16
