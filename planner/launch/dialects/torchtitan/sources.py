"""torchtitan's vocabulary (the keys of each version and new names of old ones, schedules, the split
of layers over pipeline stages), and model sizes in a checkout's registry,
`models/NAME/__init__.py`, which is parsed and never imported.

Source of the sizes' fields: torchtitan 0.1 and 0.2, models/llama3/model/args.py,
models/qwen3/model/args.py; since 2026-05, functions of models/llama3/__init__.py and
models/qwen3/__init__.py.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.errors import ModelError, UsageError
from planner.job.models.catalog import load_model
from planner.job.models.hf_config import model_from_hf_config
from planner.job.specs import ModelSpec
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.dialects.torchtitan import TORCHTITAN
from planner.launch.languages.limits import LimitError
from planner.launch.languages.python import Function, Record, are_plain, assigned
from planner.launch.languages.text import Text
from planner.launch.options import last
from planner.launch.read.beside import beside, text_of
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Document, unknown_key
from planner.launch.read.found import Problem, is_slip, nearest
from planner.launch.read.names import effect_of, known_names, meanings
from planner.launch.read.python_files import read_python

# torchtitan's start script.
START_SCRIPT = "run_train.sh"
KEYS = known_names("torchtitan", "keys")
NEWER_KEYS = known_names("torchtitan", "newer-keys")
_RENAMED = meanings("torchtitan", "renamed")
# Tables that contained the degrees before they got one of their own.
_HELD_DEGREES = ("training", "experimental")
_MOST_NAMED = 6


def is_known(key: str) -> bool:
    """Whether torchtitan 0.2.2 has the key, or the table that it belongs to."""
    return key in KEYS or any(key.startswith(f"{known}.") for known in KEYS)


def is_known_in_0_3(key: str) -> bool:
    """Whether torchtitan 0.3 has the key, or the table that it belongs to."""
    return key in NEWER_KEYS or is_known(key)


def unknown_keys(document: Document) -> Iterator[Problem]:
    """Problems: keys that torchtitan 0.2.2 does not have and its loader refuses.

    Misspelt keys are errors. Others belong to another release or a fork; those that were only
    renamed are read under their new names.
    """
    others = []
    for key, setting in [*document.settings.items()]:
        is_table = any(known.startswith(f"{key}.") for known in KEYS)
        if is_known(key) or (setting.value == {} and is_table):
            continue
        new = _new_name(key)
        close = new or nearest(key, KEYS, 0.7)
        if document.has(new) if new else _is_misspelt(key, close):
            says = "torchtitan 0.2 has no such field and refuses it"
            yield unknown_key(document, key, says, close)
            continue
        others.append(key)
        if new:
            document.override(setting, new)
        elif key == "float8.enable_float8_linear" and setting.value:
            document.override(replace(setting, value=["float8"]), "model.converters")
        elif setting.value and isinstance(setting.value, int | float):
            # A fork's switch for another kind of training.
            table, _, asked = re.sub(r"\.enabled?$", "", key).rpartition(".")
            for name in (asked, table):
                refuse_unmodelled(name, f"{document.path}: {key}")
    if others:
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        text = (
            "read as keys of another release of torchtitan, or of a fork; 0.2.2 refuses "
            f"{', '.join(others[:_MOST_NAMED])}{more}"
        )
        yield document.problem("dialect", text, others[0], severity="warning")
        yield from _deciding(document, others)


def _deciding(document: Document, others: Sequence[str]) -> Iterator[Problem]:
    """Problems: keys of a fork that are switched on and, judged by their names, change memory or
    training."""
    for key in others:
        asked = document.settings.get(key)
        name = re.sub(r"\.enabled?$", "", key)
        if asked is not None and asked.value and not _new_name(key) and effect_of(name):
            text = f"{key}: not a key of torchtitan 0.2; its effect on training is not known"
            yield document.problem("own-option", text, key, severity="missing")


def _is_misspelt(key: str, close: str) -> bool:
    """Whether a key is another one misspelt, judged by both the whole key and its last name."""
    names = (key.rpartition(".")[2], close.rpartition(".")[2])
    return is_slip(close, key) and is_slip(*reversed(names))


def _new_name(key: str) -> str | None:
    """The name in 0.2 of an earlier release's key; None if 0.2 has no such key."""
    table, _, name = key.partition(".")
    moved = f"{_RENAMED[table]}.{name}" if table in _RENAMED else _RENAMED.get(key)
    if moved is None and table in _HELD_DEGREES:
        moved = f"parallelism.{name}"
    return moved if moved in KEYS else None


# (the planner's name, None if not predicted; minimum stages per rank) of each schedule of
# torch.distributed.pipelining.schedules.get_schedule_class (torch 2.10), which ignores case.
_SINGLE = ("1F1B", "GPipe", "PipelineScheduleSingle")
_OURS = {theirs: ours for ours, theirs in TORCHTITAN["schedule"].written.items()}
SCHEDULES: Mapping[str, tuple[str | None, int]] = {
    name: (_OURS.get(name), 1 if name in _SINGLE else 2)
    for name in (*_OURS, "LoopedBFS", "PipelineScheduleSingle", "PipelineScheduleMulti")
}


def schedule_of(text: str) -> tuple[str, str | None, int] | None:
    """(torch's name, the planner's name, minimum stages per rank) of a schedule; None if
    unknown."""
    named = ((name, *one) for name, one in SCHEDULES.items() if name.lower() == text.lower())
    return next(named, None)


def stage_count(
    layers: int, pp: int, per_stage: int | None, single: bool, less_layers: tuple[int, int]
) -> tuple[int, Problem | None]:
    """The number of stages per rank, and a problem if torchtitan refuses it.

    `per_stage`: layers per stage; None means one stage per rank if the schedule is for a `single`
    stage, else two. `less_layers`: the numbers of layers that the embedding and the head count for.
    Source: torchtitan 0.2.2 and 0.3, distributed/pipeline_parallel.py, pipeline_llm.
    """
    if per_stage is None:
        return (1 if single else 2), None
    counted = layers + sum(less_layers)
    stages = -(-counted // max(1, per_stage))
    chunks, rest = divmod(stages, pp)
    wrong, fix = "", ""
    if rest:
        wrong = f"not a multiple of pipeline_parallel_degree {pp}"
    elif single and chunks != 1:
        wrong = f"{chunks} per rank: this schedule needs one"
        fix = f"{last(TORCHTITAN['layers'])} = {-(-counted // pp)}"
    elif not single and chunks < 2:
        wrong = f"{chunks} per rank: this schedule needs two or more"
    text = (
        f"{layers} layers and {sum(less_layers)} for the ends, {per_stage} a stage: {stages} stages"
    )
    problem = Problem("layers-per-stage", f"{text}, {wrong}", fix=fix) if wrong else None
    return max(1, chunks) if rest else chunks, problem


# Layers that embedding and head count as by default.
EMBEDDING_AND_HEAD = (1, 1)


def usual_layers(layers: int, stages: int) -> tuple[int, ...] | None:
    """The number of layers of each stage in order, if embedding and head count for as many layers
    as by torchtitan's default. None if torchtitan refuses the split."""
    return stage_layers(layers, stages, EMBEDDING_AND_HEAD)


def stage_layers(layers: int, stages: int, less_layers: tuple[int, int]) -> tuple[int, ...] | None:
    """Layers of each stage in order; None if torchtitan refuses the split.

    The embedding counts as `less_layers[0]` layers of the first stage, norm and head as
    `less_layers[1]` of the last; the remainder goes to the first stages. Source: torchtitan 0.2.2
    and 0.3, generate_llm_fqn_per_model_part.
    """
    if stages == 1:
        return (layers,)
    each, extra = divmod(layers + sum(less_layers), stages)
    if each == 0 or max(less_layers) > each:
        return None
    counts = [each + (at < extra) for at in range(stages)]
    counts[0] -= less_layers[0]
    counts[-1] -= less_layers[1]
    return tuple(counts)


def named_parts(parts: object) -> tuple[int, ...] | None:
    """Layers of each part of `module_fqns_per_model_part`; None if the value is not such a list."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return None
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)


_PLACES = ("models", "experiments", "torchtitan/models", "torchtitan/experiments")
# Fields that the shape needs, with their defaults.
_LLAMA = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": None, "vocab_size": 128256,
          "multiple_of": 256, "ffn_dim_multiplier": None, "hidden_dim": None,
          "enable_weight_tying": False}  # fmt: skip
_QWEN = {"dim": 1024, "n_layers": 28, "n_heads": 16, "n_kv_heads": 8, "vocab_size": 151936,
         "head_dim": 128, "hidden_dim": 3072, "qk_norm": True,
         "enable_weight_tying": False}  # fmt: skip
_FIELDS: Mapping[str, Mapping[str, object]] = {"llama3": _LLAMA, "qwen3": _QWEN}
_HARMLESS = known_names("torchtitan", "harmless")
# Fields that distinguish a model from the catalogue's of the same name.
_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_embeddings")
_BUILDER = re.compile(r"_build_\w+_layers")


def registered_model(name: str, flavor: str, folder: Path) -> ModelSpec | None:
    """The dense model that a registry in the checkout around a folder lists. `name`: the family;
    `flavor`: the size. None if the registry has none, or its entry has fields that cannot be read
    here."""
    fields = _FIELDS.get(name.lower())
    found = _registry(name, folder) if fields is not None else None
    stated = None if found is None else _stated(found, name, flavor)
    if fields is None or stated is None or stated.keys() - fields.keys() - _HARMLESS:
        return None
    # The vocabulary then comes from the tokenizer, a small one for tests.
    if flavor.startswith("debug") and "vocab_size" not in stated:
        return None
    values = {field: stated.get(field, default) for field, default in fields.items()}
    try:
        spec = model_from_hf_config(_config(values), where=f"{found} ({flavor})")
    except (ModelError, TypeError, ValueError, ArithmeticError):
        return None
    return spec.model_copy(update={"name": f"{name} {flavor}", "source": str(found)})


def is_size_of(shape: ModelSpec, name: str) -> bool:
    """Whether a registry's model has the sizes of the catalogue model with a name."""
    other = load_model(name).spec
    return all(getattr(shape, size) == getattr(other, size) for size in _SIZES)


def _registry(name: str, folder: Path) -> Path | None:
    # Until 2025-05 one folder contained all Llamas.
    names = dict.fromkeys((name, name.rstrip("0123456789")))
    places = (f"{place}/{one}/__init__.py" for one in names for place in _PLACES)
    files = (beside(place, folder, whole=True) for place in places)
    return next(filter(None, files), None) if re.fullmatch(r"\w{1,50}", name) else None


def _stated(path: Path, name: str, flavor: str) -> dict[str, Any] | None:
    """Arguments of a flavor's entry: those of its class of sizes, or those that a function passes
    to the model and to `_build_..._layers`."""
    layers: dict[str, Any] = {}

    def build(**named: Any) -> None:
        layers.update(named)

    def size(**named: Any) -> dict[str, Any]:
        return {name: one if are_plain([one]) else None for name, one in named.items()}

    try:
        text = Text.made(text_of(path) or "")
        tree = read_python(text, str(path)).tree
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        special: dict[str, Any] = {one: size for one in called if one.endswith("Args")}
        special |= {one: build for one in called if _BUILDER.fullmatch(one)}
        module = read_python(text, str(path), special)
        every = assigned(tree.body)
        named = [one for one in every if one == f"{name}_configs"]
        tables = (module.lookup(one) for one in named or every)
        held = (one[flavor] for one in tables if isinstance(one, dict) and flavor in one)
        entry = next(held, None)
        model = entry.call() if isinstance(entry, Function) else None
    except (LimitError, UsageError, RecursionError):
        return None
    if isinstance(model, Record) and layers:
        return layers | {name: one for name, one in model.fields.items() if are_plain([one])}
    return entry if isinstance(entry, dict) else None


def _config(values: Mapping[str, Any]) -> dict[str, object]:
    """A registry's size as a Hugging Face config. Llama 3's FFN width is 2/3 · 4 · dim, times the
    multiplier, rounded up (FeedForward of llama3)."""
    family = "qwen3" if values.get("qk_norm") else "qwen2" if "qk_norm" in values else "llama"
    width = values["hidden_dim"]
    if width is None:
        factor, step = values["ffn_dim_multiplier"], values["multiple_of"]
        width = int(2 * 4 * values["dim"] / 3)
        width = step * math.ceil((width if factor is None else int(factor * width)) / step)
    return {
        "model_type": family,
        "hidden_size": values["dim"],
        "intermediate_size": width,
        "num_hidden_layers": values["n_layers"],
        "num_attention_heads": values["n_heads"],
        "num_key_value_heads": values["n_kv_heads"] or values["n_heads"],
        "vocab_size": values["vocab_size"],
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": values["enable_weight_tying"],
        **({"head_dim": values["head_dim"]} if "head_dim" in values else {}),
    }


_REGISTRY = "torchtitan/{}/{}/config_registry.py"


def files_named(launch: LaunchCommand) -> Iterator[Text]:
    """Configuration files that a command's environment or module names."""
    words, environment = launch.arguments, launch.command.environment
    # Only after the program: before it, `--module` is the launcher's switch (`deepspeed --module`).
    for at, word in enumerate(words):
        name, equals, _ = word.text.value.partition("=")
        if name == "--module":  # 0.3's
            follows = words[at + 1].text if at + 1 < len(words) else Text.made("")
            yield from _registries(word.text[len(name) + 1 :] if equals else follows)
    if "CONFIG_FILE" in environment:
        yield environment["CONFIG_FILE"]
    if "MODULE" in environment and launch.program.endswith(START_SCRIPT):
        yield from _registries(environment["MODULE"])


def _registries(module: Text) -> Iterator[Text]:
    """Files that may contain the configurations of a torchtitan 0.3 module."""
    folder = module.value.replace(".", "/")
    for part in ("models", "experiments"):
        yield Text.made(_REGISTRY.format(part, folder))
