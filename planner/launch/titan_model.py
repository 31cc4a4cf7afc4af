"""The model of a torchtitan 0.3 configuration: a size of the registry, or one written out.

Llama-like models with grouped-query attention, dense or with experts, are built from torchtitan's
Qwen3 block (query/key norm and experts are options of it), latent attention from its DeepSeek-V3
block.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch.architecture import all_settings, moe_indices, refusals, scaling_kind
from planner.launch.contract import Launch, Refusal
from planner.launch.settings_text import Value, filled, python_value
from planner.launch.titan_table import Flavor, flavor_of, titan_table

# Linear layers that stay in bf16: output projection and router.
HIGH_PRECISION = ["lm_head", "router.gate"]


def model_refusals(job: Job) -> Iterator[Refusal]:
    """What of the model torchtitan 0.3 cannot build or run."""
    model = job.model
    yield from refusals(titan_table(model), model, "torchtitan 0.3", "--framework megatron-core")
    if model.family == "gpt_oss" and job.precision not in ("bf16", "fp16"):
        text = f"torchtitan 0.3 has no products in {job.precision} for gpt-oss's experts"
        yield Refusal(text, "--precision bf16")
    if job.seq > model.max_positions:
        yield Refusal(
            f"a sequence of {job.seq:,} is longer than the {model.max_positions:,} "
            "positions of the model",
            f"--seq {model.max_positions}",
        )


def registry_size(launch: Launch) -> Flavor | None:
    """The registry's size that the plan's model is, if its rotary cache is long enough."""
    size = flavor_of(launch.job.model)
    return size if size and launch.plan.seq <= size.longest else None


def model_text(launch: Launch) -> str:
    """Definition of `model_spec()`, and of the layers where the size is no registered one."""
    size, model = registry_size(launch), launch.job.model
    if size:
        return (
            "\n\ndef model_spec():\n"
            f'    """{model.name}: size {size.name} of torchtitan\'s registry."""\n'
            f'    return model_registry("{size.name}", attn_backend="flex", '
            "converters=CONVERTERS)\n"
        )
    layers = _latent(launch) if model.mla else _grouped(launch)
    values = _values(model)
    shared = f"\nROPE_THETA, NORM_EPS = {values['rope_theta']}, {values['norm_eps']}\n"
    return shared + layers + _spec(model)


def _values(model: ModelSpec) -> dict[str, Value]:
    """The model in torchtitan's words."""
    return {key: value for key, (value, _) in all_settings(titan_table(model), model).items()}


_LLAMA3 = ("scaling_factor", "low_freq_factor", "high_freq_factor",
           "original_max_position_embeddings")  # fmt: skip


def _grouped(launch: Launch) -> str:
    """Layers with grouped-query attention."""
    model, values = launch.job.model, _values(launch.job.model)
    lengths = [name for name in _LLAMA3 if name in values]
    scaling = ['scaling="llama",'] if lengths else []
    return filled(
        "titan_grouped.py.txt",
        **_sizes(model),
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        constants=[*([f"FFN = {model.ffn}"] if model.ffn else []), *_expert_constants(model)],
        qk_norm="_norm(HEAD_DIM)" if model.qk_norm == "head" else "None",
        # ComplexRoPE is the one that stretches as Llama 3 does.
        rope="ComplexRoPE" if lengths else "CosSinRoPE",
        max_seq_len=values["max_seq_len"],
        scaling=[*scaling, *(f"{name}={values[name]}," for name in lengths)],
        bias="attention.qkv_linear.wqkv.bias = True" if model.qkv_bias else "",
        feed_forward=_feed_forward(model),
        ffn_argument=_ffn_argument(model),
        experts=_experts(model) if model.moe else "",
    )


def _sizes(model: ModelSpec) -> dict[str, object]:
    inits = filled("titan_inits.py.txt", init_std=model.init_std)
    return {"layers": model.layers, "hidden": model.hidden, "vocab": model.vocab, "inits": inits}


def _expert_constants(model: ModelSpec) -> list[str]:
    if model.moe is None:
        return []
    moe, indices = model.moe, moe_indices(model)
    first, step = indices[0], indices[1] - indices[0] if len(indices) > 1 else 1
    regular = tuple(range(first, model.layers, step)) == indices
    where = f"range({first}, LAYERS, {step})" if regular else repr(set(indices))
    return [
        f"EXPERTS, TOP_K, EXPERT_FFN = {moe.experts}, {moe.top_k}, {moe.ffn}",
        f"EXPERT_LAYERS = {where}",
    ]


def _feed_forward(model: ModelSpec) -> str:
    if not any(kind.ffn == "dense" for kind in model.kinds):
        return ""
    return (
        "feed_forward = make_ffn_config(\n"
        "    dim=DIM, hidden_dim=FFN, w1_param_init=_normal(), w2w3_param_init=_normal()\n"
        ")"
    )


def _ffn_argument(model: ModelSpec) -> str:
    kinds = {kind.ffn for kind in model.kinds}
    if kinds == {"dense"}:
        return "feed_forward=feed_forward"
    if kinds == {"moe"}:
        return "moe=_experts()"
    return (
        "moe=_experts() if index in EXPERT_LAYERS else None,\n"
        "        feed_forward=None if index in EXPERT_LAYERS else feed_forward"
    )


def _experts(model: ModelSpec) -> str:
    values = _values(model)
    shared = "shared_experts=None,"
    if values["shared_experts"]:
        shared = (
            "shared_experts=make_ffn_config(\n"
            "    dim=DIM,\n"
            f"    hidden_dim={values['shared_experts']},\n"
            "    w1_param_init=_normal(),\n"
            "    w2w3_param_init=_normal(),\n"
            "),"
        )
    return filled(
        "titan_experts.py.txt",
        load_balance_coeff=values["load_balance_coeff"],
        router=[f"{name}={python_value(values[name])}," for name in _ROUTER if name in values],
        bias=values["bias"],
        shared=shared,
    )


# Arguments of make_router_config; those of build_mla_moe_layers begin with `router_`.
_ROUTER = ("score_func", "route_norm", "route_scale", "num_expert_groups", "num_limited_groups")


def _latent(launch: Launch) -> str:
    """Layers with latent attention."""
    model = launch.job.model
    values = _values(model)
    named = {name: f"router_{name}" for name in ("top_k", *_ROUTER)}
    given = (
        "n_dense_layers", "n_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim", "dense_hidden_dim", "moe_hidden_dim", "num_experts",
        "num_shared_experts", *named,
    )  # fmt: skip
    yarn = ['scaling="yarn",', *(f"{name}={values.get(name)}," for name in _YARN)]
    return filled(
        "titan_latent.py.txt",
        **_sizes(model),
        arguments=[f"{named.get(name, name)}={python_value(values[name])}," for name in given],
        mscale=values.get("mscale", 1.0),
        qk_rope_head_dim=values["qk_rope_head_dim"],
        max_seq_len=values["max_seq_len"],
        scaling=yarn if scaling_kind(model) == "yarn" else "",
        load_balance_coeff=values["load_balance_coeff"],
    )


_YARN = ("rope_factor", "beta_fast", "beta_slow", "original_seq_len", "truncate")


def _spec(model: ModelSpec) -> str:
    """`model_spec()` of a size that is written out."""
    latent = model.mla is not None
    name = "deepseek_v3" if latent else "qwen3"
    mtp = (
        "mtp_layers=_build_mtp_layers(\n"
        f"    layers[-1], dim=DIM, num_mtp_layers={model.mtp_layers}\n"
        "),"
    )
    tied = model.tied_embeddings
    return filled(
        "titan_spec.py.txt",
        model=model.name,
        layer_count=model.layers,
        kind="DeepSeekV3Model" if latent else "Qwen3Model",
        layers="_layers()" if latent else "[_layer(index) for index in range(LAYERS)]",
        tied="enable_weight_tying=True," if tied else "",
        # A tied embedding is initialised as the output projection.
        embedding_init='{"weight": skip_param_init}' if tied else "_normal()",
        mtp=mtp if model.mtp_layers else "",
        name=name,
        module=name.replace("_", ""),
        hook="register_moe_load_balancing_hook" if model.moe else "None",
    )
