"""Reader of training recipes in Python, Megatron-Bridge's and NeMo 2's, which are never run.

The value that a recipe function returns is evaluated (`planner.launch.languages.python`) as far as
the source of the function and of those that it calls is available. NeMo 2's own recipes and helpers
are built in. The fields are Megatron-Bridge's overrides under other names and are read as those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from planner.job.errors import CannotTellError
from planner.job.models.catalog import catalog_name, load_model, not_in_catalogue
from planner.launch.dialects.hf.arguments import known_model
from planner.launch.dialects.megatron.arguments import rows_of
from planner.launch.dialects.megatron.bridge_adapters import adapters_of
from planner.launch.dialects.megatron.bridge_reader import read_overrides
from planner.launch.dialects.megatron.bridge_writer import field_of, schema
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.languages.python import UNKNOWN, Function, Record
from planner.launch.languages.text import Text, Word
from planner.launch.read.command import made_launch
from planner.launch.read.document import Source
from planner.launch.read.found import Found, Hints, Problem, Setting, model_unknown, not_predictable
from planner.launch.read.python_files import chosen_words, evaluating, read_python
from planner.launch.registry import dialect_toml

RELEASE = "NeMo of 2025-11"
_CALL = re.compile(r"^nemo\.(?:\w+\.)*(\w+)\.pretrain_recipe$")


@dataclass(frozen=True)
class NemoRecipe:
    """One of NeMo's own recipes: its name, a model of the catalogue, the default number of GPUs,
    and its settings under Megatron-Bridge's field names."""

    name: str
    model: str
    gpus: int
    values: Mapping[str, str]


@cache
def _recipes() -> Mapping[str, NemoRecipe]:
    return {
        name: NemoRecipe(name, model, int(gpus), dict(item.split("=") for item in fields.split()))
        for name, model, gpus, fields in rows_of("nemo_recipes.tsv")
    }


def _shipped(result: Record) -> NemoRecipe | None:
    """NeMo's own recipe, if the result of a function is a call of one; else None."""
    match = _CALL.search(result.name)
    return _recipes().get(match[1]) if match else None


def set_primary(recipe: Any = None, *_given: Any, **named: Any) -> Any:
    """Apply NeMo's `set_primary_perf_configs` (scripts/performance/helpers.py): degrees, batch,
    precision and recomputation."""
    if not isinstance(recipe, Record):
        return recipe
    for name, path in dialect_toml("megatron", "nemo.toml")["primary"].items():
        holder, _, field = path.rpartition(".")
        _made(recipe, holder).fields |= {field: named[name]} if name in named else {}
    trainer, strategy = _made(recipe, "trainer"), _made(recipe, "trainer.strategy")
    ddp, config = _made(strategy, "ddp"), _made(recipe, "model.config")
    if isinstance(named.get("tp_size"), int):
        strategy.fields["sequence_parallel"] = named["tp_size"] > 1
    if named.get("compute_dtype") == "fp8":
        kind = "mxfp8" if named.get("fp8_recipe") == "mxfp8" else "fp8"
        trainer.fields["plugins"] = Record(f"bf16_with_{kind}_mixed")
    if named.get("compute_dtype"):
        ddp.fields["grad_reduce_in_fp32"] = False
    if named.get("use_mcore_fsdp") is True:
        ddp.fields["use_megatron_fsdp"] = True
    layers = named.get("recompute_layers")
    if isinstance(layers, int) and layers > 0:
        how = {"recompute_granularity": "full", "recompute_method": "block"}
        config.fields |= {**how, "recompute_num_layers": layers}
    return recipe


def _made(record: Record, path: str) -> Record:
    """The object at a dotted path below a record. Objects on the path that are absent are
    created."""
    for name in path.split("."):
        held = record.fields.get(name)
        if not isinstance(held, Record):
            held = Record(f"{record.name}.{name}", of=record, made=False)
            record.fields[name] = held
        record = held
    return record


def _unchanged(recipe: Any = None, *_given: Any, **_named: Any) -> Any:
    """Returns the recipe unchanged: stands in for a helper of NeMo that changes neither degrees nor
    batch."""
    return recipe


_PLAIN: Mapping[str, type] = {
    kind.__name__: kind for kind in (str, int, float, bool, list, dict)
}  # fmt: skip


def _is_instance(value: Any = None, kind: Any = None, *_given: Any) -> Any:
    """`isinstance` of a plain value and a built-in type; UNKNOWN for anything else."""
    named = _PLAIN.get(kind.name) if isinstance(kind, Record) else None
    is_plain = isinstance(value, tuple(_PLAIN.values()))
    return isinstance(value, named) if named is not None and is_plain else UNKNOWN


# Helpers of NeMo's scripts/performance, whose source is not beside the recipes that call them.
SPECIAL: dict[str, Callable[..., Any]] = {
    "set_primary_perf_configs": set_primary,
    "set_exp_logging_configs": _unchanged,
    "set_perf_optimization_configs": _unchanged,
    "isinstance": _is_instance,
}


# The environment variable that selects one of several recipes in a file.
CHOICE = "RECIPE"
_RECIPE_NAME = re.compile(r"(^|_)(recipe|config|pretrain|sft|finetune)(_|$)")
_MAKES = re.compile(r"\.(\w*recipe|\w+_config|\w+_common)(_\d+\w+)?$")
_ADAPTERS = re.compile(r"(^|_)(peft|lora|dora|finetune)(_|$)")
_DEGREES = {field_of(MEGATRON[name].key) for name in ("tp", "pp", "cp", "ep", "mbs", "gbs", "seq")}
# Fields of which every configuration has at least one.
_STATED = {"model", "train", "trainer", "mixed_precision"}
# Fields that describe a model if its class has no sizes of its own.
_SIZES = ("model.num_layers", "model.hidden_size", "model.num_attention_heads")
_WITHOUT_SIZES = re.compile(r"(^|\.)(GPTModelProvider|GPTConfig)$")
# GPUs per node if a recipe states only their total.
_NODE = 8
# Rules that apply only to commands and to Megatron-LM's own programs.
_OF_COMMANDS = (
    "unknown-option", "option-value", "cuda-device-max-connections", "fsdp-checkpoint",
)  # fmt: skip
_OF_SHAPES = ("layers-by", "layout", "vpp", "model-shape")
_HYBRIDS = re.compile(
    r"nemotron[-_]?(h|3|nano)|mamba|hybrid|zamba|jamba|hyena|evo2|rwkv", re.IGNORECASE
)


def is_recipe(text: str) -> bool:
    """Whether a Python file contains recipes of Megatron-Bridge or NeMo 2."""
    imported = re.search(r"\b(from|import) megatron\.bridge\b", text)
    bridge = imported and re.search(r"ConfigContainer|_config\(\)", text)
    nemo = re.search(r"\bnemo(_run|\.collections)\b", text) and re.search(
        r"\brun\.(Partial|Config)\b|\b(pretrain|finetune)_recipe\(", text
    )
    return bool(bridge or nemo)


def read_recipe(source: Source) -> Found:
    """The launch that one recipe of a file describes.

    `--env RECIPE=name` selects it; otherwise the first that can be read, pretraining before
    fine-tuning. UsageError for a syntax error in the file; CannotTellError if it has no readable
    recipe or reading exceeds its limits.
    """
    path, hints = source.path, source.hints

    def read(name: Any = None, default: Any = None, **_named: Any) -> Any:
        """An environment variable, or the default given in the code."""
        return hints.environment.get(name, default) if isinstance(name, str) else UNKNOWN

    variables = dict.fromkeys(("getenv", "os.environ.get", "environ.get"), read)
    module = read_python(source.text, path, SPECIAL | variables)
    with evaluating(path):
        name, result, others = _chosen(module.functions(), hints, path)
        recipe = _Recipe(name, others, result, source)
    return recipe.found()


def _chosen(
    functions: Mapping[str, Function], hints: Hints, path: str
) -> tuple[str, Record, list[str]]:
    """Name and result of the chosen recipe, and the names of the others."""
    names = [name for name in functions if _RECIPE_NAME.search(name) and name[0] != "_"]
    wanted = hints.environment.get(CHOICE)
    if wanted is not None and wanted not in functions:
        raise CannotTellError(
            f"{path}: has no function {wanted}; it has {', '.join(names) or 'no recipe'}"
        )
    preferred = sorted(
        names, key=lambda name: ("pretrain" not in name, bool(_ADAPTERS.search(name)))
    )
    for name in [wanted] if wanted else preferred:
        result = functions[name].call()
        if isinstance(result, Record) and (_STATED & result.fields.keys() or _shipped(result)):
            return name, result, [other for other in names if other != name]
    raise CannotTellError(f"{path}: none of its functions returns a readable recipe")


class _Recipe:
    """The result of a recipe function as Megatron-Bridge's fields, read as overrides of a bare
    recipe."""

    def __init__(self, name: str, others: list[str], result: Record, source: Source) -> None:
        self.name, self.others, self.result, self.source = name, others, result, source
        self.path = source.path
        # The call that made the whole recipe, if its source was not available.
        is_call = not result.given and _MAKES.search(result.name)
        self.unseen = result.name if is_call else ""
        self.shipped = _shipped(result) if is_call else None
        self.values: dict[str, Any] = {}
        # Fields that are set to an unknown value.
        self.unknown: set[str] = set()
        precision = result.get("mixed_precision")
        gpus = re.search(r"_(\d+)gpus?(_|$)", name)
        self.world = int(gpus[1]) if gpus else None
        if "trainer" in result.fields or self.shipped is not None:
            self._nemo()
            plugins = result.get("trainer.plugins")
            precision = plugins[0] if isinstance(plugins, list) and plugins else plugins
            self.world = self._world()
        else:
            for field in schema():
                self._take(field, result.get(field))
        self.precision = _precision(precision)
        if self.values.get("optimizer.use_distributed_optimizer") == "true":
            self.values["ddp.use_distributed_optimizer"] = "true"
        self.model_name = _model_name(result.fields.get("model"), result, name)
        if self.shipped is not None:
            self.model_name, self.unseen = self.shipped.model, ""
        # If the source of the model's class is available, the fields describe the model.
        self.missing = [field for field in _SIZES if field not in self.values]

    def _nemo(self) -> None:
        get, nemo = self.result.get, dialect_toml("megatron", "nemo.toml")
        for field in schema():
            section, _, name = field.partition(".")
            holders = nemo["sections"].get(section, ())
            stated = (get(f"{holder}.{name}") for holder in holders)
            self._take(field, next((value for value in stated if value is not None), None))
        for field, path in nemo["fields"].items():
            self._take(field, get(path))
        # NeMo's MegatronCommOverlapCallback.
        callbacks = get("trainer.callbacks")
        for callback in callbacks if isinstance(callbacks, list) else ():
            if isinstance(callback, Record) and "CommOverlap" in callback.name:
                self._take("comm_overlap.tp_comm_overlap", callback.get("tp_comm_overlap"))
        if self.unseen:
            of_recipe = self.shipped.values if self.shipped else {}
            self.values = {**nemo["usual"], **of_recipe, **self.values}

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

    def found(self) -> Found:
        """The launch that was read."""
        hints, launch = self.source.hints, self.source.launch
        known = _catalogued(self.model_name)
        if not hints.model and known is not None and self.missing:
            hints, layers = replace(hints, model=known), load_model(known).spec.mtp_layers
            # If only a layout mentions multi-token prediction, the model has its usual number of
            # such layers.
            if layers and "m" in self.values.get("model.pipeline_model_parallel_layout", ""):
                self.values.setdefault("model.mtp_num_layers", str(layers))
        words = [Word(Text.made(f"{field}={value}")) for field, value in self.values.items()]
        program = f'vanilla_gpt_pretrain_config() get_mixed_precision_config("{self.precision}")'
        found = read_overrides(made_launch(words, self.path, self.path), program, hints)
        if found.shape is None and not found.model:
            name = self.model_name
            text = not_in_catalogue(name)
            if _WITHOUT_SIZES.search(name) and self.missing:
                sizes = ", ".join(self.missing)
                text = f"{name} has no sizes of its own, and the recipe leaves {sizes} to overrides"
            found = replace(found, problems=(*found.problems, model_unknown(text, (self.path,))))
        why = "not there to read; it may recompute or offload: less memory than predicted"
        hidden = ((Setting(self.unseen, "", self.path), why),) if self.unseen else ()
        train, why = self._train(found)
        tuned = () if not why else (not_predictable(why, self.path),)
        return replace(
            found,
            format="recipe",
            train=train,
            world=(launch.world if launch else None) or self.world,
            main_file=self.path,
            unseen=self.unseen,
            unmodelled=(*found.unmodelled, *hidden),
            problems=(*tuned, *self._problems(), *self._eased(found)),
            assumed=(*self._assumed(), *found.assumed),
        )

    def _problems(self) -> Iterator[Problem]:
        for field in sorted(self.unknown & _DEGREES):
            text = f"{field} is computed by code that is not followed"
            yield Problem("unresolved", text, "missing", (self.path,), "a file with its value")
        if self.unseen and "train.global_batch_size" not in self.values:
            text = f"the recipe {self.unseen} is not beside the file: its settings are not seen"
            yield Problem("recipe-unseen", text, "missing", (self.path,), "give its folder")
        if _HYBRIDS.search(f"{self.name} {self.model_name}"):
            text = f"{self.model_name}: hybrid models of Megatron-Bridge are not read"
            yield not_predictable(text, self.path)

    def _train(self, found: Found) -> tuple[str, str]:
        """The `--train` value, and the reason if it is unknown."""
        peft = self.result.get("peft")
        if peft not in (None, UNKNOWN, "none"):
            spec = found.shape if not found.model else load_model(found.model).spec
            train, why = adapters_of(peft, spec)
            return train or "full", why
        made_by = self.result.name.rpartition(".")[2]
        names = (name for name in (self.name, made_by) if _ADAPTERS.search(name))
        name = next(names, None)
        if name is None or peft == "none":
            return "full", ""
        return "full", f"{name}: its adapters are not in the file"

    def _eased(self, found: Found) -> Iterator[Problem]:
        """The problems without those that only a command of overrides can have; some become
        warnings or `missing`."""
        for problem in found.problems:
            rule, severity = problem.rule, problem.severity
            if severity == "error" and self.unseen:
                severity = "missing"
            elif severity == "error" and not rule.startswith(_OF_SHAPES):
                severity = "warning"
            if rule in _OF_COMMANDS or (rule == "model-unknown" and severity != "missing"):
                continue
            open_layout = "model.pipeline_model_parallel_layout" in self.unknown
            if rule == "micro-batch" or (open_layout and rule.startswith("layers-by")):
                severity = "missing"
            yield replace(problem, severity=severity)

    def _assumed(self) -> Iterator[str]:
        if self.others:
            yield chosen_words(self.name, self.others, "recipes", CHOICE)
        if self.unseen:
            yield f"{self.unseen} is not beside the file: other settings are NeMo's usual ones"
        if self.shipped is not None:
            yield f"the recipe {self.shipped.name}, which is not beside the file, as in {RELEASE}"


def _written(value: Any) -> str | None:
    """A value as an override states it, such as `true`, `bf16` or `[1,2]`; None if it has no such
    form or is unknown."""
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
    """A list of stages, each a list of layers, in Megatron's letters: `Ett|ttL`. None if
    unknown."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        return None
    stages = ["".join(_LAYOUT_LETTERS.get(str(layer), "?") for layer in stage) for stage in value]
    return None if "?" in "".join(stages) else "|".join(stages)


def _precision(value: Any) -> str:
    """The name of the Megatron-Bridge precision recipe with the same meaning."""
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
    """The model's name: the first that the catalogue has, among the Hugging Face names in the calls
    that made the model, the classes of its configuration and itself, and the names of the result
    and the recipe. If it has none of them, the first name."""
    names = list(_strings_of(model))
    config = model.get("config") if isinstance(model, Record) else None
    names += [config.name] if isinstance(config, Record) else []
    names += [model.name] if isinstance(model, Record) else []
    names += [result.name, recipe]
    return next((name for name in names if _catalogued(name) is not None), names[0])


def _strings_of(model: Any) -> Iterator[str]:
    """Hugging Face names in the calls that made a model, such as `from_hf_pretrained`."""
    while isinstance(model, Record):
        for value in (*model.given, *model.fields.values()):
            if isinstance(value, str) and "/" in value:
                yield value
        model = model.of


def _catalogued(name: str) -> str | None:
    """The catalogue's name for `meta-llama/Llama-3.1-8B`, `Llama31Config8B` or
    `llama31_8b.model`."""
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
