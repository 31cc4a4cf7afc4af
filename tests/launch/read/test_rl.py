"""Launch files of reinforcement learning: what they say, and the rules that they break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli as tomllib

from planner.launch.check.assess import Assessment, assess
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch
from planner.launch.registry import dialect_toml

_BROKEN = tomllib.loads((Path(__file__).parent / "rl_broken.toml").read_text())
CASES = [(framework, case) for framework, cases in _BROKEN.items() for case in cases]
VERL = (
    "model_engine=megatron algorithm.adv_estimator=grpo data.train_batch_size=128 "
    "data.max_prompt_length=1024 data.max_response_length=3072 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 "
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 "
    "actor_rollout_ref.actor.megatron.param_offload=True "
    "actor_rollout_ref.actor.megatron.optimizer_offload=True "
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full "
    "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.nnodes=1 "
    "trainer.n_gpus_per_node=8"
)
NEMO = """
defaults: grpo_math_1B.yaml
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8}
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 1
  logprob_batch_size: 1
  max_total_sequence_length: 4096
  sequence_packing: {enabled: true, train_mb_tokens: 8192}
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 2}
  generation: {max_new_tokens: 3072, vllm_cfg: {tensor_parallel_size: 2}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
OPENRLHF = (
    "--actor.model_name_or_path Qwen/Qwen3-8B --actor.num_nodes 1 --actor.num_gpus_per_node 8 "
    "--ref.num_nodes 1 --ref.num_gpus_per_node 8 --train.colocate_all --vllm.num_engines 4 "
    "--vllm.tensor_parallel_size 2 --train.batch_size 128 --train.micro_batch_size 2 "
    "--rollout.batch_size 128 --rollout.micro_batch_size 2 --rollout.n_samples_per_prompt 8 "
    "--data.max_len 4096 --algo.advantage.estimator group_norm --algo.kl.init_coef 0.001 "
    "--ds.zero_stage 3 --actor.gradient_checkpointing_enable"
)
SLIME = (
    "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --swiglu --num-layers 36 "
    "--hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --use-rotary-position-embeddings --disable-bias-linear "
    "--normalization RMSNorm --kv-channels 128 --qk-layernorm --hf-checkpoint /root/Qwen3-8B "
    "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 3072 "
    "--global-batch-size 128 --tensor-model-parallel-size 2 --sequence-parallel "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
    "--advantage-estimator grpo --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 "
    "--attention-dropout 0.0 --hidden-dropout 0.0"
)
TRL = (
    "--model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 4 --num_generations 8 --max_completion_length 1024 "
    "--use_vllm true --vllm_mode colocate --bf16 true --gradient_checkpointing true"
)


def script(framework: str, case: Mapping[str, Any]) -> str:
    """A launch with what a case sets after all else."""
    more, dropped = case.get("set", ""), case.get("drops", "")
    match framework:
        case "verl":
            return f"python3 -m {case.get('program', 'verl.trainer.main_ppo')} {VERL} {more}\n"
        case "nemo-rl":
            return f"uv run examples/run_grpo.py --config nemo.yaml {more}\n"
        case "openrlhf":
            submit = "ray job submit --address=http://127.0.0.1:8265 --"
            return f"{submit} python3 -m openrlhf.cli.train_ppo_ray {OPENRLHF} {more}\n"
        case "slime":
            return f"ray job submit -- python3 train.py {SLIME.replace(dropped, '')} {more}\n"
    launcher = "accelerate launch --num_processes 8 --module trl.scripts.grpo"
    return f"{launcher} {TRL} {more}\n"


def read(framework: str, folder: Path, case: Mapping[str, Any] | None = None) -> Found:
    (folder / "nemo.yaml").write_text(NEMO)
    (folder / "run.sh").write_text("#!/bin/bash\n" + script(framework, case or {}))
    return read_launch([folder / "run.sh"], Hints(gpus=8))


def rules_of(found: Found) -> set[str]:
    return {one.rule for one in found.problems if one.rule.startswith("rl-")}


@pytest.mark.parametrize(("framework", "case"), CASES)
def test_a_broken_rule_is_named(framework: str, case: Mapping[str, str], tmp_path: Path) -> None:
    assert case["rule"] in rules_of(read(framework, tmp_path, case))


@pytest.mark.parametrize("framework", _BROKEN)
def test_the_launch_that_the_cases_change_breaks_none(framework: str, tmp_path: Path) -> None:
    found = read(framework, tmp_path)
    assert rules_of(found) == set()
    assert [one for one in found.problems if one.severity in ("error", "missing")] == []


@pytest.mark.parametrize("framework", ["verl", "nemo-rl", "openrlhf", "slime"])
def test_every_rule_has_a_case_and_a_source(framework: str) -> None:
    rows = dialect_toml("rl", "rules.toml")[framework]
    assert Counter(row["rule"] for row in rows) == Counter(
        case["rule"] for case in _BROKEN[framework]
    )
    assert all(row["source"].split(",")[0].strip() for row in rows)


# Rules whose advice is settings to write.
_MENDED = [
    (framework, case) for framework, case in CASES
    if framework in ("verl", "nemo-rl") and case["rule"] not in (
        "rl-world-divides", "rl-micro-batch", "rl-batch-divides", "rl-rollout-mode",
        "rl-same-micro-batch", "rl-one-batching", "rl-one-trainer",
    )
]  # fmt: skip


@pytest.mark.parametrize(("framework", "case"), _MENDED)
def test_the_advice_mends_it(framework: str, case: Mapping[str, str], tmp_path: Path) -> None:
    broken = read(framework, tmp_path, case)
    fix = next(one.fix for one in broken.problems if one.rule == case["rule"])
    mended = {**case, "set": f"{case['set']} {fix}"}
    assert case["rule"] not in rules_of(read(framework, tmp_path, mended))


def test_verl(tmp_path: Path) -> None:
    found = read("verl", tmp_path)
    rl = found.rl
    assert rl is not None
    assert (found.framework, found.model, found.world) == ("megatron-core", "Qwen/Qwen3-8B", 8)
    assert (found.tp, found.pp, found.zero) == (4, 1, 1)
    assert (rl.algorithm, rl.prompts, rl.samples_per_prompt, rl.minibatches) == ("grpo", 128, 8, 2)
    assert (rl.prompt_limit, rl.response_limit, rl.token_limit) == (1024, 3072, 8192)
    assert (rl.engine.name, rl.engine.tp, rl.engine.kv_share) == ("vllm", 2, 0.6)
    assert (rl.reference, rl.placement, rl.staleness) == ("copied", "colocated", 0)


def test_fully_asynchronous_verl_counts_a_step_from_transfer_to_transfer(tmp_path: Path) -> None:
    more = (
        "data.train_batch_size=0 rollout.nnodes=1 rollout.n_gpus_per_node=8 "
        "async_training.staleness_threshold=0.5 async_training.trigger_parameter_sync_step=4 "
        "async_training.require_batches=2 actor_rollout_ref.hybrid_engine=False"
    )
    program = "verl.experimental.fully_async_policy.fully_async_main"
    rl = read("verl", tmp_path, {"set": more, "program": program}).rl
    assert rl is not None
    assert (rl.prompts, rl.minibatches, rl.staleness) == (512, 8, 1)
    assert (rl.placement, rl.trainer_gpus, rl.engine.gpus) == ("separate", 8, 8)
    assert rl.streams
    assert not rl.old_logprobs


def test_nemo_inherits_what_its_file_does_not_say(tmp_path: Path) -> None:
    found = read("nemo-rl", tmp_path, {"set": "grpo.num_prompts_per_step=32"})
    rl = found.rl
    assert rl is not None
    assert (found.framework, found.tp, rl.engine.kv_share) == ("megatron-bridge", 2, 0.6)
    assert (rl.prompts, rl.samples_per_prompt, rl.token_limit_read) == (32, 8, 4096)
    assert (rl.prompt_limit, rl.response_limit) == (1024, 3072)
    assert rl.reference == "host"


def test_openrlhf_has_two_spellings(tmp_path: Path) -> None:
    new = read("openrlhf", tmp_path).rl
    old = (
        "--pretrain Qwen/Qwen3-8B --actor_num_nodes 1 --actor_num_gpus_per_node 8 "
        "--ref_num_nodes 1 --ref_num_gpus_per_node 8 --colocate_all_models --vllm_num_engines 4 "
        "--vllm_tensor_parallel_size 2 --train_batch_size 128 --micro_train_batch_size 2 "
        "--rollout_batch_size 128 --micro_rollout_batch_size 2 --n_samples_per_prompt 8 "
        "--max_len 4096 --advantage_estimator group_norm --init_kl_coef 0.001 --zero_stage 3 "
        "--gradient_checkpointing"
    )
    (tmp_path / "old.sh").write_text(f"python3 -m openrlhf.cli.train_ppo_ray {old}\n")
    assert read_launch([tmp_path / "old.sh"]).rl == new
    assert new is not None
    assert (new.algorithm, new.minibatches, new.engine.gpus) == ("grpo", 8, 8)


def test_slime_is_megatron_beside_sglang(tmp_path: Path) -> None:
    found = read("slime", tmp_path)
    rl = found.rl
    assert rl is not None
    assert (found.tp, found.zero, found.recompute) == (2, 1, "full")
    assert (rl.engine.name, rl.engine.tp, rl.engine.kv_share) == ("sglang", 2, 0.7)
    assert (rl.prompts, rl.minibatches, rl.leaves) == (32, 2, True)


def test_trl_samples_what_it_accumulates(tmp_path: Path) -> None:
    rl = read("trl", tmp_path).rl
    assert rl is not None
    assert (rl.samples, rl.prompts, rl.minibatches) == (128, 16, 1)
    assert (rl.reference, rl.padded, rl.engine.kv_share) == ("none", True, 0.3)


def assessed(framework: str, folder: Path, lengths: str | None = None) -> Assessment:
    read(framework, folder)
    found = read_launch([folder / "run.sh"], Hints(gpus=8, lengths=lengths))
    return assess(found, "8xH100")


def test_without_lengths_every_sample_is_as_long_as_is_allowed(tmp_path: Path) -> None:
    longest = assessed("verl", tmp_path)
    real = assessed("verl", tmp_path, "prompt=100..300,response=mean=800")
    assert longest.rl is not None and longest.rl.step is not None and longest.rl.at_limits
    assert real.rl is not None and real.rl.step is not None and not real.rl.at_limits
    assert real.rl.step.step_s < longest.rl.step.step_s
    assert real.verdict == "runs and fits"


@pytest.mark.parametrize("framework", _BROKEN)
def test_each_framework_is_predicted(framework: str, tmp_path: Path) -> None:
    assert assessed(framework, tmp_path, "prompt=100..300,response=mean=500").rl is not None
    step = assessed(framework, tmp_path, "prompt=100..300,response=mean=500").rl
    assert step is not None and step.step is not None
    assert step.step.step_s > 0


def test_a_kv_share_that_leaves_no_room_does_not_fit(tmp_path: Path) -> None:
    read("verl", tmp_path, {"set": "actor_rollout_ref.rollout.gpu_memory_utilization=0.05"})
    found = read_launch([tmp_path / "run.sh"], Hints(gpus=8))
    assert assess(found, "8xH100").verdict == "will not fit"


def test_more_gpus_than_there_are_will_not_run(tmp_path: Path) -> None:
    read("verl", tmp_path, {"set": "trainer.nnodes=2"})
    found = read_launch([tmp_path / "run.sh"], Hints(gpus=8))
    assert assess(found, "8xH100").verdict == "will not run"


@pytest.mark.parametrize(
    "value", ["$(nproc)", "eight", "-3", "1e99", "99999999999", "[1,2]", "{a:1}", ""]
)
def test_values_that_are_no_numbers_stop_nothing(value: str, tmp_path: Path) -> None:
    for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n", "trainer.nnodes",
                "actor_rollout_ref.actor.ppo_mini_batch_size",
                "actor_rollout_ref.rollout.tensor_model_parallel_size"):  # fmt: skip
        found = read("verl", tmp_path, {"set": f"'{key}={value}'"})
        assert assess(found, "8xH100").verdict in ("cannot tell", "will not run", "runs and fits",
                                                   "will not fit")  # fmt: skip


@pytest.mark.parametrize("option", ["per_device_train_batch_size", "num_generations"])
def test_numbers_beyond_any_step_are_answered_at_once(option: str, tmp_path: Path) -> None:
    found = read("trl", tmp_path, {"set": f"--{option} 99999999999"})
    assert assess(found, "8xH100").verdict in ("will not run", "cannot tell", "will not fit")
