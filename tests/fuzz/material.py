"""Files of every kind that commands read: good ones, which the fuzzing then breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.evidence.traces.made_up import trace

SCRIPT = """#!/bin/bash
#SBATCH --nodes=1
TP=${TP:-2}
ARGS=(--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024
  --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16
  --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer
  --tokenizer-type NullTokenizer --vocab-size 32000)
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}"
"""
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 2048},
}  # fmt: skip
MODEL = """source = "ours"
[shape]
layers = 4
hidden = 512
heads = 8
kv_heads = 4
head_dim = 64
ffn = 1024
vocab = 32000
max_positions = 4096
pretraining_seq = 2048
"""
CLUSTER = """num_gpus = 16
like = "dgx-h100"
gpus_per_node = 8
nics_per_node = 8
nic_rate = "400 Gbit/s"
oversubscription = 1.0
host_speed = 1.4
fabric = "infiniband"
"""
OFFERS = """[[cluster]]
name = "one"
gpus = "1xH100"
on_demand = 2.5
currency = "USD"
date = "2026-10-01"
"""
PRICES = """gpu,provider,kind,usd_per_gpu_hour,date,instance_gpus
H100,ours,on_demand,2.5,2026-10-01,8
H100,ours,spot,1.5,2026-10,8
"""
SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region
big,H100,8,20.5,10.5,here
"""
RUNS = """source,model,layers,hidden,heads,seq,gpu,num_gpus,framework,tp,pp,mbs,gbs,step_time_s
ours,tiny,4,512,8,1024,H100,8,megatron-core,2,1,1,8,0.05
ours,tiny,4,512,8,1024,H100,8,megatron-core,1,1,1,8,0.04
"""
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}  # fmt: skip
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""
AXOLOTL = """base_model: gpt2
sequence_len: 1024
micro_batch_size: 1
gradient_accumulation_steps: 2
optimizer: adamw_torch
bf16: auto
gradient_checkpointing: true
"""
JOB = """apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - env:
        - {name: TP, value: "2"}
        command: [bash, -c]
        args:
        - |
          torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 \\
            --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \\
            --micro-batch-size 1 --global-batch-size 8 --bf16 --tensor-model-parallel-size $TP
---
{kind: Service, metadata: {name: x}}
"""
NANOTRON = """general: {project: x}
parallelism: {dp: 4, tp: 2, pp: 1}
tokens: {micro_batch_size: 1, sequence_length: 1024, batch_accumulation_per_replica: 2}
model:
  model_config: {hidden_size: 512, num_hidden_layers: 4, num_attention_heads: 8,
    num_key_value_heads: 8, intermediate_size: 1024, vocab_size: 32000,
    max_position_embeddings: 1024, is_llama_config: true}
"""
TORCHTITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
"""
LOGS = """\
 [2025-06-01] iteration 1/ 9 | elapsed time per iteration (ms): 900.0 | global batch size: 8 |
 [2025-06-01] iteration 2/ 9 | elapsed time per iteration (ms): 100.5 | global batch size: 8 |
[Rank 0] (after 2 iterations) memory (MB) | max allocated: 4100.25 | max reserved: 4608.0
"""
NCCL = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  900 on  node0 device  0 [0x04] NVIDIA H100
#  Rank  1 Group  0 Pid  901 on  node0 device  1 [0x05] NVIDIA H100
     1048576   262144  float  sum  -1  45.10  23.25  40.69  0  44.90  23.35  40.87  0
"""
GEMM = "kind,m,n,k,bytes,gpus,time_us\ngemm,4096,4096,4096,,,250\nall_gather,,,,1e9,8,2500\n"
CALIBRATED = """\
num_gpus = 8
gpu = "H100"
[calibration]
date = "2026-11-22"
frameworks = ["megatron-core"]
[calibration.time]
runs = 3
error_before = 0.1
error_after = 0.05
spread = 0.08
measured = { gpus = [8.0, 8.0] }
[calibration.factors.gemm_rate]
value = 0.9
low = 0.8
high = 1.0
"""
GRID = """tokens = "1B"
clusters = "offers.toml"
recompute = "none"
[grid]
model = ["gpt2", "config.json"]
gbs = [8, 16]
price-kind = ["on_demand", "owned"]
"""
# File -> its content, and the arguments of the command that reads it.
TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "run.sh": (SCRIPT, ("check", "run.sh", "--gpus", "8xH100", "--time-limit", "0.1", "-q")),
    "ds.json": (
        json.dumps(DEEPSPEED, indent=1),
        ("check", "ds.json", "--gpus", "8xH100", "--model", "gpt2", "--time-limit", "0.1", "-q"),
    ),
    "accelerate.yaml": (
        ACCELERATE,
        ("check", "accelerate.yaml", "--gpus", "8xH100", "--model", "gpt2", "--time-limit", "0.1"),
    ),
    "axolotl.yaml": (
        AXOLOTL,
        ("check", "axolotl.yaml", "--gpus", "8xH100", "--time-limit", "0.1", "-q"),
    ),
    "job.yaml": (JOB, ("check", "job.yaml", "--gpus", "8xH100", "--time-limit", "0.1", "-q")),
    "nanotron.yaml": (
        NANOTRON,
        ("check", "nanotron.yaml", "--gpus", "8xH100", "--time-limit", "0.1", "-q"),
    ),
    "titan.toml": (
        TORCHTITAN,
        ("check", "titan.toml", "--gpus", "8xH100", "--time-limit", "0.1", "-q"),
    ),
    "config.json": (json.dumps(CONFIG, indent=1), ("models", "config.json")),
    "model.toml": (MODEL, ("models", "model.toml")),
    "cluster.toml": (
        CLUSTER,
        ("evaluate", "--model", "gpt2", "--cluster", "cluster.toml", "--gbs", "16"),
    ),
    "offers.toml": (
        OFFERS,
        (
            "compare", "--model", "gpt2", "--gbs", "8", "--clusters", "offers.toml",
            "--tokens", "1B", "--time-limit", "0.1", "--jobs", "1", "--recompute", "none", "-q",
        ),
    ),
    "grid.toml": (GRID, ("sweep", "grid.toml", "--report")),
    "prices.csv": (
        PRICES,
        (
            "compare", "--model", "gpt2", "--gbs", "8", "--gpus", "1xH100", "--prices",
            "prices.csv", "--tokens", "1B", "--time-limit", "0.1", "--jobs", "1",
            "--recompute", "none", "-q",
        ),
    ),
    "vms.csv": (
        SKYPILOT,
        (
            "compare", "--model", "gpt2", "--gbs", "8", "--gpus", "1xH100", "--skypilot",
            "vms.csv", "--tokens", "1B", "--time-limit", "0.1", "--jobs", "1",
            "--recompute", "none", "-q",
        ),
    ),
    "lengths.csv": (
        "length,samples\n100,3\n900,1\n",
        (
            "evaluate", "--model", "gpt2", "--gpus", "1xH100", "--gbs", "8", "--framework",
            "hf-transformers", "--lengths", "lengths.csv",
        ),
    ),
    "samples.jsonl": ('{"n": 100}\n{"n": 900}\n', ("lengths", "samples.jsonl:n", "-q")),
    "runs.csv": (RUNS, ("validate", "--data", "runs.csv", "-q")),
    "train.log": (
        LOGS,
        ("calibrate", "--from", "train.log", "--plan-file", "plans.json", "-q"),
    ),
    "trace.json": (
        json.dumps(trace(steps=1)),
        ("trace", "trace.json", "--plan-file", "plans.json"),
    ),
    "nccl.txt": (NCCL, ("calibrate", "--from", "nccl.txt", "--gpus", "8xH100", "-q")),
    "gemm.csv": (GEMM, ("calibrate", "--from", "gemm.csv", "--gpus", "8xH100", "-q")),
    "calibrated.toml": (
        CALIBRATED,
        ("evaluate", "--model", "gpt2", "--cluster", "calibrated.toml", "--gbs", "16"),
    ),
}  # fmt: skip


def write_all(folder: Path, plan_file: str) -> None:
    """Every file, and the plan file."""
    for name, (text, _) in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "plans.json").write_text(plan_file, encoding="utf-8")
