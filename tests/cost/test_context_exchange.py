"""Ways in which context parallelism exchanges: traffic, work, memory, and which one is taken."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from constraints.axes import ContextKind
from constraints.context_exchange import IMPOSSIBLE, exchange_kind, inner_ranks, kinds_for
from planner.cost import fields as f
from planner.cost._jit import rows
from planner.cost.codes import GROUP_CP, OpKind
from planner.cost.piece_attention import (
    GATHER_PASSES,
    RING_STEP_PASSES,
    attention_seconds,
    context_kernels,
    last_chunk_share,
)
from planner.cost.piece_traffic import row_stream
from planner.cost.tables import Array
from planner.job.job import Job, model_numbers
from planner.job.models.catalog import load_model
from planner.predict.cost_model import CostModel
from planner.predict.links import network
from tests.cost.jobs import cost, key_of, make_job, on_ideal_links

KINDS: tuple[ContextKind, ...] = get_args(ContextKind)

HEADS, KV_HEADS, WIDTH = 32, 8, 128


def job(**changes: object) -> Job:
    return replace(make_job("llama-3-8b", "64xH100"), **changes)  # type: ignore[arg-type]


def layer_of(model: CostModel, **degrees: int) -> Array:
    costs: Array = cost(model, **degrees)[0].piece_costs(0)[0]
    return costs


def exchanged(kind: str, **degrees: int) -> tuple[CostModel, Array]:
    model = CostModel(job(context_kinds=(kind,)))
    return model, layer_of(model, **degrees)


def link_bytes(kind: str, cp: int, tp: int = 1) -> float:
    """Bytes over the scale-up links of a GPU by a layer's context exchange in forward."""
    model = CostModel(job(context_kinds=(kind,)))
    costed, _ = cost(model, cp=cp, tp=tp, dp=64 // cp // tp)
    key = key_of(costed)
    slow = model.link_inputs._replace(
        scale_up_bytes_per_s=1e6, scale_up_half_bytes=0.0, collective_launch_s=0.0,
        scale_up_latency_s=0.0, scale_up_pair_bytes_per_s=math.inf,
        scale_up_exchange_bytes_per_s=math.inf,
    )  # fmt: skip
    total = 0.0
    for row in rows(model.op_table.collectives, f.COMM_ROW):
        if row.piece == 0 and row.group == GROUP_CP:
            found = row_stream(row, key, model.job_inputs, model.framework_inputs, network(slow))
            total += found.seconds * row.forward * 1e6
    return total


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (8, 1), (4, 2)])
def test_traffic_of_each_kind(cp: int, tp: int) -> None:
    """Ring and gather: all other ranks' keys and values; all-to-all: what is another's, 1/cp of
    a rank's queries, keys, values and output staying (arXiv 2309.14509, section 3.2)."""
    seq = job().seq
    pair = 2.0 * 2 * KV_HEADS * WIDTH * seq / tp
    everything = pair + 2.0 * 2 * HEADS * WIDTH * seq / tp
    others = (cp - 1) / cp
    assert link_bytes("p2p", cp, tp) == pytest.approx(pair * others)
    assert link_bytes("all_gather", cp, tp) == pytest.approx(pair * others)
    assert link_bytes("a2a", cp, tp) == pytest.approx(everything / cp * others)


def test_two_levels_exchange_heads_inside_and_pass_pairs_between() -> None:
    """8 ranks as 4·2 (the most of 8 key/value heads that leaves a ring): an all-to-all over 4 and
    one step with the eighth of the sequence's keys and values that a rank then holds."""
    seq = job().seq
    pair = 2.0 * 2 * KV_HEADS * WIDTH * seq
    everything = pair + 2.0 * 2 * HEADS * WIDTH * seq
    assert link_bytes("a2a+p2p", 8) == pytest.approx(everything / 8 * 3 / 4 + pair / 4 / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_without_context_parallelism_all_kinds_are_one(kind: str) -> None:
    _, plain = exchanged("p2p", tp=8, dp=8)
    _, found = exchanged(kind, tp=8, dp=8)
    assert np.array_equal(found, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_infinite_links_leave_work_alone(kind: str) -> None:
    layer = layer_of(on_ideal_links(job(context_kinds=(kind,))), cp=8, dp=8)
    assert layer[f.PIECE_FORWARD_CP] == layer[f.PIECE_BACKWARD_CP] == 0.0
    assert layer[f.PIECE_FORWARD] > 0.0


def test_attention_is_the_same_work_by_heads_or_by_queries() -> None:
    """1/cp of the causal square: of all heads, or of all queries of some heads."""
    seconds = []
    for kind in ("p2p", "a2a"):
        model = CostModel(job(context_kinds=(kind,), seq=65_536))
        key = key_of(cost(model, cp=8, dp=8)[0])
        op = next(
            row for row in rows(model.op_table.ops, f.OP_ROW)
            if row.piece == 0 and row.kind == OpKind.ATTENTION
        )  # fmt: skip
        seconds.append(
            sum(
                attention_seconds(
                    op, key, model.job_inputs, model.framework_inputs, model.gpu_inputs
                )
            )
        )
    assert seconds[1] == pytest.approx(seconds[0], rel=0.02)


def test_ring_steps_and_gathers_move_bytes_through_hbm() -> None:
    """What long sequences cost beyond an all-to-all, whose copies are 8 bytes an element."""
    seq, cp = 262_144, 8
    layers = {}
    for kind in ("p2p", "all_gather", "a2a"):
        model = CostModel(job(context_kinds=(kind,), seq=seq))
        layers[kind] = layer_of(model, cp=cp, dp=8)[[f.PIECE_FORWARD, f.PIECE_BACKWARD]]
    rate = model.gpu_inputs.hbm_bytes_per_s * model.gpu_inputs.hbm_efficiency
    query, pair = seq / cp * HEADS * WIDTH, 2 * seq / cp * KV_HEADS * WIDTH
    copies = 8.0 * (2 * query + pair)
    ring = RING_STEP_PASSES * 2.0 * (cp - 1) * np.array([query, query + pair])
    gather = GATHER_PASSES * 2.0 * pair * cp * np.array([1.0, 2.0])
    assert layers["p2p"] - layers["a2a"] == pytest.approx((ring - copies) / rate, rel=0.05)
    assert layers["all_gather"] - layers["a2a"] == pytest.approx((gather - copies) / rate, rel=0.05)


def test_gathered_keys_and_values_are_held() -> None:
    """Both and their gradients, of the whole sequence, beside a rank's queries and output."""
    seq, cp = 524_288, 64
    held = {}
    for kind in ("p2p", "all_gather"):
        model = CostModel(job(context_kinds=(kind,), seq=seq))
        held[kind] = layer_of(model, cp=cp)[f.PIECE_WORKING]
    wide = 2.0 * (2 * seq / cp * HEADS * WIDTH + 2 * 2 * seq * KV_HEADS * WIDTH)
    assert held["all_gather"] == pytest.approx(wide)
    assert held["p2p"] < held["all_gather"]


def test_heads_that_come_back_are_kept_twice() -> None:
    """Attention's output in the order of heads, and as the projection reads it."""
    kept = {kind: exchanged(kind, cp=8, dp=8)[1][f.PIECE_SAVED] for kind in ("p2p", "a2a")}
    output = 2.0 * job().seq / 8 * HEADS * WIDTH
    assert kept["a2a"] - kept["p2p"] == pytest.approx(output)


def test_the_fastest_that_the_heads_allow_is_taken() -> None:
    """Whatever is taken is as fast as the fastest kind alone; 32 ranks never share 8 heads."""
    both = CostModel(job(context_kinds=KINDS))
    for cp in (2, 8, 32):
        degrees = {"cp": cp, "dp": 64 // cp, "grad_acc": 4}
        costed, step = cost(both, **degrees)
        alone = []
        for kind in KINDS:
            if kind == "a2a" and cp == 32:
                continue
            cost_model = CostModel(job(context_kinds=(kind,)))
            alone.append(cost(cost_model, **degrees)[1][f.STEP_TIME])
        assert step[f.STEP_TIME] == pytest.approx(min(alone), rel=2e-3)
        assert exchange_kind(cp, costed.exchange(0))[0] in KINDS
        assert exchange_kind(cp, costed.exchange(0))[0] != "a2a" or cp <= KV_HEADS


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("llama-3-8b", KINDS),
        ("gemma-3-27b", ("all_gather", "a2a")),
        ("gpt-oss-120b", ("a2a",)),
        ("deepseek-v3", ("p2p", "a2a+p2p")),
    ],
)
def test_kernels_limit_the_kinds(model: str, kinds: tuple[str, ...]) -> None:
    """Transformer Engine: no window in a ring, sinks by heads only, no wider keys outside one."""
    spec = load_model(model).spec
    assert kinds_for(model_numbers(spec, 4096), KINDS) == kinds


def test_inner_ranks() -> None:
    """8 key/value heads, domains of 8: cp 2, 4, 8, 16 at tp 1 and 4."""
    numbers = model_numbers(load_model("llama-3-8b").spec, 8192)
    columns = {
        "tp": np.array([1, 1, 1, 1, 4, 4, 4]),
        "cp": np.array([1, 2, 8, 16, 2, 4, 8]),
    }
    none = IMPOSSIBLE
    assert inner_ranks("a2a", columns, numbers, 8).tolist() == [1, 2, 8, none, 2, none, none]
    assert inner_ranks("a2a+p2p", columns, numbers, 8).tolist() == [1, none, 4, 8, none, 2, 2]
    assert inner_ranks("a2a+p2p", columns, numbers, 8, 2).tolist() == [1, none, 2, 2, none, 2, 2]
    assert inner_ranks("all_gather", columns, numbers, 8).tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_names_of_inner_ranks() -> None:
    assert exchange_kind(1, 1) == ("", ())
    assert exchange_kind(8, 0) == ("all_gather", ())
    assert exchange_kind(8, 1) == ("p2p", ())
    assert exchange_kind(8, 8) == ("a2a", ())
    assert exchange_kind(8, 4) == ("a2a+p2p", (4, 2))


@pytest.mark.parametrize(
    ("cp", "exchange", "kernels"), [(1, 1, 0), (8, 0, 6), (8, 1, 12), (8, 8, 8), (8, 4, 14)]
)
def test_kernels_that_sharing_the_sequence_adds(cp: int, exchange: int, kernels: int) -> None:
    """Two chunks cut and joined (4) and one more a step of the ring; 8 of an all-to-all."""
    key = SimpleNamespace(cp=cp, exchange=exchange)
    op = SimpleNamespace(kind=OpKind.ATTENTION, span=0.0)
    assert context_kernels(op, key) == kernels
    assert context_kernels(SimpleNamespace(kind=OpKind.GEMM), key) == 0


@pytest.mark.parametrize("chunks", [1.0, 2.0, 8.0])
def test_the_last_chunk_of_a_causal_sequence_sees_twice_the_mean_less_its_share(
    chunks: float,
) -> None:
    assert last_chunk_share(chunks, 0.0, 65_536.0) == pytest.approx(2.0 - 1.0 / chunks)


def test_with_a_window_chunks_are_more_alike() -> None:
    """Beyond the first window all queries see as much: w over w - w²/2s."""
    assert last_chunk_share(8.0, 4096.0, 65_536.0) == pytest.approx(1.0 / (1.0 - 4096 / 131_072))
    assert last_chunk_share(1.0, 4096.0, 65_536.0) == pytest.approx(1.0)
