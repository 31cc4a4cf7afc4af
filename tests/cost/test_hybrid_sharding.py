"""Hybrid sharding (HSDP): its limits, and what it holds and sends between them."""

from __future__ import annotations

import pytest

from planner.cost import fields as f
from planner.cost.communication import all_gather_time_s, all_reduce_time_s
from planner.cost.data_parallel import reduction_of
from planner.cost.tables import Array
from planner.predict.cost_model import CostModel
from tests.configurations import even_counts
from tests.cost.jobs import cost, grid_of, key_of, make_job, with_links

STATE = (f.STAGE_WEIGHTS, f.STAGE_GRADIENTS, f.STAGE_OPTIMIZER)


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel(make_job("llama-3-8b", "32xH100", "torchtitan"))


def stages_of(model: CostModel, **degrees: int) -> tuple[Array, Array]:
    costed, step = cost(model, **degrees)
    _, stages = model.cost_layout(costed, 0, even_counts(model, costed, 0))
    return step, stages


@pytest.mark.parametrize("zero", [2, 3])
def test_all_ranks_in_the_group_is_full_sharding(model: CostModel, zero: int) -> None:
    full, whole = (cost(model, dp=32, zero=zero, shard=size)[1] for size in (0, 32))
    assert whole.tolist() == full.tolist()


def test_a_group_of_one_shards_no_state(model: CostModel) -> None:
    """As many bytes of state as one GPU holds alone, and an all-reduce of every gradient."""
    alone_model = CostModel(make_job("llama-3-8b", "1xH100", "torchtitan"))
    _, alone = stages_of(alone_model, dp=1, zero=3)
    _, hybrid = stages_of(model, dp=32, zero=3, shard=1)
    for column in STATE:
        assert hybrid[0, column] == alone[0, column]
    assert hybrid[0, f.STAGE_GATHER_BUFFERS] == 0


def test_state_is_divided_by_the_group(model: CostModel) -> None:
    """A constant (inputs, workspaces) and a term in 1/size."""
    columns = list(STATE)
    sizes = [2, 4, 8, 16, 32]
    states = [stages_of(model, dp=32, zero=3, shard=size)[1][0, columns].sum() for size in sizes]
    # What is not divided (workspaces, ids) drops out: S/n - S/2n is S/2n.
    whole = [
        (more - less) * 2 * size
        for more, less, size in zip(states, states[1:], sizes, strict=False)
    ]
    assert whole == pytest.approx([whole[0]] * len(whole))


def test_reduction_is_a_scatter_inside_and_an_all_reduce_across(model: CostModel) -> None:
    """torch FSDP, HYBRID_SHARD: 8 neighbours on NVLink, then an eighth over 4 nodes."""
    costed, _ = cost(model, dp=32, zero=3, shard=8)
    key = key_of(costed)
    grid = grid_of(costed)
    links = model.link_inputs
    framework = model.framework_inputs._replace(gradient_communication_bytes=4.0)
    seconds = reduction_of(1e9, 0.0, key, grid, framework, model.network).seconds
    inside = all_gather_time_s(4e9, 8.0, 8.0, links)
    across = all_reduce_time_s(5e8, 4.0, 1.0, links)
    assert seconds == pytest.approx(inside + across)
    assert (grid.shards, grid.replicas) == (8.0, 4.0)


def test_experts_keep_the_number_of_replicas() -> None:
    """64 ranks of 8 experts each: 8 ranks share an expert, 2 of them in each of 4 replicas."""
    model = CostModel(make_job("mixtral-8x7b", "64xH100", "torchtitan"))
    costed, _ = cost(model, dp=64, ep=8, zero=3, shard=16)
    grid = grid_of(costed)
    assert (grid.shards, grid.expert_shards, grid.replicas) == (16.0, 2.0, 4.0)


def test_without_zero_the_group_means_nothing(model: CostModel) -> None:
    costed, _ = cost(model, dp=32)
    alike = grid_of(costed, shard=8)
    assert (alike.shards, alike.expert_shards, alike.replicas) == (32.0, 32.0, 1.0)


def test_gathers_stay_inside_the_node(model: CostModel) -> None:
    """On slow NICs, sharding within the node is the faster form of ZeRO-3."""
    rate = model.link_inputs.scale_out_bytes_per_s
    slow = with_links(model.job, scale_out_bytes_per_s=rate / 16)
    full, hybrid = (
        cost(slow, dp=32, zero=3, grad_acc=1, shard=size)[1][f.STEP_TIME] for size in (0, 8)
    )
    assert hybrid < full
