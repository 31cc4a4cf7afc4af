"""Memory of serving: published figures, KV caches by attention kind, sharding of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.predict.memory.inference import inference_memory
from planner.predict.memory.serving.engine import ENGINES
from planner.predict.memory.serving.formats import (
    KV_FORMATS,
    WEIGHT_FORMATS,
)
from planner.predict.memory.serving.stage import (
    layer_token_bytes,
    model_token_bytes,
    stage_pool,
)
from planner.predict.memory.serving.weights import WeightBytes, stage_weights
from planner.predict.ops.table import parameter_count
from tests.predict.memory.deployments import serving

GIB = 2**30


def parameters(weights: WeightBytes) -> float:
    """Bytes of weights without tables that are none."""
    return weights.total - weights.rotary


# --- KV cache: published figures ------------------------------------------------------------


def test_llama_7b_at_4k_takes_about_2_gb() -> None:
    deployment = serving("llama-7b", context=4096)
    needed = inference_memory(deployment).heaviest.kv_needed
    assert needed == 2 * 32 * 4096 * 4096 * 2 == 2_147_483_648


def test_deepseek_v3_keeps_70272_bytes_a_token() -> None:
    assert model_token_bytes(serving("deepseek-v3")) == (512 + 64) * 61 * 2 == 70_272


# huggingface.co/blog/llama31, KV cache of one sequence at fp16 in GiB: 1,024, then 16,000 and
# 128,000 tokens. Its 405B is twice too large: the first release had 16 kv heads, copies of 8.
@pytest.mark.parametrize(
    ("model", "erratum", "gib_1k", "gib_16k", "gib_128k"),
    [
        ("llama-3.1-8b", 1, 0.125, 1.95, 15.62),
        ("llama-3.1-70b", 1, 0.313, 4.88, 39.06),
        ("llama-3.1-405b", 2, 0.984, 15.38, 123.05),
    ],
)
def test_kv_of_llama_3_1_as_hugging_face_prints_it(
    model: str, erratum: int, gib_1k: float, gib_16k: float, gib_128k: float
) -> None:
    token = erratum * model_token_bytes(serving(model)) / GIB
    assert token * 1024 == pytest.approx(gib_1k, abs=0.001)
    assert token * 16_000 == pytest.approx(gib_16k, abs=0.01)
    assert token * 128_000 == pytest.approx(gib_128k, rel=0.001)


# vLLM, Mistral-Small 24B: 28.20 GiB hold 184,832 tokens (llm-d-benchmark, empirical results).
def test_bytes_a_token_of_mistral_small_as_vllm_allots_them() -> None:
    assert model_token_bytes(serving("mistral-small-24b")) == 163_840


# --- KV cache: rules ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "tp", "heads"), [("llama-3.1-8b", 4, 2), ("llama-3.1-8b", 16, 1), ("gpt2", 4, 3)]
)
def test_kv_heads_are_divided_and_then_copied(model: str, tp: int, heads: int) -> None:
    deployment = serving(model, tp=tp)
    head_dim = deployment.model.head_dim
    assert layer_token_bytes(deployment) == 2 * heads * head_dim * 2


def test_mla_is_replicated_over_tp_and_split_over_dp() -> None:
    alone, sharded = serving("deepseek-v3"), serving("deepseek-v3", tp=8)
    assert layer_token_bytes(alone) == layer_token_bytes(sharded) == 1152
    spread = serving("deepseek-v3", dp=8, batch=64, ep=8)
    assert spread.replica_batch == 8
    assert serving("deepseek-v3", dp=8, batch=65, ep=8).replica_batch == 9


def test_quantised_caches_carry_scales_by_head() -> None:
    model = "llama-3.1-8b"
    sixteen = layer_token_bytes(serving(model))
    assert layer_token_bytes(serving(model, kv=KV_FORMATS["fp8"])) == sixteen / 2
    # 8 heads, keys and values: a 2-byte scale and a 2-byte zero each.
    assert layer_token_bytes(serving(model, kv=KV_FORMATS["int8"])) == sixteen / 2 + 2 * 8 * 4
    assert layer_token_bytes(serving(model, kv=KV_FORMATS["int4"])) == sixteen / 4 + 2 * 8 * 4


@pytest.mark.parametrize(("context", "blocks"), [(1, 1), (16, 1), (17, 2), (4096, 256)])
def test_tokens_are_rounded_up_to_blocks(context: int, blocks: int) -> None:
    assert stage_pool(serving("llama-3.1-8b"), 0).sequence_blocks(context) == blocks


# Gemma 3 27B: 52 window layers and 10 full ones become 7 groups of 10, of which 8 layers are
# padding (vLLM, kv_cache_utils); 36,560 tokens in 19.53 GiB at 8,192 tokens on an H100
# (llm-d-planner pull request 205) are 573,440 bytes = 70 layers a token.
def test_groups_of_a_hybrid_model() -> None:
    deployment = serving("gemma-3-27b", context=8192)
    pool = stage_pool(deployment, 0)
    assert (pool.group, pool.full_groups, pool.window_groups) == (10, 1, 6)
    token = 7 * pool.block_bytes / deployment.block
    assert token == pytest.approx(19.53 * GIB / 36_560, rel=0.001)


def test_alike_counts_of_layers_make_one_larger_group() -> None:
    pool = stage_pool(serving("gemma-3-27b", pp=1), 0)
    even = stage_pool(serving("gpt-oss-20b"), 0)
    assert (even.group, even.full_groups, even.window_groups) == (12, 1, 1)
    assert pool.group == 10


def test_windows_bound_what_their_layers_keep() -> None:
    deployment = serving("gemma-3-12b")
    pool = stage_pool(deployment, 0)
    window = 1024 // 16
    assert pool.sequence_blocks(1024) == 6 * window
    assert pool.sequence_blocks(131072) == 131072 // 16 + 5 * (window + 1)
    everything = stage_pool(replace(deployment, window_cache=False), 0)
    assert everything.sequence_blocks(131072) * everything.block_bytes == pytest.approx(
        131072 * model_token_bytes(deployment)
    )


def test_admission_asks_for_a_chunk_beyond_the_window() -> None:
    pool = stage_pool(serving("gpt-oss-20b", chunk=8192), 0)
    held = -(-(128 - 1 + 8192) // 16) + 1
    assert pool.admission_blocks(131072) == 131072 // 16 + held
    beyond = [pool.prefill_blocks(context) for context in (100, 128, 129, 160, 131072)]
    assert beyond == [0, 0, 1, 2, 8192 // 16]


# --- Weights --------------------------------------------------------------------------------


def test_llama_3_70b_takes_141_gb_at_bf16() -> None:
    weights = parameters(stage_weights(serving("llama-3-70b"), 0))
    assert weights / 1e9 == pytest.approx(141.1, abs=0.05)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-7b", "gpt2", "gemma-2-9b", "phi-2"])
def test_sixteen_bits_are_two_bytes_a_parameter(model: str) -> None:
    deployment = serving(model)
    padding = deployment.padded_vocabulary - deployment.model.vocab
    vocab_layers = 1 if deployment.model.tied_embeddings else 2
    extra = padding * (deployment.model.hidden * vocab_layers + deployment.model.head_bias)
    expected = 2 * (parameter_count(deployment.model).total + extra)
    assert parameters(stage_weights(deployment, 0)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("fmt", ["bf16", "fp8-block", "int4"])
def test_ranks_hold_no_less_than_their_share(tp: int, fmt: str) -> None:
    whole = stage_weights(serving("llama-3.1-70b", weights=WEIGHT_FORMATS[fmt]), 0)
    rank = stage_weights(serving("llama-3.1-70b", weights=WEIGHT_FORMATS[fmt], tp=tp), 0)
    assert whole.matrices == pytest.approx(tp * rank.matrices)
    assert whole.total <= tp * rank.total * (1 + 1e-12)
    assert rank.total == pytest.approx(whole.total / tp, rel=0.01)


def test_stages_add_up_to_the_model() -> None:
    whole = parameters(stage_weights(serving("llama-3.1-8b"), 0))
    split = serving("llama-3.1-8b", pp=3)
    assert sum(parameters(stage_weights(split, s)) for s in range(3)) == pytest.approx(whole)
    # The last stage has a copy of a table that the head shares: 256,000 rows of 3,584 in bf16.
    tied, split = serving("gemma-2-9b"), serving("gemma-2-9b", pp=2, tp=2)
    ends = 2 * sum(parameters(stage_weights(split, s)) for s in range(2))
    norms = 2 * 4 * 42 * 3584 + 2 * 3584
    table = 2 * 256_000 * 3584
    assert ends == pytest.approx(parameters(stage_weights(tied, 0)) + table + norms)


@pytest.mark.parametrize(("pp", "counts"), [(2, [16, 16]), (3, [11, 11, 10]), (5, [6, 7, 7, 6, 6])])
def test_layers_beyond_an_even_split_avoid_the_last_stage(pp: int, counts: list[int]) -> None:
    stages = serving("llama-3.1-8b", pp=pp).stages
    assert sum(len(stage) for stage in stages) == 32
    assert len(stages[-1]) == min(counts)
    assert sorted(len(stage) for stage in stages) == sorted(counts)


# Linear layers of Llama-3.1-8B: 6,979,321,856 parameters in 224 matrices of 1,376,256 outputs
# in 32 layers; embeddings, head and norms stay at 16 bits.
def test_formats_of_llama_3_1_8b() -> None:
    linear, kept = 6_979_321_856, 8_030_261_248 - 6_979_321_856
    outputs = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    for name, matrices, scales in (
        ("bf16", 2 * linear, 0),
        ("fp32", 4 * linear, 0),
        ("int8", linear, 4 * outputs),
        ("fp8-block", linear, linear / 128**2 * 4),
        ("int4", linear / 2, linear / 128 * 2.5),
        ("mxfp4", linear / 2, linear / 32),
        ("nvfp4", linear / 2, linear / 16),
    ):
        fmt = WEIGHT_FORMATS[name]
        weights = stage_weights(serving("llama-3.1-8b", weights=fmt), 0)
        expected = matrices + scales + fmt.kept_bytes * kept
        assert parameters(weights) == pytest.approx(expected, rel=1e-9), name


def test_fp8_by_tensor_has_a_scale_a_matrix() -> None:
    weights = stage_weights(serving("llama-3.1-8b", weights=WEIGHT_FORMATS["fp8"]), 0)
    # Fused qkv, output, fused gate and up, or apart: at most seven matrices a layer.
    assert 0 < weights.scales <= 4 * 7 * 32


# gpt-oss model card, arXiv 2508.10925, table 1: checkpoints of 12.8 and 60.8 GiB, before the
# padding of kernels, in which only the experts are mxfp4.
@pytest.mark.parametrize(("model", "size_gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_gpt_oss_checkpoints(model: str, size_gib: float) -> None:
    unpadded = replace(WEIGHT_FORMATS["mxfp4"], padded_experts=False)
    weights = stage_weights(serving(model, weights=unpadded), 0)
    assert parameters(weights) / GIB == pytest.approx(size_gib, abs=0.1)


# vLLM issue 23278: gpt-oss-120b loaded with the padding of Hopper's kernels.
def test_gpt_oss_120b_as_loaded() -> None:
    weights = stage_weights(serving("gpt-oss-120b", weights=WEIGHT_FORMATS["mxfp4"]), 0)
    assert weights.total / GIB == pytest.approx(65.9651, rel=0.003)


@pytest.mark.parametrize(("engine", "width"), [("vllm", 2944), ("vllm-0.16", 3072)])
def test_kernels_pad_experts_to_their_blocks(engine: str, width: int) -> None:
    """From 2,880 by 2,880; the older engine leaves the hidden size alone."""
    fmt, hidden = WEIGHT_FORMATS["mxfp4"], 3072 if engine == "vllm" else 2880
    one, other = (
        stage_weights(serving("gpt-oss-20b", weights=each, engine=ENGINES[engine]), 0).matrices
        for each in (fmt, replace(fmt, padded_experts=False))
    )
    assert one / other == pytest.approx(hidden * width / 2880**2)


def test_experts_are_divided_over_tp_and_dp() -> None:
    def matrices(**degrees: int) -> float:
        deployment = serving("deepseek-v3", weights=WEIGHT_FORMATS["fp8-block"], **degrees)
        return stage_weights(deployment, 0).matrices

    whole = matrices()
    experts = 58 * 256 * 3 * 7168 * 2048
    for degrees in ({"tp": 8}, {"tp": 8, "ep": 8}):
        assert matrices(**degrees) < whole / 8 * 1.02
    attention_copies = matrices(dp=8, ep=8)
    assert attention_copies == pytest.approx(whole - experts * 7 / 8)


def test_uneven_experts_count_on_the_fullest_rank() -> None:
    def matrices(ep: int) -> float:
        return stage_weights(
            serving("qwen1.5-moe-a2.7b", weights=WEIGHT_FORMATS["fp8"], dp=ep, ep=ep), 0
        ).matrices

    # 60 experts: 8 on the fullest of 8 ranks.
    expert = 24 * 3 * 2048 * 1408
    assert matrices(1) - matrices(8) == pytest.approx((60 - 8) * expert)


def test_absorbed_mla_weights_are_copied_only_when_quantised() -> None:
    plain = stage_weights(serving("deepseek-v3"), 0)
    fp8 = stage_weights(serving("deepseek-v3", weights=WEIGHT_FORMATS["fp8-block"]), 0)
    assert plain.absorbed == 0
    assert fp8.absorbed == 2 * 61 * 512 * 128 * (128 + 128)
