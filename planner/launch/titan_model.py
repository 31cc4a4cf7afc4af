"""The model of a torchtitan 0.3 configuration: a size of the registry, or one written out.

Llama-like models with grouped-query attention, dense or with experts, are built from torchtitan's
Qwen3 block (query/key norm and experts are options of it), latent attention from its DeepSeek-V3
block.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch.architecture import all_settings, refusals, scaling_kind
from planner.launch.contract import Launch, Refusal
from planner.launch.model_traits import moe_indices
from planner.launch.settings_text import Value, python_value
from planner.launch.titan_flavors import FLAVORS, Flavor, flavor_of
from planner.launch.titan_table import titan_table

# Linear layers that stay in bf16: output projection and router.
HIGH_PRECISION = ["lm_head", "router.gate"]


def degree_refusals(launch: Launch) -> Iterator[Refusal]:
    """Degrees that torchtitan 0.3 cannot run the model at."""
    degrees = launch.plan.degrees
    if launch.job.model.mtp_layers and degrees.pp * degrees.cp > 1:
        yield Refusal(
            "torchtitan's multi-token prediction runs without pipeline and context parallelism",
            "pp 1 and cp 1, or a model file with mtp_layers = 0",
        )


def model_refusals(job: Job) -> tuple[Refusal, ...]:
    """What of the model torchtitan 0.3 cannot build or run."""
    model = job.model
    found = list(refusals(titan_table(model), model, "torchtitan 0.3", "--framework megatron-core"))
    if model.family == "gpt_oss" and job.precision not in ("bf16", "fp16"):
        text = f"torchtitan 0.3 has no products in {job.precision} for gpt-oss's experts"
        found.append(Refusal(text, "--precision bf16"))
    if job.seq > model.max_positions:
        found.append(
            Refusal(
                f"a sequence of {job.seq:,} is longer than the {model.max_positions:,} "
                "positions of the model",
                f"--seq {model.max_positions}",
            )
        )
    return tuple(found)


def registry_size(launch: Launch) -> Flavor | None:
    """The registry's size that the plan's model is, if its rotary cache is long enough."""
    one_flavor_of = flavor_of(launch.job.model, FLAVORS)
    return one_flavor_of if one_flavor_of and launch.plan.seq <= one_flavor_of.longest else None


def model_imports(launch: Launch) -> list[str]:
    """Import lines of the model section."""
    one_registry_size = registry_size(launch)
    if one_registry_size:
        return [f"from torchtitan.models.{one_registry_size.module} import model_registry"]
    if launch.job.model.mla:
        return _LATENT_IMPORTS
    return _GROUPED_IMPORTS


def model_lines(launch: Launch) -> list[str]:
    """Definition of `model_spec()`, and of the layers where the size is no registered one."""
    one_registry_size = registry_size(launch)
    if one_registry_size:
        return _registered(one_registry_size, launch.job.model)
    builder = _latent(launch) if launch.job.model.mla else _grouped(launch)
    return [*_model_values(launch.job.model), *builder, *_spec_lines(launch.job.model)]


def _registered(flavor: Flavor, model: ModelSpec) -> list[str]:
    return [
        "",
        "",
        "def model_spec():",
        f'    """{model.name}: size {flavor.name} of torchtitan\'s registry."""',
        f'    return model_registry("{flavor.name}", attn_backend="flex", converters=CONVERTERS)',
    ]


def _values(model: ModelSpec) -> dict[str, Value]:
    """The model in torchtitan's words."""
    return {key: value for key, (value, _) in all_settings(titan_table(model), model).items()}


def _model_values(model: ModelSpec) -> list[str]:
    """What the shape does not tell."""
    values = _values(model)
    return ["", f"ROPE_THETA, NORM_EPS = {values['rope_theta']}, {values['norm_eps']}"]


_GROUPED_IMPORTS = [
    "from torchtitan.components.optimizer import register_moe_load_balancing_hook",
    "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
    "from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm",
    "from torchtitan.models.common.config_utils import (",
    "    get_attention_config,",
    "    make_ffn_config,",
    "    make_gqa_config,",
    "    make_moe_config,",
    "    make_routed_experts_config,",
    "    make_router_config,",
    ")",
    "from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock",
    "from torchtitan.models.qwen3.parallelize import parallelize_qwen3",
    "from torchtitan.protocols.model_spec import ModelSpec",
]
_LATENT_IMPORTS = [
    "from torchtitan.components.optimizer import register_moe_load_balancing_hook",
    "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
    "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm",
    "from torchtitan.models.deepseek_v3 import _build_dsv3_layers, _build_mtp_layers",
    "from torchtitan.models.deepseek_v3.model import DeepSeekV3Model",
    "from torchtitan.models.deepseek_v3.parallelize import parallelize_deepseekv3",
    "from torchtitan.protocols.model_spec import ModelSpec",
]


def _inits(model: ModelSpec) -> list[str]:
    return [
        "",
        "",
        f"def _normal(std={model.init_std}):",
        '    """Initial weights; biases start at zero."""',
        "    weight = partial(nn.init.trunc_normal_, std=std)",
        '    return {"weight": weight, "bias": nn.init.zeros_}',
        "",
        "",
        "def _norm(width):",
        '    ones = {"weight": nn.init.ones_}',
        "    return RMSNorm.Config(normalized_shape=width, eps=NORM_EPS, param_init=ones)",
    ]


def _grouped_rope(model: ModelSpec) -> list[str]:
    """Rotation of heads; ComplexRoPE is the one that stretches as Llama 3 does."""
    values = _values(model)
    lengths = [name for name in _LLAMA3 if name in values]
    return [
        f"        rope={'ComplexRoPE' if lengths else 'CosSinRoPE'}.Config(",
        "            dim=HEAD_DIM,",
        f"            max_seq_len={values['max_seq_len']},",
        "            theta=ROPE_THETA,",
        *(['            scaling="llama",'] if lengths else []),
        *(f"            {name}={values[name]}," for name in lengths),
        "        ),",
    ]


_LLAMA3 = ("scaling_factor", "low_freq_factor", "high_freq_factor",
           "original_max_position_embeddings")  # fmt: skip


def _grouped(launch: Launch) -> list[str]:
    """Layers with grouped-query attention."""
    model = launch.job.model
    norm = "_norm(HEAD_DIM)" if model.qk_norm == "head" else "None"
    bias = ["    attention.qkv_linear.wqkv.bias = True"] if model.qkv_bias else []
    return [
        f"LAYERS, DIM, VOCABULARY = {model.layers}, {model.hidden}, {model.vocab}",
        f"HEADS, KV_HEADS, HEAD_DIM = {model.heads}, {model.kv_heads}, {model.head_dim}",
        *([f"FFN = {model.ffn}"] if model.ffn else []),
        *_expert_constants(model),
        *_inits(model),
        "",
        "",
        "def _layer(index):",
        '    """One transformer layer."""',
        "    attention = make_gqa_config(",
        "        dim=DIM,",
        "        n_heads=HEADS,",
        "        n_kv_heads=KV_HEADS,",
        "        head_dim=HEAD_DIM,",
        "        fuse_qkv=True,",
        "        wqkv_param_init=_normal(),",
        "        wo_param_init=_normal(),",
        '        inner_attention=get_attention_config("flex"),',
        f"        qk_norm={norm},",
        *_grouped_rope(model),
        "    )",
        *bias,
        *_feed_forward(model),
        "    return Qwen3TransformerBlock.Config(",
        "        attention_norm=_norm(DIM),",
        "        ffn_norm=_norm(DIM),",
        "        attention=attention,",
        f"        {_ffn_argument(model)},",
        "    )",
        *(_experts(model) if model.moe else []),
    ]


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


def _feed_forward(model: ModelSpec) -> list[str]:
    if not any(kind.ffn == "dense" for kind in model.kinds):
        return []
    return [
        "    feed_forward = make_ffn_config(",
        "        dim=DIM, hidden_dim=FFN, w1_param_init=_normal(), w2w3_param_init=_normal()",
        "    )",
    ]


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


def _experts(model: ModelSpec) -> list[str]:
    values = _values(model)
    shared = ["        shared_experts=None,"]
    if values["shared_experts"]:
        shared = [
            "        shared_experts=make_ffn_config(",
            "            dim=DIM,",
            f"            hidden_dim={values['shared_experts']},",
            "            w1_param_init=_normal(),",
            "            w2w3_param_init=_normal(),",
            "        ),",
        ]
    return [
        "",
        "",
        "def _experts():",
        '    """Router and experts of one layer."""',
        '    weights = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), _normal()["weight"])',
        "    return make_moe_config(",
        "        num_experts=EXPERTS,",
        f"        load_balance_coeff={values['load_balance_coeff']},",
        "        router=make_router_config(",
        "            dim=DIM,",
        "            num_experts=EXPERTS,",
        "            top_k=TOP_K,",
        "            gate_param_init=_normal(),",
        *(
            f"            {name}={python_value(values[name])},"
            for name in _ROUTER
            if name in values
        ),
        f"            bias={values['bias']},",
        "        ),",
        "        routed_experts=make_routed_experts_config(",
        "            dim=DIM,",
        "            hidden_dim=EXPERT_FFN,",
        "            num_experts=EXPERTS,",
        "            top_k=TOP_K,",
        "            param_init=weights,",
        '            comm_backend="standard",  # all-to-all of torch.distributed',
        "        ),",
        *shared,
        "    )",
    ]


# Arguments of make_router_config; those of build_mla_moe_layers begin with `router_`.
_ROUTER = ("score_func", "route_norm", "route_scale", "num_expert_groups", "num_limited_groups")


def _latent(launch: Launch) -> list[str]:
    """Layers with latent attention."""
    model = launch.job.model
    values = _values(model)
    named = {name: f"router_{name}" for name in ("top_k", *_ROUTER)}
    given = (
        "n_dense_layers", "n_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim", "dense_hidden_dim", "moe_hidden_dim", "num_experts",
        "num_shared_experts", *named,
    )  # fmt: skip
    stretches = scaling_kind(model) == "yarn"
    return [
        f"LAYERS, DIM, VOCABULARY = {model.layers}, {model.hidden}, {model.vocab}",
        *_inits(model),
        "",
        "",
        "def _layers():",
        '    """All transformer layers, dense ones first."""',
        "    layers = _build_dsv3_layers(",
        "        n_layers=LAYERS,",
        "        dim=DIM,",
        *(f"        {named.get(name, name)}={python_value(values[name])}," for name in given),
        f"        mscale={values.get('mscale', 1.0)},",
        '        attn_backend="flex",',
        '        moe_comm_backend="standard",  # all-to-all of torch.distributed',
        "        non_blocking_capacity_factor=None,",
        "        rope=ComplexRoPE.Config(",
        f"            dim={values['qk_rope_head_dim']},",
        f"            max_seq_len={values['max_seq_len']},",
        "            theta=ROPE_THETA,",
        *(['            scaling="yarn",'] if stretches else []),
        *(f"            {name}={values[name]}," for name in _YARN if stretches),
        "        ),",
        "    )",
        "    for layer in layers:",
        "        for norm in (",
        "            layer.attention_norm,",
        "            layer.ffn_norm,",
        "            layer.attention.q_norm,",
        "            layer.attention.kv_norm,",
        "        ):",
        "            norm.eps = NORM_EPS",
        "        if layer.moe is not None:",
        f"            layer.moe.load_balance_coeff = {values['load_balance_coeff']}",
        "    return layers",
    ]


_YARN = ("rope_factor", "beta_fast", "beta_slow", "original_seq_len", "truncate")


def _spec_lines(model: ModelSpec) -> list[str]:
    """`model_spec()` of a size that is written out."""
    latent = model.mla is not None
    name = "deepseek_v3" if latent else "qwen3"
    kind = "DeepSeekV3Model" if latent else "Qwen3Model"
    layers = "_layers()" if latent else "[_layer(index) for index in range(LAYERS)]"
    tied = (
        [f"        enable_weight_tying={model.tied_embeddings},"] if model.tied_embeddings else []
    )
    mtp = [
        "        mtp_layers=_build_mtp_layers(",
        f"            layers[-1], dim=DIM, num_mtp_layers={model.mtp_layers}",
        "        ),",
    ]
    hook = "register_moe_load_balancing_hook" if model.moe else "None"
    return [
        "",
        "",
        "def model_spec():",
        f'    """{model.name}, {model.layers} layers, on torchtitan\'s {kind}."""',
        f"    layers = {layers}",
        f"    model = {kind}.Config(",
        "        dim=DIM,",
        "        vocab_size=VOCABULARY,",
        *tied,
        "        tok_embeddings=Embedding.Config(",
        f"            num_embeddings=VOCABULARY, embedding_dim=DIM, {_embedding_init(model)}",
        "        ),",
        "        norm=_norm(DIM),",
        "        lm_head=Linear.Config(",
        "            in_features=DIM, out_features=VOCABULARY, param_init=_normal()",
        "        ),",
        "        layers=layers,",
        *(mtp if model.mtp_layers else []),
        "    )",
        "    for converter in CONVERTERS:",
        "        model = converter.build().convert(model)",
        "    return ModelSpec(",
        f'        name="{name}",',
        f'        flavor="{model.name}",',
        "        model=model,",
        f"        parallelize_fn=parallelize_{name.replace('_', '')},",
        "        pipelining_fn=pipeline_llm,",
        f"        post_optimizer_build_fn={hook},",
        "        state_dict_adapter=None,  # checkpoints in torchtitan's format only",
        "    )",
    ]


def _embedding_init(model: ModelSpec) -> str:
    """A tied embedding is initialised as the output projection."""
    init = '{"weight": skip_param_init}' if model.tied_embeddings else "_normal()"
    return f"param_init={init}"
