"""Parameter counts: the catalogue's exact figures, the op table, and an independent closed form."""

from __future__ import annotations

import pytest

from planner.job.models.catalog import load_model, model_names
from planner.predict.ops.table import parameter_count
from tests.job.models.closed_form import closed_form_parameters

# Counted on built models (transformers 5.23, torch meta device): name, total, input embedding.
BUILT = {
    "gpt2": (124439808, 38597376),
    "gpt2-medium": (354823168, 51463168),
    "gpt2-large": (774030080, 64328960),
    "llama-7b": (6738415616, 131072000),
    "llama-33b": (32528943616, 212992000),
    "llama-65b": (65285660672, 262144000),
    "llama-3-8b": (8030261248, 525336576),
    "llama-3-70b": (70553706496, 1050673152),
    "llama-3.2-3b": (3212749824, 394002432),
    "mixtral-8x7b": (46702792704, 131072000),
    "qwen2.5-0.5b": (494032768, 136134656),
    "qwen2.5-32b": (32763876352, 778567680),
    "qwen3-8b": (8190735360, 622329856),
    "gemma-2-2b": (2614341888, 589824000),
    "phi-3-mini": (3821079552, 98500608),
}

# Parameters that one token uses: the total less the routed experts it does not visit.
ACTIVE = {
    "mixtral-8x7b": 12879925248,
    "mixtral-8x22b": 39161468928,
    "qwen3-30b-a3b": 3353032704,
    "qwen3-235b-a22b": 22190763520,
    "deepseek-v3": 37552282624,
    "deepseek-v2": 21375800320,
    "deepseek-v2-lite": 2661150208,
    "kimi-k2": 32861477888,
    "gpt-oss-120b": 5711982912,
    "gpt-oss-20b": 4187440704,
    "llama-4-scout": 17172894720,
    "llama-4-maverick": 17184691200,
    "glm-4.5-air": 13423464448,
    "minimax-m2": 11030537216,
    "qwen1.5-moe-a2.7b": 2689173504,
    "glm-4.7": 33632251904,
    "kimi-k2.5": 32861477888,
    "qwen3.5-35b-a3b": 3454988928,
    "qwen3.5-122b-a10b": 9771288576,
    "qwen3.5-397b-a17b": 17349040896,
}


@pytest.mark.parametrize("name", model_names())
def test_closed_form_equals_exact_parameters(name: str) -> None:
    model = load_model(name)
    assert closed_form_parameters(model.spec) == model.exact_parameters


@pytest.mark.parametrize("name", model_names())
def test_op_table_equals_exact_parameters(name: str) -> None:
    model = load_model(name)
    assert parameter_count(model.spec).total == model.exact_parameters


@pytest.mark.parametrize(("name", "counts"), BUILT.items())
def test_built_models(name: str, counts: tuple[int, int]) -> None:
    spec = load_model(name).spec
    assert (closed_form_parameters(spec), spec.vocab * spec.hidden) == counts


@pytest.mark.parametrize(("name", "active"), ACTIVE.items())
def test_active_parameters(name: str, active: int) -> None:
    assert parameter_count(load_model(name).spec).active == active


def test_a_multi_token_prediction_layer_is_counted_apart() -> None:
    count = parameter_count(load_model("deepseek-v3").spec)
    assert count.total == 671026404352
    # The released checkpoint's layer 61 without its copies of embedding and head: about 11.6 B.
    assert 11.3e9 < count.mtp < 11.8e9


def test_a_copy_derives_its_layers_anew() -> None:
    model = load_model("llama-3.1-8b").spec
    assert len(model.kind_sequence) == len(model.kind_indices) == 32
    shorter = model.model_copy(update={"layers": 4})
    assert len(shorter.kind_sequence) == len(shorter.kind_indices) == 4
    assert parameter_count(shorter).total < parameter_count(model).total
