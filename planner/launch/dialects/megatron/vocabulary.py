"""The vocabulary of a Megatron launch: as stated, or of its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.job.models.catalog import catalog_name, load_model
from planner.job.specs import ModelSpec
from planner.launch.dialects.megatron.arguments import Arguments
from planner.launch.dialects.megatron.options import MEGATRON as MEGATRON_OPTIONS
from planner.launch.dialects.megatron.table import option
from planner.launch.read.found import Hints, Problem
from planner.predict.ops.table import parameter_count

# GPT2BPETokenizer's vocabulary (Radford et al. 2019), which Megatron pads.
_GPT2_VOCABULARY = 50257
# Kinds of tokenizers that have one vocabulary.
_KINDS = {
    "GPT2BPETokenizer": _GPT2_VOCABULARY,
    "Llama2Tokenizer": 32_000,
    "Llama3Tokenizer": 128_256,
}
# Options that name a tokenizer, the likeliest first.
_TOKENIZERS = (MEGATRON_OPTIONS["tokenizer"].name, "tokenizer-name-or-path")
# Vocabularies of most models are at most so large; where such a one would add more than this share
# of the parameters, the size is asked for.
_LARGE_VOCABULARY, _DECIDES = 152_064, 0.15


def vocabulary(arguments: Arguments, assumed: list[str]) -> int:
    """Vocabulary as given, else of the tokenizer, else an assumption that is named."""
    for name in ("padded-vocab-size", option("vocab")):
        stated = arguments.number(name)
        if stated:
            return stated
    kind = arguments.text(MEGATRON_OPTIONS["tokenizer-kind"].name) or ""
    name = _tokenizer_name(arguments)
    known = _KINDS.get(kind) or _named_vocabulary(name)
    if known is not None:
        return known
    why = f"that of the tokenizer {name} is not known" if name else "no option states it"
    assumed.append(f"vocabulary {_GPT2_VOCABULARY:,} (assumed, {why}; give --vocab)")
    return _GPT2_VOCABULARY


def _tokenizer_name(arguments: Arguments) -> str:
    """What names the tokenizer: a Hugging Face name, or a path."""
    given = (arguments.setting(name) for name in _TOKENIZERS)
    named = next((setting for setting in given if setting is not None), None)
    return str(named.value or named.unknown) if named is not None else ""


def vocabulary_unknown(arguments: Arguments, hints: Hints, shape: ModelSpec) -> Iterator[Problem]:
    """A tokenizer that is named and whose size is not known, where it decides much of a model."""
    name = _tokenizer_name(arguments)
    stated = hints.vocab or any(map(arguments.has, ("padded-vocab-size", option("vocab"))))
    kind = arguments.text(MEGATRON_OPTIONS["tokenizer-kind"].name) or ""
    if stated or not name or kind in _KINDS or _named_vocabulary(name) is not None:
        return
    tables = 1 if shape.tied_embeddings else 2
    more = (_LARGE_VOCABULARY - _GPT2_VOCABULARY) * shape.hidden * tables
    if more > _DECIDES * parameter_count(shape).total:
        text = f"the tokenizer {name} says the vocabulary, and its size is not known"
        places = arguments.place(*_TOKENIZERS)
        yield Problem("vocabulary-unknown", text, "missing", places, "--vocab N")


def _named_vocabulary(tokenizer: str) -> int | None:
    """Vocabulary of a Hugging Face model that the catalogue knows."""
    name = tokenizer.rstrip("/")
    if not re.search(r"[A-Za-z]", name) or name.endswith((".model", ".json")):
        return None
    known = catalog_name(name.rsplit("/", 1)[-1])
    return load_model(known).spec.vocab if known else None
