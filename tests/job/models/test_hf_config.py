"""Hugging Face configs: counts of the reference implementation, class defaults, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.job.errors import ModelError, UsageError
from planner.job.models.catalog import load_model
from planner.job.models.hf_config import (
    model_from_hf_config,
    read_hf_model,
    supported_model_types,
)
from planner.job.models.hf_vision import vision_types
from planner.job.request import Request
from planner.job.specs import ModelSpec
from tests.job.models.closed_form import closed_form_parameters

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))

# Counts with nothing but model_type given (transformers 5.23.0, torch meta device).
CLASS_DEFAULTS = {
    "granite": 6738415616,
    "glm4_moe_lite": 29943390976,
    "hunyuan_v1_dense": 8859684864,
    "granitemoe": 37039116288,
    "smollm3": 3075098624,
    "exaone4": 9429069824,
    "qwen3_5_text": 8953803264,
    "qwen3_5_moe_text": 34660610688,
    "arcee": 4022766080,
    "ernie4_5": 360748032,
    "seed_oss": 28921040896,
    "glm": 9399951360,
    "glm4": 9400279040,
    "olmo3": 6888624128,
    "gpt_bigcode": 111446784,
    "opt": 125239296,
    "starcoder2": 3030371328,
    "stablelm": 2795443200,
    "bamba": 9992765440,
    "deepseek_v3": 671026404352,
    "falcon_h1": 8514961408,
    "granitemoehybrid": 38601064448,
    "jamba": 51570323328,
    "mamba": 159308544,
    "mamba2": 7285403648,
    "minimax": 47373946880,
    "nemotron_h": 1968355712,
    "qwen3_next": 79674391296,
    "falcon": 6921720704,
    "gemma": 8537680896,
    "gemma2": 2614341888,
    "gpt2": 124439808,
    "gpt_neox": 20554567680,
    "gpt_oss": 116829156672,
    "llama": 6738415616,
    "llama4_text": 107769861120,
    "minimax_m2": 228689748992,
    "mistral": 7241732096,
    "mixtral": 46702792704,
    "olmo": 6888095744,
    "olmoe": 13361612800,
    "phi": 1418270720,
    "phi3": 3821079552,
    "qwen2_moe": 14315784192,
}

# What a config cannot know or the catalogue states otherwise: compared apart.
UNSTATED = ("name", "source", "pretraining_seq", "max_positions", "family", "activation")


def read(**config: Any) -> ModelSpec:
    return model_from_hf_config(config, "config.json")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_gives_the_catalogue_model(path: Path) -> None:
    read_model, known = load_model(path), load_model(path.stem)
    assert closed_form_parameters(read_model.spec.language) == known.exact_parameters
    assert read_model.spec.vision == known.vision
    exclude: dict[str, Any] = dict.fromkeys(UNSTATED, True)
    if path.stem == "deepseek-v3":
        # arXiv 2412.19437, section 4.2, trained with 1e-4; its config.json says 1e-3.
        exclude["moe"] = {"aux_loss"}
    language = read_model.spec.language
    assert language.model_dump(exclude=exclude) == known.spec.model_dump(exclude=exclude)


def test_the_configs_cover_every_family() -> None:
    types = {json.loads(path.read_text(encoding="utf-8"))["model_type"] for path in CONFIGS}
    # Whose only config here is that of the class defaults.
    bare = {
        "llama4_text",
        "arcee",
        "ernie4_5",
        "internlm2",
        "glm4",
        "glm4_moe_lite",
        "exaone4",
        "granitemoe",
        "hunyuan_v1_dense",
        "smollm3",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "mamba",
        "minimax",
    }
    towers = {name for name in supported_model_types() if "_vl_" in name and name.endswith("_text")}
    # Those with towers have configs of their own (test_vision_configs.py).
    towers |= {*vision_types(), "mllama_text_model"} - types
    assert types == set(supported_model_types()) - bare - towers


def test_the_page_on_models_lists_every_type() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/my-model.md").read_text()
    listed = page.partition("These values of `model_type` are read:")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(supported_model_types())


@pytest.mark.parametrize(("model_type", "count"), CLASS_DEFAULTS.items())
def test_missing_keys_take_the_class_defaults(model_type: str, count: int) -> None:
    assert closed_form_parameters(read(model_type=model_type)) == count


def test_a_folder_with_a_config_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    model = load_model(folder)
    assert model.name == "my-llama"
    assert "sequence length" in model.notes[0]


@pytest.mark.parametrize(
    ("more", "seq"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"max_position_embeddings": 131072}, 8192),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"original_max_position_embeddings": 4096},
            },
            4096,
        ),
    ],
)
def test_assumed_pretraining_sequence(more: dict[str, Any], seq: int) -> None:
    assert read(model_type="llama", **more).pretraining_seq == seq


def test_null_is_a_statement() -> None:
    assert read(model_type="mistral").sliding_window == 4096
    assert read(model_type="mistral", sliding_window=None).sliding_window is None
    assert read(model_type="llama", num_key_value_heads=None).kv_heads == 32


def test_qwen_windows() -> None:
    window = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 30}
    kinds = read(model_type="qwen2", **window).kind_sequence
    assert [kind.attention for kind in kinds[29:]] == ["full", "sliding", "sliding"]
    assert read(model_type="qwen2", sliding_window=512).layer_kinds == ()


def test_layer_types_overrule_the_pattern() -> None:
    types = ["full_attention"] * 35 + ["sliding_attention"]
    kinds = read(model_type="gpt_oss", layer_types=types).kind_sequence
    assert [kind.attention for kind in kinds[-2:]] == ["full", "sliding"]


def test_sparse_step_and_mlp_only_layers() -> None:
    spec = read(
        model_type="qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]
    )
    assert [kind.ffn for kind in spec.kind_sequence] == [
        "dense", "moe", "dense", "dense", "dense", "moe",
    ]  # fmt: skip
    assert spec.ffn == 6144


def test_expert_frequency() -> None:
    spec = read(model_type="deepseek_v3", num_hidden_layers=6, moe_layer_freq=2)
    assert [kind.ffn for kind in spec.kind_sequence] == ["dense"] * 4 + ["moe", "dense"]


def test_llama4_explicit_layers() -> None:
    spec = read(
        model_type="llama4_text",
        num_hidden_layers=4,
        moe_layers=[1],
        no_rope_layers=[1, 0, 0, 1],
    )
    assert [kind.ffn for kind in spec.kind_sequence] == ["dense", "moe", "dense", "dense"]
    assert [kind.attention for kind in spec.kind_sequence] == ["sliding", "full", "full", "sliding"]


@pytest.mark.parametrize(
    ("more", "block", "kv_heads"),
    [
        ({}, "single", 1),
        ({"parallel_attn": False}, "pre", 1),
        ({"multi_query": False}, "single", 71),
        ({"new_decoder_architecture": True, "num_kv_heads": 71}, "parallel", 71),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, "single", 71),
    ],
)
def test_falcon_architectures(more: dict[str, Any], block: str, kv_heads: int) -> None:
    spec = read(model_type="falcon", **more)
    assert (spec.block, spec.kv_heads) == (block, kv_heads)


def test_a_multimodal_config_is_read_through_its_text_config() -> None:
    wrapped = read(model_type="pixtral-like", text_config={"model_type": "mistral"})
    assert wrapped.family == "mistral"
    assert read(model_type="gemma3", text_config={"num_hidden_layers": 34}).layers == 34
    assert read(model_type="llama4").family == "llama4_text"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_type is missing, so the meaning of its keys is unknown"),
        ({"model_type": "rwkv"}, r"unknown model_type 'rwkv'\. \(docs/how-to/my-model\.md lists"),
        ({"model_type": "llama3"}, "unknown model_type 'llama3'. Did you mean 'llama'"),
        ({"model_type": "deepseek_v32"}, "DeepSeek V3.2 is not planned: its attention is sparse"),
        ({"model_type": "deepseek_v4"}, "DeepSeek V4 is not planned: .* hyper-connections"),
        ({"model_type": "glm_moe_dsa"}, "GLM-5 is not planned: .* --model glm-4.7"),
        (
            {"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}},
            "Kimi K3 is not planned: .* --model kimi-k2.5",
        ),
        ({"model_type": "gemma4", "text_config": {}}, "Gemma 4 is not planned: .* wider heads"),
        ({"model_type": "gemma4_text"}, "Gemma 4 is not planned: .* --model gemma-3-27b"),
        ({"model_type": 3}, "model_type is 3; expected a string"),
        ({"model_type": ["llama"]}, "model_type is .* expected a string"),
        ({"model_type": "llama", "hidden_size": "4096"}, "hidden_size is '4096'; expected a pos"),
        ({"model_type": "llama", "hidden_size": -1}, "hidden_size is -1; expected a positive"),
        ({"model_type": "llama", "hidden_size": None}, "hidden_size is None; expected a positive"),
        ({"model_type": "llama", "vocab_size": True}, "vocab_size is True; expected a positive"),
        ({"model_type": "llama", "hidden_size": 4097}, "hidden_size=4097 is not a multiple of"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "heads=32 is not a multiple of kv_"),
        ({"model_type": "llama", "hidden_act": 1}, "hidden_act is 1; expected a string"),
        ({"model_type": "llama", "tie_word_embeddings": "no"}, "is 'no'; expected true or false"),
        ({"model_type": "llama", "rope_scaling": 8}, "rope_scaling is 8; expected an object"),
        ({"model_type": "gpt2", "n_layer": 0}, "n_layer is 0; expected a positive integer"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention=true is not"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm=true is not supported"),
        ({"model_type": "deepseek_v3", "attention_bias": True}, "attention_bias=true is not"),
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok is missing; expected a positive"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "top_k=9 exceeds experts=8"),
        (
            {"model_type": "gpt_oss", "layer_types": ["full_attention"]},
            "1 entries; expected one per",
        ),
        ({"model_type": "gpt_oss", "layer_types": [1]}, "expected a list of strings"),
        (
            {"model_type": "gpt_oss", "num_hidden_layers": 1, "layer_types": ["linear_attention"]},
            "layer_types has 'linear_attention'; expected one of: full_attention",
        ),
        (
            {"model_type": "gpt_oss", "sliding_window": None},
            "sliding_window is not given",
        ),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [24]}, "names layer 24, but there are 24"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "expected a list of layer indices"),
        ({"model_type": "llama4_text", "no_rope_layers": [2]}, "a list of 48 zeros and ones"),
        ({"model_type": "llama4_text", "no_rope_layers": [[]] * 48}, "list of 48 zeros and ones"),
        ({"model_type": "gemma3", "text_config": 7}, "text_config is 7; expected an object"),
        ({"model_type": "x", "text_config": {}}, r"\(text_config\): model_type is missing"),
    ],
)
def test_refusals_name_the_file_the_field_and_the_rule(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        model_from_hf_config(config, "some/config.json")
    assert str(caught.value).startswith("some/config.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "llama",\n  oops}', "not valid JSON: line 2, column 3"),
        (b"[1, 2]", "contains a list; expected a JSON object"),
        (b"\xff\xfe", "not a text file in UTF-8"),
        (b"", "not valid JSON: line 1, column 1"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 32000,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
    "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize("key", [key for key in LLAMA if key != "model_type" and "_" in key])
def test_a_misspelt_key_is_named_and_so_is_the_default(key: str) -> None:
    """Of each size: never a default in silence."""
    misspelt = f"{key[:-2]}{key[-1]}{key[-2]}"
    config = {name: value for name, value in LLAMA.items() if name != key} | {misspelt: LLAMA[key]}
    try:
        notes = read_hf_model(config, "config.json").notes
    except ModelError as error:
        assert key in str(error)
        return
    assert any(f"{misspelt} is not a key" in note and key in note for note in notes)
    # Without their number, key and value heads are as many as those of queries.
    assert any(key in note and "default" in note for note in notes) or "key_value" in key


def test_a_key_that_means_nothing_is_named() -> None:
    (note,) = read_hf_model({**LLAMA, "wibble": 3, "torch_dtype": "bfloat16"}, "config.json").notes
    assert "wibble" in note and "torch_dtype" not in note


TOWER = {"hidden_size": 1152, "num_hidden_layers": 27}


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [
        ({"model_type": "qwen3_5", "text_config": LLAMA, "audio_config": TOWER}, "audio_config"),
        ({**LLAMA, "vision_config": TOWER}, "vision_config"),
        ({**LLAMA, "visual": {"width": 1664, "layers": 48}}, "visual"),
        ({**LLAMA, "speech_decoder": {"d_model": 512}}, "speech_decoder"),
        ({**LLAMA, "mm_vision_tower": "openai/clip-vit-large-patch14-336"}, "mm_vision_tower"),
        ({**LLAMA, "is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_modules_beside_the_language_model_are_refused_by_name(
    tmp_path: Path, wrapper: dict[str, object], name: str
) -> None:
    """Whatever is nested and not counted; never costed as text alone."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(wrapper), encoding="utf-8")
    assert read_hf_model(wrapper, "config.json").left_out == (name,)
    with pytest.raises(UsageError, match=f"has {name} besides its language model"):
        Request(model=str(path), gpus="8xH100", gbs=8).resolve()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_published_configs_have_known_keys(path: Path) -> None:
    """Of forty published models, nothing is called unknown, and only wrappers have modules."""
    read = read_hf_model(json.loads(path.read_text(encoding="utf-8")), path.name)
    assert not any("no key of" in note or "known meaning" in note for note in read.notes)
    assert read.left_out in ((), ("vision_config",))
