"""What is written of a model is read back as that model: the catalogue's, and models at random.

The frameworks' own objects are compared in `tests/frameworks/test_architecture.py`; here our
readers stand in, field by field, without any framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from planner.job.models.catalog import load_model, model_names
from planner.job.models.hf_config import model_from_hf_config
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch.architecture import departures, fields_of, refusals, value_of
from planner.launch.dialects.hf.files import hf_config
from planner.launch.dialects.megatron.arguments import parse_arguments
from planner.launch.dialects.megatron.flags import as_argv
from planner.launch.dialects.megatron.model import read_model
from planner.launch.dialects.megatron.table import is_hybrid
from planner.launch.dialects.megatron.writer import model_groups, model_refusals
from planner.launch.dialects.nanotron.writer import NANOTRON, model_config
from planner.launch.languages.text import Text, Word
from planner.launch.read.found import Hints
from planner.launch.registry import table_of
from tests.frameworks.test_architecture import at_random, models
from tests.launch.test_architecture import _speaks

MODELS = {name: load_model(name).spec for name in model_names()}
SEQ = 2048
# One GELU in Megatron; lengths are bounds of the run; the kind of every layer, however it is said.
_GELUS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu"}


def differences(model: ModelSpec, read: ModelSpec, unsaid: tuple[str, ...]) -> Iterator[str]:
    """Fields that came back otherwise."""
    if model.kind_sequence != read.kind_sequence:
        yield f"layer_kinds: {model.kind_sequence[:4]} … {read.kind_sequence[:4]} …"
    for field in fields_of():
        if field in ("layer_kinds", "max_positions", *unsaid) or not _speaks(model, field):
            continue
        one, other = value_of(model, field), value_of(read, field)
        one, other = _GELUS.get(str(one), one), _GELUS.get(str(other), other)
        if one != other and not (_is_nothing(one) and _is_nothing(other)):
            yield f"{field}: {one} written, {other} read"


def _is_nothing(value: Any) -> bool:
    return value in (None, (), 0, 0.0, False)


def megatron_read(model: ModelSpec) -> ModelSpec:
    """Through the flags of pretrain_gpt.py."""
    words, _ = as_argv(model_groups(model, SEQ, dropout=False, low=False))
    if is_hybrid(model):
        words += ("--hybrid-layer-pattern", layer_pattern(model))
    text = [Word(Text.made(word.strip("'"))) for word in (*words, "--seq-length", str(SEQ))]
    read, problems = read_model(parse_arguments(text), Hints(), [])
    assert problems == []
    assert read is not None
    return read


def nanotron_read(model: ModelSpec) -> ModelSpec:
    config = {**model_config(model), "model_type": "qwen2" if model.qkv_bias else "llama"}
    return model_from_hf_config(config, where="model_config")


def is_megatron(model: ModelSpec) -> bool:
    return not list(model_refusals(model, SEQ))


# --- Megatron -------------------------------------------------------------------------------------

# Said by no flag: what Megatron does whatever the model says (its table names it).
MEGATRON_UNSAID = ("moe.group_score", "state_space.chunk")


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if is_megatron(model)])
def test_megatron_of_the_catalogue(name: str) -> None:
    assert list(differences(MODELS[name], megatron_read(MODELS[name]), MEGATRON_UNSAID)) == []


@at_random
@given(model=models())
def test_megatron_at_random(model: ModelSpec) -> None:
    if is_megatron(model):
        assert list(differences(model, megatron_read(model), MEGATRON_UNSAID)) == []


def test_a_field_that_came_back_otherwise_is_seen() -> None:
    model = MODELS["qwen3-30b-a3b"]
    read = megatron_read(model)
    for changes in ({"norm_eps": 1e-3}, {"kv_heads": 2}, {"tied_embeddings": True}):
        assert len(list(differences(model.model_copy(update=changes), read, ()))) == 1
    moe = model.moe
    assert moe is not None
    other = model.model_copy(update={"moe": moe.model_copy(update={"top_k": 2, "z_loss": 0.1})})
    found = list(differences(other, read, MEGATRON_UNSAID))
    assert found == ["moe.top_k: 2 written, 8 read", "moe.z_loss: 0.1 written, 0.0 read"]


# --- transformers ---------------------------------------------------------------------------------


def _written(model: ModelSpec) -> bool:
    table = table_of("accelerate", model)
    return bool(hf_config(model)) and not refusals(table, model, "", "")


def hf_differences(model: ModelSpec) -> list[str]:
    """Through config.json; what departs is named, not written."""
    config = hf_config(model)
    assert config is not None
    read = model_from_hf_config(dict(config), where="config.json")
    departing = " ".join(departures(table_of("accelerate", model), model))
    unsaid = [
        name
        for name, words in (
            ("moe.aux_loss", "auxiliary loss"),
            ("moe.aux_loss_over", "auxiliary loss"),
            ("moe.bias_update_rate", "correction bias"),
            ("mtp_layers", "multi-token prediction"),
        )
        if words in departing
    ]
    return list(differences(model, read, tuple(unsaid)))


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if _written(model)])
def test_transformers_of_the_catalogue(name: str) -> None:
    assert hf_differences(MODELS[name]) == []


@at_random
@given(model=models())
def test_transformers_at_random(model: ModelSpec) -> None:
    if _written(model):
        assert hf_differences(model) == []


# --- nanotron -------------------------------------------------------------------------------------


def _is_nanotron(model: ModelSpec) -> bool:
    return not refusals(NANOTRON, model, "", "")


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if _is_nanotron(model)])
def test_nanotron_of_the_catalogue(name: str) -> None:
    found = differences(MODELS[name], nanotron_read(MODELS[name]), ("init_std",))
    assert list(found) == []


@at_random
@given(model=models())
def test_nanotron_at_random(model: ModelSpec) -> None:
    if _is_nanotron(model):
        assert list(differences(model, nanotron_read(model), ("init_std",))) == []
