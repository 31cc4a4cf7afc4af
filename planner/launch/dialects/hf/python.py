"""Hugging Face training settings in Python: `TrainingArguments(...)`, read as text, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from planner.job.errors import CannotTellError
from planner.launch.languages.python import (
    UNKNOWN,
    calculated,
    last_name,
    written,
)
from planner.launch.languages.text import Text
from planner.launch.read.document import leaves
from planner.launch.read.found import Setting
from planner.launch.read.python_files import read_python

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
    module = read_python(text, path).tree
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
