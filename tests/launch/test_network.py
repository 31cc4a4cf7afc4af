"""Environment by machine and plan, each variable with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.launch.contract import Launch
from planner.launch.folder import machine_environment
from tests.launch.plans import changed, megatron


def on(launch: Launch, **fields: object) -> Launch:
    """The launch on another cluster."""
    cluster = launch.job.cluster.model_copy(update=fields)
    return replace(launch, job=replace(launch.job, cluster=cluster))


def test_nothing_where_nothing_is_wanted() -> None:
    assert machine_environment(megatron("uneven")) == {}


@pytest.mark.parametrize(("fabric", "provider"), [("efa-6400", "efa"), ("slingshot", "cxi")])
def test_plugins_between_nodes(fabric: str, provider: str) -> None:
    found = machine_environment(on(megatron("uneven"), fabric=fabric))
    assert found["FI_PROVIDER"][0] == provider
    assert machine_environment(on(megatron("dense"), fabric=fabric)) == {}


def test_nvlink_over_nodes() -> None:
    found = machine_environment(on(megatron("uneven"), scale_up_domain_gpus=64))
    assert set(found) == {"NCCL_MNNVL_ENABLE"}
    assert all(reason for _, reason in found.values())


def test_the_allocator_where_memory_is_nearly_full() -> None:
    launch = changed(megatron("uneven"), full_memory=object())
    assert machine_environment(launch)["PYTORCH_CUDA_ALLOC_CONF"][0] == "expandable_segments:True"
    assert "NCCL_GRAPH_REGISTER" not in machine_environment(launch)
    graphed = changed(launch, techniques=("cuda-graphs",))
    # arguments.py, validate_args: refused without it.
    assert machine_environment(graphed)["NCCL_GRAPH_REGISTER"][0] == "0"
