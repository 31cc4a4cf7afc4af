"""Writer for TRL 1.16: `trl.scripts.grpo` or `rloo` under accelerate, with vLLM in each process or
as a server on GPUs of its own."""

from __future__ import annotations

from typing import Any

from planner.launch.contract import Files
from planner.launch.dialects.rl import shell
from planner.launch.dialects.rl.readme import readme
from planner.launch.quoting import comment_text, yaml_dumped
from planner.launch.rl import Asked, RlLaunch

Settings = dict[str, Any]
SCRIPT, CONFIG, ACCELERATE = "run.sh", "trl.yaml", "accelerate.yaml"
_BETA = 0.001


def files(launch: RlLaunch) -> Files:
    """trl.yaml, accelerate.yaml, README.md and run.sh, which can also start the server."""
    job = launch.job
    title = f"{job.policy.name} by {job.algorithm.name} with TRL"
    variables = asked(launch)
    lines = [_start(launch)]
    served: tuple[str, ...] = ()
    if launch.separate:
        serving = f"    exec {_serve(launch)}".replace("\n", "\n    ")
        lines = ['if [ "${1:-train}" = serve ]; then', serving, "fi", *lines]
        served = (f"Start the server first, on its own GPUs: `bash {SCRIPT} serve`.",)
    return {
        CONFIG: f"# {comment_text(title)}\n{yaml_dumped(settings_of(launch))}\n",
        ACCELERATE: f"# {comment_text(title)}\n{yaml_dumped(accelerate_of(launch))}\n",
        SCRIPT: shell.script(title, variables, lines),
        "README.md": readme(launch, SCRIPT, variables, "TRL 1.16", served),
    }


def asked(launch: RlLaunch) -> Asked:
    """Variables of run.sh."""
    found = {
        "MODEL_PATH": ("", "weights of the policy: a folder, or a name on the Hugging Face Hub"),
        "DATASET": ("", "data set of prompts on the Hub, or a folder"),
        "REWARD_FUNCS": ("", "reward functions: names of trl.rewards, or module.function of yours"),
        "NODE_RANK": ("0", "rank of this node"),
        "MAIN_ADDRESS": ("127.0.0.1", "address of the first node"),
    }
    if launch.separate:
        found["SERVER_HOST"] = ("127.0.0.1", "where the server runs")
    return found


def _start(launch: RlLaunch) -> str:
    nodes, _ = launch.nodes_of(launch.layout.trainer_gpus)
    options = ["--config_file", ACCELERATE, "--num_processes", str(launch.layout.trainer_gpus)]
    if nodes > 1:
        options += ["--num_machines", str(nodes), "--machine_rank", "${NODE_RANK}",
                    "--main_process_ip", "${MAIN_ADDRESS}"]  # fmt: skip
    program = "rloo" if launch.job.algorithm.name == "rloo" else "grpo"
    arguments = ["--config", CONFIG, "--model_name_or_path", "${MODEL_PATH}", "--dataset_name",
                 "${DATASET}", "--reward_funcs", "${REWARD_FUNCS}"]  # fmt: skip
    if launch.separate:
        arguments += ["--vllm_server_host", "${SERVER_HOST}"]
    pairs = [f"{one} {other}" for one, other in zip(arguments[::2], arguments[1::2], strict=True)]
    first = shell.command(
        ("accelerate", "launch", *options, "--module", f"trl.scripts.{program}"), ()
    )
    quoted = (" ".join(map(shell.quoted, pair.split(" ", 1))) for pair in pairs)
    return " \\\n    ".join((first, *quoted, '"$@"'))


def _serve(launch: RlLaunch) -> str:
    engine = launch.layout.engine
    arguments = [
        "--model=${MODEL_PATH}",
        f"--tensor_parallel_size={engine.tp}",
        f"--data_parallel_size={engine.replicas * engine.dp}",
        f"--gpu_memory_utilization={engine.kv_share}",
        f"--max_model_len={launch.longest}",
    ]
    return shell.command(("trl", "vllm-serve"), arguments)


def settings_of(launch: RlLaunch) -> Settings:
    """trl.yaml."""
    job, degrees = launch.job, launch.degrees
    rollout = job.rollout
    accumulated = rollout.samples // job.minibatches // (degrees.mbs * degrees.dp)
    found: Settings = {
        "output_dir": "checkpoints",
        "bf16": True,
        "attn_implementation": "flash_attention_2",
        "per_device_train_batch_size": degrees.mbs,
        "gradient_accumulation_steps": accumulated,
        "gradient_checkpointing": launch.recomputes == "full",
        "num_generations": rollout.samples_per_prompt,
        "steps_per_generation": accumulated * job.minibatches,
        "num_iterations": job.epochs,
        "max_completion_length": rollout.response.longest,
        "beta": 0.0 if job.reference == "none" else _BETA,
        "optim": "adamw_torch_fused",
        "use_vllm": True,
        "vllm_mode": "server" if launch.separate else "colocate",
    }
    if job.algorithm.name == "gspo":
        found["importance_sampling_level"] = "sequence"
    if not launch.separate:
        found |= {
            "vllm_tensor_parallel_size": launch.layout.engine.tp,
            "vllm_gpu_memory_utilization": launch.layout.engine.kv_share,
            "vllm_max_model_length": launch.longest,
        }
    if launch.steps is not None:
        # `logging_steps`: TRL tells the time of the steps that it logs.
        found |= {"max_steps": launch.steps, "save_strategy": "no", "eval_strategy": "no"}
        found["logging_steps"] = 1
    return found | _adapters(launch)


def _adapters(launch: RlLaunch) -> Settings:
    tuning = launch.job.trainer.tuning
    if not tuning.has_adapters:
        return {}
    return {
        "use_peft": True,
        "lora_r": tuning.rank,
        "lora_alpha": 2 * (tuning.rank or 1),
        "lora_target_modules": "all-linear",
    }


def accelerate_of(launch: RlLaunch) -> Settings:
    """accelerate.yaml: plain data parallelism, FSDP or DeepSpeed."""
    nodes, _ = launch.nodes_of(launch.layout.trainer_gpus)
    profile, degrees = launch.job.trainer.framework.name, launch.degrees
    found: Settings = {
        "compute_environment": "LOCAL_MACHINE",
        "mixed_precision": "bf16",
        "num_machines": nodes,
        "num_processes": launch.layout.trainer_gpus,
        "machine_rank": 0,
        "main_process_port": 29500,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if profile == "deepspeed":
        return found | {"distributed_type": "DEEPSPEED", "deepspeed_config": _deepspeed(launch)}
    if profile == "hf-transformers":
        return found | {"distributed_type": "MULTI_GPU"}
    version = 2 if profile == "hf-fsdp2" else 1
    config: Settings = {
        "fsdp_version": version,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": False,
    }
    if version == 2:
        config["fsdp_reshard_after_forward"] = degrees.zero == 3
    else:
        config["fsdp_sharding_strategy"] = "FULL_SHARD" if degrees.zero == 3 else "SHARD_GRAD_OP"
    return found | {"distributed_type": "FSDP", "fsdp_config": config}


def _deepspeed(launch: RlLaunch) -> Settings:
    degrees = launch.degrees
    share = launch.layout.trainer.job.optimizer_offload
    found: Settings = {
        "zero_stage": degrees.zero,
        "offload_optimizer_device": "cpu" if share else "none",
        "offload_param_device": "none",
    }
    if degrees.zero == 3:
        found["zero3_init_flag"] = True
        found["zero3_save_16bit_model"] = True
    return found
