"""Terms of a rank's memory, each by hand: a sum over stages hides what one of them gets wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost.class_sums import ClassShare, both_shares, class_share
from planner.cost.codes import GROUP_CP, GROUP_EP, ParamShard, Shard
from planner.cost.keys import on_rank, shard_factor
from planner.cost.memory import (
    communicator_bytes,
    exchange_buffer_bytes,
    gradient_bytes,
    outside_bytes,
    set_aside_bytes,
    tensor_buffer_bytes,
    world_bytes,
)
from planner.cost.schedule import SCHEDULE_ZB_V, block_stage, last_chunk_in_flight
from planner.cost.tables import FrameworkInputs
from tests.search.brute import framework_inputs

# Parameters of a rank, dense and of experts, and the ranks that share them under ZeRO.
PARAMETERS, SHARDS = [84.0, 60.0], (8.0, 24.0)


def grid_of(zero: int, ranks: tuple[float, float]) -> Any:
    return SimpleNamespace(zero=zero, shards=ranks[0], expert_shards=ranks[1])


def share_of(zero: int, ranks: tuple[float, float], framework: FrameworkInputs) -> ClassShare:
    both = (
        class_share(count, one_class, grid_of(zero, ranks), framework)
        for count, one_class in zip(PARAMETERS, framework.classes, strict=True)
    )
    return both_shares(*both)


@pytest.mark.parametrize(
    ("zero", "keeps", "shards", "weights"),
    [(3, 1, SHARDS, 26.0), (2, 1, SHARDS, 288.0), (3, 0, SHARDS, 0.0), (1, 0, SHARDS, 288.0),
     (0, 0, SHARDS, 288.0), (2, 0, (2.0, 1.0), 0.0), (3, 0, (1.0, 1.0), 288.0)],
)  # fmt: skip
def test_weights_of_experts_have_shards_of_their_own(
    zero: int, keeps: int, shards: tuple[float, float], weights: float
) -> None:
    framework = framework_inputs(weight_bytes=2.0, zero3_keeps_weight_shard=float(keeps))
    assert framework.weight_bytes * share_of(zero, shards, framework).weights == weights


@pytest.mark.parametrize(("zero", "gradients"), [(1, 720.0), (2, 52.0), (3, 52.0)])
def test_gradients_are_sharded_from_the_second_stage_on(zero: int, gradients: float) -> None:
    framework = framework_inputs(gradient_bytes=4.0, gradients_on_gpu=1.0, extra_gradient_bytes=1.0)
    share, grid = share_of(zero, SHARDS, framework), grid_of(zero, SHARDS)
    assert gradient_bytes(share.trained, share.trained_share, grid, framework) == gradients


@pytest.mark.parametrize(
    ("shard", "pads", "parameters"),
    [
        (ParamShard.NONE, 1, 480.0),
        (ParamShard.TP, 0, 120.0),
        (ParamShard.TP, 1, 192.0),
        (ParamShard.KV, 1, 240.0),
        (ParamShard.EXPERT, 1, 80.0),
    ],
)
def test_parameters_of_a_row(shard: int, pads: int, parameters: float) -> None:
    """480 of them over tp 4, two key/value heads, or ep 2 and etp 3; 10 tokens padded to 16."""
    row = SimpleNamespace(shard=shard, pads_vocabulary=pads)
    key = SimpleNamespace(tp=4.0, expert_ranks=6.0)
    job: Any = SimpleNamespace(vocab=10.0, vocabulary_multiple=4.0, kv_heads=2.0)
    assert on_rank(480.0, row, key, job) == parameters


@pytest.mark.parametrize(("tp", "hides", "held"), [(1, 1, 0), (2, 0, 0), (2, 1, 480), (4, 1, 480)])
def test_buffers_beside_products_hold_an_activation(tp: int, hides: int, held: int) -> None:
    """Three bytes for each element of two sequences of 40 tokens over two ranks, four wide."""
    framework = framework_inputs(hide_tensor=float(hides), tensor_buffer_bytes=3.0)
    job: Any = SimpleNamespace(seq=40.0, hidden=4.0)
    assert tensor_buffer_bytes(float(tp), 2.0, 2.0, job, framework) == held


@pytest.mark.parametrize(
    ("tp", "cp", "dp", "pp", "ep", "count"),
    [(1, 1, 1, 1, 1, 0), (2, 1, 1, 1, 1, 1), (1, 2, 1, 1, 1, 2), (1, 1, 1, 2, 1, 2),
     (2, 2, 2, 4, 2, 6)],
)  # fmt: skip
def test_communicators(tp: int, cp: int, dp: int, pp: int, ep: int, count: int) -> None:
    """Context parallelism is data parallelism too; first and last stage share a second one."""
    assert communicator_bytes(tp, cp, dp, pp, ep, framework_inputs(communicator_bytes=1.0)) == count


@pytest.mark.parametrize(("ranks", "held"), [(1, 0.0), (2, 6.0), (64, 6.0)])
def test_communicators_of_all_ranks(ranks: int, held: float) -> None:
    """Two of three bytes each, where there is more than one rank."""
    framework = framework_inputs(communicator_bytes=3.0, world_communicators=2.0)
    assert world_bytes(float(ranks), framework) == held


@pytest.mark.parametrize(
    ("ep", "heads", "fused", "held"),
    [
        (1, 1, 0, 0.0),  # nobody to exchange with, or a ring
        (8, 1, 0, 7 * 32.0),  # 7 peers in the node
        (16, 1, 0, 15 * 2.0),  # two nodes
        (8, 1, 1, 0.0),  # a fused dispatcher
        (8, 4, 1, 3 * 32.0),  # heads, beside one
        (8, 0, 0, 7 * 32.0),  # keys and values gathered
    ],
)
def test_an_all_to_all_connects_every_pair(ep: int, heads: int, fused: int, held: float) -> None:
    """One byte a channel, in nodes of 8 of 32 GPUs; heads are exchanged by neighbours two apart."""
    framework = framework_inputs(
        near_peer_bytes=32.0, far_peer_bytes=2.0, domain_gpus=8.0, job_gpus=32.0,
        dispatch_deduplicates=float(fused),
    )  # fmt: skip
    stride = [1.0, 1.0, 1.0]
    stride[GROUP_CP], stride[GROUP_EP] = 2.0, 1.0
    key = SimpleNamespace(ep=float(ep), exchange=float(heads), stride=stride)
    assert exchange_buffer_bytes(key, framework) == held


@pytest.mark.parametrize(
    ("stage", "vpp", "grad_acc", "held"),
    [(0, 1, 16, 4), (3, 1, 16, 1), (0, 1, 2, 2), (0, 2, 16, 4), (2, 2, 16, 3), (3, 2, 16, 1),
     (0, 2, 2, 2)],
)  # fmt: skip
def test_last_chunk_of_four_stages(stage: int, vpp: int, grad_acc: int, held: int) -> None:
    assert last_chunk_in_flight(stage, 4, vpp, grad_acc) == held


def test_blocks_of_a_folded_pipeline_come_back() -> None:
    assert [block_stage(block, 4, SCHEDULE_ZB_V) for block in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]


@pytest.mark.parametrize(("tp", "share"), [(2, 0.5), (4, 0.25), (8, 0.25)])
def test_key_value_heads_are_copied_where_ranks_outnumber_them(tp: int, share: float) -> None:
    assert shard_factor(Shard.KV, SimpleNamespace(tp=tp), 4.0) == share


@pytest.mark.parametrize(
    ("zero", "aside"), [(0, 6 * 1000.0), (1, 6 * 250.0), (2, 6 * 250.0), (3, 6 * 100.0)]
)
def test_blocks_of_a_flat_update(zero: int, aside: float) -> None:
    """Six bytes of a rank's 1,000 parameters, divided over four by ZeRO, at most 100 at a time
    under ZeRO-3; they stand beside whatever phase decides."""
    framework = framework_inputs(
        flat_update_bytes=6.0, model_parameters=8000.0, update_group_parameters=100.0,
        context_bytes=7.0,
    )  # fmt: skip
    key = SimpleNamespace(tp=2.0, cp=1.0, ep=1.0, mbs=1.0, exchange=1.0, stride=[1.0] * 3)
    grid = SimpleNamespace(zero=zero, shards=4.0, pp=4.0, dp=4.0)
    assert set_aside_bytes(key, grid, framework) == aside
    job: Any = SimpleNamespace()
    assert outside_bytes(key, grid, job, framework) == 7.0 + aside
