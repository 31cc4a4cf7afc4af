"""Reader of Megatron-Bridge launches: overrides `section.field=value` after a start script.

Bridge's fields are Megatron's options under other names. The overrides are therefore read as those
options, and messages name the fields again. Read in megatron-bridge 0.6.2 (`bridge.toml`). The
settings of a start script's recipe are not seen: only launches around the bare recipe, as `planner
launch` writes them, are predicted; for others the overrides are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.models.catalog import load_model
from planner.launch.dialects.megatron import table
from planner.launch.dialects.megatron.arguments import options
from planner.launch.dialects.megatron.bridge_finetune import packing_of, train_of
from planner.launch.dialects.megatron.bridge_vision import beside_both, seen
from planner.launch.dialects.megatron.bridge_writer import RECIPES, field_of, fields_of, schema
from planner.launch.dialects.megatron.forks import CORE
from planner.launch.dialects.megatron.options import MEGATRON as OPTIONS
from planner.launch.dialects.megatron.options import MEGATRON_LAYOUT, MEGATRON_PRECISIONS
from planner.launch.dialects.megatron.reader import MegatronReader
from planner.launch.dialects.megatron.table import MEGATRON, option
from planner.launch.languages.text import Text, Word
from planner.launch.read.beside import text_beside
from planner.launch.read.command import LaunchCommand, setting_of
from planner.launch.read.found import Edit, Found, Hints, Problem, Setting, not_predictable
from planner.launch.read.names import known_names
from planner.launch.read.opened import Opened

# Minimum number of known overrides that makes a command one of Megatron-Bridge.
_FEWEST = 2
_OVERRIDE = re.compile(r"^(\w+\.\w+)=(.*)$", re.DOTALL)
# Fields that are true unless a Megatron switch turns them off.
_WITHOUT = {
    "model.add_bias_linear": option("attention_out_bias"),
    "model.share_embeddings_and_output_weights": option("tied_embeddings"),
    "model.gradient_accumulation_fusion": OPTIONS["unfused-accumulation"].name,
    "model.yarn_correction_range_round_to_int": option("rope.scaling.truncate"),
}
# Fields whose option has another name; those of the model are in its table.
_NAMES = {
    f"model.{entry.field}": entry.name
    for entry in MEGATRON
    if entry.field and entry.key and f"model.{entry.field}" not in _WITHOUT
} | {
    "model.rope_scaling_factor": option("rope.scaling.factor"),
    "model.virtual_pipeline_model_parallel_size": MEGATRON_LAYOUT["chunks"].name,
    "model.num_layers_in_first_pipeline_stage": MEGATRON_LAYOUT["first-layers"].name,
    "model.num_layers_in_last_pipeline_stage": MEGATRON_LAYOUT["last-layers"].name,
}
_SAID_ELSEWHERE = known_names("megatron", "said-elsewhere")
# Hydra also accepts Python's spellings.
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_ACTIVATIONS = {("silu", "true"): table.SWIGLU.name, ("quick_gelu", "true"): table.QUICK_GEGLU.name,
                ("squared_relu", "false"): table.SQUARED_RELU.name}  # fmt: skip
# The precision of each of Bridge's precision recipes.
_RECIPES = {recipe: precision for precision, recipe in RECIPES.items()}
_NONE: Mapping[str, str] = {}
_BARE = "vanilla_gpt_pretrain_config()"
_RECIPE = re.compile(r"get_mixed_precision_config\(\s*[\"'](\w+)[\"']")


def is_bridge(launch: LaunchCommand) -> bool:
    """Whether a command's arguments are overrides of Megatron-Bridge's configuration."""
    keys = [match[1] for word in launch.arguments if (match := _OVERRIDE.match(word.text.value))]
    return sum(key in schema() for key in keys) >= _FEWEST


def read_megatron_bridge(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch of a command, with its start script if the text is known."""
    name = Path(launch.program).name
    beside = text_beside(name, launch.folder) if name.endswith(".py") else ""
    return read_overrides(launch, read.programs.get(name, beside), hints)


def read_overrides(launch: LaunchCommand, program: str, hints: Hints) -> Found:
    """The launch that overrides describe. `program`: text of the start script, empty if unknown."""
    overrides = _Overrides(launch, program)
    translated = replace(launch, arguments=tuple(overrides.words()))
    found = _Reader(translated, hints, overrides).found()
    return overrides.renamed(found)


class _Overrides:
    """Overrides by field, and their translation to Megatron's options and back."""

    def __init__(self, launch: LaunchCommand, program: str) -> None:
        self.given: dict[str, Word] = {}
        self.others: list[Word] = []
        self.settings: dict[str, Setting] = {}
        for word in launch.arguments:
            match = _OVERRIDE.match(word.text.value)
            if match is None:
                self.others.append(word)
                continue
            value, whole = word.text[match.start(2) :], word.used or word.text.span()
            if value.value[:1] == '"' == value.value[-1:]:
                value = value[1:-1]
            if value.value in _PYTHON_WORDS:
                value = Text(_PYTHON_WORDS[value.value], value.origin[: len(value.value)])
            self.given[match[1]] = Word(value, whole)
            self.settings[match[1]] = setting_of(match[1], value, word.used, whole)
        recipe = _RECIPE.search(program)
        self.precision = _RECIPES.get(recipe[1], "bf16") if recipe else "bf16"
        # Whether the start script only wraps the bare recipe, as ours does: then the overrides
        # state everything.
        self.is_bare = recipe is not None and _BARE in program
        self.program = program
        # The field that states each option.
        self.fields: dict[str, str] = {}

    def value(self, field: str) -> str | None:
        """A field's value; None if it is `null` or not given."""
        word = self.given.get(field)
        return None if word is None or word.text.value == "null" else word.text.value

    def words(self) -> Iterator[Word]:
        """The `pretrain_gpt.py` options with the same meaning."""
        for field, one_word in self.given.items():
            if field == field_of(field.partition(".")[2]) and field not in _SAID_ELSEWHERE:
                yield from self._option(field, one_word)
        gated = self.value("model.gated_linear_unit") or "false"
        name = _ACTIVATIONS.get((self.value("model.activation_func") or "", gated))
        if name is not None:
            yield self._switch(name, "model.activation_func")
        yield from (_made(word) for word in MEGATRON_PRECISIONS[self.precision].split())
        if self.value("model.vocab_size"):
            yield from (_made(OPTIONS["tokenizer-kind"].key), _made("NullTokenizer"))

    def _option(self, field: str, word: Word) -> Iterator[Word]:
        name = _NAMES.get(field) or _WITHOUT.get(field) or field.partition(".")[2].replace("_", "-")
        value = self.value(field)
        if value is None or name not in options():
            return
        if field == "model.virtual_pipeline_model_parallel_size" and self.value(
            "model.pipeline_model_parallel_layout"
        ):
            return  # the layout says it
        if options()[name].values == "switch" or field in _WITHOUT:
            if value == ("false" if field in _WITHOUT else "true"):
                yield self._switch(name, field)
            return
        if field == "model.position_embedding_type" and value == "mrope":
            word = Word(Text.made("rope"), word.used)
        if field == "model.num_query_groups":
            yield self._switch(table.GROUPED.name, field)
        self.fields[f"--{name}"] = field
        yield _made(f"--{name}", word)
        yield from self._values(name, word)

    def _values(self, name: str, word: Word) -> Iterator[Word]:
        """One value, or the elements of a list."""
        text = word.text
        is_list = text.value.startswith("[") and text.value.endswith("]")
        if is_list and options()[name].values == "many":
            for part in re.finditer(r"[^\s,\"']+", text.value[1:-1]):
                yield Word(text[part.start() + 1 : part.end() + 1], word.used)
        else:
            # As an option, a window is written 4096,0.
            is_window = is_list and name == option("sliding_window")
            yield Word(text[1:-1] if is_window else text, word.used)

    def _switch(self, name: str, field: str) -> Word:
        self.fields[f"--{name}"] = field
        return _made(f"--{name}", self.given.get(field))

    # --- back -----------------------------------------------------------------------------------

    def renamed(self, found: Found) -> Found:
        """The launch with its settings and problems under the names of Bridge's fields."""
        unknown = [setting for field, setting in self.settings.items() if field not in schema()]
        unknown += (item for item in found.unknown if item.key not in self.fields)
        unused = {self.fields.get(item.key) for item in found.unused}
        return replace(
            found,
            format="megatron-bridge",
            variations=found.variations if self.is_bare else (),
            settings=tuple(self.settings.values()),
            where={name: self._field(item) for name, item in found.where.items()},
            unused=tuple(one for field, one in self.settings.items() if field in unused),
            unmodelled=tuple((self._field(item), why) for item, why in found.unmodelled),
            unknown=tuple(unknown),
            problems=tuple(map(self._problem, found.problems)),
        )

    def _field(self, setting: Setting) -> Setting:
        return self.settings.get(self.fields.get(setting.key, ""), setting)

    def _problem(self, problem: Problem) -> Problem:
        if problem.rule == "model-unknown" and not self.is_bare:
            problem = replace(problem, severity="note", fix="--model NAME")
        # Name fields instead of Megatron's options.
        text, fix = (
            re.sub(r"--[\w-]+", lambda item: self.fields.get(item[0]) or _field_of(item[0]), words)
            for words in (problem.text, problem.fix)
        )
        return replace(problem, text=text, fix=fix, edits=as_overrides(problem.edits, self.fields))


def _field_of(option: str) -> str:
    """The Bridge field with the meaning of a Megatron option that the overrides do not give; the
    option itself if there is none."""
    named = {f"--{name}": field for field, name in (*_NAMES.items(), *_WITHOUT.items())}
    return named.get(option) or field_of(option) or option


def as_overrides(edits: Sequence[Edit], fields: Mapping[str, str] = _NONE) -> tuple[Edit, ...]:
    """Edits of Megatron's options as edits of fields. Options without a field are dropped.

    `fields`: the field that these overrides use for each option.
    """
    found: list[Edit] = []
    for edit in edits:
        field = fields.get(edit.key) or _field_of(edit.key)
        if edit.key.startswith("$"):
            found.append(edit)
        elif field in schema() and not edit.rename:
            found.append(Edit(field, _override_value(edit, field)))
            same = (other for other in fields_of(field.partition(".")[2]) if other != field)
            found += [Edit(other, found[-1].value) for other in same]
    return tuple(found)


def _override_value(edit: Edit, field: str) -> str:
    """A value in an override's syntax: `true` or `false` for switches, `null` for no value, lists
    in brackets."""
    option = options()[edit.key.removeprefix("--")]
    if option.values == "switch":
        return "true" if (edit.value is None) == (field in _WITHOUT) else "false"
    if edit.value is None:
        return "null"
    is_list = re.fullmatch(schema()[field], "[a,b]") is not None
    return f"[{','.join(edit.value.split())}]" if is_list else edit.value


def _made(text: str, place: Word | None = None) -> Word:
    return Word(Text.made(text), place.used if place else None)


class _Reader(MegatronReader):
    """Megatron's reader with Bridge's profile."""

    parser = CORE

    def __init__(self, launch: LaunchCommand, hints: Hints, overrides: _Overrides) -> None:
        super().__init__(launch, hints)
        self.overrides = overrides
        self.problems += _unknown_fields(overrides)
        if not overrides.is_bare:
            text = (
                "what the start script's recipe sets, and no override says, is not seen: no "
                "prediction (planner launch --framework megatron-bridge writes a bare recipe and "
                "all settings)"
            )
            self.problems.append(not_predictable(text))

    def found(self) -> Found:
        """The launch. If the recipe was not seen, errors become warnings, because it may set
        something else."""
        found, program = super().found(), self.overrides.program
        spec = found.shape if not found.model else load_model(found.model).spec
        said = {name: word.text.value for name, word in self.overrides.given.items()}
        found = seen(found, program, self.launch.folder, said)
        train, why = train_of(program, spec)
        train = beside_both(train, found.shape)
        tuned = () if not why else (not_predictable(why),)
        return replace(
            found,
            train=train or "full",
            packing=packing_of(program),
            problems=(*tuned, *map(self._eased, found.problems)),
        )

    def _eased(self, problem: Problem) -> Problem:
        is_broken = problem.severity == "error" and problem.rule != "option-value"
        is_open = is_broken and not self.overrides.is_bare
        return replace(problem, severity="warning") if is_open else problem

    def _profile(self, degrees: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Bridge's profile, and the variations by which the overrides differ from it."""
        framework, names = super()._profile(degrees)
        if framework == "megatron-fsdp":
            return framework, names
        # Bridge's profile already assumes these variations, so state their opposites.
        names = self._variations(degrees)
        found = [name for name in names if name not in ("tp-overlap", "bf16-gradients")]
        if degrees["tp"] > 1:
            found.append("tp-overlap" if "tp-overlap" in names else "no-tp-overlap")
        # The precision recipe overrides ddp; its default is fp32.
        field = "grad_reduce_in_fp32"
        stated = [self.overrides.value(f"{of}.{field}") for of in ("mixed_precision", "ddp")]
        in_fp32 = next(filter(None, stated), "true") == "true"
        found.append("no-bf16-gradients" if in_fp32 else "bf16-gradients")
        return "megatron-bridge", tuple(found)

    def _optimizer(self) -> str:
        """The optimizer, with `grad=bf16` if the overrides give the precision-aware optimizer bf16
        main gradients without offloading."""
        name = super()._optimizer()
        chosen = (
            self.overrides.value("optimizer.use_precision_aware_optimizer") == "true"
            and self.overrides.value("optimizer.main_grads_dtype") == "bf16"
            and self.overrides.value("optimizer.optimizer_cpu_offload") != "true"
        )
        return "adamw:grad=bf16" if name == "adamw" and chosen else name


def _unknown_fields(overrides: _Overrides) -> Iterator[Problem]:
    for field, setting in overrides.settings.items():
        if field not in schema():
            text = f"{field}: not a Megatron-Bridge setting known here; its effect is"
            yield Problem("unknown-option", f"{text} not counted", "warning", (setting.place,))
        elif field != "model.pipeline_model_parallel_layout" and not (
            setting.unknown or re.fullmatch(schema()[field], str(setting.value))
        ):
            text = f"{field}={setting.value}: not a value that Megatron-Bridge takes"
            yield Problem("option-value", text, places=(setting.place,))
