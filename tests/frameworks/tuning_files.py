"""Small files that ask for fine-tuning, one a tool, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TuningFile:
    """A file of a tool: what its parser must see in it, and a line of it with a change for which
    the parser must refuse it."""

    name: str
    tool: str
    file: str
    text: str
    seen: Mapping[str, Any] = field(default_factory=dict)
    wrong: tuple[str, str] = ("", "")

    @property
    def broken(self) -> str:
        """The text with the change."""
        good, bad = self.wrong
        if self.text.count(good) != 1:
            raise ValueError(f"{self.name}: {good!r} is not there once")
        return self.text.replace(good, bad)


_ADAPTER = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
    "r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"],
    "modules_to_save": None, "use_dora": False, "bias": "none",
}  # fmt: skip

_TRL = """\
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_name: planned/data
output_dir: out
max_length: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 2.0e-4
num_train_epochs: 1
bf16: true
gradient_checkpointing: true
use_peft: true
lora_r: 16
lora_alpha: 32
lora_target_modules: [all-linear]
"""

_LLAMAFACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B
trust_remote_code: false
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_alpha: 32
lora_target: all
dataset: identity
template: llama3
cutoff_len: 2048
packing: true
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 1.0
lr_scheduler_type: cosine
bf16: true
report_to: none
"""

_AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
datasets:
  - path: planned/data
    type: alpaca
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 8
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 0.0002
bf16: true
gradient_checkpointing: true
flash_attention: true
output_dir: out
"""

_TORCHTUNE = """\
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  apply_lora_to_output: False
  lora_rank: 16
  lora_alpha: 32
  lora_dropout: 0.0
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: out/tokenizer.model
  max_seq_len: 2048
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: out
  checkpoint_files: [model.safetensors]
  output_dir: out
  model_type: LLAMA3
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: True
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  weight_decay: 0.01
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
batch_size: 2
gradient_accumulation_steps: 8
epochs: 1
device: cuda
dtype: bf16
enable_activation_checkpointing: True
"""
_LR = "learning_rate: 2.0e-4"
FILES = (
    TuningFile(
        "adapter", "peft", "adapter_config.json", json.dumps(_ADAPTER, indent=1),
        {"adapter.r": 16, "adapter.target_modules": ["q_proj", "v_proj"],
         "adapter.use_dora": False},
        ('"use_dora"', '"use_dorra"'),
    ),
    TuningFile(
        "SFT with LoRA", "trl-sft", "sft.yaml", _TRL + "packing: true\n",
        {"training.max_length": 2048, "training.packing": True, "adapter.r": 16,
         "adapter.target_modules": "all-linear"},
        (_LR, "learning_rat: 2.0e-4"),
    ),
    TuningFile(
        "QLoRA", "trl-sft", "sft.yaml", _TRL + "load_in_4bit: true\nuse_bnb_nested_quant: true\n",
        {"model.load_in_4bit": True, "model.use_bnb_nested_quant": True},
        ("load_in_4bit: true", "load_in_4bits: true"),
    ),
    TuningFile(
        "DPO", "trl-dpo", "dpo.yaml", _TRL + "beta: 0.1\nloss_type: [sigmoid]\n",
        {"training.beta": 0.1, "training.precompute_ref_log_probs": False},
        ("beta: 0.1", "betta: 0.1"),
    ),
    TuningFile(
        "KTO", "trl-kto", "kto.yaml", _TRL + "desirable_weight: 1.0\n",
        {"training.desirable_weight": 1.0}, ("desirable_weight", "desired_weight"),
    ),
    TuningFile(
        "reward", "trl-reward", "reward.yaml", _TRL + "lora_task_type: SEQ_CLS\n",
        {"adapter.task_type": "SEQ_CLS"}, ("lora_task_type: SEQ_CLS", "lora_task: SEQ_CLS"),
    ),
    TuningFile(
        "SFT with LoRA", "llamafactory", "sft.yaml", _LLAMAFACTORY,
        # Packs leave a place for the token that ends them.
        {"finetuning.finetuning_type": "lora", "finetuning.lora_rank": 16, "data.cutoff_len": 2047,
         "data.packing": True, "training.per_device_train_batch_size": 2},
        ("cutoff_len", "cutof_len"),
    ),
    TuningFile(
        "QLoRA", "llamafactory", "sft.yaml",
        _LLAMAFACTORY + "quantization_bit: 4\nquantization_method: bnb\n"
        "double_quantization: true\n",
        {"model.quantization_bit": 4, "model.double_quantization": True},
        ("quantization_bit: 4", "quantization_bits: 4"),
    ),
    TuningFile(
        "DPO", "llamafactory", "dpo.yaml",
        _LLAMAFACTORY.replace("stage: sft", "stage: dpo").replace("packing: true\n", "")
        + "pref_beta: 0.1\npref_loss: sigmoid\n",
        {"finetuning.pref_loss": "sigmoid", "finetuning.use_ref_model": True},
        ("pref_beta: 0.1", "pref_betas: 0.1"),
    ),
    TuningFile(
        "full", "llamafactory", "sft.yaml",
        _LLAMAFACTORY.replace("finetuning_type: lora", "finetuning_type: full")
        .replace("lora_rank: 16\nlora_alpha: 32\nlora_target: all\n", ""),
        {"finetuning.finetuning_type": "full"},
        ("finetuning_type: full", "finetuning_type: fully"),
    ),
    TuningFile(
        "QLoRA", "axolotl", "qlora.yaml", _AXOLOTL,
        {"run.adapter": "qlora", "run.lora_r": 16, "run.sample_packing": True,
         "run.sequence_len": 2048, "run.micro_batch_size": 2},
        ("load_in_4bit: true", "load_in_4bit: false"),
    ),
    TuningFile(
        "LoRA", "axolotl", "lora.yaml",
        _AXOLOTL.replace("load_in_4bit: true\nadapter: qlora", "adapter: lora"),
        {"run.adapter": "lora", "run.load_in_4bit": False}, ("lora_r: 16", "lora_r: sixteen"),
    ),
    TuningFile(
        "LoRA", "torchtune", "lora.yaml", _TORCHTUNE,
        {"model.lora_rank": 16, "run.batch_size": 2}, ("lora_rank: 16", "lora_ranks: 16"),
    ),
    TuningFile(
        "QLoRA", "torchtune", "qlora.yaml",
        _TORCHTUNE.replace("lora_llama3_1_8b", "qlora_llama3_1_8b"),
        {"model.lora_rank": 16}, ("apply_lora_to_mlp", "apply_lora_to_mlps"),
    ),
)  # fmt: skip
