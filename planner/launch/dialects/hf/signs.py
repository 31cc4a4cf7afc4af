"""How to recognise files and commands of Hugging Face's programs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.launch.read.command import LaunchCommand
from planner.launch.read.names import known_names

# Settings by which a command or a table is recognised as a Trainer's.
TRAINER_SIGNS = (
    "model_name_or_path", "per_device_train_batch_size", "num_train_epochs", "learning_rate",
    "gradient_accumulation_steps", "gradient_checkpointing", "output_dir", "deepspeed",
    "finetuning_type",
)  # fmt: skip
FEWEST_SIGNS = 3
# Programs whose arguments are always settings.
_OWN = re.compile(r"(^|/)(swift|trl)$|(^|[./])trl[./]scripts[./]|swift/cli/(sft|rlhf|pt)\.py$")
_FEWEST_GIVEN = 2
# Keys of which every axolotl file has at least one at its top level.
_OF_AXOLOTL = frozenset((
    "micro_batch_size", "sequence_len", "datasets", "pretraining_dataset", "adapter",
    "sample_packing", "gradient_accumulation_steps", "load_in_4bit", "load_in_8bit",
    "lora_r", "model_type", "tokenizer_type", "val_set_size",
))  # fmt: skip


def is_trainer_command(launch: LaunchCommand) -> bool:
    """Whether the arguments of a command are those of a Trainer script."""
    if _OWN.search(launch.program) and len(launch.given) >= _FEWEST_GIVEN:
        return True
    return sum(name in launch.given for name in TRAINER_SIGNS) >= FEWEST_SIGNS


def is_trainer(content: Mapping[str, object]) -> bool:
    """Whether a table holds a Trainer's settings: the model's name, or the micro-batch with some
    others, since DeepSpeed also has gradient_accumulation_steps."""
    if "model_name_or_path" in content:
        # Levanter has this key, too, but also tables of its own.
        return not isinstance(content.get("trainer"), dict)
    signs = sum(name in content for name in TRAINER_SIGNS)
    return "per_device_train_batch_size" in content and signs >= FEWEST_SIGNS


def is_axolotl(content: Mapping[str, object]) -> bool:
    """Whether a table holds axolotl's settings; NeMo's tables and others may also name a base
    model."""
    return isinstance(content.get("base_model"), str) and bool(_OF_AXOLOTL & content.keys())


def is_llamafactory(content: Mapping[str, object]) -> bool:
    """Whether a table holds a Trainer's settings and some that only LLaMA-Factory has."""
    own = {"stage", "finetuning_type", "cutoff_len", "template"} & content.keys()
    return bool(own) and is_trainer(content)


def is_accelerate(content: Mapping[str, object]) -> bool:
    """Whether a table is accelerate's; other programs also have fsdp_config and mixed_precision."""
    sure = {"distributed_type", "compute_environment", "parallelism_config"} & content.keys()
    known = known_names("hf", "accelerate") & content.keys()
    return bool(sure) or 2 * len(known) > len(content)


def is_deepspeed(content: Mapping[str, object]) -> bool:
    """Whether a table is DeepSpeed's."""
    return bool(known_names("hf", "deepspeed") & content.keys())
