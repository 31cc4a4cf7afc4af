"""Writer for verl 1dda039b: a script of overrides, for FSDP, FSDP2 or Megatron and vLLM or SGLang.

Colocated plans run verl.trainer.main_ppo; engines on GPUs of their own the one-step-off trainer,
or, where samples may be further behind or answers go on over an update, the fully asynchronous one
(verl/experimental/one_step_off_policy, verl/experimental/fully_async_policy).
"""

from __future__ import annotations

from typing import Any

from planner.launch.contract import Files
from planner.launch.dialects.rl import shell
from planner.launch.dialects.rl.readme import readme
from planner.launch.rl import CRITIC_PATH, POLICY_PATH, Asked, RlLaunch

Settings = dict[str, Any]
SCRIPT = "run.sh"
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MODEL, _REF = "actor_rollout_ref.model", "actor_rollout_ref.ref"
_MEGATRON, _FSDP = f"{_ACTOR}.megatron", f"{_ACTOR}.fsdp_config"
_TRAINERS = {"hf-fsdp2": "fsdp2", "fsdp1": "fsdp", "megatron-core": "megatron"}
_ESTIMATORS = {
    "grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "ppo": "gae", "rloo": "rloo",
    "reinforce": "reinforce_plus_plus",
}  # fmt: skip
_PROGRAMS = {
    "colocated": "verl.trainer.main_ppo",
    "one-step-off": "verl.experimental.one_step_off_policy.main_ppo",
    "fully-async": "verl.experimental.fully_async_policy.fully_async_main",
}
_KL = 0.001
# Ways of new weights, by what verl calls the engine that carries them.
_BACKENDS = {"checkpoint-engine": "nixl", "delta": "delta_sharded"}
# Batches of prompts that are generated for one at most, before verl gives up (examples of DAPO).
_MOST_BATCHES = 10


def files(launch: RlLaunch) -> Files:
    """run.sh and README.md."""
    kind = _kind(launch)
    settings = settings_of(launch)
    arguments = shell.overrides(settings)
    title = f"{launch.job.policy.name} by {launch.job.algorithm.name} with verl, {kind}"
    variables = asked(launch)
    command = shell.command(("python3", "-m", _PROGRAMS[kind]), (*_config(launch), *arguments))
    lines = [f'{command} \\\n    "$@"']
    text = shell.script(title, variables, lines)
    return {SCRIPT: text, "README.md": readme(launch, SCRIPT, variables, "verl 1dda039b (0.9)")}


def asked(launch: RlLaunch) -> Asked:
    """Variables of run.sh."""
    found = {
        POLICY_PATH: ("", "weights of the policy: a folder, or a name on the Hugging Face Hub"),
        "TRAIN_FILES": ("", "parquet files of prompts, as verl's examples/data_preprocess make"),
        "VAL_FILES": ("", "parquet files to validate on"),
        "REWARD_FUNCTION": ("null", "a Python file with compute_score; null: verl's own by source"),
    }
    if launch.job.critic is not None:
        found[CRITIC_PATH] = ("", "weights of the critic: a folder, or a name on the Hub")
    return found


def _kind(launch: RlLaunch) -> str:
    if not launch.separate:
        return "colocated"
    return "fully-async" if launch.layout.streams or launch.layout.staleness > 1 else "one-step-off"


def _config(launch: RlLaunch) -> tuple[str, ...]:
    """The configuration of a program that has another one for Megatron."""
    kind = _kind(launch)
    if kind == "colocated" or _strategy(launch) != "megatron":
        return ()
    name = kind.replace("-", "_")
    return ("--config-path=config", f"--config-name={name}_ppo_megatron_trainer.yaml")


def _strategy(launch: RlLaunch) -> str:
    return _TRAINERS[launch.job.trainer.framework.name]


def settings_of(launch: RlLaunch) -> Settings:
    """Every override of a plan, in the order of a reader's questions."""
    return {
        **_data(launch),
        **_algorithm(launch),
        **_actor(launch),
        **_trainer(launch),
        **_reference(launch),
        **_rollout(launch),
        **_critic(launch),
        **_gpus(launch),
        **_run(launch),
    }


def _data(launch: RlLaunch) -> Settings:
    rollout = launch.job.rollout
    streams = _kind(launch) == "fully-async"
    found: Settings = {
        "data.train_files": "${TRAIN_FILES}",
        "data.val_files": "${VAL_FILES}",
        "data.train_batch_size": 0 if streams else rollout.prompts,
        "data.max_prompt_length": rollout.prompt.longest,
        "data.max_response_length": rollout.response.longest,
        "data.truncation": "left",
    }
    return found | ({"data.gen_batch_size": 1} if streams else {})


def _algorithm(launch: RlLaunch) -> Settings:
    job = launch.job
    compares = job.reference != "none"
    in_reward = compares and job.algorithm.critic
    found: Settings = {
        "algorithm.adv_estimator": _ESTIMATORS[job.algorithm.name],
        "algorithm.use_kl_in_reward": in_reward,
        f"{_ACTOR}.use_kl_loss": compares and not in_reward,
        f"{_ACTOR}.kl_loss_coef": _KL if compares and not in_reward else 0.0,
        "algorithm.rollout_correction.bypass_mode": not job.old_logprobs,
    }
    if in_reward:
        found["algorithm.kl_ctrl.kl_coef"] = _KL
    if job.algorithm.name == "gspo":
        found[f"{_ACTOR}.policy_loss.loss_mode"] = "gspo"
    if job.algorithm.resamples:
        found |= {
            "algorithm.filter_groups.enable": True,
            "algorithm.filter_groups.metric": "acc",
            "algorithm.filter_groups.max_num_gen_batches": _MOST_BATCHES,
        }
    return found


def _actor(launch: RlLaunch) -> Settings:
    job, degrees = launch.job, launch.degrees
    tuning = job.trainer.tuning
    again = launch.recomputes != "none"
    found: Settings = {
        f"{_MODEL}.path": f"${{{POLICY_PATH}}}",
        f"{_MODEL}.use_remove_padding": job.trainer.samples.packing != "longest",
        f"{_MODEL}.enable_gradient_checkpointing": again,
        f"{_ACTOR}.ppo_mini_batch_size": job.rollout.prompts // job.minibatches,
        f"{_ACTOR}.ppo_epochs": job.epochs,
        f"{_ACTOR}.optim.lr": "1e-6",
    }
    if job.trainer.samples.packing == "longest":
        found[f"{_ACTOR}.use_dynamic_bsz"] = False
        found[f"{_ACTOR}.ppo_micro_batch_size_per_gpu"] = degrees.mbs
    else:
        found[f"{_ACTOR}.use_dynamic_bsz"] = True
        found[f"{_ACTOR}.ppo_max_token_len_per_gpu"] = -(-launch.token_limit // degrees.cp)
    if tuning.has_adapters:
        found[f"{_MODEL}.lora_rank"] = tuning.rank
        found[f"{_MODEL}.target_modules"] = "all-linear"
    return found


def _trainer(launch: RlLaunch) -> Settings:
    strategy = _strategy(launch)
    if strategy == "megatron":
        named = {} if launch.separate else {"model_engine": "megatron"}
        return {**named, **_megatron(launch, _MEGATRON, trains=True)}
    return {f"{_ACTOR}.strategy": strategy, **_sharding(launch, _ACTOR, _FSDP)}


def _sharding(launch: RlLaunch, owner: str, table: str) -> Settings:
    degrees, leaves = launch.degrees, launch.layout.trainer_leaves
    return {
        f"{table}.fsdp_size": degrees.shard or -1,
        f"{table}.reshard_after_forward": degrees.zero == 3,
        f"{table}.param_offload": leaves,
        f"{table}.optimizer_offload": leaves,
        f"{owner}.ulysses_sequence_parallel_size": degrees.cp,
    }


def _megatron(launch: RlLaunch, table: str, *, trains: bool) -> Settings:
    degrees, leaves = launch.degrees, launch.layout.trainer_leaves
    found: Settings = {
        f"{table}.tensor_model_parallel_size": degrees.tp,
        f"{table}.pipeline_model_parallel_size": degrees.pp,
        f"{table}.virtual_pipeline_model_parallel_size": degrees.vpp if degrees.vpp > 1 else None,
        f"{table}.context_parallel_size": degrees.cp,
        f"{table}.expert_model_parallel_size": degrees.ep,
        f"{table}.expert_tensor_parallel_size": degrees.etp,
        f"{table}.param_offload": leaves,
        # Megatron-Core rotates packed samples one by one without it.
        f"+{table}.override_transformer_config.apply_rope_fusion": True,
    }
    if not trains:
        return found
    found |= {f"{table}.grad_offload": leaves, f"{table}.optimizer_offload": leaves}
    found |= _recomputation(launch, table)
    share = launch.layout.trainer.job.optimizer_offload
    if share:
        own = f"+{table.rpartition('.')[0]}.optim.override_optimizer_config"
        found |= {
            f"{own}.optimizer_cpu_offload": True,
            f"{own}.optimizer_offload_fraction": share,
            f"{own}.use_precision_aware_optimizer": True,
        }
    return found


def _recomputation(launch: RlLaunch, table: str) -> Settings:
    again = f"{table}.override_transformer_config.recompute"
    if launch.recomputes == "none":
        return {f"{again}_granularity": None}
    if launch.recomputes == "selective":
        return {f"{again}_granularity": "selective"}
    return {
        f"{again}_granularity": "full",
        f"{again}_method": "uniform",
        f"{again}_num_layers": 1,
    }


def _reference(launch: RlLaunch) -> Settings:
    home = launch.job.reference
    if home not in ("copied", "host"):
        return {}
    waits = home == "host"
    if _strategy(launch) == "megatron":
        return {f"{_REF}.megatron.param_offload": waits}
    return {
        f"{_REF}.fsdp_config.param_offload": waits,
        f"{_REF}.ulysses_sequence_parallel_size": launch.degrees.cp,
    }


def _rollout(launch: RlLaunch) -> Settings:
    job, engine = launch.job, launch.layout.engine
    found: Settings = {
        f"{_ROLLOUT}.name": job.engine.name,
        f"{_ROLLOUT}.n": job.rollout.samples_per_prompt,
        f"{_ROLLOUT}.tensor_model_parallel_size": engine.tp,
        f"{_ROLLOUT}.data_parallel_size": engine.dp,
        f"{_ROLLOUT}.expert_parallel_size": engine.ep,
        f"{_ROLLOUT}.gpu_memory_utilization": engine.kv_share,
        f"{_ROLLOUT}.max_num_seqs": engine.sequences,
        f"{_ROLLOUT}.max_model_len": launch.longest,
        f"{_ROLLOUT}.enforce_eager": not job.engine.graphs,
        f"{_ROLLOUT}.free_cache_engine": not launch.separate,
    }
    if job.engine.chunk:
        found[f"{_ROLLOUT}.max_num_batched_tokens"] = job.engine.chunk
    if job.engine.weights == "fp8":
        found[f"{_ROLLOUT}.quantization"] = "fp8"
    if job.engine.kv == "fp8":
        found[f"+{_ROLLOUT}.engine_kwargs.{job.engine.name}.kv_cache_dtype"] = "fp8"
    if launch.separate:
        found[f"{_ROLLOUT}.calculate_log_probs"] = True
    return found | _reading(launch)


def _reading(launch: RlLaunch) -> Settings:
    """Micro-batches of passes that only read."""
    tokens = f"{_ROLLOUT}.log_prob"
    if launch.job.trainer.samples.packing == "longest":
        found = {f"{tokens}_micro_batch_size_per_gpu": launch.degrees.mbs}
        if launch.job.reference != "none":
            found[f"{_REF}.log_prob_micro_batch_size_per_gpu"] = launch.degrees.mbs
        return found
    limit = -(-(launch.job.token_limit_read or launch.token_limit) // launch.degrees.cp)
    return {
        f"{tokens}_max_token_len_per_gpu": limit,
        f"{_REF}.log_prob_max_token_len_per_gpu": limit,
    }


def _critic(launch: RlLaunch) -> Settings:
    if launch.job.critic is None:
        return {}
    found: Settings = {"critic.model.path": f"${{{CRITIC_PATH}}}", "critic.optim.lr": "1e-5"}
    if launch.job.trainer.samples.packing == "longest":
        found["critic.ppo_micro_batch_size_per_gpu"] = launch.degrees.mbs
    else:
        limit = -(-launch.token_limit // launch.degrees.cp)
        found |= {"critic.use_dynamic_bsz": True, "critic.ppo_max_token_len_per_gpu": limit}
    again = launch.recomputes != "none"
    found["critic.model.enable_gradient_checkpointing"] = again
    strategy = _strategy(launch)
    if strategy == "megatron":
        return found | _megatron(launch, "critic.megatron", trains=True)
    return found | {"critic.strategy": strategy, **_sharding(launch, "critic", "critic.fsdp")}


def _gpus(launch: RlLaunch) -> Settings:
    layout = launch.layout
    nodes, each = launch.nodes_of(layout.trainer_gpus)
    found: Settings = {"trainer.nnodes": nodes, "trainer.n_gpus_per_node": each}
    if not launch.separate:
        return found
    nodes, each = launch.nodes_of(layout.engine.gpus)
    found |= {
        f"{_ROLLOUT}.checkpoint_engine.backend": _BACKENDS.get(layout.way, "nccl"),
        "rollout.nnodes": nodes,
        "rollout.n_gpus_per_node": each,
        "actor_rollout_ref.hybrid_engine": False,
    }
    if _kind(launch) == "fully-async":
        found |= {
            "async_training.staleness_threshold": layout.staleness,
            "async_training.trigger_parameter_sync_step": launch.job.minibatches,
            "async_training.require_batches": 1,
            "async_training.partial_rollout": layout.streams,
        }
    return found


def _run(launch: RlLaunch) -> Settings:
    return {
        "reward.custom_reward_function.path": "${REWARD_FUNCTION}",
        "trainer.balance_batch": True,
        "trainer.project_name": "trainplan",
        "trainer.experiment_name": launch.name,
        "trainer.total_epochs": 1,
        **_short(launch),
    }


def _short(launch: RlLaunch) -> Settings:
    """A run of a few steps, without checkpoints and validation."""
    if launch.steps is None:
        return {}
    found: Settings = {
        "trainer.total_training_steps": launch.steps,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
    }
    if _kind(launch) == "fully-async":
        found["rollout.total_rollout_steps"] = launch.steps * launch.job.rollout.prompts
    return found
