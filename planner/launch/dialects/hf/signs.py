"""What makes a table or a command one of Hugging Face's programs'."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from planner.job.errors import CannotTellError
from planner.launch.languages.python.records import (
    UNKNOWN,
    calculated,
    last_name,
    written,
)
from planner.launch.languages.text import Text
from planner.launch.read.beside import python_module
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import leaves
from planner.launch.read.found import Setting
from planner.launch.read.names import known_names

# Settings of a Trainer that make a command, or a table, one of its scripts'.
TRAINER_SIGNS = (
    "model_name_or_path", "per_device_train_batch_size", "num_train_epochs", "learning_rate",
    "gradient_accumulation_steps", "gradient_checkpointing", "output_dir", "deepspeed",
    "finetuning_type",
)  # fmt: skip
FEWEST_SIGNS = 3


def is_trainer_command(launch: LaunchCommand) -> bool:
    """Whether a command's arguments are those of a Hugging Face Trainer script."""
    return sum(name in launch.given for name in TRAINER_SIGNS) >= FEWEST_SIGNS


def is_trainer(content: Mapping[str, object]) -> bool:
    """Whether a table has a Trainer's settings: the model's name, or several with the micro-batch,
    for DeepSpeed has settings called gradient_accumulation_steps, too."""
    if "model_name_or_path" in content:
        # Levanter says so too, with tables of its own.
        return not isinstance(content.get("trainer"), dict)
    signs = sum(name in content for name in TRAINER_SIGNS)
    return "per_device_train_batch_size" in content and signs >= FEWEST_SIGNS


def is_axolotl(content: Mapping[str, object]) -> bool:
    """Whether a table holds axolotl's settings; NeMo's tables may be called so too."""
    return isinstance(content.get("base_model"), str)


def is_llamafactory(content: Mapping[str, object]) -> bool:
    """Whether a table holds a Trainer's settings and some of LLaMA-Factory's own."""
    own = {"stage", "finetuning_type", "cutoff_len", "template"} & content.keys()
    return bool(own) and is_trainer(content)


def is_accelerate(content: Mapping[str, object]) -> bool:
    """Whether a table is accelerate's; other programs too say fsdp_config and mixed_precision."""
    sure = {"distributed_type", "compute_environment", "parallelism_config"} & content.keys()
    known = known_names("hf", "accelerate") & content.keys()
    return bool(sure) or 2 * len(known) > len(content)


def is_deepspeed(content: Mapping[str, object]) -> bool:
    """Whether a table is DeepSpeed's."""
    return bool(known_names("hf", "deepspeed") & content.keys())


_ARGUMENTS = re.compile(r"(TrainingArguments|SFTConfig|DPOConfig|GRPOConfig|PPOConfig|KTOConfig|"
                        r"ORPOConfig|RewardConfig|CPOConfig)$")  # fmt: skip
_OTHER_OBJECTIVES = {"DPO": "dpo", "GRPO": "grpo", "PPO": "ppo", "KTO": "kto", "ORPO": "orpo",
                     "Reward": "rm", "CPO": "cpo"}  # fmt: skip
_MODELS = ("AutoModelForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel")


def is_hf_python(text: str) -> bool:
    """Whether a Python file trains with Hugging Face's Trainer."""
    return re.search(
        r"\b(Seq2Seq)?(TrainingArguments|SFTConfig|DPOConfig|GRPOConfig)\b", text
    ) is not None and ("Trainer" in text)


def hf_python_settings(text: Text, path: str) -> dict[str, Setting]:
    """Literal arguments of the training configuration, and the model that is loaded.

    CannotTellError for a program that takes them from its command line.
    """
    module = python_module(text, path)
    constants = _constants(module)
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    configured = [
        node for node in calls if _ARGUMENTS.search(last_name(node.func)) and node.keywords
    ]
    if not configured:
        raise CannotTellError(
            f"{path}: it takes its TrainingArguments from the command line: give the script that "
            "starts it"
        )
    found: dict[str, Setting] = {}
    for keyword in configured[0].keywords:
        if keyword.arg:
            found |= dict(_settings(keyword.arg, keyword.value, constants, path))
    kind = last_name(configured[0].func)
    for start, stage in _OTHER_OBJECTIVES.items():
        if kind.startswith(start):
            found["stage"] = Setting("stage", stage, path, configured[0].lineno)
    if any(last_name(node.func) in ("LoraConfig", "get_peft_model") for node in calls):
        found.setdefault("adapter", Setting("adapter", "lora", path))
    for node in calls:
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "from_pretrained":
            continue
        if node.args and last_name(node.func.value) in _MODELS:
            found |= dict(_settings("model_name_or_path", node.args[0], constants, path))
    cut = ({keyword.arg: keyword.value for keyword in node.keywords} for node in calls)
    for keywords in cut:  # the tokenizer's: tokenizer(text, truncation=True, max_length=1024)
        if "truncation" in keywords and "max_length" in keywords:
            lengths = dict(_settings("max_length", keywords["max_length"], constants, path))
            found = lengths | found
    return found


def _constants(module: ast.Module) -> dict[str, ast.expr]:
    """Names that are given one value alone."""
    found: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            first = found.setdefault(node.targets[0].id, node.value)
            if first is not node.value and written(first) != written(node.value):
                several.add(node.targets[0].id)
    return {name: value for name, value in found.items() if name not in several}


def _worked_out(node: ast.expr, constants: Mapping[str, ast.expr]) -> object:
    """A literal, a constant or arithmetic of them. ValueError and its like for anything else."""
    if isinstance(node, ast.Name) and node.id in constants:
        others = {name: value for name, value in constants.items() if name != node.id}
        return _worked_out(constants[node.id], others)
    if isinstance(node, ast.BinOp):
        left, right = (_worked_out(part, constants) for part in (node.left, node.right))
        value = calculated(type(node.op), left, right)
        if value is UNKNOWN:
            raise ValueError(written(node))
        return value
    return ast.literal_eval(node)


def _settings(
    name: str, node: ast.expr, constants: dict[str, ast.expr], path: str
) -> Iterator[tuple[str, Setting]]:
    """A literal, a table of literals under dotted names, or why the value is not known."""
    try:
        value = _worked_out(node, constants)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        made = constants.get(node.id, node) if isinstance(node, ast.Name) else node
        unknown = f"{written(made)[:80]}, which is no literal"
        yield name, Setting(name, None, path, node.lineno, (), None, unknown)
        return
    for key, inner in leaves({name: value}):
        yield key, Setting(key, inner, path, node.lineno)
