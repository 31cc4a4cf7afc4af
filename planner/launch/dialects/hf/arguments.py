"""Arguments of a Hugging Face Trainer script: what they say about the batch and the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import catalog_name, load_model, not_in_catalogue
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.files import LIGER
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Hints, Problem, Setting, model_unknown, unresolved
from planner.launch.read.names import meanings

Program = Literal["llamafactory", "axolotl", "swift", "trl", "unsloth", "trainer"]
Named = Mapping[str, Setting]
_SWIFT = re.compile(r"(^|/)swift($|/cli/)|(^|/)llm_(sft|pt)\.py$")
# The name of its author that a model learns to give; only ms-swift has this setting.
_OF_SWIFT = "model_author"
_TRL = re.compile(r"(^|/)trl($|/scripts/)|(^|\.)trl\.(scripts|cli)")
# Settings of TRL's configurations that a Trainer does not have (trl/trainer/*_config.py).
_OF_TRL = frozenset((
    "use_bnb_nested_quant", "dataset_text_field", "assistant_only_loss", "completion_only_loss",
    "packing_strategy", "dataset_kwargs", "dataset_mixer", "lora_modules_to_save",
    "lora_task_type", "precompute_ref_log_probs", "dataset_train_split", "dataset_test_split",
    "model_init_kwargs", "trl_release",
))  # fmt: skip
_OFF = ("", "false", "0", "none", "no", "{}", "[]")


def program_of(program: Program, named: Named, launch: LaunchCommand | None) -> Program:
    """The program whose defaults apply. The name of the command's program and settings that only
    LLaMA-Factory, ms-swift or TRL has may show a more exact one than `program`, which is returned
    otherwise."""
    name = launch.program if launch is not None else ""
    if "finetuning_type" in named or name.endswith("llamafactory-cli"):
        return "llamafactory"
    if _SWIFT.search(name) or _OF_SWIFT in named:
        return "swift"
    if program == "trainer" and (_TRL.search(name) or _OF_TRL & named.keys()):
        return "trl"
    return program


def value_of(named: Named, name: str) -> str:
    """The value of a setting as text in lower case. `table` if the name is a table with keys of its
    own; empty if the setting is absent, null or unknown."""
    setting = named.get(name)
    if setting is None:
        return "table" if any(key.startswith(f"{name}.") for key in named) else ""
    return "" if setting.value is None or setting.unknown else str(setting.value).lower()


def is_on(named: Named, name: str) -> bool:
    """Whether a feature is requested. Not by an absent, unknown, empty or false setting, nor by the
    value 1: as a size it divides nothing."""
    return value_of(named, name) not in (*_OFF, "1.0", "1")


def is_switched(named: Named, name: str) -> bool:
    """Whether a switch is on: `1` counts, and so does a value known only at run time."""
    hidden = name in named and bool(named[name].unknown)
    return hidden or value_of(named, name) not in (*_OFF, "-1")


def place_of(named: Named, name: str) -> Setting:
    """The setting of this name, for its place in the file; for a table, the first setting in it."""
    return named.get(name) or next(item for key, item in named.items() if key.startswith(name))


_NAMES = meanings("hf", "names")
Half = Literal["", "bf16", "fp16"]
# Switches for Liger's kernels: the first two turn on all of them, axolotl's turn on one each.
LIGER_SWITCHES = ("use_liger_kernel", "enable_liger_kernel")
LIGER_LOSS = "liger_fused_linear_cross_entropy"
_LIGER_LAYERS = ("liger_rope", "liger_rms_norm", "liger_glu_activation")
_CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")
# Settings besides batch, length and model that a prediction depends on.
_DECIDING = (
    *_CHECKPOINTING, "bf16", "fp16", "fp8", "mixed_precision", "dtype", "torch_dtype", "pure_bf16",
    "optim", "optimizer", "disable_gradient_checkpointing", "attn_implementation", "fsdp_config",
    *LIGER_SWITCHES, LIGER_LOSS,
)  # fmt: skip
_NUMBER = re.compile(r"-?[0-9.]+")
OPTIMIZERS = meanings("hf", "optimizers")
# --optim -> how torch updates. For the first, transformers leaves it to torch: foreach on a GPU.
_KERNELS = {"adamw_torch": "foreach", "adamw_torch_fused": "fused"}


@dataclass
class HfArguments:
    """`hints`: the script's arguments, overridden by the caller's hints. `kernel`: how torch's
    optimizer updates, from --optimizer-kernel or --optim."""

    hints: Hints = field(default_factory=Hints)
    given: Mapping[str, Setting] = field(default_factory=dict)
    optimizer: str | None = None
    kernel: str | None = None
    attention: Literal["flash", "eager"] = "flash"
    # A model that was named but is not in the catalogue, and models assumed to stand for another.
    unknown_model: str = ""
    assumed: tuple[str, ...] = ()
    # Settings that the prediction depends on and whose values are unknown.
    unresolved: tuple[Problem, ...] = ()
    # The 16-bit format in which weights are loaded, empty for fp32. Unless a framework keeps master
    # weights, gradients and optimizer state have this format too.
    half_weights: Half = ""
    # Whether FSDP2 shards weights in the format in which they were loaded, rather than in fp32.
    shards_as_loaded: bool = False

    def model_unknown(self, where: str) -> Problem:
        """The problem that the model is unknown. If a setting names a model, the problem says that
        the catalogue does not have it; otherwise its text is `where`."""
        setting = self.where.get("model")
        if self.unknown_model and setting is not None:
            text = not_in_catalogue(self.unknown_model)
            return model_unknown(text, (setting.place,), "--model CONFIG.json or a known name")
        return model_unknown(where)

    def variations(self, framework: str) -> tuple[str, ...]:
        """Variations due to fused kernels, as far as they are counted for the framework and the
        model."""
        layers = all(_is_on(self.given.get(name)) for name in _LIGER_LAYERS)
        loss = _is_on(self.given.get(LIGER_LOSS)) or _cuts_cross_entropy(self.given)
        every = any(_is_on(self.given.get(name)) for name in LIGER_SWITCHES) or (layers and loss)
        if every and self.hints.model is not None:
            technique = load_framework(framework).technique(LIGER)
            family = load_model(self.hints.model).spec.family
            if technique is not None and family in technique.families:
                return (LIGER,)
        return ("fused-linear-loss",) if every or loss else ()

    @property
    def where(self) -> dict[str, Setting]:
        """The settings that were read, by the field of `Found` that each determines."""
        return {_NAMES[name]: setting for name, setting in self.given.items() if name in _NAMES}


def _cuts_cross_entropy(given: Named) -> bool:
    """Whether axolotl's plug-in fuses logits and loss into one kernel, its default
    (integrations/cut_cross_entropy/args.py)."""
    plugins, switch = given.get("plugins"), given.get("cut_cross_entropy")
    loaded = plugins is not None and "cut_cross_entropy" in str(plugins.value)
    return loaded if switch is None else loaded and _is_on(switch)


def hf_arguments(given: Named, folder: Path, hints: Hints) -> HfArguments:
    """The settings of a Trainer, read from any source. `folder`: the folder of their
    file."""
    values: dict[str, object] = {}
    unknown_model, assumed, towers = "", [], list[Problem]()
    for name, setting in given.items():
        field_name = _NAMES.get(name)
        if field_name is None or setting.unknown or setting.value is None:
            continue
        text = str(setting.value)
        number = digits(text)
        if field_name != "model":
            if number is not None:
                values.setdefault(field_name, number)
            continue
        found = _model(name, text, folder)
        if found is not None:
            values.setdefault("model", found)
            towers += [] if hints.model else _beside(setting, found)
            if catalog_name(text) is None and found != text and not found.endswith(".json"):
                assumed.append(f"the shape of {found} for {text}")
        elif not name.startswith("model_folder"):
            unknown_model = text
    if any(_is_on(given.get(name)) for name in _CHECKPOINTING):
        values["recompute"] = "full"
    merged = {
        name: getattr(hints, name) if getattr(hints, name) is not None else values.get(name)
        for name in ("model", "seq", "mbs", "grad_acc", "recompute")
    }
    decide = (
        unresolved(setting)
        for name, setting in given.items()
        if setting.unknown and _decides(name, merged)
    )
    return HfArguments(
        replace(hints, **merged),  # type: ignore[arg-type]
        given,
        _optimizer(given),
        _text(given, "optimizer_kernel") or _KERNELS.get(optim_of(given)),
        "eager" if _text(given, "attn_implementation") == "eager" else "flash",
        unknown_model,
        tuple(assumed) if not hints.model else (),
        (*_no_counts(given), *towers, *decide),
    )


def _beside(setting: Setting, model: str) -> Iterator[Problem]:
    """A problem for a published checkpoint that holds more than its language model. The program's
    model class, which is not read, decides whether the rest is loaded, and trained or frozen."""
    resolved = load_model(model)
    if resolved.beside:
        parts = " and a ".join(resolved.beside)
        yield from said("beside", setting.place, setting=setting, parts=parts, resolved=resolved)


def _decides(name: str, known: Mapping[str, object]) -> bool:
    """Whether an unknown setting changes the prediction: not if `known`, from the caller and other
    settings, already has a value for its field."""
    field_name = _NAMES.get(name) or ("recompute" if "checkpointing" in name else "")
    if field_name:
        return known[field_name] is None
    return name.partition(".")[0] in _DECIDING


def _no_counts(given: Named) -> Iterator[Problem]:
    """Batch sizes and accumulation counts that are not whole numbers of at least 1."""
    for name, setting in given.items():
        text = str(setting.value)
        if setting.unknown or _NAMES.get(name) not in ("mbs", "grad_acc"):
            continue
        if _NUMBER.fullmatch(text) and not digits(text):
            yield from said("no_count", setting.place, key=setting.key, value=text)


def _text(given: Named, name: str) -> str | None:
    setting = given.get(name)
    return None if setting is None or setting.unknown else str(setting.value)


def optim_of(given: Named) -> str:
    """The name of the optimizer; empty if none is given."""
    return (_text(given, "optim") or _text(given, "optimizer") or "").lower()


def _optimizer(given: Named) -> str | None:
    """The planner's name for the optimizer that `--optim` gives, with SGD without momentum as
    `sgd:momentum=none`. None if there is none or it is unknown."""
    name = OPTIMIZERS.get(optim_of(given))
    if name == "sgd" and is_zero(_text(given, "sgd_momentum") or "1"):
        return "sgd:momentum=none"
    return name


def is_zero(text: str) -> bool:
    """Whether a text is the number 0."""
    try:
        return float(text) == 0.0
    except ValueError:
        return False


def _model(option: str, text: str, folder: Path) -> str | None:
    """A model: a config.json in a folder beside the file or elsewhere, or a name from the
    catalogue."""
    paths = (place / "config.json" for place in (folder / text, Path(text)))
    if (path := next((one for one in paths if one.is_file()), None)) is not None:
        return str(path)
    return None if option == "model_folder" else known_model(text)


# Suffixes that say how a model was tuned or quantised, or its date.
_TUNED = re.compile(
    r"[-_](\d{4}|v\d+(\.\d+)*|instruct|chat|base|hf|it|thinking|sft|dpo|bf16|fp8|bnb|4bit|8bit|"
    r"unsloth|gptq|awq|int[48]|qat|\d+k|text|tuned|zero|mcore|deduped)$",
    re.IGNORECASE,
)


# Models with the same sizes as another, and that other's name.
_SAME_SIZES = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in meanings("hf", "same-sizes").items()
)


def known_model(name: str) -> str | None:
    """The catalogue's name of a model, which may be a tuned variant; None if the model is
    unknown."""
    plain = name.rstrip("/")
    if catalog_name(plain) is not None:
        return plain
    cached = re.search(r"\bmodels--[^/]+?--([^/]+)/snapshots/", plain)  # of the Hub's cache
    plain = cached[1] if cached else plain.rsplit("/", 1)[-1]
    for pattern, sizes in _SAME_SIZES:
        plain = pattern.sub(sizes, plain)
    while (known := catalog_name(plain)) is None and (match := _TUNED.search(plain)) is not None:
        plain = plain[: match.start()]
    return known


def _is_on(setting: Setting | None) -> bool:
    if setting is None or setting.unknown:
        return False
    return str(setting.value).lower() not in ("false", "0", "no", "none", "")
