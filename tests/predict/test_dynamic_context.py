"""Context parallelism by the length of samples: what it gains, where, and what it may not be."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.job.request_fields import Overrides
from planner.job.samples import Balance
from planner.job.specs import ModelSpec
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.search.search import find_plans

# NVIDIA/Megatron-LM, branch dev, examples/dynamic_context_parallel/benchmark_dcp.sh.
EXAMPLE = ModelSpec(
    name="dcp-example", layers=12, hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=8192,
    vocab=131072, max_positions=8192, pretraining_seq=8192, gated=False, activation="gelu",
    norm="layernorm", position="learned", qkv_bias=True, attention_out_bias=True, mlp_bias=True,
    norm_bias=True, tied_embeddings=True,
)  # fmt: skip
# Its README: GPUs (four a node) -> times as fast.
MEASURED = {4: 1.285, 8: 1.412, 16: 1.212, 32: 1.375}


def example(gpus: int, balance: Balance, **degrees: int) -> Plan:
    request = Request(
        model=EXAMPLE.name, gpus=f"{gpus}xGB200", gbs=gpus // 4, seq=8192,
        lengths="lognormal:mean=1024,sigma=1.5,max=8192", packing="pack-varlen", balance=balance,
        overrides=Overrides(model=EXAMPLE),
    )  # fmt: skip
    usual = {"cp": 4, "dp": gpus // 4, "mbs": 1, "grad_acc": 1, "zero": 0}
    return evaluate(request, Degrees(**{**usual, **degrees}))


@pytest.mark.parametrize("gpus", MEASURED)
def test_megatrons_example_gains_what_was_measured(gpus: int) -> None:
    gain = example(gpus, "none").step_time_s / example(gpus, "dynamic-cp").step_time_s
    assert gain == pytest.approx(MEASURED[gpus], rel=0.12)


def test_short_samples_exchange_less_and_memory_stays() -> None:
    static, dynamic = example(8, "none"), example(8, "dynamic-cp")
    assert dynamic.time.cp_s < 0.7 * static.time.cp_s
    assert dynamic.peak_bytes == pytest.approx(static.peak_bytes, rel=0.01)
    assert dynamic.gbs_tokens == static.gbs_tokens
    assert dynamic.samples is not None and dynamic.samples.balance == "dynamic-cp"


def test_samples_one_by_one_are_slow_where_they_are_short() -> None:
    assert example(8, "hybrid-cp").step_time_s > 2.0 * example(8, "none").step_time_s


def long_samples(balance: Balance, length: str = "65536:1") -> Plan:
    request = Request(
        model="llama-3.1-8b", gpus="8xH100", gbs=32, seq=65536, lengths=length,
        packing="pack-varlen", balance=balance, cp_comm_type="p2p",
    )  # fmt: skip
    degrees = Degrees(cp=8, dp=1, mbs=1, grad_acc=32, zero=1)
    return evaluate(request, degrees, recompute="full")


@pytest.mark.parametrize("balance", ["hybrid-cp", "dynamic-cp"])
def test_samples_that_need_all_ranks_are_as_without(balance: Balance) -> None:
    static, grouped = long_samples("none"), long_samples(balance)
    assert grouped.step_time_s == pytest.approx(static.step_time_s, rel=1e-6)


def test_a_ring_of_fewer_ranks_computes_faster() -> None:
    static, dynamic = (
        long_samples(balance, "16384:1,65536:1") for balance in ("none", "dynamic-cp")
    )
    assert dynamic.time.compute_s < 0.9 * static.time.compute_s
    assert dynamic.step_time_s < 0.9 * static.step_time_s


def test_degrees_that_megatron_refuses() -> None:
    with pytest.raises(UsageError, match="--balance hybrid-cp, which needs"):
        example(8, "hybrid-cp", pp=2, cp=4, dp=1)
    assert example(8, "dynamic-cp", pp=2, cp=4, dp=1, grad_acc=2).time.bubble_s > 0.0
    with pytest.raises(UsageError, match="latent attention"):
        Request(
            model="deepseek-v2-lite", gpus="8xH100", gbs=8, lengths="512:1,4096:1",
            packing="pack-varlen", balance="dynamic-cp",
        ).resolve()  # fmt: skip


def test_exchanges_and_graphs_that_samples_of_unlike_lengths_cannot_have() -> None:
    lengths = {"lengths": "512:1,4096:1", "packing": "pack-varlen"}
    request = Request(model="llama-3.2-1b", gpus="8xH100", gbs=8, **lengths)  # type: ignore[arg-type]
    by_sample = request.model_copy(update={"balance": "hybrid-cp"})
    assert "a2a+p2p" in request.resolve().context_kinds
    assert "a2a+p2p" not in by_sample.resolve().context_kinds
    with pytest.raises(UsageError, match="a fixed number of ranks; give p2p"):
        by_sample.model_copy(update={"cp_comm_type": "a2a+p2p"}).resolve()
    # Megatron's replay asserts that no packs are handed on (transformer_layer.py).
    with pytest.raises(UsageError, match="--with cuda-graphs: it replays"):
        request.model_copy(update={"use": ("cuda-graphs",)}).resolve()
    plain = Request(model="llama-3.2-1b", gpus="8xH100", gbs=8, use=("cuda-graphs",))
    assert "cuda-graphs" in plain.resolve().techniques


def test_a_search_says_what_it_would_gain() -> None:
    request = Request(
        model="llama-3.2-1b", gpus="8xH100", gbs=16, seq=65536, packing="pack-varlen",
        lengths="lognormal:median=1500,sigma=1.8,max=65536", limits={"tp": (1,), "pp": (1,)},
    )  # fmt: skip
    notes = [note for note in find_plans(request, top=1).notes if "--balance" in note]
    assert any("--balance dynamic-cp" in note and "times as fast" in note for note in notes)
