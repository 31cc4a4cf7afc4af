"""NCCL's variables: what each makes of a cluster's links."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardware.errors import HardwareError
from hardware.load import load_cluster_file, parse_gpus
from hardware.schema import FABRIC_TITLES, Cluster
from hardware.transport import VARIABLES, TransportSettings, read_transport, transport_changes
from planner.cost.inputs import LinkInputs
from planner.predict.links import link_inputs
from tests.cli.conftest import run_cli

_IB, _EFA, _ONE_NODE, _PCIE = "32xA100-80GB", "32xaws-p5", "8xH100", "8xRTX4090"

# Variables, a machine, and the number of the links that becomes smaller; none: nothing changes.
CASES = [
    ({"NCCL_IB_DISABLE": "1"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_IB_DISABLE": "0x1"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_IB_DISABLE": "0"}, _IB, ""),
    ({"NCCL_IB_DISABLE": "true"}, _IB, ""),  # NCCL reads a number
    ({"NCCL_IB_DISABLE": "1"}, _EFA, ""),  # EFA is reached through libfabric
    ({"NCCL_IB_DISABLE": "1"}, _ONE_NODE, ""),
    ({"NCCL_NET": "Socket"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_NET": "IB"}, _IB, ""),
    ({"NCCL_NET_PLUGIN": "none"}, _EFA, "scale_out_bytes_per_s"),
    ({"NCCL_NET_PLUGIN": "none"}, _IB, ""),
    ({"FI_PROVIDER": "tcp"}, _EFA, "scale_out_bytes_per_s"),
    ({"FI_PROVIDER": "efa"}, _EFA, ""),
    # Set on every machine with EFA, where libfabric's plugin carries what verbs do not.
    ({"FI_PROVIDER": "efa", "NCCL_IB_DISABLE": "1"}, _IB, ""),
    ({"FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_IB_DISABLE": "1"}, _IB, ""),
    ({"FI_EFA_FORK_SAFE": "1", "NCCL_IB_DISABLE": "1"}, _IB, ""),
    ({"FI_EFA_SET_CUDA_SYNC_MEMOPS": "0", "NCCL_IB_DISABLE": "1"}, _IB, ""),
    ({"FI_PROVIDER": "tcp"}, _IB, ""),
    ({"NCCL_SOCKET_IFNAME": "eth0"}, _IB, ""),  # bootstrap alone
    ({"NCCL_IB_HCA": "mlx5_0"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_IB_HCA": "mlx5"}, _IB, ""),
    ({"NCCL_IB_HCA": "^mlx5_0"}, _IB, ""),
    ({"NCCL_NET_GDR_LEVEL": "LOC"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_NET_GDR_DISABLE": "1"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_IB_CUDA_SUPPORT": "0"}, _IB, "scale_out_bytes_per_s"),
    ({"NCCL_NET_GDR_LEVEL": "SYS"}, _IB, ""),
    ({"NCCL_P2P_DISABLE": "1"}, _ONE_NODE, "scale_up_bytes_per_s"),
    ({"NCCL_P2P_LEVEL": "LOC"}, _ONE_NODE, "scale_up_bytes_per_s"),
    ({"NCCL_P2P_LEVEL": "NVL"}, _ONE_NODE, ""),
    ({"NCCL_SHM_DISABLE": "1"}, _ONE_NODE, ""),  # GPUs exchange directly
    ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, _ONE_NODE, "scale_up_bytes_per_s"),
    ({"NCCL_NVLS_ENABLE": "0"}, _ONE_NODE, "scale_up_reduction_gain"),
    ({"NCCL_NVLS_ENABLE": "2"}, _ONE_NODE, ""),
    ({"NCCL_NVLS_ENABLE": "0"}, _PCIE, ""),
    ({"NCCL_ALGO": "Ring"}, _ONE_NODE, "scale_up_reduction_gain"),
    ({"NCCL_ALGO": "Ring,NVLS"}, _ONE_NODE, ""),
    ({"NCCL_ALGO": "^Tree"}, _ONE_NODE, ""),
    ({"NCCL_PROTO": "LL"}, _ONE_NODE, "scale_up_bytes_per_s"),
    ({"NCCL_PROTO": "LL128"}, _ONE_NODE, "scale_up_bytes_per_s"),
    ({"NCCL_PROTO": "Simple,LL"}, _ONE_NODE, ""),
]  # fmt: skip


@pytest.mark.parametrize(("values", "gpus", "smaller"), CASES)
def test_what_a_variable_changes(values: dict[str, str], gpus: str, smaller: str) -> None:
    """It makes the named rate smaller and no rate larger, or changes nothing at all."""
    cluster, settings = parse_gpus(gpus), read_transport(values)
    changed = settings.applied(cluster)
    assert bool(transport_changes(settings, cluster)) is bool(smaller)
    if not smaller:
        assert changed == cluster
        return
    before, after = _rates(cluster), _rates(changed)
    assert after[smaller] < before[smaller]
    # A kind of traffic without a rate of its own has an infinite one, and that of another counts.
    rates = [name for name in before if name.endswith("_bytes_per_s") and after[name] < 1e15]
    assert all(after[name] <= before[name] for name in rates if name != "root_bytes_per_s")
    words = " ".join(change.words for change in transport_changes(settings, cluster))
    assert words


def _rates(cluster: Cluster) -> dict[str, float]:
    return dict(zip(LinkInputs._fields, link_inputs(cluster), strict=True))


def test_every_variable_has_a_case() -> None:
    assert {name for values, _, _ in CASES for name in values} == set(VARIABLES)


def test_sockets_reach_a_tenth_to_a_hundredth_of_a_fast_network() -> None:
    cluster = parse_gpus("64xH100")
    for values in ({}, {"NCCL_SOCKET_IFNAME": "eth0"}, {"NCCL_SOCKET_IFNAME": "=ib0,ib1"}):
        slow = read_transport({"NCCL_IB_DISABLE": "1"} | values).applied(cluster)
        ratio = _rates(slow)["scale_out_bytes_per_s"] / _rates(cluster)["scale_out_bytes_per_s"]
        assert 1 / 400 < ratio < 1 / 10


def test_no_variable_changes_nothing() -> None:
    cluster = parse_gpus("64xH100")
    assert TransportSettings().applied(cluster) is cluster
    assert read_transport({}) == TransportSettings()


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("gigabits", [10, 25, 100, 400])
def test_ethernet_is_a_fabric(tmp_path: Path, gigabits: int) -> None:
    """TCP is slower than RDMA on the same NICs, more so on fast ones."""
    text = (
        'num_gpus = 16\ngpu = "A100-SXM4-80GB"\nfabric = "{fabric}"\nnics_per_node = 1\n'
        f'nic_rate = "{gigabits} Gbit/s"\n'
    )
    tcp, rdma = (
        load_cluster_file(_file(tmp_path, text.format(fabric=fabric)))
        for fabric in ("ethernet", "roce")
    )
    assert f"1×{gigabits} Gb/s Ethernet (TCP)" in tcp.describe()
    slow, fast = _rates(tcp), _rates(rdma)
    assert slow["scale_out_bytes_per_s"] < 0.5 * fast["scale_out_bytes_per_s"]
    assert slow["scale_out_latency_s"] > fast["scale_out_latency_s"]
    assert slow["scale_out_bytes_per_s"] * 8 <= 0.5 * min(gigabits, 100) * 1e9 / 8


@pytest.mark.parametrize("fabric", [name for name in FABRIC_TITLES if name != "none"])
def test_every_fabric_joins_nodes(tmp_path: Path, fabric: str) -> None:
    path = _file(tmp_path, f'num_gpus = 64\nlike = "dgx-h100"\nfabric = "{fabric}"\n')
    assert link_inputs(load_cluster_file(path)).scale_out_bytes_per_s > 1e6


@pytest.mark.parametrize("none", ['fabric = "none"', "nics_per_node = 0"])
def test_nodes_without_a_network_are_refused(tmp_path: Path, none: str) -> None:
    """However many GPUs are asked for: by the file, or of its nodes."""
    one = _file(tmp_path, f'num_gpus = 8\nlike = "dgx-h100"\n{none}\n')
    assert "no network" in load_cluster_file(one).describe()
    with pytest.raises(HardwareError, match="no network between nodes"):
        parse_gpus(f"64x{one}")
    two = _file(tmp_path, f'num_gpus = 64\nlike = "dgx-h100"\n{none}\n')
    with pytest.raises(HardwareError, match="ethernet"):
        load_cluster_file(two)


def test_a_node_without_a_network_is_searched_alone(tmp_path: Path) -> None:
    """What would help, and what if, try no more nodes than there can be."""
    file = _file(tmp_path, 'num_gpus = 8\nlike = "dgx-h100"\nfabric = "none"\n')
    plans = tmp_path / "plans.json"
    job = ("--cluster", str(file), "--gbs", "8", "-q")
    assert run_cli("search", "--model", "llama-3.2-1b", *job, "-o", str(plans)).exit_code == 0
    asked = run_cli("explain", str(plans), "1", "--what-if", "--no-neighbours", "-q")
    assert asked.exit_code == 0, asked.output
    assert "one more node" not in asked.output
    assert run_cli("search", "--model", "405b", *job, "--time-limit", "2").exit_code == 1
