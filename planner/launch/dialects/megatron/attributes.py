"""Readers of settings that are Megatron's arguments, or the attributes that its parser makes of
them.

They read `model_config.yaml` of Megatron-LM's tests (MODEL_ARGS, ENV_VARS), experiments of Primus,
ms-swift's `megatron sft` and `megatron pt`, and the arguments that a Megatron log prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.errors import UsageError
from planner.launch.dialects.hf.arguments import HfArguments, hf_arguments
from planner.launch.dialects.hf.program_defaults import with_tuning
from planner.launch.dialects.hf.towers import with_towers
from planner.launch.dialects.hf.tuned import tuned
from planner.launch.dialects.hf.unmodelled import refusals_of
from planner.launch.dialects.megatron.arguments import options, other_options
from planner.launch.dialects.megatron.forks import Dialect
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.dialects.megatron.reader import MegatronReader
from planner.launch.dialects.megatron.settings import recompute_of
from planner.launch.dialects.megatron.table import option
from planner.launch.dialects.torchtitan.reader import TorchtitanReader
from planner.launch.dialects.torchtitan.sources import unknown_keys
from planner.launch.languages.text import HOLE, Files, Hole, Span, Text, Word, digits
from planner.launch.read.beside import source_beside
from planner.launch.read.command import CONFIG_NAME, LaunchCommand, made_launch, other_model
from planner.launch.read.document import NO_LENGTH, Document, Source, below, yaml_document
from planner.launch.read.found import (
    CHECKPOINT_TOWER,
    Found,
    Hints,
    Setting,
    model_unknown,
    not_predictable,
)
from planner.launch.read.names import known_names, meanings
from planner.launch.read.opened import Opened

_ARGS, _ENV, _PROGRAM = "MODEL_ARGS", "ENV_VARS", "pretrain_gpt.py"
_WITHOUT = meanings("megatron", "without")
# The option that sets an attribute, if it has another name.
_NAMES = {name: MEGATRON[name].name for name in ("fp8", "fp4")}
_NAMES["turbo_deepep"] = MEGATRON["fused-dispatch"].name
# Limit on the presets that an experiment extends, directly or not.
_MOST_PRESETS = 32
_VARIABLE = re.compile(r"\$\{(\w+)(?::-?([^}]*))?\}")


def words_of(values: Mapping[str, Setting]) -> Iterator[Word]:
    """The words of a command that states these options: `true` gives a switch without a value;
    options that are `false` or null are left out."""
    for name, setting in values.items():
        if setting.value in (None, False, "null", "None"):
            continue
        place, taken = next(iter(setting.spans), None), options().get(name)
        yield Word(Text.made(f"--{name}"), place)
        is_switch = taken is not None and taken.values == "switch"
        if setting.value is True or (is_switch and str(setting.value).lower() in ("true", "1")):
            continue
        takes_many = taken is not None and taken.values == "many"
        yield from (Word(text, place) for text in _values(setting, place, takes_many=takes_many))


def _values(setting: Setting, place: Span | None, *, takes_many: bool) -> Iterable[Text]:
    """The words of a setting's value; a list, also one written as `[a b]` or `a b`, has several."""
    if isinstance(setting.value, list):
        return [_text(str(item)) for item in setting.value]
    text = str(setting.value)
    in_place = place is not None and place.written == text
    written = place.as_text() if place is not None and in_place else _text(text)
    if match := re.fullmatch(r"\[([\w\s.]+)\]", text):
        parts = written[1 : len(text) - 1] if len(written.value) == len(text) else _text(match[1])
        return parts.split()
    if "${" in text:
        return [_text(text)]
    return written.split() if takes_many else [written]


def _text(written: str) -> Text:
    """A value in which each variable, such as `${NAME:8}`, is replaced by its default. A variable
    without a default is an unknown part of the text."""
    value = _VARIABLE.sub(lambda item: HOLE if item[2] is None else item[2], written)
    why = Hole(f"{written}, whose variables the file does not set")
    return Text(value, tuple(why if letter == HOLE else None for letter in value))


# --- model_config.yaml ----------------------------------------------------------------------------


class SettingsReader(MegatronReader):
    """Megatron's reader for options without a known program, which may have other defaults."""

    is_partial = True


def is_model_config(content: object) -> bool:
    """Whether a YAML file contains the arguments of a Megatron-LM test."""
    return isinstance(content, dict) and isinstance(content.get(_ARGS), dict)


def read_model_config(source: Source) -> Found:
    """The launch that MODEL_ARGS describes."""
    document = source.yaml()
    given = below(document.settings, _ARGS)
    flags = {name.removeprefix("--"): setting for name, setting in given.items()}
    if any("." in name for name in flags):
        raise UsageError(f"{document.path}: MODEL_ARGS of a program other than Megatron-LM's")
    variables = below(document.settings, _ENV)
    environment = {name: _text(str(setting.value)) for name, setting in variables.items()}
    words = list(words_of(flags))
    launch = made_launch(words, document.path, _PROGRAM, environment)
    reader = SettingsReader(launch, source.hints)
    # The folders of the tests are named after the kind of training.
    tested = replace(launch, program="/".join(Path(document.path).parts[-3:-1]))
    if why := other_model(tested):
        reader.problems.append(not_predictable(f"{why}: not modelled"))
    if str(document.get("TEST_TYPE", "")).startswith(("inference", "release-inference")) or any(
        name.startswith("inference-") and name != "inference-max-seq-length" for name in flags
    ):
        reader.problems.append(not_predictable("it generates text and does not train"))
    return replace(reader.found(), format="settings")


# --- Primus ---------------------------------------------------------------------------------------


def is_primus(content: object) -> bool:
    """Whether a YAML file is a Primus experiment."""
    if not isinstance(content, dict) or not isinstance(content.get("modules"), dict):
        return False
    modules = content["modules"].values()
    return any(isinstance(module, dict) and "framework" in module for module in modules)


def read_primus(source: Source) -> Found:
    """The launch of the experiment's trainer: presets of trainer and model, then the overrides."""
    document = source.yaml()
    name = next(iter(document.names("modules")))
    prefix = f"modules.{name}."
    framework = str(document.get(f"{prefix}framework"))
    settings, missing = _merged(document, prefix, framework, source.files)
    if framework != "torchtitan":
        found = _PrimusReader(source, framework, settings, missing).found()
        return replace(found, format="settings")
    inner = Document(source.path, {key.removeprefix("job."): one for key, one in settings.items()})
    reader = TorchtitanReader(inner, replace(source, launch=None))
    # Old key names are read under their new ones; Primus also has keys of its own.
    reader.problems += [one for one in unknown_keys(inner) if one.severity == "warning"]
    return replace(reader.found("torchtitan-0.2"), format="settings")


def _merged(
    document: Document, prefix: str, framework: str, files: Files
) -> tuple[dict[str, Setting], list[str]]:
    """(settings by field, names of missing presets) of one module of an experiment: the presets of
    trainer and model, then the experiment's overrides. `prefix`: the path of the module in the
    experiment."""
    settings: dict[str, Setting] = {}
    missing: list[str] = []
    for kind, key in (("modules", "config"), ("models", "model")):
        file = document.get(prefix + key)
        if file is not None:
            file = _VARIABLE.sub(lambda item: item[2] or "", str(file))
            preset = _preset(f"primus/configs/{kind}/{framework}/{file}", document.path, files, {})
            missing += [file] if preset is None else []
            settings |= preset or {}
    return settings | below(document.settings, f"{prefix}overrides"), missing


def _preset(
    name: str, near: str, files: Files, read: dict[str, dict[str, Setting]]
) -> dict[str, Setting] | None:
    """A preset with everything that it extends; None if it is not found near the experiment.
    `read`: presets already read, by path."""
    source = source_beside(name, Path(near).parent, files)
    if source is None or len(read) > _MOST_PRESETS:
        return None
    if source.path not in read:
        settings = read[source.path] = {}  # what extends itself ends here
        document = yaml_document(source.as_text(), source.path)
        bases = document.get("extends") or document.get("bases")
        for base in bases if isinstance(bases, list) else ():
            below = _preset(f"{Path(name).parent}/{base}", source.path, files, read)
            settings |= below or {}
        settings |= {k: s for k, s in document.settings.items() if k not in ("extends", "bases")}
    return read[source.path]


class _PrimusReader(SettingsReader):
    """Megatron's reader with Primus' profile."""

    # Primus' fields mean what core's do, but it checks them differently.
    parser = Dialect("primus", "Primus")

    def __init__(
        self, source: Source, framework: str, settings: dict[str, Setting], missing: list[str]
    ) -> None:
        words = list(words_of(dict(flags_of(settings))))
        super().__init__(made_launch(words, source.path, _PROGRAM), source.hints)
        self.missing = missing
        if framework != "megatron":
            self.problems.append(not_predictable(f"Primus with {framework} is not modelled"))
        chosen = settings.get("recompute_layer_ids")
        if chosen is not None and chosen.value not in (None, [], "null"):
            text = "recompute_layer_ids: recomputation of single layers is not modelled"
            self.problems.append(not_predictable(text, chosen.place))
        kind = settings.get("model_type")
        if kind is not None and str(kind.value) not in ("gpt", "None"):
            text = f"model_type {kind.value} is not modelled"
            self.problems.append(not_predictable(text, kind.place))

    def _profile(self, degrees: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Primus' profile if Megatron's reader finds megatron-core's and the recompute mode states
        no method; otherwise the profile that it finds."""
        framework, names = super()._profile(degrees)
        is_usual = framework == "megatron-core" and ":" not in recompute_of(self.arguments)
        return "primus" if is_usual else framework, names

    def _shape(self) -> Any:
        """The model of the preset; a problem if the preset is missing and no model is stated."""
        stated = self.hints.model or option("layers") in self.arguments.settings
        if self.missing and not stated:
            text = f"the presets {', '.join(self.missing)} of Primus are not beside the file"
            fix = "--model NAME, or read it inside Primus' folder"
            self.problems.append(model_unknown(text, fix=fix))
            return None
        return super()._shape()


def flags_of(settings: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    """Megatron's options that mean the same as a configuration's fields, with their settings.
    Fields without such an option, such as Primus' own, are left out; a field that is false becomes
    the option that switches its feature off, if there is one."""
    for field, setting in settings.items():
        if field in _WITHOUT:
            if setting.value is False:
                yield _WITHOUT[field], replace(setting, value=True)
            continue
        name = _NAMES.get(field) or field.replace("_", "-")
        if name.startswith(("rl-", "grpo-")):
            continue  # the presets state them all; perform_rl_step turns them on
        if name in options() or name in other_options():
            yield name, setting


# --- ms-swift -------------------------------------------------------------------------------------

# ms-swift's options are Megatron's attributes, with `true` or `false` for switches; the model comes
# from a checkpoint.
_SWIFT_DEFAULTS = meanings("megatron", "swift-defaults")
# Texts that stand for switch values.
_TYPED = {"true": True, "false": False}
# ms-swift settings that Megatron lacks or uses for something else, for example weights of tokens in
# the loss.
_OF_SWIFT = ("loss_scale", "dataset", "val_dataset", "cached_dataset")
_OF_MEGATRON = known_names("megatron", "swift-signs")
_FEWEST = 3
_SEEN_TO = ("experts-without-experts", "cuda-device-max-connections")
# Settings that may name the model, the most likely first.
_CHECKPOINTS = ("model", "mcore_model", "load")
# Settings that say whether adapters are trained.
_ADAPTERS = {"tuner_type", "train_type"}
_SHORTER = "samples that are not packed may be shorter: less memory than predicted"
# Megatron's degrees mean something else in Trainer scripts.
_DEGREE = re.compile(r"_parallel_size$")


def is_swift_megatron(launch: LaunchCommand) -> bool:
    """Whether a command is ms-swift's `megatron`, or a launcher that starts its program."""
    return launch.name == "megatron" or "/_megatron/" in launch.program


def is_swift_settings(content: Mapping[str, object]) -> bool:
    """Whether a table contains settings of ms-swift's `megatron`: ms-swift's own and Megatron's."""
    return bool(_ADAPTERS & content.keys()) and len(_OF_MEGATRON & content.keys()) >= _FEWEST


def read_swift_settings(source: Source) -> Found:
    """The launch of a YAML of `megatron sft`, with its command if there is one."""
    settings = source.document().settings
    launch = source.launch or made_launch([], source.path, "megatron")
    return _read_swift(launch, {**settings, **launch.given}, source.hints)


def read_swift_megatron(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that a command's arguments describe, with the YAML that is named first in them."""
    named = [word.text.value for word in launch.arguments[:2]]
    first = next((name for name in named if re.fullmatch(CONFIG_NAME, name)), "")
    file = source_beside(first, launch.folder, read.files) if first else None
    settings = {} if file is None else yaml_document(file.as_text(), file.path).settings
    return _read_swift(launch, {**settings, **launch.given}, hints)


def _read_swift(launch: LaunchCommand, given: dict[str, Setting], hints: Hints) -> Found:
    """The launch that settings describe."""
    launch = _with_variables(launch, given)
    named = {"model": next((given[name] for name in _CHECKPOINTS if name in given), None)}
    length = given.get("seq_length") or given.get("max_length")
    if length is not None:
        given["seq_length"] = length
    stated = {name: item for name, item in {**given, **named}.items() if item is not None}
    stated.pop("model_name", None)  # what an assistant is trained to call itself
    script = hf_arguments(stated, launch.folder, hints)
    found = _SwiftReader(launch, given, script).found()
    others = {name: item for name, item in given.items() if not _DEGREE.search(name)}
    others = others if _ADAPTERS & others.keys() else {"tuner_type": Setting("", "full"), **others}
    refusals = refusals_of(others, None, "swift")
    how = tuned(others, "swift", script.hints.model)
    if how.has_adapters:
        # ms-swift adds LoRA to Megatron's fused layers (swift/megatron/tuners/lora.py), as
        # Megatron-Bridge does.
        found = replace(found, framework="megatron-bridge")
    found = with_tuning(found, others, launch, how)
    towers = (one for one in script.unresolved if one.rule == CHECKPOINT_TOWER)
    found = replace(found, problems=(*found.problems, *towers))
    found = with_towers(found, others, "swift", launch, hints)
    packed = str(given["packing"].value).lower() == "true" if "packing" in given else False
    assumed = () if packed else ("every sequence as long as the longest allowed",)
    longest = length or Setting(NO_LENGTH, None, launch.command.file)
    shorter = () if packed else ((longest, _SHORTER),)
    return replace(
        found,
        format="settings",
        unmodelled=(*found.unmodelled, *shorter),
        problems=(*refusals, *found.problems),
        assumed=(*found.assumed, *script.assumed, *assumed),
    )


def _with_variables(launch: LaunchCommand, given: Mapping[str, Setting]) -> LaunchCommand:
    """The launch with the environment variables that ms-swift's YAML sets."""
    own = {name: _text(str(one.value)) for name, one in below(given, "ENV").items()}
    environment = {**own, **launch.command.environment}
    return replace(launch, command=replace(launch.command, environment=environment))


class _SwiftReader(SettingsReader):
    """Megatron's reader with ms-swift's defaults and the model of a checkpoint."""

    parser = Dialect("swift", "ms-swift")

    def __init__(
        self, launch: LaunchCommand, given: Mapping[str, Setting], script: HfArguments
    ) -> None:
        self.script = script
        settings = {name: Setting(name, value) for name, value in _SWIFT_DEFAULTS.items()}
        settings |= {
            name: replace(item, value=_TYPED.get(str(item.value).lower(), item.value))
            for name, item in given.items()
            if name not in _OF_SWIFT
        }
        words = tuple(words_of(dict(flags_of(settings))))
        super().__init__(replace(launch, arguments=words), script.hints)

    def found(self) -> Found:
        """The launch without the problems that ms-swift takes care of: it takes the experts from
        the checkpoint and sets CUDA_DEVICE_MAX_CONNECTIONS
        (swift/megatron/arguments/megatron_args.py)."""
        found = super().found()
        kept = [one for one in found.problems if one.rule not in _SEEN_TO]
        return replace(found, problems=tuple(kept))

    def _shape(self) -> Any:
        if self.hints.model:
            return super()._shape()
        self.problems.append(self.script.model_unknown("the file does not name the model"))
        return None


# --- logs -----------------------------------------------------------------------------------------

# Megatron prints every argument between two lines, `  tensor_model_parallel_size ...... 2`, and the
# vocabulary later on (megatron/training/arguments.py, _print_args; tokenizer/tokenizer.py).
_BEGIN, _END = "- arguments -", "- end of arguments -"
_ARGUMENT = re.compile(r"\s(\w+) \.{2,} ?(.*)$")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d+)\)")
# Values in the form in which Python prints them.
_PRINTED = {
    "True": True, "False": False, "[]": None, "torch.float32": "fp32", "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}  # fmt: skip
_ENUM = re.compile(r"^[A-Z]\w+\.(?=\w+$)")
# Arguments that repeat another one under an old name.
_REPEATED = ("encoder_num_layers", "encoder_seq_length")


def logged_arguments(lines: Iterable[str]) -> tuple[str, int] | None:
    """(options, GPUs) from the arguments that a Megatron log prints: the options that differ from
    the parser's defaults, as the text of a command line, and the number of GPUs. None if the log
    does not print that number."""
    found: dict[str, str] = {}
    inside = False
    for line in lines:
        if inside and (match := _ARGUMENT.search(line)):
            found[match[1]] = match[2].strip()
        elif match := _VOCABULARY.search(line):
            found["vocab_size"] = match[1]
            break
        inside = (inside or _BEGIN in line) and _END not in line
    world = digits(found.get("world_size", ""))
    if world is None:
        return None
    settings = {
        name: Setting(name, _PRINTED.get(text, _ENUM.sub("", text)))
        for name, text in found.items()
        if name not in _REPEATED
    }
    usual = {name: taken.default for name, taken in options().items()}
    chosen = {name: one for name, one in flags_of(settings) if str(one.value) != usual.get(name)}
    return shlex.join(word.text.value for word in words_of(chosen)), world
