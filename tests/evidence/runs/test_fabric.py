"""The network that a measured run had."""

from __future__ import annotations

import pytest

from hardware.load import parse_gpus
from planner.evidence.runs.machine import Fabric, cluster_of, fabric_of
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from tests.evidence.runs.rows_for_tests import row

GBIT = 1e9 / 8


@pytest.mark.parametrize(
    ("cells", "kind", "gbits", "nics"),
    [
        ({"fabric": "roce 8x400Gbps"}, "roce", 3200, 8),
        ({"fabric": "400Gbps/node"}, None, 400, None),
        ({"fabric": "8x400 Gb/s InfiniBand"}, "infiniband", 3200, 8),
        ({"fabric": "2x100GbE"}, "roce", 200, 2),
        ({"fabric": "slingshot 4x200G"}, "slingshot", 800, 4),
        ({"fabric": "omni-path 400Gbps/node"}, "omni-path", 400, None),
        ({"fabric": "efa 3200Gbps/node"}, "efa", 3200, None),
        ({"fabric": "efa-v1 400Gbps/node"}, "efa-v1", 400, None),
        ({"fabric": "infiniband"}, "infiniband", None, None),
    ],
)
def test_network_of_a_row(
    cells: dict[str, str], kind: str | None, gbits: int | None, nics: int | None
) -> None:
    rate = None if gbits is None else gbits * GBIT
    assert fabric_of(row(**cells)) == Fabric(kind, rate, nics)


@pytest.mark.parametrize("cell", ["garbage", "8x50GB/s", "100 Gbps", "25GbE"])
def test_a_network_that_cannot_be_read_is_not_taken_for_the_usual_one(cell: str) -> None:
    with pytest.raises(UnpredictableRowError, match="names no network"):
        fabric_of(row(fabric=cell))


def test_a_row_says_that_its_switches_reduce() -> None:
    stated = fabric_of(row(fabric="infiniband 8x400Gbps sharp"))
    assert stated == Fabric("infiniband", 3200 * GBIT, 8, sharp=True)
    assert fabric_of(row(fabric="SHARPv3")) == Fabric("infiniband", sharp=True)
    cells = {"gpu": "H100", "num_gpus": "16", "dp": "16", "tp": "1", "pp": "1", "vpp": "1"}
    megatron = row(**cells, framework="megatron-core", fabric="8x400Gbps InfiniBand SHARP")
    assert map_row(megatron).job.cluster.sharp == "v3"
    titan = row(**cells, framework="torchtitan", zero="3", fabric="infiniband sharp")
    assert map_row(titan).job.cluster.sharp == ""


def test_a_row_whose_switches_cannot_reduce_is_refused() -> None:
    cells = {"gpu": "H100", "num_gpus": "16", "dp": "16", "tp": "1", "pp": "1", "vpp": "1"}
    with pytest.raises(UnpredictableRowError, match="only InfiniBand switches reduce"):
        map_row(row(**cells, fabric="roce sharp"))


def test_rows_that_say_nothing_have_the_usual_network() -> None:
    assert fabric_of(row(source="hf-ultrascale-playbook", notes="omni-path")) is None


def test_a_network_is_shared_by_the_gpus_of_a_node() -> None:
    cluster = Fabric("roce", 1600 * GBIT).applied(parse_gpus("16xA100"))
    assert cluster.fabric == "roce"
    assert cluster.scale_out_bytes_per_s_per_gpu_per_direction == pytest.approx(25e9)


def test_a_batch_that_does_not_divide_ends_with_a_smaller_microbatch() -> None:
    """256 sequences on 8 GPUs in micro-batches of 6: 6 of them, the last a third full."""
    mapped = map_row(row(num_gpus="8", dp="8", tp="1", pp="1", vpp="1", mbs="6", gbs="256"))
    assert mapped.degrees.grad_acc == 6
    assert mapped.batch_share == pytest.approx(256 / 288)


def test_a_provider_s_network_tells_its_nodes() -> None:
    """EFA beside H100 is p5, whose CPUs are older than DGX H100's; two shapes have H200."""
    nodes = {"gpu": "H100-80GB", "num_gpus": "64"}
    p5 = cluster_of(row(**nodes, fabric="efa 3200Gbps/node"))
    assert (p5.fabric, p5.host_speed) == ("efa", 1.2)
    assert cluster_of(row(**nodes, fabric="infiniband")).host_speed == 1.4
    h200 = cluster_of(row(**nodes | {"gpu": "H200-SXM5-141GB"}, fabric="efa"))
    assert h200.host_speed == 1.4
