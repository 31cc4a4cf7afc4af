"""Writer for NeMo-RL 7ea279ab: a YAML that inherits from examples/configs/grpo_math_1B.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.launch.contract import Files
from planner.launch.dialects.rl import shell
from planner.launch.dialects.rl.nemo import BASE
from planner.launch.dialects.rl.readme import readme
from planner.launch.quoting import comment_text, yaml_dumped
from planner.launch.rl import Asked, RlLaunch

_SIXTEEN_BITS = 2

Settings = dict[str, Any]
SCRIPT, CONFIG = "run.sh", "nemo_rl.yaml"
_KL = 0.01
# Ways of new weights, by `refit_transport`; none: NCCL's broadcast.
_TRANSPORTS = {"reshard": "nccl_reshard", "delta": "vllm_zmq_sparse"}
# Tokens of which sequences are multiples, so that tensor and context parallelism divide them.
_DIVISIBLE = 2


def files(launch: RlLaunch) -> Files:
    """nemo_rl.yaml, run.sh and README.md."""
    title = f"{launch.job.policy.name} by {launch.job.algorithm.name} with NeMo-RL"
    variables = asked(launch)
    here = '"$(pwd)"'
    arguments = ["policy.model_name=${MODEL_PATH}", "policy.tokenizer.name=${MODEL_PATH}"]
    start = shell.command(("uv", "run", "examples/run_grpo.py", "--config", "${HERE}/" + CONFIG),
                          arguments)  # fmt: skip
    lines = [
        "# The configuration inherits from NeMo-RL's own, which has to lie beside it.",
        f'cp "${{NEMO_RL}}/examples/configs/{BASE}" .',
        f"HERE={here}",
        'cd "${NEMO_RL}"',
        f'{start} \\\n    "$@"',
    ]
    return {
        CONFIG: _yaml(launch, title),
        SCRIPT: shell.script(title, variables, lines),
        "README.md": readme(launch, SCRIPT, variables, "NeMo-RL 7ea279ab (0.5)"),
    }


def asked(launch: RlLaunch) -> Asked:  # noqa: ARG001 (a writer's)
    """Variables of run.sh."""
    return {
        "NEMO_RL": ("", "folder of NeMo-RL's repository, whose uv environment runs it"),
        "MODEL_PATH": ("", "weights of the policy: a folder, or a name on the Hugging Face Hub"),
    }


def _yaml(launch: RlLaunch, title: str) -> str:
    nested: dict[str, Any] = {"defaults": BASE}
    for key, value in settings_of(launch).items():
        place = nested
        *tables, name = key.split(".")
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return f"# {comment_text(title)}\n{yaml_dumped(nested)}\n"


def settings_of(launch: RlLaunch) -> Settings:
    """Every setting of a plan, dotted."""
    return {
        **_algorithm(launch),
        **_policy(launch),
        **_trainer(launch),
        **_generation(launch),
        **_gpus(launch),
        **_short(launch),
    }


def _short(launch: RlLaunch) -> Settings:
    """A run of a few steps, without checkpoints and validation."""
    if launch.steps is None:
        return {}
    return {
        "grpo.max_num_steps": launch.steps,
        "grpo.val_period": 0,
        "grpo.val_at_start": False,
        "checkpointing.enabled": False,
    }


def _algorithm(launch: RlLaunch) -> Settings:
    job = launch.job
    rollout, behind = job.rollout, launch.layout.staleness
    found: Settings = {
        "grpo.num_prompts_per_step": rollout.prompts,
        "grpo.num_generations_per_prompt": rollout.samples_per_prompt,
        "grpo.use_dynamic_sampling": job.algorithm.resamples,
        "grpo.async_grpo.enabled": launch.separate,
        "loss_fn.reference_policy_kl_penalty": 0.0 if job.reference == "none" else _KL,
        "loss_fn.force_on_policy_ratio": not job.old_logprobs,
        "loss_fn.use_importance_sampling_correction": launch.separate,
    }
    if job.algorithm.name == "gspo":
        found["loss_fn.sequence_level_importance_ratios"] = True
    if job.algorithm.name == "reinforce":
        found["grpo.adv_estimator.name"] = "reinforce_plus_plus"
    if launch.separate:
        found |= {
            "grpo.async_grpo.max_trajectory_age_steps": behind,
            "grpo.async_grpo.in_flight_weight_updates": True,
        }
    return found


def _policy(launch: RlLaunch) -> Settings:
    job = launch.job
    packs = job.trainer.samples.packing != "longest"
    mbs = 1 if packs else launch.degrees.mbs
    found: Settings = {
        "policy.train_global_batch_size": job.rollout.samples // job.minibatches,
        "policy.train_micro_batch_size": mbs,
        "policy.logprob_batch_size": mbs,
        "policy.max_total_sequence_length": launch.longest,
        "policy.sequence_packing.enabled": packs,
    }
    if packs:
        found["policy.sequence_packing.train_mb_tokens"] = launch.token_limit
        reading = job.token_limit_read or launch.token_limit
        found["policy.sequence_packing.logprob_mb_tokens"] = reading
    return found


def _trainer(launch: RlLaunch) -> Settings:
    degrees = launch.degrees
    again = launch.recomputes != "none"
    tuning = launch.job.trainer.tuning
    divisible = degrees.tp * degrees.cp * (_DIVISIBLE if degrees.cp > 1 else 1)
    whole: Settings = {"policy.make_sequence_length_divisible_by": divisible}
    if launch.job.trainer.framework.name == "automodel":
        table = "policy.dtensor_cfg"
        sizes: Mapping[str, Any] = {
            "enabled": True, "tensor_parallel_size": degrees.tp,
            "context_parallel_size": degrees.cp, "activation_checkpointing": again,
            "sequence_parallel": degrees.tp > 1,
        }  # fmt: skip
        adapters = "lora_cfg"
    else:
        table, adapters = "policy.megatron_cfg", "peft"
        whole["policy.dtensor_cfg.enabled"] = False
        sizes = {
            "enabled": True, "tensor_model_parallel_size": degrees.tp,
            "pipeline_model_parallel_size": degrees.pp, "context_parallel_size": degrees.cp,
            "expert_model_parallel_size": degrees.ep, "expert_tensor_parallel_size": degrees.etp,
            "sequence_parallel": degrees.tp > 1, "activation_checkpointing": again,
            "distributed_data_parallel_config.grad_reduce_in_fp32": not _reduces_in_bf16(launch),
            **_offload(launch),
        }  # fmt: skip
    if tuning.has_adapters:
        sizes = {**sizes, f"{adapters}.enabled": True, f"{adapters}.dim": tuning.rank}
    return {**whole, **{f"{table}.{name}": value for name, value in sizes.items()}}


def _reduces_in_bf16(launch: RlLaunch) -> bool:
    """Gradients kept and reduced in 16 bits, as the plan's profile has them."""
    job = launch.layout.trainer.job
    stated = job.optimizer.gradient_bytes
    return (job.framework.state.gradient_bytes if stated is None else stated) == _SIXTEEN_BITS


def _offload(launch: RlLaunch) -> Settings:
    share = launch.layout.trainer.job.optimizer_offload
    if not share:
        return {}
    return {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": share}


def _generation(launch: RlLaunch) -> Settings:
    job, engine = launch.job, launch.layout.engine
    table = "policy.generation"
    found: Settings = {
        f"{table}.backend": "vllm",
        f"{table}.max_new_tokens": job.rollout.response.longest,
        f"{table}.vllm_cfg.tensor_parallel_size": engine.tp,
        f"{table}.vllm_cfg.pipeline_parallel_size": engine.pp,
        f"{table}.vllm_cfg.expert_parallel_size": engine.ep,
        f"{table}.vllm_cfg.gpu_memory_utilization": engine.kv_share,
        f"{table}.vllm_cfg.max_model_len": launch.longest,
        f"{table}.vllm_cfg.enforce_eager": not job.engine.graphs,
        f"{table}.vllm_cfg.async_engine": launch.separate or engine.pp > 1,
        f"{table}.vllm_cfg.precision": "fp8" if job.engine.weights == "fp8" else "bfloat16",
        f"{table}.vllm_cfg.kv_cache_dtype": "fp8" if job.engine.kv == "fp8" else "auto",
        f"{table}.vllm_kwargs.max_num_seqs": engine.sequences,
        f"{table}.colocated.enabled": not launch.separate,
    }
    if launch.separate:
        found[f"{table}.refit_transport"] = _TRANSPORTS.get(launch.layout.way)
    if job.engine.chunk:
        found[f"{table}.vllm_kwargs.max_num_batched_tokens"] = job.engine.chunk
    return found


def _gpus(launch: RlLaunch) -> Settings:
    layout = launch.layout
    nodes, each = launch.nodes_of(layout.gpus)
    found: Settings = {"cluster.num_nodes": nodes, "cluster.gpus_per_node": each}
    if not launch.separate:
        return found
    resources = "policy.generation.colocated.resources"
    own = layout.engine.gpus
    alone = {f"{resources}.num_nodes": None, f"{resources}.gpus_per_node": own}
    whole = {f"{resources}.num_nodes": own // each, f"{resources}.gpus_per_node": each}
    return found | (alone if nodes == 1 else whole)
