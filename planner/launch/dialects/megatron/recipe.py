"""Reader of training recipes in Python: Megatron-Bridge's and NeMo 2's, read and never run.

What the recipe's function would return is worked out (`planner.launch.languages.python`) as far as
its source and that of what it calls is there; NeMo 2's own recipes and helpers stand here. The
fields are Megatron-Bridge's overrides under other names, so they are read as those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hardware.files import shipped_text
from planner.job.errors import CannotTellError
from planner.job.models.catalog import catalog_name, load_model
from planner.launch.dialects.hf.arguments import known_model
from planner.launch.dialects.megatron.bridge_reader import read_overrides
from planner.launch.dialects.megatron.bridge_writer import field_of, schema
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.languages.python import UNKNOWN, Function, Record
from planner.launch.languages.text import Text, Word
from planner.launch.read.command import made_launch
from planner.launch.read.document import Source
from planner.launch.read.found import Found, Hints, Problem, Setting, model_unknown, not_predictable
from planner.launch.read.python_files import chosen_words, evaluating, read_python
from planner.launch.registry import package_of

RELEASE = "NeMo of 2025-11"
# What every pretraining recipe of NeMo 2 sets (nemo/collections/llm/recipes, optim/adam.py), where
# the recipe itself is not there.
USUAL = {
    "ddp.use_distributed_optimizer": "true", "ddp.overlap_grad_reduce": "true",
    "ddp.overlap_param_gather": "true", "ddp.grad_reduce_in_fp32": "true",
}  # fmt: skip
_CALL = re.compile(r"^nemo\.(?:\w+\.)*(\w+)\.pretrain_recipe$")


@dataclass(frozen=True)
class NemoRecipe:
    """One of NeMo's own recipes: its name, a model of the catalogue, GPUs where nobody states
    them, and fields as Megatron-Bridge names them."""

    name: str
    model: str
    gpus: int
    values: Mapping[str, str]


@cache
def _recipes() -> Mapping[str, NemoRecipe]:
    text = shipped_text(package_of("megatron"), "nemo_recipes.tsv")
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return {
        name: NemoRecipe(name, model, int(gpus), dict(item.split("=") for item in fields.split()))
        for name, model, gpus, fields in rows
    }


def nemo_recipe(called: str) -> NemoRecipe | None:
    """NeMo's own recipe by the function that is called; None for any other."""
    match = _CALL.search(called)
    return _recipes().get(match[1]) if match else None


def set_primary(recipe: Any = None, *_given: Any, **named: Any) -> Any:
    """NeMo's scripts/performance/helpers.py: degrees, batch, precision and recomputation."""
    if not isinstance(recipe, Record):
        return recipe
    trainer = _made_in(recipe, "trainer")
    strategy, data = _made_in(trainer, "strategy"), _made_in(recipe, "data")
    places = {
        "num_nodes": (trainer, "num_nodes"), "num_gpus_per_node": (trainer, "devices"),
        "mbs": (data, "micro_batch_size"), "gbs": (data, "global_batch_size"),
        "tp_size": (strategy, "tensor_model_parallel_size"),
        "pp_size": (strategy, "pipeline_model_parallel_size"),
        "cp_size": (strategy, "context_parallel_size"),
        "vp_size": (strategy, "virtual_pipeline_model_parallel_size"),
        "ep_size": (strategy, "expert_model_parallel_size"),
        "etp_size": (strategy, "expert_tensor_parallel_size"),
    }  # fmt: skip
    for name, (record, field) in places.items():
        if name in named:
            record.fields[field] = named[name]
    if isinstance(named.get("tp_size"), int):
        strategy.fields["sequence_parallel"] = named["tp_size"] > 1
    if named.get("compute_dtype") == "fp8":
        precision = {"mxfp8": "bf16_with_mxfp8_mixed"}.get(
            str(named.get("fp8_recipe")), "bf16_with_fp8_mixed"
        )
        trainer.fields["plugins"] = Record(precision)
    ddp, config = _made_in(strategy, "ddp"), _made_in(_made_in(recipe, "model"), "config")
    if named.get("compute_dtype"):
        ddp.fields["grad_reduce_in_fp32"] = False
    if named.get("use_mcore_fsdp") is True:
        ddp.fields["use_megatron_fsdp"] = True
    layers = named.get("recompute_layers")
    if isinstance(layers, int) and layers > 0:
        config.fields |= {
            "recompute_granularity": "full", "recompute_method": "block",
            "recompute_num_layers": layers,
        }  # fmt: skip
    return recipe


def _made_in(record: Record, name: str) -> Record:
    """A field that is an object, made where it is not known."""
    held = record.fields.get(name)
    if not isinstance(held, Record):
        held = Record(f"{record.name}.{name}", of=record, made=False)
        record.fields[name] = held
    return held


def _unchanged(recipe: Any = None, *_given: Any, **_named: Any) -> Any:
    """A helper that changes nothing of the degrees and the batch."""
    return recipe


# Helpers of NeMo's scripts/performance, which are not beside the recipes that call them.
SPECIAL: Mapping[str, Any] = {
    "set_primary_perf_configs": set_primary,
    "set_exp_logging_configs": _unchanged,
    "set_perf_optimization_configs": _unchanged,
}


# The environment variable of the reading that names one of several recipes in a file.
CHOICE = "RECIPE"
_RECIPE_NAME = re.compile(r"(^|_)(recipe|config|pretrain|sft|finetune)(_|$)")
_ADAPTERS = re.compile(r"(^|_)(peft|lora|dora|finetune)(_|$)")
_DEGREES = {field_of(MEGATRON[name].key) for name in ("tp", "pp", "cp", "ep", "mbs", "gbs", "seq")}
# What describes a model of a class that has no sizes of its own.
_SIZES = ("model.num_layers", "model.hidden_size", "model.num_attention_heads")
_WITHOUT_SIZES = re.compile(r"(^|\.)(GPTModelProvider|GPTConfig)$")
# GPUs of a node, where a recipe says only how many there are.
_NODE = 8
# Rules of commands and of Megatron-LM's own programs.
_OF_COMMANDS = (
    "unknown-option", "option-value", "cuda-device-max-connections", "fsdp-checkpoint",
)  # fmt: skip
_HYBRIDS = re.compile(
    r"nemotron[-_]?(h|3|nano)|mamba|hybrid|zamba|jamba|hyena|evo2|rwkv", re.IGNORECASE
)


def is_recipe(text: str) -> bool:
    """Whether a Python file holds recipes of Megatron-Bridge or NeMo 2."""
    bridge = "megatron.bridge" in text and re.search(r"ConfigContainer|_config\(\)", text)
    nemo = re.search(r"\bnemo(_run|\.collections)\b", text) and re.search(
        r"\brun\.(Partial|Config)\b|\b(pretrain|finetune)_recipe\(", text
    )
    return bool(bridge or nemo)


def read_recipe(source: Source) -> Found:
    """The launch that one recipe of a file describes; the first, or the one that is named.

    `--env RECIPE=name` names it. UsageError for a slip in the file, CannotTellError where it
    holds no recipe, or reading goes beyond its limits.
    """
    path, hints = source.path, source.hints
    module = read_python(source.text, path, {**SPECIAL, **_variables(hints.environment)})
    with evaluating(path):
        name, result, others = _chosen(module.functions(), hints, path)
        recipe = _Recipe(name, others, result, source)
    return recipe.found()


def _chosen(
    functions: Mapping[str, Function], hints: Hints, path: str
) -> tuple[str, Record, list[str]]:
    """Name and result of a recipe, and the names of the others."""
    names = [name for name in functions if _RECIPE_NAME.search(name) and name[0] != "_"]
    wanted = hints.environment.get(CHOICE)
    if wanted is not None and wanted not in functions:
        raise CannotTellError(
            f"{path}: holds no function {wanted}; it has {', '.join(names) or 'no recipe'}"
        )
    preferred = sorted(
        names, key=lambda name: ("pretrain" not in name, bool(_ADAPTERS.search(name)))
    )
    for name in [wanted] if wanted else preferred:
        result = functions[name].call()
        if isinstance(result, Record) and _is_configuration(result):
            return name, result, [other for other in names if other != name]
    raise CannotTellError(f"{path}: no function of it returns a recipe that can be read")


def _is_configuration(result: Record) -> bool:
    is_stated = {"model", "train", "trainer", "mixed_precision"} & result.fields.keys()
    return bool(is_stated) or nemo_recipe(result.name) is not None


def _variables(environment: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """What reads variables of the environment; code has its own defaults for those not set."""

    def read(name: Any = None, default: Any = None, **_named: Any) -> Any:
        return environment.get(name, default) if isinstance(name, str) else UNKNOWN

    return dict.fromkeys(("getenv", "os.environ.get", "environ.get"), read)


class _Recipe:
    """A recipe's result as Megatron-Bridge's fields, read as the overrides of a bare recipe."""

    def __init__(self, name: str, others: list[str], result: Record, source: Source) -> None:
        self.name, self.others, self.result, self.source = name, others, result, source
        self.path, self.unseen = source.path, _unseen(result)
        self.shipped = nemo_recipe(self.unseen)
        self.values: dict[str, Any] = {}
        # Fields that are set to what is not known.
        self.unknown: set[str] = set()
        is_nemo = "trainer" in result.fields or self.shipped is not None
        if is_nemo:
            self._nemo()
        else:
            self._bridge()
        if self.values.get("optimizer.use_distributed_optimizer") == "true":
            self.values["ddp.use_distributed_optimizer"] = "true"
        model = result.fields.get("model")
        self.model_name = _model_name(model, result, name)
        if self.shipped is not None:
            self.model_name, self.unseen = self.shipped.model, ""
        gpus = re.search(r"_(\d+)gpus?(_|$)", name)
        self.world = self._world() if is_nemo else int(gpus[1]) if gpus else None
        self.precision = _precision(self._precision_of(is_nemo))
        # The fields themselves describe the model where its class is there.
        self.missing = [field for field in _SIZES if field not in self.values]

    def _precision_of(self, is_nemo: bool) -> Any:
        if is_nemo:
            plugins = self.result.get("trainer.plugins")
            return plugins[0] if isinstance(plugins, list) and plugins else plugins
        return self.result.get("mixed_precision")

    def _bridge(self) -> None:
        for field in schema():
            self._take(field, self.result.get(field))

    def _nemo(self) -> None:
        for field in schema():
            section, _, name = field.partition(".")
            holder = {"ddp": "trainer.strategy.ddp", "optimizer": "optim.config"}.get(section)
            if section == "model":
                stated = self.result.get(f"model.config.{name}")
                given = self.result.get(f"trainer.strategy.{name}")
                self._take(field, stated if given is None else given)
            elif holder:
                self._take(field, self.result.get(f"{holder}.{name}"))
        self._take("train.global_batch_size", self.result.get("data.global_batch_size"))
        self._take("train.micro_batch_size", self.result.get("data.micro_batch_size"))
        self._take("model.seq_length", self.result.get("data.seq_length"))
        self._overlap()
        if self.unseen:
            of_recipe = self.shipped.values if self.shipped else {}
            self.values = {**USUAL, **of_recipe, **self.values}

    def _overlap(self) -> None:
        """NeMo's MegatronCommOverlapCallback."""
        callbacks = self.result.get("trainer.callbacks")
        for callback in callbacks if isinstance(callbacks, list) else ():
            if isinstance(callback, Record) and "CommOverlap" in callback.name:
                self._take("comm_overlap.tp_comm_overlap", callback.get("tp_comm_overlap"))

    def _take(self, field: str, value: Any) -> None:
        is_layout = field == "model.pipeline_model_parallel_layout"
        written = _layout(value) if is_layout else _written(value)
        if written is not None:
            self.values[field] = written
        elif isinstance(value, Record | list) and value != []:
            self.unknown.add(field)

    def _world(self) -> int | None:
        nodes, devices = (self.result.get(f"trainer.{name}") for name in ("num_nodes", "devices"))
        if self.shipped is not None:
            devices = devices or self.result.get("num_gpus_per_node", min(self.shipped.gpus, _NODE))
            nodes = nodes or self.result.get("num_nodes", -(-self.shipped.gpus // _NODE))
        return nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None

    def _predictors(self, known: str) -> None:
        """Multi-token prediction is the model's, where only a layout names it."""
        layers = load_model(known).spec.mtp_layers
        if layers and "m" in self.values.get("model.pipeline_model_parallel_layout", ""):
            self.values.setdefault("model.mtp_num_layers", str(layers))

    def found(self) -> Found:
        """Everything that was read."""
        hints, launch = self.source.hints, self.source.launch
        known = _catalogued(self.model_name)
        if not hints.model and known is not None and self.missing:
            hints = replace(hints, model=known)
            self._predictors(known)
        words = [Word(Text.made(f"{field}={value}")) for field, value in self.values.items()]
        program = f'vanilla_gpt_pretrain_config() get_mixed_precision_config("{self.precision}")'
        found = read_overrides(made_launch(words, self.path, self.path), program, hints)
        if found.shape is None and not found.model:
            name = self.model_name
            text = f"the catalogue does not know the model {name}"
            if _WITHOUT_SIZES.search(name) and self.missing:
                sizes = ", ".join(self.missing)
                text = f"{name} has no sizes of its own, and the recipe leaves {sizes} to overrides"
            found = replace(found, problems=(*found.problems, model_unknown(text, (self.path,))))
        return replace(
            found,
            format="recipe",
            world=(launch.world if launch else None) or self.world,
            main_file=self.path,
            unseen=self.unseen,
            unmodelled=(*found.unmodelled, *self._hidden_savings()),
            problems=(*self._problems(), *self._eased(found)),
            assumed=(*self._assumed(), *found.assumed),
        )

    def _problems(self) -> Iterator[Problem]:
        for field in sorted(self.unknown & _DEGREES):
            text = f"{field} is worked out by code that is not read"
            yield Problem("unresolved", text, "missing", (self.path,), "a file with its value")
        if self.unseen and "train.global_batch_size" not in self.values:
            text = f"the recipe {self.unseen} is not beside the file: its settings are not seen"
            yield Problem("recipe-unseen", text, "missing", (self.path,), "give its folder")
        if _HYBRIDS.search(f"{self.name} {self.model_name}"):
            text = f"{self.model_name}: Megatron-Bridge's provider of hybrids is not read"
            yield not_predictable(text, self.path)
        made_by = self.result.name.rpartition(".")[2]
        tuned = next((name for name in (self.name, made_by) if _ADAPTERS.search(name)), None)
        if tuned is not None:
            text = f"{tuned}: adapters are not modelled; pretraining and full fine-tuning are"
            yield not_predictable(text, self.path)

    def _eased(self, found: Found) -> Iterator[Problem]:
        """Without what only a command of overrides would get wrong."""
        for problem in found.problems:
            if problem.rule in _OF_COMMANDS:
                continue
            if problem.severity == "error" and self.unseen:
                problem = replace(problem, severity="missing")  # noqa: PLW2901
            shapes = ("layers-by", "layout", "vpp", "model-shape")
            if problem.severity == "error" and not problem.rule.startswith(shapes):
                problem = replace(problem, severity="warning")  # noqa: PLW2901
            if problem.rule == "model-unknown" and problem.severity != "missing":
                continue
            open_layout = "model.pipeline_model_parallel_layout" in self.unknown
            is_missing = problem.rule == "micro-batch" or (
                open_layout and problem.rule.startswith("layers-by")
            )
            yield replace(problem, severity="missing") if is_missing else problem

    def _hidden_savings(self) -> Iterator[tuple[Setting, str]]:
        if self.unseen:
            why = "not there to read, it may recompute or offload: less memory than predicted"
            yield Setting(self.unseen, "", self.path), why

    def _assumed(self) -> Iterator[str]:
        if self.others:
            yield chosen_words(self.name, self.others, "recipes", CHOICE)
        if self.unseen:
            yield f"what {self.unseen} sets besides is not beside the file: NeMo's usual settings"
        if self.shipped is not None:
            yield f"the recipe {self.shipped.name}, which is not beside the file, as in {RELEASE}"


def _written(value: Any) -> str | None:
    """A value as an override spells it; None for what is not known."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case str():
            return value
        case list() if value and all(isinstance(item, str | int) for item in value):
            return f"[{','.join(map(str, value))}]"
        case Record(name=name) if re.search(r"(^|\.)(float|bfloat|int)\d+$", name):
            short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
            return short.get(name.rpartition(".")[2])
    return None


_LAYOUT_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def _layout(value: Any) -> str | None:
    """Stages as lists of layers in Megatron's letters: `Ett|ttL`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        return None
    stages = ["".join(_LAYOUT_LETTERS.get(str(layer), "?") for layer in stage) for stage in value]
    return None if "?" in "".join(stages) else "|".join(stages)


def _precision(value: Any) -> str:
    """The name of a precision recipe that says the same."""
    name = value if isinstance(value, str) else value.name if isinstance(value, Record) else ""
    if isinstance(value, Record):
        name += f" {value.get('fp8_recipe', '')} {value.get('fp4', '')} {value.get('fp8', '')}"
    lower = name.lower()
    if "fp4" in lower or "e2m1" in lower:
        return "bf16_with_nvfp4_mixed"
    if "mxfp8" in lower or "fp8_mx" in lower:
        return "bf16_with_mxfp8_mixed"
    if re.search(r"fp8|hybrid|e4m3", lower):
        return "bf16_with_fp8_current_scaling_mixed"
    return "fp16_mixed" if "fp16" in lower and "bf16" not in lower else "bf16_mixed"


# --- the model ------------------------------------------------------------------------------------


def _model_name(model: Any, result: Record, recipe: str) -> str:
    """What names the model: a Hugging Face name, a configuration's class, a module."""
    names = list(_strings_of(model))
    config = model.get("config") if isinstance(model, Record) else None
    names += [config.name] if isinstance(config, Record) else []
    names += [model.name] if isinstance(model, Record) else []
    names += [result.name, recipe]
    return next((name for name in names if _catalogued(name) is not None), names[0])


def _strings_of(model: Any) -> Iterator[str]:
    """Names that `from_hf_pretrained` was given, through what was called on its result."""
    while isinstance(model, Record):
        for value in (*model.given, *model.fields.values()):
            if isinstance(value, str) and "/" in value:
                yield value
        model = model.of


def _catalogued(name: str) -> str | None:
    """The catalogue's name of `meta-llama/Llama-3.1-8B`, `Llama31Config8B`, `llama31_8b.model`."""
    if (known := known_model(name)) is not None:
        return known
    for part in reversed(name.split(".")):
        plain = re.sub(r"Config", "-", part).strip("-")
        plain = re.sub(r"_(pretrain|sft|peft|finetune|recipe).*$", "", plain)
        spelled = re.sub(r"^(llama|qwen|phi|gemma)(\d)(\d)", r"\1\2.\3", plain.lower())
        for candidate in (spelled, spelled.replace("_", "-"), plain):
            if (known := catalog_name(candidate)) is not None and len(candidate) > len("gpt2"):
                return known
    return None


def _unseen(result: Record) -> str:
    """What made the recipe itself, where its source was not there."""
    is_call = re.search(r"\.(\w*recipe|\w+_config|\w+_common)(_\d+\w+)?$", result.name)
    return result.name if is_call and not result.given else ""
