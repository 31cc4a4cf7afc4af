"""The frameworks' own model objects, made of what was written, say what the model says.

Every model of the catalogue that a framework can express, and models made up at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given

from constraints.rule import Layout
from planner.job.models.hf_parts import FULL, SCALING_KEYS, SLIDING
from planner.job.specs import ModelSpec, MoeSpec
from planner.launch.dialects.hf.files import hf_config
from planner.launch.dialects.megatron.flags import FlagGroup, as_argv
from planner.launch.dialects.megatron.table import hybrid_flags, is_hybrid, linear_bias
from planner.launch.dialects.megatron.writer import model_groups, model_refusals
from tests.frameworks.random_models import MODELS, at_random, models

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Needs = Callable[[str], ModuleType]


# --- transformers ---------------------------------------------------------------------------

_TRANSFORMERS = [name for name, model in MODELS.items() if hf_config(model)]
_EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")


def transformers_says(model: ModelSpec, needs: Needs) -> None:
    """The configuration object against the model, field by field."""
    transformers = needs("transformers")
    config = hf_config(model)
    assert config is not None
    kind = str(config["model_type"])
    built = transformers.CONFIG_MAPPING[kind](
        **{key: value for key, value in config.items() if key != "model_type"}
    )
    eps = [getattr(built, name) for name in _EPS if hasattr(built, name)]
    assert eps == [model.norm_eps] or kind == "olmo"
    assert built.initializer_range == model.init_std
    assert built.tie_word_embeddings == model.tied_embeddings
    if model.position == "rope":
        _rope_is(model, built.rope_parameters)
    if kind in ("gemma2", "gemma3_text"):
        assert built.query_pre_attn_scalar**-0.5 == model.attention_scale
        assert built.attn_logit_softcapping == model.attention_softcap
        assert built.final_logit_softcapping == model.logits_softcap
    if model.moe is not None:
        _router_is(model.moe, built)
    _shape_is(model, built)


def _shape_is(model: ModelSpec, built: Any) -> None:
    """Widths, heads, biases and windows, by whatever names the class has of them."""
    stated: dict[str, object] = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "vocab_size": model.vocab,
        "attention_bias": model.qkv_bias,
        "mlp_bias": model.mlp_bias,
    }
    if model.mla is None:
        stated |= {"num_key_value_heads": model.kv_heads, "head_dim": model.head_dim}
    else:
        names = (
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        )
        stated |= {name: getattr(model.mla, name) for name in names}
    if any(kind.ffn == "dense" for kind in model.kinds) and model.moe is None:
        stated["intermediate_size"] = model.ffn
    for name, value in stated.items():
        # gpt2 and falcon state some of these otherwise, or not at all.
        assert getattr(built, name, None) in (None, value), name
    kinds = {
        "full_attention": "full",
        "sliding_attention": "sliding",
        "chunked_attention": "sliding",
    }
    layers = getattr(built, "layer_types", None)
    if layers is not None and set(layers) <= kinds.keys():
        assert [kinds[layer] for layer in layers] == [k.attention for k in model.kind_sequence]
    if any(kind.attention == "sliding" for kind in model.kinds):
        # Llama 4's chunks are its windows.
        name = "attention_chunk_size" if "llama4" in built.model_type else "sliding_window"
        assert getattr(built, name) == model.sliding_window


def _rope_is(model: ModelSpec, table: Mapping[str, Any]) -> None:
    if FULL in table:
        local = table[SLIDING]["rope_theta"]
        assert local == (model.rope.local_theta or model.rope.theta)
        table = table[FULL]
    assert table["rope_theta"] == model.rope.theta
    scaling = model.rope.scaling
    assert table["rope_type"] == (scaling.kind if scaling else "default")
    for key, name in SCALING_KEYS.items():
        value = getattr(scaling, name, None)
        if key in table and value is not None:
            assert table[key] == value, key
    assert table.get("partial_rotary_factor", 1.0) == model.rotary_share


def _router_is(moe: MoeSpec, built: Any) -> None:
    for name, value in {
        "routed_scaling_factor": moe.weight_scale,
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "norm_topk_prob": moe.normalised,
        "swiglu_limit": moe.clamp,
        "num_experts_per_tok": moe.top_k,
        "router_aux_loss_coef": moe.aux_loss,
    }.items():
        stated = getattr(built, name, None)
        assert stated in (None, value), name
    assert getattr(built, "output_router_logits", False) in (False, moe.aux_loss > 0)


@pytest.mark.parametrize("name", _TRANSFORMERS)
def test_transformers_of_the_catalogue(name: str, needs: Needs) -> None:
    transformers_says(MODELS[name], needs)


@at_random
@given(model=models())
def test_transformers_at_random(model: ModelSpec, needs: Needs) -> None:
    if hf_config(model):
        transformers_says(model, needs)


# --- Megatron -------------------------------------------------------------------------------

_RUN = (
    *("--seq-length", "4096", "--micro-batch-size", "1", "--global-batch-size", "8"),
    *("--bf16", "--lr", "1e-4", "--train-iters", "5", "--mock-data"),
    *("--tokenizer-type", "NullTokenizer", "--use-distributed-optimizer"),
)


def _megatron_case(model: ModelSpec) -> dict[str, Any]:
    groups = model_groups(model, 4096, dropout=False, low=False)
    if is_hybrid(model):
        layers = hybrid_flags(model, Layout(1, 1, (model.layers,)))
        groups = (*groups, FlagGroup("layers", layers))
    words, _ = as_argv(groups)
    return {"argv": [*words, *_RUN], "world": 8, "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}


def _expected(model: ModelSpec) -> Iterator[tuple[str, object]]:
    """Fields of Megatron's TransformerConfig and arguments, and what the model says of each."""
    yield "layernorm_epsilon", model.norm_eps
    yield "init_method_std", model.init_std
    yield from _expected_shape(model)
    yield "untie_embeddings_and_output_weights", not model.tied_embeddings
    if model.position in ("none", "learned"):
        kinds = {"none": "none", "learned": "learned_absolute"}
        yield "position_embedding_type", kinds[model.position]
    scaling, yarn = model.rope.scaling, model.rope.scaling and model.rope.scaling.kind == "yarn"
    if model.position == "rope":
        yield "rotary_base", model.rope.theta
        yield "use_rope_scaling", bool(scaling and scaling.kind == "llama3")
        if model.mla is None:
            yield "position_embedding_type", "yarn" if yarn else "rope"
            yield "rotary_percent", model.rotary_share
    if scaling and yarn:
        yield "rotary_scaling_factor", scaling.factor
        if model.mla is None:
            yield "yarn_original_max_position_embeddings", scaling.original_positions
            yield "yarn_beta_fast", scaling.beta_fast
            yield "yarn_beta_slow", scaling.beta_slow
            yield "yarn_mscale_all_dim", scaling.mscale_all_dim or 0.0
            yield "yarn_correction_range_round_to_int", scaling.truncate
        else:
            yield "rope_type", "yarn"
            yield "original_max_position_embeddings", scaling.original_positions
            yield "beta_fast", scaling.beta_fast
            yield "mscale_all_dim", scaling.mscale_all_dim
    if model.moe is not None:
        yield from _expected_router(model.moe)


def _expected_shape(model: ModelSpec) -> Iterator[tuple[str, object]]:
    """Layers, widths, heads, biases, norms and windows."""
    yield "num_layers", model.layers
    yield "hidden_size", model.hidden
    yield "num_attention_heads", model.heads
    yield "normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    yield "gated_linear_unit", model.gated
    yield "add_bias_linear", bool(linear_bias(model))
    yield "add_qkv_bias", model.qkv_bias  # implied where all linear layers have biases
    yield "qk_layernorm", model.mla is not None or model.qk_norm == "head"
    yield "mtp_num_layers", model.mtp_layers or None
    yield "softmax_type", "learnable" if model.attention_sinks else "vanilla"
    if any(kind.ffn == "dense" for kind in model.kinds):
        yield "ffn_hidden_size", model.ffn
    if any(kind.attention == "sliding" for kind in model.kinds):
        yield "window_size", [(model.sliding_window or 1) - 1, 0]
        marks = [int(kind.attention == "sliding") for kind in model.kind_sequence]
        yield "window_attn_skip_freq", None if all(marks) else marks
    if model.mla is None:
        yield "num_query_groups", model.kv_heads
        yield "kv_channels", model.head_dim
        return
    yield "q_lora_rank", model.mla.q_lora_rank
    yield "kv_lora_rank", model.mla.kv_lora_rank
    yield "qk_head_dim", model.mla.qk_nope_head_dim
    yield "qk_pos_emb_head_dim", model.mla.qk_rope_head_dim
    yield "v_head_dim", model.mla.v_head_dim


def _expected_router(moe: MoeSpec) -> Iterator[tuple[str, object]]:
    grouped = moe.groups > 1
    kinds = {"sequence": "seq_aux_loss", "batch": "aux_loss"}
    yield "num_moe_experts", moe.experts
    yield "moe_router_topk", moe.top_k
    yield "moe_ffn_hidden_size", moe.ffn
    yield "moe_shared_expert_intermediate_size", moe.shared_ffn or None
    yield "moe_router_score_function", moe.score
    yield "moe_router_pre_softmax", moe.score == "softmax" and not moe.normalised
    yield "moe_router_topk_scaling_factor", None if moe.weight_scale == 1 else moe.weight_scale
    yield "moe_router_num_groups", moe.groups if grouped else None
    yield "moe_router_group_topk", moe.top_groups if grouped else None
    yield "moe_router_enable_expert_bias", moe.score_correction_bias
    if moe.score_correction_bias:
        yield "moe_router_bias_update_rate", moe.bias_update_rate
    yield "moe_router_dtype", "fp32" if moe.router_fp32 else None
    balancing = kinds[moe.aux_loss_over] if moe.aux_loss else "none"
    yield "moe_router_load_balancing_type", balancing
    yield "moe_aux_loss_coeff", moe.aux_loss
    yield "moe_z_loss_coeff", moe.z_loss or None
    yield "activation_func_clamp_value", moe.clamp


def _megatron_says(found: Mapping[str, ModelSpec]) -> None:
    from tests.frameworks.test_megatron import parse

    cases = {name: _megatron_case(model) for name, model in found.items()}
    for name, case in cases.items():
        case["show"] = [field for field, _ in _expected(found[name])]
    for name, verdict in parse(cases).items():
        assert verdict["ok"], (name, verdict["error"])
        for field, value in _expected(found[name]):
            read = verdict["config"][field]
            read = read[0] if isinstance(read, list) and len(read) == 1 else read
            assert read == value, (name, field)


def test_megatron_of_the_catalogue() -> None:
    expressible = {n: model for n, model in MODELS.items() if not list(model_refusals(model, 2048))}
    assert len(expressible) > 70
    _megatron_says({n: model for n, model in expressible.items() if model.max_positions >= 4096})


def test_megatron_at_random() -> None:
    found: dict[str, ModelSpec] = {}

    @at_random
    @given(model=models())
    def collect(model: ModelSpec) -> None:
        if not list(model_refusals(model, 4096)):
            found[f"random-{len(found)}"] = model

    collect()
    assert len(found) > 10
    _megatron_says(found)


# --- torchtitan -----------------------------------------------------------------------------


def _titan_says(model: ModelSpec, folder: Path) -> None:
    """Norms, widths, rotations and routers of every layer of the configuration."""
    from tests.frameworks.titan_probe import load_config

    spec = load_config(folder).model_spec.model
    assert spec.norm.eps == model.norm_eps
    assert (spec.dim, spec.vocab_size) == (model.hidden, model.vocab)
    assert len(spec.layers) == model.layers
    assert getattr(spec, "enable_weight_tying", False) == model.tied_embeddings
    assert len(getattr(spec, "mtp_layers", ())) == model.mtp_layers
    for index, layer in enumerate(spec.layers):
        assert (layer.attention_norm.eps, layer.ffn_norm.eps) == (model.norm_eps,) * 2
        _titan_rope_is(model, layer.attention.rope)
        kind = model.kind_sequence[index]
        assert (layer.moe is not None) == (kind.ffn == "moe")
        _titan_attention_is(model, layer.attention)
        if layer.moe is not None and model.moe is not None:
            _titan_router_is(model.moe, layer.moe)
        else:
            assert layer.feed_forward.w1.out_features == model.ffn


def _titan_attention_is(model: ModelSpec, attention: Any) -> None:
    assert (attention.dim, attention.n_heads) == (model.hidden, model.heads)
    if model.mla is not None:
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            assert getattr(attention, name) == getattr(model.mla, name), name
        assert attention.q_lora_rank == (model.mla.q_lora_rank or 0)
        return
    head_dim = attention.head_dim or attention.dim // attention.n_heads
    assert (attention.n_kv_heads, head_dim) == (model.kv_heads, model.head_dim)
    assert attention.qkv_linear.wqkv.bias == model.qkv_bias
    assert (getattr(attention, "qk_norm", None) is not None) == (model.qk_norm == "head")


def _titan_rope_is(model: ModelSpec, rope: Any) -> None:
    scaling = model.rope.scaling
    assert rope.theta == model.rope.theta
    kinds = {"llama3": "llama", "yarn": "yarn"}
    assert rope.scaling == (kinds[scaling.kind] if scaling else "none")
    if scaling and scaling.kind == "llama3":
        said = rope.scaling_factor, rope.original_max_position_embeddings
        assert said == (scaling.factor, scaling.original_positions)
        said = rope.low_freq_factor, rope.high_freq_factor
        assert said == (scaling.low_frequency, scaling.high_frequency)
    if scaling and scaling.kind == "yarn":
        said = (
            rope.rope_factor,
            rope.original_seq_len,
            rope.beta_fast,
            rope.beta_slow,
            rope.truncate,
        )
        assert said == (scaling.factor, scaling.original_positions, scaling.beta_fast,
                       scaling.beta_slow, scaling.truncate)  # fmt: skip


def _titan_router_is(moe: MoeSpec, found: Any) -> None:
    router, shared = found.router, found.shared_experts
    assert found.routed_experts.inner_experts.hidden_dim == moe.ffn
    assert (shared.w1.out_features if shared else 0) == moe.shared_ffn
    assert router.gate.bias == moe.router_bias
    assert (router.top_k, router.num_experts) == (moe.top_k, moe.experts)
    assert (router.score_func, router.route_norm) == (moe.score, moe.normalised)
    assert router.route_scale == moe.weight_scale
    groups = (moe.groups, moe.top_groups) if moe.groups > 1 else (None, None)
    assert (router.num_expert_groups, router.num_limited_groups) == groups
    if moe.score_correction_bias:
        assert found.load_balance_coeff == (moe.bias_update_rate or None)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_torchtitan_of_the_catalogue(name: str, needs: Needs, tmp_path: Path) -> None:
    needs("torchtitan")
    written = _written_for_torchtitan(MODELS[name])
    if written is not None:
        (tmp_path / "planned_run.py").write_text(written, encoding="utf-8")
        _titan_says(MODELS[name], tmp_path)


@at_random
@given(model=models())
def test_torchtitan_at_random(
    model: ModelSpec, needs: Needs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs("torchtitan")
    written = _written_for_torchtitan(model)
    if written is not None:
        folder = tmp_path_factory.mktemp("titan")
        (folder / "planned_run.py").write_text(written, encoding="utf-8")
        _titan_says(model, folder)


def _written_for_torchtitan(model: ModelSpec) -> str | None:
    """The module of some plan with this model; None where torchtitan has not the model."""
    from planner.launch.architecture import refusals
    from planner.launch.dialects.torchtitan import writer as torchtitan
    from planner.launch.dialects.torchtitan.table import titan_table
    from tests.launch.titan_cases import DENSE
    from tests.launch.torch_plans import changed, launch_of

    if refusals(titan_table(model), model, "", ""):
        return None
    launch = launch_of(DENSE[0], "torchtitan", "torchtitan")
    return dict(torchtitan.files(changed(launch, model=model)))["planned_run.py"]
