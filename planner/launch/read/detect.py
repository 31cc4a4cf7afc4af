"""What a launch file is, by its content."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from hardware.errors import HardwareError
from hardware.files import json_content, toml_content
from planner.job.errors import CannotTellError, UsageError
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.languages.text import Text
from planner.launch.languages.yaml_text import documents_of
from planner.launch.read.document import yaml_document
from planner.launch.read.embedded import is_embedding
from planner.launch.dialects.hf.python import is_hf_python
from planner.launch.dialects.megatron.attributes import is_model_config, is_primus
from planner.launch.read.names import known_names
from planner.launch.dialects.megatron.recipe import is_recipe
from planner.launch.dialects.torchtitan.python_reader import is_torchtitan_python

Kind = Literal[
    "shell", "arguments", "torchtitan", "torchtitan-python", "deepspeed", "accelerate",
    "nanotron", "plan", "job", "model-config", "primus", "llamafactory", "axolotl", "trainer",
    "trainer-python", "recipe",
]  # fmt: skip
READABLE = (
    "a Megatron shell script, list of arguments or model_config.yaml, a torchtitan TOML or "
    "configuration function, a recipe of Megatron-Bridge or NeMo 2, a Primus, LLaMA-Factory, "
    "axolotl, accelerate or nanotron YAML, a DeepSpeed JSON, a Trainer script, a Kubernetes or "
    "SkyPilot job with such a script, or a plan file"
)
# What a YAML is that is not read, by settings that only such a one has; the first state all that
# their programs can be told, with what is not asked for.
_COMPLETE = (
    ("is MaxText's", {"per_device_batch_size", "ici_fsdp_parallelism"}),
    ("lists Megatron-LM's options, and none under MODEL_ARGS",
     {"tensor_model_parallel_size", "num_layers", "micro_batch_size"}),
)  # fmt: skip
_OTHERS = (
    ("is GPT-NeoX's", {"pipe_parallel_size", "num_layers"}),
    ("is LLM Foundry's", {"max_seq_len", "max_duration"}),
    ("is NeMo 1's", {"trainer", "exp_manager", "model"}),
    ("is verl's", {"actor_rollout_ref"}),
    ("is verl's", {"rollout", "data", "model"}),
    ("overrides a recipe of Megatron-Bridge, which says the rest",
     {"train", "optimizer", "model", "scheduler"}),
    ("is torchtune's", {"model._component_", "tokenizer"}),
    ("is LitGPT's", {"train", "eval", "checkpoint_dir"}),
    ("is Kubernetes' and starts no training program in a way that is read", {"apiVersion", "kind"}),
)  # fmt: skip
_TEMPLATE = re.compile(r"(?m)^\s*\{\{-?\s|:\s*\{\{-?\s*[.$]?\w")
_NOTHING = (None, False, "none", "null")
# Settings of a Trainer that make a command, or a table, one of its scripts'.
TRAINER_SIGNS = (
    "model_name_or_path", "per_device_train_batch_size", "num_train_epochs", "learning_rate",
    "gradient_accumulation_steps", "gradient_checkpointing", "output_dir", "deepspeed",
    "finetuning_type",
)  # fmt: skip
FEWEST_SIGNS = 3
_TORCHTITAN_TABLES = {"training", "parallelism", "activation_checkpoint", "model", "job"}


def file_kind(name: str, text: str) -> Kind | None:
    """What a file is, by its content; its ending only says in which order to look."""
    stripped = text.lstrip()
    if name.endswith(".toml"):
        return "torchtitan"
    if name.endswith((".yaml", ".yml")):
        return _yaml_kind(name, text)
    if stripped.startswith("{") or name.endswith(".json"):
        return _json_kind(name, text)
    return _python_kind(text) if name.endswith(".py") else _plain_kind(name, text)


def _python_kind(text: str) -> Kind | None:
    """A Python file: a configuration or a recipe; None for any other program."""
    if is_torchtitan_python(text):
        return "torchtitan-python"
    if is_recipe(text):
        return "recipe"
    return "trainer-python" if is_hf_python(text) else None


def _plain_kind(name: str, text: str) -> Kind | None:
    """A file whose ending says nothing."""
    if is_torchtitan_python(text):
        return "torchtitan-python"
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if code.lstrip().startswith("--"):
        return "arguments"
    if _is_torchtitan_toml(text):
        return "torchtitan"
    mapping_kind = _mapping_kind(text)
    if mapping_kind is not None:
        return mapping_kind
    if other := re.match(r"#!.*\b(fish|t?csh|perl|ruby)\b", text):
        raise UsageError(
            f"{name}: a script of {other[1]}; of shells, those of sh and bash are read"
        )
    shebang = text.startswith("#!") and re.match(r"#!.*\b(ba|z|k|da)?sh\b", text) is not None
    runs = re.search(
        r"\b(torchrun|accelerate|deepspeed|srun|python[\d.]*|swift|megatron|llamafactory-cli|axolotl|trl)\b"
        r"|\b(mpirun|mpiexec|sbatch)\b|\bbash +\S+\.sh\b|\.py\b|run_train\.sh",
        code,
    )
    assigns = re.search(r"^\s*(export\s+)?[A-Za-z_]\w*\+?=", code, re.MULTILINE)
    return "shell" if shebang or runs or assigns else None


def _is_torchtitan_toml(text: str) -> bool:
    try:
        return bool(_TORCHTITAN_TABLES & toml_content(text, "").keys())
    except HardwareError:
        return False


def _json_kind(name: str, text: str) -> Kind:
    """A plan file, DeepSpeed's, or settings that others keep in YAML. UsageError for other JSON."""
    content = json_content(text, name)
    if isinstance(content, dict) and "planner_version" in content:
        return "plan"
    kind = _kind_of_table(content) if isinstance(content, dict) else None
    if kind is not None:
        return kind
    if isinstance(content, dict) and known_names("deepspeed") & content.keys():
        return "deepspeed"
    raise UsageError(
        f"{name}: this JSON is neither a DeepSpeed configuration nor a plan file; readable are "
        + READABLE
    )


def _yaml_kind(name: str, text: str) -> Kind:
    mapping_kind = _mapping_kind(text)
    if mapping_kind is not None:
        return mapping_kind
    if _TEMPLATE.search(text):
        raise CannotTellError(
            f"{name}: a template with {{{{ ... }}}} in it: render it first (`helm template`), or "
            "give the script that it starts"
        )
    if is_embedding(text):
        return "job"
    if (count := len(_documents(text))) > 1:
        raise UsageError(
            f"{name}: holds {count} YAML documents, none of which starts a training program in a "
            "way that is read; give the script that it starts"
        )
    # With its message with the line, if it is no YAML.
    settings = yaml_document(Text.made(text), name).settings
    off = tuple(
        key.rpartition(".")[0] + "."
        for key, setting in settings.items()
        if key.endswith((".enabled", "_scheme")) and setting.value in _NOTHING
    )
    whose = _of_another(settings, _COMPLETE)
    for path, setting in settings.items() if not whose else ():
        if setting.value not in _NOTHING and not path.startswith(off):
            for key in path.split("."):
                refuse_unmodelled(key, f"{name}: {key}")
    whose = whose or _of_another(settings, _OTHERS) or "has the settings of none that is read"
    raise UsageError(
        f"{name}: this YAML {whose}; read are accelerate "
        "(distributed_type, fsdp_config), nanotron (parallelism, tokens), Megatron-LM "
        "(MODEL_ARGS), Primus (modules), LLaMA-Factory and TRL (model_name_or_path), axolotl "
        "(base_model)"
    )


def _documents(text: str) -> Sequence[object]:
    """The documents of a YAML text; none of another."""
    return documents_of(text).contents


def _of_another(
    settings: Mapping[str, object], others: Sequence[tuple[str, Collection[str]]]
) -> str:
    """What a YAML is that is known and not read; empty for any other."""
    names = {key.replace("-", "_") for key in settings}
    names |= {key.partition(".")[0] for key in names}
    return next((words for words, signs in others if names >= set(signs)), "")


def _mapping_kind(text: str) -> Kind | None:
    """Accelerate or nanotron, if a text is YAML with their keys."""
    documents = _documents(text)
    content = documents[0] if len(documents) == 1 else None
    return _kind_of_table(content) if isinstance(content, dict) else None


def _is_trainers(content: Mapping[str, object]) -> bool:
    """Whether a table has a Trainer's settings: the model's name, or several with the micro-batch,
    for DeepSpeed has settings called gradient_accumulation_steps, too."""
    if "model_name_or_path" in content:
        # Levanter says so too, with tables of its own.
        return not isinstance(content.get("trainer"), dict)
    signs = sum(name in content for name in TRAINER_SIGNS)
    return "per_device_train_batch_size" in content and signs >= FEWEST_SIGNS


def _kind_of_table(content: dict[str, object]) -> Kind | None:
    """Whose settings a table holds."""
    if is_model_config(content):
        return "model-config"
    if is_primus(content):
        return "primus"
    # NeMo's tables may be called so too.
    if isinstance(content.get("base_model"), str):
        return "axolotl"
    if _is_trainers(content):
        is_factory = {"stage", "finetuning_type", "cutoff_len", "template"} & content.keys()
        return "llamafactory" if is_factory else "trainer"
    if "parallelism" in content and {"tokens", "model", "general"} & content.keys():
        return "nanotron"
    # Other programs too say fsdp_config and mixed_precision.
    sure = {"distributed_type", "compute_environment", "parallelism_config"} & content.keys()
    known = known_names("accelerate") & content.keys()
    return "accelerate" if sure or 2 * len(known) > len(content) else None
