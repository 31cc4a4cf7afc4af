"""Names of modules in files for Hugging Face models, translated into the planner's words.

peft compares the last part of a module's path with the entries of `target_modules`
(src/peft/tuners/tuners_utils.py, check_target_module_exists, at 5d602fdbf); a plain text is a
pattern for the whole path; `all-linear` is every linear layer except the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS, GROUPS, linear_layers
from planner.launch.registry import dialect_toml

ALL_LINEAR = "all-linear"
# Words that mean every linear layer.
_EVERY = ("all", "all-linear", "all_linear", "all-linear-layers")
_BLOCK = ("gate", "up", "down")
EMBEDDINGS, HEAD = "embeddings", "head"


@cache
def adapter_table(name: str) -> Mapping[str, Any]:
    """A table of `adapters.toml`."""
    table: Mapping[str, Any] = dialect_toml("hf", "adapters.toml")[name]
    return table


@dataclass(frozen=True)
class Modules:
    """The meaning of module names. `words`: in the planner's words; `absent`: names of no module of
    the model; `unclear`: names unknown for its family; `invalid`: a pattern that is not a regular
    expression."""

    words: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    invalid: str = ""


# Characters that make a text a pattern for whole paths.
_PATTERN = re.compile(r"[()*|\\$^]")


def is_pattern(text: str) -> bool:
    """Whether a text is a valid regular expression, as peft's re.fullmatch needs."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


# Words, and alternatives with a common suffix: `(q|k|v)_proj`.
_WORD = re.compile(r"(?<!\w)\w+(?!\w)")
_ALTERNATIVES = re.compile(r"\((?:\?:)?(\w+(?:\|\w+)+)\)(\w+)")
_LANGUAGE, _SEEN = re.compile(r"language_model|text_model"), re.compile(r"vis(ual|ion)")
_NOT = re.compile(r"\(\?<?!([^)]*)\)")


def _of_pattern(pattern: str) -> set[str]:
    """Names of modules that occur in a pattern. The pattern is not run: it might take forever."""
    names = {match[0] for match in _WORD.finditer(pattern)}
    for match in _ALTERNATIVES.finditer(pattern):
        names |= {f"{start}{match[2]}" for start in match[1].split("|")}
    return names


def spares_the_tower(value: object) -> bool:
    """Whether a pattern names only modules of a language model, or excludes the visual ones."""
    (pattern, *more) = _listed(value) or [""]
    if more or not _PATTERN.search(pattern):
        return False
    left_out = " ".join(_NOT.findall(pattern))
    kept = _NOT.sub("", pattern)
    if _SEEN.search(kept):
        return False
    return bool(_SEEN.search(left_out) or _LANGUAGE.search(kept))


def named_modules(value: object, model: ModelSpec | None) -> Modules:
    """The modules named by a list, by a text with commas or spaces, or by a pattern."""
    names = _listed(value)
    if any(name.lower() in _EVERY for name in names):
        return Modules((ALL_LINEAR,))
    known = modules_of_family(model)
    if len(names) == 1 and _PATTERN.search(names[0]):
        if not is_pattern(names[0]):
            return Modules(invalid=names[0])
        names = [name for name in known if name in _of_pattern(names[0])]
    lasts = list(dict.fromkeys(name.strip().rpartition(".")[2] for name in names))
    words = {word for name in lasts for word in _words(name, known, model)}
    order = (*GROUPS[ALL_LINEAR], "router", HEAD, EMBEDDINGS)
    found = tuple(word for word in order if word in words)
    strange = tuple(name for name in lasts if name not in known)
    plain = adapter_table("plain")
    # Whether the names of all modules of the model's family are known.
    is_listed = model is not None and model.family in f"{plain['families']} {plain['sure']}".split()
    return Modules(found, strange) if is_listed else Modules(found, unclear=strange)


def adapted_modules(
    value: object, tensors: object, model: ModelSpec | None, *, by_peft: bool
) -> Modules:
    """The modules that have adapters, from their names and from `tensors` (peft's
    target_parameters). `by_peft`: peft interprets the names, and for it `all-linear` includes
    experts and routers in some families; otherwise the program lists the linear layers itself."""
    found = named_modules([] if value is None else value, model)
    more = [word for word in (EXPERTS, "router") if _is_meant(word, _listed(tensors or []))]
    if by_peft and ALL_LINEAR in found.words and fuses_experts(model):
        more = [EXPERTS, "router"]
    return replace(found, words=tuple(dict.fromkeys((*found.words, *more))))


def _is_meant(word: str, tensors: Sequence[str]) -> bool:
    """Whether the names of tensors include the experts of a layer (for the word of experts), or
    else its router."""
    if word == EXPERTS:
        return any("gate_up_proj" in name or "down_proj" in name for name in tensors)
    return any(name.endswith(("gate.weight", "router.weight")) for name in tensors)


def fuses_experts(model: ModelSpec | None) -> bool:
    """Whether peft adapts the experts of a model, which are one tensor, like linear layers."""
    families = str(adapter_table("experts")["families"]).split()
    return model is not None and model.moe is not None and model.family in families


def expert_names(model: ModelSpec) -> tuple[str, ...]:
    """peft's names for the experts of a model; empty if it does not adapt them."""
    if not fuses_experts(model):
        return ()
    named = (name for name, words in modules_of_family(model).items() if EXPERTS in words.split())
    return tuple(named) or tuple(str(adapter_table("experts")["names"]).split())


def peft_default(model: ModelSpec | None) -> str | None:
    """The modules that peft adapts by default for the model's family; None if it has no default."""
    if model is None:
        return None
    if model.family in adapter_table("families"):
        return str(adapter_table("families")[model.family]["peft"])
    plain = str(adapter_table("plain")["families"]).split()
    without = ("qwen2_moe", "qwen3_moe", "granite", "olmo", "olmo2", "olmo3", "seed_oss", "minicpm")
    return "q_proj v_proj" if model.family in plain and model.family not in without else None


def _listed(value: object) -> list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    text = str(value).strip().strip("[]")
    if _PATTERN.search(text):
        return [text]
    return [part.strip("\"' ") for part in re.split(r"[,\s]+", text) if part.strip("\"' ")]


def modules_of_family(model: ModelSpec | None) -> Mapping[str, str]:
    """Module names of the model's family (of all families if the model is unknown), and the linear
    layers that each holds."""
    usual: Mapping[str, str] = adapter_table("modules")
    families: Mapping[str, Mapping[str, Mapping[str, str]]] = adapter_table("families")
    if model is None:
        every = {name: word for one in families.values() for name, word in one["modules"].items()}
        return every | dict(usual)
    if model.family in families:
        return families[model.family]["modules"]
    return {**usual, "gate": "router"} if model.moe is not None else usual


def _words(name: str, known: Mapping[str, str], model: ModelSpec | None) -> Iterator[str]:
    """The planner's names for the linear layers that one module holds, limited to those that the
    model has (all of them if the model is unknown)."""
    words = known.get(name, "").split()
    if model is None:
        yield from words
        return
    layers = {*linear_layers(model), EMBEDDINGS}
    for word in words:
        inside = (word, f"shared-{word}", EXPERTS) if word in _BLOCK else (word,)
        yield from (one for one in inside if one in layers)


def whole_modules(value: object, model: ModelSpec | None) -> tuple[tuple[str, ...], list[str]]:
    """The modules that are trained in full beside adapters (embeddings, head, norms), and the names
    in the file that stand for any other module."""
    found, strange = list[str](), list[str]()
    for name in (one.rpartition(".")[2] for one in _listed(value)):
        word = modules_of_family(model).get(name, "")
        whole = "norms" if "norm" in name else word
        if whole in (EMBEDDINGS, HEAD, "norms"):
            found.append(whole)
        else:
            strange.append(name)
    return tuple(dict.fromkeys(found)), strange
