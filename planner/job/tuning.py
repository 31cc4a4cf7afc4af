"""How the weights of a model are trained: all of them, some of them, or adapters beside frozen
ones.

`read_tuning` parses `lora:rank=16,targets=all-linear,base=nf4-double` and the modules of `--freeze`
into a `Tuning`; `planner.job.tuning_checks` checks it against a model. Linear layers are named as
in `linear_layers`, or in groups (`all-linear`, `attention`, `mlp`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from hardware.facts import load_formats
from planner.job.bounds import WIDEST
from planner.job.errors import UsageError, unknown_name
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS, GROUPS, in_groups, linear_layers

Method = Literal["full", "lora", "qlora", "dora"]
AdapterPrecision = Literal["fp32", "bf16", "fp16"]
METHODS: tuple[Method, ...] = get_args(Method)
ADAPTER_PRECISIONS: tuple[AdapterPrecision, ...] = get_args(AdapterPrecision)

# Defaults: the rank of most recipes, every linear layer of the layers (QLoRA, arXiv 2305.14314,
# section 4: adapters on all of them match full tuning), and the base format of QLoRA's paper.
USUAL_RANK = 16
USUAL_TARGETS = ("all-linear",)
QLORA_BASE = "nf4-double"

_OF_BITSANDBYTES = ("nf4", "nf4-double", "int8")

# Modules besides linear layers that may be frozen, or trained in full beside adapters.
WHOLE_MODULES = ("embeddings", "head", "norms")
# The parts of a vision-language model.
VISION_TOWER, PROJECTOR, LANGUAGE_MODEL = "vision_tower", "projector", "language_model"
PARTS = (VISION_TOWER, PROJECTOR, LANGUAGE_MODEL)
# Parts that may be trained in full beside adapters of the language model.
WHOLE_PARTS = (VISION_TOWER, PROJECTOR)
FIRST_LAYERS = re.compile(r"layers:(\d{1,6})", re.ASCII)
_HINT = (
    "write full, lora, qlora or dora, for example lora:rank=16,targets=all-linear,base=nf4-double"
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How weights are trained. The default trains all of them.

    `rank`: rank of the adapters. `alpha`: their scale, which costs nothing. `targets`: linear
    layers with adapters, or groups of them. `base`: number format of the frozen linear layers
    (`hardware/catalog/formats.toml`); None for the framework's default. `adapter`: type of the
    adapters' weights; None for the library's default. `dropout`: dropout of the adapters' inputs.
    `whole`: modules, or parts of a vision-language model, that are trained in full beside adapters
    (peft's `modules_to_save`, or scripts that enable their gradients). `frozen`: frozen modules;
    `layers:8` means the first eight layers.
    """

    method: Method = "full"
    rank: int = 0
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    base: str | None = None
    adapter: AdapterPrecision | None = None
    dropout: float = 0.0
    whole: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained while the other weights are frozen."""
        return self.method != "full"

    @property
    def unties(self) -> bool:
        """Whether a tied table gets a trained copy for each of its uses."""
        return self.has_adapters and bool({"embeddings", "head"} & set(self.whole))

    @property
    def trains_all(self) -> bool:
        """Whether every weight is trained, as in pretraining."""
        return not self.has_adapters and not self.frozen

    @property
    def is_plain(self) -> bool:
        """Whether adapters are two products and a sum, beside weights that are not packed."""
        return self.method == "lora" and self.base is None and not self.dropout

    @property
    def is_prepared(self) -> bool:
        """Whether peft's prepare_model_for_kbit_training casts unpacked weights to fp32. It does
        beside weights that bitsandbytes quantised, not beside GPTQ's (src/peft/utils/other.py)."""
        return self.base in _OF_BITSANDBYTES

    @property
    def frozen_layers(self) -> int:
        """Number of frozen layers at the start of the model."""
        found = (FIRST_LAYERS.fullmatch(name) for name in self.frozen)
        return max((int(match[1]) for match in found if match), default=0)

    @property
    def frozen_modules(self) -> tuple[str, ...]:
        """Modules that are frozen in every layer, with groups expanded."""
        named = (
            name for name in self.frozen if not FIRST_LAYERS.fullmatch(name) and name not in PARTS
        )
        language = _WHOLE_LANGUAGE if LANGUAGE_MODEL in self.frozen else ()
        return tuple(in_groups((*named, *language)))

    def freezes(self, part: str) -> bool:
        """Whether a part of a vision-language model (`PARTS`) is frozen."""
        return part in self.frozen

    def adapted(self, model: ModelSpec) -> tuple[str, ...]:
        """A model's linear layers with adapters, in the model's order."""
        if not self.has_adapters:
            return ()
        wanted = set(in_groups(self.targets)) - set(self.frozen_modules)
        return tuple(name for name in linear_layers(model) if name in wanted)

    @property
    def words(self) -> str:
        """The text that parses to this tuning, followed by the frozen modules."""
        frozen = f", frozen: {' '.join(self.frozen)}" if self.frozen else ""
        return f"{self}{frozen}"

    def __str__(self) -> str:
        """The text that parses to this tuning, without the frozen modules."""
        if not self.has_adapters:
            return self.method
        settings = {
            "rank": str(self.rank),
            "alpha": "" if self.alpha is None else f"{self.alpha:g}",
            "targets": ",".join(self.targets),
            "base": self.base or "",
            "adapter": self.adapter or "",
            "dropout": f"{self.dropout:g}" if self.dropout else "",
            "whole": ",".join(self.whole),
        }
        said = ",".join(f"{name}={value}" for name, value in settings.items() if value)
        return f"{self.method}:{said}"


FULL = Tuning()


def read_tuning(text: str, freeze: Iterable[str] = ()) -> Tuning:
    """Parse `--train` and `--freeze`. UsageError says what is wrong and the nearest fix."""
    method, _, rest = text.strip().partition(":")
    name = method.strip().lower()
    if name not in METHODS:
        raise unknown_name("way of training --train", method, METHODS, _HINT)
    settings = _settings(text, rest)
    frozen = tuple(_frozen(item) for one in freeze for item in _named(one))
    _demand_layers(settings.get("targets", ()), frozen)
    if name == "full":
        return _full(text, settings, frozen)
    tuning = _usual(cast(Method, name))
    for key, values in settings.items():
        tuning = _READ[key](tuning, values)
    return replace(_with_base(text, tuning), frozen=frozen)


def _named(freeze: str) -> list[str]:
    """The modules of one `--freeze`. UsageError if it names none."""
    items = [item for item in freeze.split(",") if item.strip()]
    if not items:
        raise UsageError(
            f"--freeze '{freeze}' names no module; name some, for example --freeze "
            "embeddings,layers:8, or leave it out"
        )
    return items


def _usual(method: Method) -> Tuning:
    base = QLORA_BASE if method == "qlora" else None
    return Tuning(method=method, rank=USUAL_RANK, targets=USUAL_TARGETS, base=base)


def _full(text: str, settings: Mapping[str, tuple[str, ...]], frozen: tuple[str, ...]) -> Tuning:
    if settings:
        raise UsageError(
            f"--train {text}: full training has no adapters; give lora:{text.partition(':')[2]}"
        )
    return Tuning(frozen=frozen)


def _with_base(text: str, tuning: Tuning) -> Tuning:
    """The tuning itself. UsageError for `qlora` without a quantised base."""
    if tuning.method == "qlora" and tuning.base is None:
        raise UsageError(
            f"--train {text}: qlora stores the frozen weights in 4 or 8 bits; give base=nf4, or "
            "lora"
        )
    return tuning


def _settings(text: str, rest: str) -> dict[str, tuple[str, ...]]:
    """Settings by name; an item without a name continues the list before it."""
    found: dict[str, tuple[str, ...]] = {}
    last = ""
    for item in filter(None, (part.strip() for part in rest.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals and last in _LISTS:
            found[last] = (*found[last], *_words(item))
            continue
        last = _ALIASES.get(name.lower(), name.lower())
        if last not in _READ:
            hint = f"for example lora:rank=16; settings: {', '.join(_READ)}"
            raise unknown_name("setting of --train", name if equals else item, _READ, hint)
        if not _words(value):
            raise UsageError(f"--train {text}: {last} is given no value; give one, or leave it out")
        if last in found:
            raise UsageError(f"--train {text}: {last} is given twice; give it once")
        found[last] = _words(value) if last in _LISTS else (value,)
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split("+") if word.strip())


_LISTS = ("targets", "whole")
_ALIASES = {"r": "rank", "target": "targets", "modules": "targets", "modules_to_save": "whole"}


# --- settings, one by one -------------------------------------------------------------------------


def _rank(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    (text,) = values
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= WIDEST:
        raise UsageError(
            f"--train rank={text}: give a whole number of at least 1, for example rank=16"
        )
    return replace(tuning, rank=int(text))


def _alpha(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    return replace(
        tuning,
        alpha=_number("alpha", values, 0.0, 1e6, ("a number from 0 on, for example alpha=32")),
    )


def _dropout(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    share = _number("dropout", values, 0.0, 1.0, "a share below 1, for example dropout=0.05")
    if share == 1.0:
        raise UsageError("--train dropout=1: adapters would receive no input; give a share below 1")
    return replace(tuning, dropout=share)


def _number(name: str, values: tuple[str, ...], low: float, high: float, hint: str) -> float:
    (text,) = values
    try:
        number = float(text) if text.isascii() else -1.0
    except ValueError:
        number = -1.0
    if not low <= number <= high:
        raise UsageError(f"--train {name}={text}: give {hint}")
    return number


def _demand_layers(targets: tuple[str, ...], frozen: tuple[str, ...]) -> None:
    """Raise UsageError if a part of a vision-language model is named as a target of adapters."""
    for name in targets:
        part = _CALLED.get(name.lower(), name.lower())
        if part not in PARTS:
            continue
        if part in frozen:
            raise UsageError(
                f"--train targets={name}: --freeze freezes it as well; leave it out of one of them"
            )
        raise UsageError(
            f"--train targets={name}: this is a part of the model, but adapters are added to "
            "linear layers; give targets=all-linear, which means those of every part, and "
            "--freeze for the parts that must not change"
        )


def _targets(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    if any(_CALLED.get(name.lower(), name.lower()) == "embeddings" for name in values):
        raise UsageError(
            "--train targets=embeddings: adapters are added to linear layers; give "
            "whole=embeddings, which trains the embeddings in full"
        )
    return replace(
        tuning, targets=tuple(_known(name, (*GROUPS, *_ALL), "--train targets=") for name in values)
    )


def _whole(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    known = (*WHOLE_MODULES, *WHOLE_PARTS)
    return replace(tuning, whole=tuple(_known(name, known, "--train whole=") for name in values))


def _base(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    (text,) = values
    name = _BASES.get(text.lower(), text.lower())
    if name in ("none", "bf16", "fp16"):
        return replace(tuning, base=None)
    known = load_formats()
    if name not in known or known[name].bytes_per_value >= 2.0:
        narrow = [one for one, form in known.items() if form.bytes_per_value < 2.0]
        raise unknown_name("format of base=", text, narrow, f"known are {', '.join(narrow)}")
    return replace(tuning, base=name)


# Names of formats in libraries.
_BASES = {
    "nf4-double-quant": "nf4-double", "4bit": "nf4", "bnb-4bit": "nf4", "8bit": "int8",
    "bnb-8bit": "int8", "gptq": "gptq4", "gptq-int4": "gptq4", "awq": "gptq4",
}  # fmt: skip


def _adapter(tuning: Tuning, values: tuple[str, ...]) -> Tuning:
    (text,) = values
    hint = f"known are {', '.join(ADAPTER_PRECISIONS)}"
    if text.lower() not in ADAPTER_PRECISIONS:
        raise unknown_name("type of adapter=", text, ADAPTER_PRECISIONS, hint)
    return replace(tuning, adapter=cast(AdapterPrecision, text.lower()))


_READ: Mapping[str, Callable[[Tuning, tuple[str, ...]], Tuning]] = {
    "rank": _rank,
    "alpha": _alpha,
    "targets": _targets,
    "base": _base,
    "adapter": _adapter,
    "dropout": _dropout,
    "whole": _whole,
}


# --- words for modules ----------------------------------------------------------------------------

# Every linear layer that any model has.
_ALL = (
    "q", "k", "v", "q-down", "q-up", "kv-down", "kv-up", "o", "gate", "up", "down", "shared-gate",
    "shared-up", "shared-down", "router", EXPERTS, "state-in", "state-out", "head",
)  # fmt: skip
# All parts of a language model.
_WHOLE_LANGUAGE = (*WHOLE_MODULES, *_ALL)
# Layers with the same input, which frameworks multiply at once; costed as one row.
TOGETHER = (("q", "k", "v"), ("gate", "up"), ("shared-gate", "shared-up"))
# Names of these layers in Hugging Face, Megatron and torchtune.
_CALLED = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "out_proj": "o", "output_proj": "o",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down", "q_a_proj": "q-down",
    "q_b_proj": "q-up", "kv_a_proj_with_mqa": "kv-down", "kv_b_proj": "kv-up", "lm_head": "head",
    "embed_tokens": "embeddings", "embedding": "embeddings", "w1": "gate", "w2": "down",
    "w3": "up", "norm": "norms", "all": "all-linear", "attn": "attention", "expert": EXPERTS,
    "linear_proj": "o", "linear_fc2": "down", "vision": VISION_TOWER, "vit": VISION_TOWER,
    "visual": VISION_TOWER, "aligner": PROJECTOR, "multi_modal_projector": PROJECTOR,
    "llm": LANGUAGE_MODEL,
}  # fmt: skip


def _known(name: str, known: Iterable[str], option: str) -> str:
    """The planner's name for a module given to `option`. UsageError lists the possible names."""
    wanted = _CALLED.get(name.lower(), name.lower())
    words = tuple(known)
    if wanted not in words:
        raise unknown_name(f"module of {option}", name, words, f"known are {', '.join(words)}")
    return wanted


def _frozen(name: str) -> str:
    text = re.sub(r"\s", "", name).lower()
    if text.startswith("layers"):
        match = FIRST_LAYERS.fullmatch(text)
        if match is None or not int(match[1]):
            raise UsageError(f"--freeze {name}: write layers:8 for the first eight layers")
        return text
    groups = tuple(group for group in GROUPS if group != "all-linear")
    return _known(text, (*WHOLE_MODULES, *PARTS, *groups, *_ALL[:-1], "layers:8"), "--freeze")
