"""Memory of serving: what fits, what would, wrong settings, advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hardware.load import load_gpu, parse_gpus
from planner.cost.communication import all_reduce_time_s
from planner.job.errors import UsageError
from planner.job.specs import ModelSpec
from planner.predict.links import link_inputs
from planner.predict.memory.inference import InferenceMemory, inference_memory, splits
from planner.predict.memory.serving.activations import Activations, stage_activations
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.engine import ENGINES, NCCL_START_BYTES
from planner.predict.memory.serving.formats import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    kv_format,
    weight_format,
)
from planner.predict.memory.serving.solve import (
    changes,
    largest_batch,
    largest_context,
    solve,
    with_grouped_queries,
)
from planner.predict.memory.serving.stage import tokens_of
from tests.predict.memory.deployments import serving

# --- Fit ------------------------------------------------------------------------------------


def test_terms_add_up_to_the_budget() -> None:
    for engine in ENGINES.values():
        for stage in inference_memory(serving("llama-3.1-70b", tp=4, pp=2, engine=engine)).stages:
            assert stage.fixed + stage.available == pytest.approx(0.9 * stage.usable)
            graphs = [stage.graphs_within, stage.graphs_beside]
            assert graphs[engine.graphs_in_budget] == 0.0 < graphs[not engine.graphs_in_budget]


def test_a_full_budget_leaves_room_for_what_lies_beside_it() -> None:
    stage = inference_memory(serving("llama-3.1-8b", utilization=1.0)).heaviest
    assert stage.fixed + stage.available + stage.beside == pytest.approx(stage.usable)
    assert stage.overfull == pytest.approx(0.0)


def test_the_engine_fills_its_budget_whatever_lies_beside_it() -> None:
    """vLLM 0.16 at 0.98 of two RTX 4090, which PCIe joins, printed 81,536 tokens."""
    stage = inference_memory(
        serving(
            "qwen2.5-14b", gpu="RTX4090", tp=2, utilization=0.98, chunk=2048,
            engine=ENGINES["vllm-0.16"],
        )
    ).heaviest  # fmt: skip
    at_start = stage.usable - stage.context - stage.nccl
    assert stage.available == pytest.approx(min(stage.budget, at_start) - stage.fixed)
    assert tokens_of(stage, 16, 0.0) == pytest.approx(81_536, rel=0.05)
    assert stage.nccl < 0.1 * NCCL_START_BYTES
    assert 0.0 < stage.overfull < stage.activations.peak


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-12b", "deepseek-v2-lite"])
def test_the_largest_fits_and_one_more_does_not(model: str) -> None:
    deployment = serving(model, context=8192, batch=4)
    for what, find in (("batch", largest_batch), ("context", largest_context)):
        largest = find(deployment)
        assert largest > 1

        def at(value: int, name: str = what) -> InferenceMemory:
            return inference_memory(replace(deployment, **{name: value}))  # type: ignore[arg-type]

        assert at(largest).fits
        assert not at(largest + 1).fits


def test_nothing_to_solve_for_when_weights_do_not_fit() -> None:
    deployment = serving("llama-3.1-405b")
    assert largest_batch(deployment) == largest_context(deployment) == 0
    solved = solve(deployment, "batch", inference_memory(deployment).spread)
    assert (solved.low, solved.expected, solved.high) == (0, 0, 0)
    with pytest.raises(UsageError, match="batch or context"):
        solve(deployment, "mbs", inference_memory(deployment).spread)


def test_more_of_anything_never_takes_less() -> None:
    base = serving("gemma-2-9b", context=6000, batch=3, chunk=2048, sequences=64)
    missing = inference_memory(base).heaviest.missing
    larger: tuple[dict[str, Any], ...] = (
        {"batch": 4},
        {"context": 7000},
        {"chunk": 8192},
        {"sequences": 1024},
        {"all_logits": True},
        {"window_cache": False},
        {"weights": WEIGHT_FORMATS["fp32"]},
        {"kv": KV_FORMATS["fp32"]},
        {"block": 128},
    )
    for change in larger:
        assert inference_memory(replace(base, **change)).heaviest.missing >= missing, change
    assert inference_memory(replace(base, graphs=False)).heaviest.missing < missing
    assert inference_memory(replace(base, tp=2)).heaviest.missing < missing


# Mixtral's widest operation is the qkv product, of the others the activation between up and down.
@pytest.mark.parametrize(
    ("model", "settings", "elements", "experts"),
    [
        ("llama-3.1-8b", {"tp": 2}, 3 * 14336 / 2 + 2 * 4096, 0),
        ("gpt2", {}, 2 * 3072 + 2 * 768, 0),
        ("mixtral-8x7b", {"tp": 2}, 4096 + 2048 + 2048 / 2, 2 * (3 * 14336 / 2)),
        ("mixtral-8x7b", {"tp": 16}, 4096 + 256 + 2048 / 8, 2 * (4096 + 14336 / 16)),
        # Eight replicas' tokens, of which kernels see 4 chunks of them at a time.
        ("mixtral-8x7b", {"dp": 8, "ep": 8}, 4096 + 4096 + 2048, 4 * 2 * 3 * 14336),
        ("qwen1.5-moe-a2.7b", {"tp": 2}, 3 * 5632 / 2 + 2 * 2048, 4 * (2048 + 1408 / 2)),
        # 48,000 tokens of MLA's cache, the most that are expanded, and four blocks a sequence.
        ("deepseek-v3", {"tp": 8, "context": 6000}, 48000 / 8192 * (576 + 16 * 256), None),
        ("deepseek-v3", {"tp": 8, "context": 10**5}, 8 * (576 + 16 * 256), None),
        ("deepseek-v3", {"tp": 8, "context": 1, "sequences": 800}, 6.25 * (576 + 16 * 256), None),
    ],
)
def test_activations_of_a_chunk_by_hand(
    model: str, settings: dict[str, int], elements: float, experts: float | None
) -> None:
    deployment = serving(model, pp=2, **settings)
    found = stage_activations(deployment, 0)
    assert found.layers == pytest.approx(2 * 8192 * elements)
    assert found.streams == 2 * 2 * 8192 * deployment.model.hidden
    assert found.sampling == 0 < stage_activations(deployment, 1).sampling
    if experts is not None:
        assert found.experts == pytest.approx(2 * 8192 * experts)
    wide = stage_activations(replace(deployment, weights=WEIGHT_FORMATS["fp32"]), 0)
    assert wide.streams == 2 * found.streams


def test_widest_operation_of_a_small_ffn_is_attention_or_its_projections() -> None:
    spec = ModelSpec(
        name="tiny", layers=2, hidden=128, heads=8, kv_heads=4, head_dim=64, ffn=16, vocab=100,
        max_positions=128, pretraining_seq=128,
    )  # fmt: skip
    for tp, elements in ((1, 8 * 128 + 4 * 128), (8, 128 + 512 / 8 + 512 / 4)):
        deployment = Deployment(spec, load_gpu("h100"), tp=tp, chunk=100)
        assert stage_activations(deployment, 0).layers == 2 * 100 * elements


def test_sampling_comes_after_the_layers_and_may_find_the_experts_buffers() -> None:
    later, both = Activations(1, 10, 12, 4, False), Activations(1, 10, 12, 4, True)
    assert (later.peak, both.peak, replace(both, layers=20).peak) == (15, 17, 25)


def test_logits_of_all_positions_dwarf_those_sampled() -> None:
    few = inference_memory(serving("llama-3.1-8b", sequences=16)).heaviest.activations
    every = inference_memory(
        serving("llama-3.1-8b", sequences=16, all_logits=True)
    ).heaviest.activations
    assert few.sampling == 14 * 16 * 128256
    assert every.sampling == 14 * 8192 * 128256
    assert every.peak > few.peak


def test_changes_fit_where_they_say_so() -> None:
    deployment = serving("llama-3.1-70b", tp=2, batch=64, context=8192)
    assert not inference_memory(deployment).fits
    found = changes(deployment)
    assert any(change.fits for change in found)
    for change in found:
        assert inference_memory(change.deployment).fits is change.fits
        assert change.options.startswith("--")


def test_changes_that_are_tried_and_their_order() -> None:
    """Mixtral on two of eight ranks: what fits first, then as people would rather have it."""
    found = changes(serving("mixtral-8x7b", tp=2, ep=2, batch=640, context=8192))
    node, gpus = "--tp 8 --ep 8 --gpus 8x", "H100-SXM5-80GB"
    assert [change.options.replace(gpus, "") for change in found] == [
        "--batch 46", "--context 576", "--tp 8 --pp 2 --ep 8 --gpus 16x", f"{node} --kv-cache fp8",
        "--gpu-memory-utilization 0.95", "--kv-cache fp8", "--kv-cache int4", "--weights fp8",
        "--weights int4", "--tp 4 --ep 4 --gpus 4x", node,
    ]  # fmt: skip


def test_changes_are_combined_to_save_gpus() -> None:
    found = [c for c in changes(serving("llama-3.1-405b", context=131072)) if c.fits]
    fewest = min(found, key=lambda change: change.deployment.gpus)
    assert "--gpus" in fewest.options
    assert "--weights" in fewest.options
    assert inference_memory(fewest.deployment).fits
    plain = [c for c in found if "--weights" not in c.options]
    assert all(fewest.deployment.gpus < change.deployment.gpus for change in plain)


# --- Wrong settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "settings", "texts"),
    [
        ("llama-3.1-8b", {"tp": 3}, ("32 attention heads", "2 or 4")),
        ("phi-4", {"tp": 4}, ("10 kv heads", "phi-4")),
        ("llama-3.1-8b", {"ep": 2}, ("no experts",)),
        ("mixtral-8x7b", {"tp": 4, "ep": 3}, ("tp·dp = 4", "2 or 4")),
        ("mixtral-8x7b", {"tp": 16, "ep": 16}, ("8 experts",)),
        ("llama-3.1-8b", {"pp": 33}, ("32 layers",)),
        ("llama-3.1-8b", {"batch": 0}, ("--batch 0", "1 and 1,000,000")),
        ("llama-3.1-8b", {"batch": -1}, ("--batch -1",)),
        ("llama-3.1-8b", {"context": 10**9}, ("--context 1,000,000,000", "100,000,000")),
        ("llama-3.1-8b", {"block": 0}, ("--block-size 0",)),
        ("llama-3.1-8b", {"utilization": 1.2}, ("1.2", "0.9")),
        ("llama-3.1-8b", {"utilization": 0.0}, ("not between 0 and 1",)),
    ],
)
def test_wrong_settings_name_the_rule(
    model: str, settings: dict[str, Any], texts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        inference_memory(serving(model, **settings))
    for text in texts:
        assert text in str(error.value)


def test_unknown_formats_list_the_names() -> None:
    for find, name in ((weight_format, "int3"), (kv_format, "fp6")):
        with pytest.raises(UsageError) as error:
            find(name)
        assert "fp8" in str(error.value)
        assert "int4" in str(error.value)
    assert weight_format("AWQ").name == weight_format("gptq").name == "int4"
    assert kv_format("fp8_e4m3").name == "fp8"


def test_custom_models_are_served() -> None:
    spec = ModelSpec(
        name="tiny", layers=2, hidden=64, heads=4, kv_heads=1, head_dim=16, ffn=128, vocab=100,
        max_positions=128, pretraining_seq=128,
    )  # fmt: skip
    result = inference_memory(Deployment(spec, load_gpu("rtx4090"), context=64))
    assert result.fits
    assert result.one_copy_token_bytes == 2 * 2 * 16 * 2


# --- advice: what makes it smaller, latency against throughput ------------------------------


def test_grouped_queries_divide_the_cache_of_a_model_that_lacks_them() -> None:
    """Llama 7B has 32 KV heads: 8 keep a quarter of the cache and smaller projections."""
    deployment = serving("llama-7b", batch=64)
    grouped = with_grouped_queries(deployment)
    assert grouped is not None
    whole, quarter = (inference_memory(one).heaviest for one in (deployment, grouped.deployment))
    assert quarter.kv_needed == whole.kv_needed / 4
    assert grouped.missing == quarter.missing < whole.missing - 0.75 * whole.kv_needed
    for model in ("llama-3.1-8b", "deepseek-v3"):  # 8 heads already; compressed
        assert with_grouped_queries(serving(model)) is None


def test_deeper_tensor_parallelism_reads_less_and_reduces_more() -> None:
    """The document's table: weights a GPU fall with tp, all-reduces come; the cache of the
    replicas together grows with fewer copies of the weights."""
    deployment = serving("llama-3.1-8b", batch=16, context=32768, tp=4)
    found = {one.memory.deployment.tp: one for one in splits(deployment, parse_gpus("4xH100"))}
    assert sorted(found) == [1, 2, 4]
    assert all(one.memory.deployment.gpus == 4 for one in found.values())
    for deeper, less in ((4, 2), (2, 1)):
        assert found[deeper].read_s < found[less].read_s
        assert found[deeper].reduce_s > found[less].reduce_s
        assert found[deeper].sequences > found[less].sequences
    one = found[1]
    stage = one.memory.heaviest
    assert one.reduce_s == 0.0
    links = link_inputs(parse_gpus("4xH100"))
    # Two all-reduces in each of 32 layers, of 16 bits for each of 16 tokens' 4,096 elements.
    each = all_reduce_time_s(2 * 16 * 4096, 4, links.scale_up_domain, links)
    assert found[4].reduce_s == pytest.approx(2 * 32 * each)
    assert found[2].memory.deployment.replica_batch == 8
    read = stage.weights.total + stage.kv_needed
    assert one.read_s == pytest.approx(read / deployment.gpu.hbm_bytes_per_s)
    assert one.tokens_per_s == pytest.approx(16 / one.read_s)
