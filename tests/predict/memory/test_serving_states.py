"""Caches of hybrids in serving: one state a sequence, in blocks of the pool."""

from __future__ import annotations

import pytest

from planner.predict.memory.inference import inference_memory
from planner.predict.memory.serving.stage import layer_state_bytes, layer_token_bytes, stage_pool
from tests.predict.memory.deployments import serving


def test_a_state_is_as_large_as_its_heads_and_what_its_convolution_looks_back_on() -> None:
    # Qwen3-Next: 32 heads of 128 by 128 in fp32; 3 earlier inputs of 8,192 channels in bf16.
    one = serving("qwen3-next-80b", tp=1)
    assert layer_state_bytes(one) == 32 * 128 * 128 * 4 + 3 * 8192 * 2
    assert layer_state_bytes(serving("qwen3-next-80b", tp=4)) == layer_state_bytes(one) / 4
    assert layer_state_bytes(serving("qwen3-8b")) == 0.0


def test_a_block_of_a_hybrid_has_the_tokens_that_cover_a_state() -> None:
    pool = stage_pool(serving("qwen3-next-80b", tp=4), 0)
    page = pool.deployment.block * layer_token_bytes(pool.deployment)
    assert (
        page >= layer_state_bytes(pool.deployment) > page - 16 * layer_token_bytes(pool.deployment)
    )
    # 12 layers attend and 36 do not: one group caches tokens, three hold states.
    assert (pool.group, pool.full_groups, pool.state_groups) == (12, 1, 3)
    assert pool.sequence_blocks(1) == 4


def test_a_hybrid_caches_tokens_in_its_attention_alone() -> None:
    memory = inference_memory(serving("qwen3-next-80b", "h100", tp=4))
    assert memory.caching_layers == "12 of 48 layers"
    assert memory.one_copy_token_bytes == pytest.approx(12 * 2 * 2 * 256 * 2)
    assert "recurrent layers" in memory.spread.uncovered


def test_layers_without_attention_or_state_cache_nothing() -> None:
    # Nemotron-3-Nano: 6 layers attend, 23 are Mamba's, 23 are experts alone.
    pool = stage_pool(serving("nemotron-3-nano-30b", tp=1), 0)
    assert (pool.group, pool.full_groups, pool.state_groups) == (6, 1, 4)
