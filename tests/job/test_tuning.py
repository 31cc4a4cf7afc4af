"""What `--train` and `--freeze` say, and what is refused."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import linear_layers
from planner.job.tuning import FULL, Tuning, read_tuning
from planner.job.tuning_checks import checked


def _model(name: str = "8b") -> ModelSpec:
    return load_model(name).spec


def test_full_is_what_pretraining_does() -> None:
    assert read_tuning("full") == FULL
    assert FULL.trains_all
    assert not read_tuning("full", ("embeddings",)).trains_all


def test_a_method_alone_takes_the_usual_settings() -> None:
    lora, qlora = read_tuning("lora"), read_tuning("qlora")
    assert (lora.rank, lora.targets, lora.base) == (16, ("all-linear",), None)
    assert qlora.base == "nf4-double"
    assert lora.adapted(_model()) == ("q", "k", "v", "o", "gate", "up", "down")


def test_settings_are_read_in_any_order_and_by_other_names() -> None:
    read = read_tuning("lora:targets=q_proj,v_proj,r=64,modules_to_save=lm_head+embed_tokens")
    assert read == Tuning("lora", 64, None, ("q", "v"), whole=("head", "embeddings"))


@pytest.mark.parametrize(
    "text",
    [
        "full",
        "lora:rank=8,targets=q,v",
        "qlora:rank=64,alpha=16,targets=all-linear,base=nf4,adapter=fp32,dropout=0.1,whole=head",
    ],
)
def test_a_tuning_reads_as_it_is_written(text: str) -> None:
    assert str(read_tuning(text)) == text


def test_frozen_layers_and_modules_are_told_apart() -> None:
    read = read_tuning("full", ("embeddings,layers:8", "attention"))
    assert read.frozen_layers == 8
    assert set(read.frozen_modules) >= {"embeddings", "q", "o"}
    assert "layers:8" not in read.frozen_modules


def test_frozen_modules_have_no_adapters() -> None:
    assert read_tuning("lora", ("mlp",)).adapted(_model()) == ("q", "k", "v", "o")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lorra", "Did you mean 'lora'"),
        ("lora:rnk=3", "Did you mean 'rank'"),
        ("lora:rank=0", "whole number of at least 1"),
        ("lora:rank=8,rank=9", "given twice"),
        ("lora:dropout=1", "share below 1"),
        ("lora:alpha=nan", "alpha=32"),
        ("lora:targets=", "targets is given no value; give one"),
        ("lora:whole=+", "whole is given no value; give one"),
        ("lora:targets=qq", "module of --train targets= 'qq'.*known are"),
        ("lora:targets=embeddings", "whole=embeddings"),
        ("lora:base=nf5", "Did you mean 'nf4'"),
        ("lora:adapter=fp8", "known are fp32"),
        ("qlora:base=bf16", "give base=nf4, or lora"),
        ("full:rank=8", "give lora:rank=8"),
    ],
)
def test_what_no_library_has_is_refused_with_the_nearest_fix(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_tuning(text)


@pytest.mark.parametrize(
    ("text", "freeze", "says"),
    [
        ("lora:rank=2048", (), r"give rank=1024 or less"),
        ("lora:targets=router", (), "no layer router"),
        ("lora:targets=q", ("attention",), "nothing of llama-3-8b is left to train"),
        ("lora", ("layers:32",), "nothing of llama-3-8b is left to train"),
        ("full", ("experts",), "has no experts"),
        ("full", ("q",), "give --freeze q,k,v"),
        ("full", ("gate",), "give --freeze gate,up"),
        ("full", ("layers:33",), "has 32 layers"),
        ("full", ("embeddings", "head", "layers:32"), "leaves nothing"),
        ("full", ("embeddings", "head", "attention", "mlp"), "leaves nothing"),
        ("lora:whole=head", ("head",), "freezes it as well; leave it out"),
    ],
)
def test_what_a_model_has_not_is_refused(text: str, freeze: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        checked(read_tuning(text, freeze), _model())


@pytest.mark.parametrize("freeze", ["", " ", ",", " , "])
def test_freezing_nothing_is_refused(freeze: str) -> None:
    with pytest.raises(UsageError, match="names no module"):
        read_tuning("full", (freeze,))
    with pytest.raises(UsageError, match="names no module"):
        read_tuning("lora", ("embeddings", freeze))


def test_unknown_modules_to_freeze_are_refused() -> None:
    for name in ("layers:0", "layers:x", "tower"):
        with pytest.raises(UsageError, match=r"--freeze.*layers:8"):
            read_tuning("full", (name,))


def test_linear_layers_have_the_widths_of_the_model() -> None:
    layers = linear_layers(_model())
    widths = {name: (one.inputs, one.outputs) for name, one in layers.items()}
    assert widths["k"] == (4096, 1024)
    assert widths["down"] == (14336, 4096)
    assert widths["head"] == (4096, 128256)


def test_models_with_latent_attention_and_experts_name_their_layers() -> None:
    assert {"q-down", "q-up", "kv-down", "kv-up", "experts", "router", "shared-up"} <= set(
        linear_layers(_model("deepseek-v3"))
    )
