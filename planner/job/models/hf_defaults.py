"""Class defaults of the configuration classes of transformers 5.23.0, for keys a file leaves out.

Keys are canonical (see `hf_fields.SPELLINGS`). Only keys that shape the model are listed; a
value that a class derives from others (head width, ffn = 4·hidden) is derived in `hf_families`.
"""

from __future__ import annotations

from math import inf


def _shape(
    layers: int,
    hidden: int,
    heads: int,
    ffn: int | None,
    vocab: int,
    positions: int,
    **more: object,
) -> dict[str, object]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **more,
    }


_LLAMA = _shape(32, 4096, 32, 11008, 32000, 2048, norm_eps=1e-6)
_YARN_GPT_OSS: dict[str, object] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_DELTA_NETS: dict[str, object] = {
    "head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "norm_eps": 1e-6,
}  # fmt: skip
_GLM = _shape(
    40, 4096, 32, 13696, 151552, 131072, num_key_value_heads=2, head_dim=128,
    partial_rotary_factor=0.5, attention_bias=True, norm_eps=1.5625e-7,
)  # fmt: skip
_QWEN2 = _shape(32, 4096, 32, 22016, 151936, 32768, num_key_value_heads=32, max_window_layers=28,
                norm_eps=1e-6)  # fmt: skip
_DEEPSEEK_V3 = _shape(
    61, 7168, 128, 18432, 129280, 4096,
    moe_intermediate_size=2048, n_shared_experts=1, num_experts=256, num_experts_per_tok=8,
    n_group=8, topk_group=4, norm_topk_prob=True, routed_scaling_factor=2.5, norm_eps=1e-6,
    first_k_dense_replace=3,
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, num_nextn_predict_layers=1,
)  # fmt: skip
_MAMBA2_HYBRID: dict[str, object] = {
    "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 1, "ssm_state_size": 256,
    "conv_kernel": 4, "use_conv_bias": True, "chunk_size": 256,
}  # fmt: skip

# What changes training, and neither shape nor cost: keys of any class, and what classes take
# unasked unless `CLASS_DEFAULTS` says otherwise.
CONSTANTS: dict[str, object] = {
    **dict.fromkeys(
        ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "residual_dropout",
         "embedding_dropout", "router_jitter_noise", "z_loss_coefficient"), 0.0
    ),
    **dict.fromkeys(
        ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier",
         "lm_head_multiplier", "key_multiplier", "attention_in_multiplier",
         "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
         "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor",
         "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor"), 1.0
    ),
    "mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5, "mamba_norm_before_gate": True,
    "time_step_min": 1e-3, "time_step_max": 0.1, "time_step_floor": 1e-4,
    "time_step_limit": [0.0, inf], "rescale_prenorm_residual": False, "residual_in_fp32": True,
    "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1, "time_step_scale": 1.0,
    "swiglu_alpha": 1.702, "rope_interleave": True,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "use_bidirectional_attention": False, "no_rope_layer_interval": 4,
}  # fmt: skip

CLASS_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "granitemoe": {
        **_LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "aux_loss": 0.001,
    },
    "hunyuan_v1_dense": _shape(32, 4096, 32, 11008, 290943, 2048),
    "exaone4": _shape(
        32, 4096, 32, 16384, 102400, 2048, sliding_window=4096, sliding_window_pattern=4,
    ),
    "smollm3": _shape(
        36, 2048, 16, 11008, 128256, 32768, num_key_value_heads=4, rope_theta=2e6, norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
    "glm4_moe_lite": _shape(
        47, 2048, 20, 10240, 154880, 202752, head_dim=256, moe_intermediate_size=1536,
        n_shared_experts=1, num_experts=64, num_experts_per_tok=4, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.8, q_lora_rank=768, kv_lora_rank=512,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, first_k_dense_replace=1,
    ),
    "arcee": _shape(32, 2560, 32, 18432, 32000, 4096, head_dim=80, hidden_act="relu2"),
    "ernie4_5": _shape(
        18, 1024, 16, 3072, 103424, 131072, num_key_value_heads=2, head_dim=128, rope_theta=5e5,
        tie_word_embeddings=True,
    ),
    "seed_oss": _shape(
        64, 4096, 80, 27648, 155136, 524288, num_key_value_heads=8, head_dim=128,
        attention_bias=True, attention_dropout=None, residual_dropout=None, norm_eps=1e-6,
    ),
    "glm": _GLM,
    "glm4": _GLM,
    "olmo3": _shape(
        32, 4096, 32, 11008, 50304, 2048, rope_theta=5e5, sliding_window=4096,
        sliding_window_pattern=4,
    ),
    "gpt_bigcode": _shape(
        12, 768, 12, None, 50257, 1024, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True,
        multi_query=True, resid_pdrop=None, embd_pdrop=None,
    ),
    "opt": _shape(
        12, 768, 12, 3072, 50272, 2048, hidden_act="relu", tie_word_embeddings=True,
        word_embed_proj_dim=768, do_layer_norm_before=True, enable_bias=True,
        layer_norm_elementwise_affine=True,
    ),
    "starcoder2": _shape(
        30, 3072, 24, 12288, 49152, 4096, num_key_value_heads=2, hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True, use_bias=True, initializer_range=0.018042,
        attention_dropout=None, residual_dropout=None, embedding_dropout=None,
    ),
    "stablelm": _shape(
        32, 2560, 32, 6912, 50304, 4096, num_key_value_heads=32, partial_rotary_factor=0.25,
    ),
    "mistral": _shape(
        32, 4096, 32, 14336, 32000, 131072, num_key_value_heads=8, sliding_window=4096,
        norm_eps=1e-6,
    ),
    "mixtral": _shape(
        32, 4096, 32, 14336, 32000, 131072,
        num_key_value_heads=8, num_experts=8, num_experts_per_tok=2, rope_theta=1e6,
        aux_loss=0.001,
    ),
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
    "qwen2_moe": _shape(
        24, 2048, 16, 5632, 151936, 32768,
        num_key_value_heads=16, max_window_layers=28, decoder_sparse_step=1, qkv_bias=True,
        moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        num_experts=60, num_experts_per_tok=4, norm_topk_prob=False, norm_eps=1e-6,
        aux_loss=0.001,
    ),
    "qwen3_moe": _shape(
        24, 2048, 32, 6144, 151936, 32768,
        num_key_value_heads=4, decoder_sparse_step=1,
        moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=False,
        norm_eps=1e-6, aux_loss=0.001,
    ),
    "deepseek_v2": _shape(
        32, 4096, 32, 11008, 102400, 2048,
        moe_intermediate_size=1407, n_shared_experts=2, num_experts=64, norm_eps=1e-6,
        topk_method="greedy", norm_topk_prob=False,
        first_k_dense_replace=0, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": {**_DEEPSEEK_V3, "num_nextn_predict_layers": 0},
    "gemma": _shape(
        28, 3072, 16, 24576, 256000, 8192,
        num_key_value_heads=16, head_dim=256, hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True, norm_eps=1e-6,
    ),
    "gemma2": _shape(
        26, 2304, 8, 9216, 256000, 8192,
        num_key_value_heads=4, head_dim=256, hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True, sliding_window=4096, sliding_window_pattern=2,
        norm_eps=1e-6, query_pre_attn_scalar=256,
        attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    ),
    "gemma3_text": _shape(
        26, 2304, 8, 9216, 262208, 131072,
        num_key_value_heads=4, head_dim=256, hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True, sliding_window=4096, sliding_window_pattern=6,
        norm_eps=1e-6, query_pre_attn_scalar=256, rope_theta=1e6, rope_local_base_freq=1e4,
    ),
    "phi": _shape(
        24, 2048, 32, 8192, 51200, 2048, hidden_act="gelu_new", partial_rotary_factor=0.5
    ),
    "phi3": _shape(32, 3072, 32, 8192, 32064, 4096),
    "olmo": {**_LLAMA, "vocab_size": 50304, "norm_eps": 1e-5},
    "olmo2": {**_LLAMA, "vocab_size": 50304, "norm_eps": 1e-5},
    "olmoe": _shape(
        16, 2048, 16, 2048, 50304, 4096, num_experts=64, num_experts_per_tok=8,
        norm_topk_prob=False, aux_loss=0.01,
    ),
    "falcon": _shape(
        32, 4544, 71, None, 65024, 2048,
        hidden_act="gelu", tie_word_embeddings=True, multi_query=True, parallel_attn=True,
    ),
    "gpt2": _shape(
        12, 768, 12, None, 50257, 1024, hidden_act="gelu_new", tie_word_embeddings=True,
        # Any: its tenth of dropout is a switch of the job, here and where else None stands.
        resid_pdrop=None, embd_pdrop=None,
    ),
    "gpt_neox": _shape(
        44, 6144, 64, 24576, 50432, 2048,
        hidden_act="gelu", use_parallel_residual=True, attention_bias=True,
        partial_rotary_factor=0.25,
    ),
    "gpt_oss": _shape(
        36, 2880, 64, 2880, 201088, 131072,
        num_key_value_heads=8, head_dim=64, sliding_window=128, sliding_window_pattern=2,
        attention_bias=True, num_experts=128, num_experts_per_tok=4, swiglu_limit=7.0,
        rope_theta=150000.0, rope_scaling=_YARN_GPT_OSS, aux_loss=0.001,
    ),
    "llama4_text": _shape(
        48, 5120, 40, 8192, 202048, 131072,
        num_key_value_heads=8, head_dim=128, intermediate_size_mlp=16384,
        attention_chunk_size=8192, num_experts=16, num_experts_per_tok=1,
        interleave_moe_layer_step=1, no_rope_layer_interval=4,
        use_qk_norm=True, rope_theta=5e5, aux_loss=0.001,
    ),
    "glm4_moe": _shape(
        46, 4096, 96, 10944, 151552, 131072,
        num_key_value_heads=8, moe_intermediate_size=1408, n_shared_experts=1, num_experts=128,
        num_experts_per_tok=8, first_k_dense_replace=1, num_nextn_predict_layers=1,
        norm_topk_prob=True, partial_rotary_factor=0.5,
    ),
    "minimax_m2": _shape(
        62, 3072, 48, 1536, 200064, 196608,
        num_key_value_heads=8, head_dim=128, num_experts=256, num_experts_per_tok=8, norm_eps=1e-6,
        rope_theta=5e6, aux_loss=0.001,
    ),
    "nemotron": _shape(
        32, 6144, 48, 24576, 256000, 4096, head_dim=128, hidden_act="relu2",
        partial_rotary_factor=0.5, initializer_range=0.0134,
    ),
    "nemotron_h": _shape(
        1, 4096, 32, 21504, 131072, 4096, num_key_value_heads=8, head_dim=128,
        mlp_hidden_act="relu2", hybrid_override_pattern="ME*-", mamba_num_heads=128,
        mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4, use_conv_bias=True,
        chunk_size=128, num_experts=8, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=7688, moe_shared_expert_intermediate_size=7688, n_group=1,
        topk_group=1, norm_topk_prob=True, rescale_prenorm_residual=True, residual_in_fp32=False,
    ),
    "mamba": _shape(
        32, 768, 1, None, 50280, 8192, tie_word_embeddings=True, expand=2, state_size=16,
        conv_kernel=4, use_conv_bias=True, initializer_range=0.1,
    ),
    "mamba2": _shape(
        64, 4096, 1, None, 32768, 8192, num_heads=128, head_dim=64, n_groups=8, state_size=128,
        conv_kernel=4, use_conv_bias=True, chunk_size=256, initializer_range=0.1,
    ),
    "jamba": _shape(
        32, 4096, 32, 14336, 65536, 262144, num_key_value_heads=8, num_experts=16,
        num_experts_per_tok=2, attn_layer_period=8, attn_layer_offset=4, expert_layer_period=2,
        expert_layer_offset=1, expand=2, ssm_state_size=16, conv_kernel=4, use_conv_bias=True,
        norm_eps=1e-6, aux_loss=0.001,
    ),
    "bamba": _shape(
        32, 4096, 32, 14336, 128000, 262144, num_key_value_heads=8, partial_rotary_factor=0.5,
        **_MAMBA2_HYBRID,
    ),
    "granitemoehybrid": _shape(
        32, 4096, 32, 11008, 32000, 2048, num_experts=8, num_experts_per_tok=2,
        shared_intermediate_size=1024, position_embedding_type="nope", norm_eps=1e-6,
        aux_loss=0.001, **_MAMBA2_HYBRID,
    ),
    "falcon_h1": _shape(
        32, 4096, 32, 14336, 128000, 8192, num_key_value_heads=8,
        **_MAMBA2_HYBRID | {"mamba_head_dim": 8},
    ),
    "minimax": _shape(
        32, 4096, 32, 14336, 32000, 131072, num_key_value_heads=8, num_experts=8,
        num_experts_per_tok=2, rope_theta=1e6, block_size=256, aux_loss=0.001,
    ),
    "qwen3_5_text": _shape(
        32, 4096, 16, 12288, 248320, 32768, num_key_value_heads=4, **_DELTA_NETS,
    ),
    "qwen3_5_moe_text": _shape(
        40, 2048, 16, None, 248320, 32768, num_key_value_heads=2, **_DELTA_NETS,
        decoder_sparse_step=1, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        num_experts=256, num_experts_per_tok=8, norm_topk_prob=True, aux_loss=0.001,
    ),
    "qwen3_next": _shape(
        48, 2048, 16, 5632, 151936, 32768, num_key_value_heads=2, **_DELTA_NETS,
        decoder_sparse_step=1, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        num_experts=512, num_experts_per_tok=10, norm_topk_prob=True, aux_loss=0.001,
    ),
}  # fmt: skip
