"""A user's own cluster file: defaults, own numbers, and errors that name file and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardware.errors import HardwareError
from hardware.load import load_cluster_file, parse_gpus
from hardware.schema import Cluster

USER_GPU = """
name = "Chip"
vendor = "nvidia"
architecture = "hopper"
hbm = "64 GiB"
hbm_usable = "63 GiB"
hbm_bandwidth = "2 TB/s"
l2 = "40 MiB"
sm_count = 100
boost_clock = "1.5 GHz"
host_link = "63 GB/s"
scale_up_link = "200 GB/s"
scale_up_domain = 4
tdp = "400 W"
context = "512 MiB"
peak.bf16 = "500 TFLOP/s"
"""
USER_NODE = """
num_gpus = 32
gpus_per_node = 4
scale_up_domain = 4
nics_per_node = 2
nic_rate = "200 Gbit/s"
fabric = "roce"
oversubscription = 2.0
host_memory = "1 TiB"
"""


def load(folder: Path, text: str) -> Cluster:
    path = folder / "ours.toml"
    path.write_text(text, encoding="utf-8")
    return load_cluster_file(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(HardwareError) as caught:
        load(folder, text)
    assert "ours.toml" in str(caught.value)
    return str(caught.value)


def test_a_name_and_a_count_are_enough(tmp_path: Path) -> None:
    cluster = load(tmp_path, 'gpu = "h100 sxm"\nnum_gpus = 64')
    assert cluster == parse_gpus("64xH100").model_copy(update={"name": "ours"})


def test_the_host_is_a_dgx_a100s_unless_the_shape_or_the_file_says_more(tmp_path: Path) -> None:
    assert load(tmp_path, 'gpu = "A100"\nnum_gpus = 8').host_speed == 1.0
    assert load(tmp_path, 'gpu = "H100"\nnum_gpus = 8').host_speed > 1.0
    assert load(tmp_path, 'gpu = "H100"\nnum_gpus = 8\nhost_speed = 1.1').host_speed == 1.1
    assert "host_speed" in refusal(tmp_path, 'gpu = "H100"\nnum_gpus = 8\nhost_speed = 0')


def test_bare_launches_are_as_fast_as_the_host_unless_stated(tmp_path: Path) -> None:
    h100 = 'gpu = "H100"\nnum_gpus = 8\n'
    assert load(tmp_path, h100 + "host_speed = 1.1").host_launch_speed == 1.1
    assert load(tmp_path, h100 + "host_launch_speed = 2").host_launch_speed == 2.0
    assert "host_launch_speed" in refusal(tmp_path, h100 + "host_launch_speed = 0")
    grace = load(tmp_path, 'gpu = "GB200"\nnum_gpus = 8')
    assert grace.host_launch_speed < grace.host_speed


def test_what_is_stated_replaces_what_the_shape_has(tmp_path: Path) -> None:
    text = """
        name = "lab"
        gpu = "H100"
        like = "aws-p5"
        num_gpus = 16
        oversubscription = 2
        host_memory = "1 TB"
        scale_up_link = "400 GB/s"
    """
    cluster = load(tmp_path, text)
    assert (cluster.name, cluster.fabric, cluster.nics_per_node) == ("lab", "efa", 32)
    assert cluster.oversubscription == 2.0
    assert cluster.host_memory_bytes_per_node == 1e12
    assert cluster.scale_up_bytes_per_s_per_gpu_per_direction == 400e9
    assert cluster.describe().endswith("32×100 Gb/s EFA 2:1")


def test_switches_that_reduce(tmp_path: Path) -> None:
    cluster = load(tmp_path, 'gpu = "H100"\nnum_gpus = 64\nsharp = "SHARPv3"')
    assert cluster.sharp == "v3"
    assert cluster.describe().endswith("8×400 Gb/s InfiniBand, SHARPv3")
    assert load(tmp_path, 'gpu = "H100"\nnum_gpus = 64').sharp == ""
    assert load(tmp_path, 'gpu = "A100"\nnum_gpus = 64\nsharp = true').sharp == "v2"
    assert load(tmp_path, 'gpu = "A100"\nnum_gpus = 64\nsharp = false').sharp == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('sharp = "v9"', "v2 (Quantum, HDR)"),
        ("sharp = 3", "neither true nor v2"),
        ('like = "aws-p5"\nsharp = "v3"', "only InfiniBand switches reduce"),
        ('sharp = "v3"\nnic_rate = "100 Gbit/s"', "HDR (200 Gb/s)"),
        ('sharp = "v3"\nrail_optimised = false', "rail_optimised = true"),
        ('sharp = "v3"\nnics_per_node = 0', "no network"),
    ],
)
def test_switches_that_cannot_reduce(tmp_path: Path, more: str, words: str) -> None:
    assert words in refusal(tmp_path, f'gpu = "H100"\nnum_gpus = 64\n{more}')


def test_smaller_nodes_take_their_share_of_the_shape(tmp_path: Path) -> None:
    cluster = load(tmp_path, 'gpu = "H100"\nnum_gpus = 16\ngpus_per_node = 4')
    assert (cluster.nics_per_node, cluster.scale_up_domain_gpus) == (4, 4)
    table = 'gpu = "H100"\nnum_gpus = 16\ngpus_per_node = { value = 4, unit = "1" }'
    assert load(tmp_path, table) == cluster


def test_like_alone_gives_the_gpu(tmp_path: Path) -> None:
    assert load(tmp_path, 'like = "aws-p5en"\nnum_gpus = 8').gpu.name == "H200-SXM-141GB"


def test_a_gpu_and_a_node_of_ones_own(tmp_path: Path) -> None:
    cluster = load(tmp_path, f"{USER_NODE}[gpu]{USER_GPU}")
    assert cluster.gpu.name == "Chip"
    assert cluster.gpu.peak("bf16") == 500e12
    assert cluster.gpu.hbm_usable_bytes == 63 * 2**30
    assert cluster.scale_out_bytes_per_s_per_gpu_per_direction == 2 * 25e9 / 4
    assert cluster.describe() == ("8 nodes of 4×Chip, NVLink 200 GB/s, 2×200 Gb/s RoCE 2:1")


def test_a_gpu_like_one_of_the_catalogue(tmp_path: Path) -> None:
    text = 'num_gpus = 8\n[gpu]\nlike = "H100"\nname = "H100 at 500 W"\ntdp = "500 W"\n'
    cluster = load(tmp_path, text + 'peak.bf16 = "800 TFLOP/s"')
    assert (cluster.gpu.name, cluster.gpu.tdp_w) == ("H100 at 500 W", 500)
    assert cluster.gpu.peak("bf16") == 800e12
    assert cluster.gpu.peak("fp8") == parse_gpus("8xH100").gpu.peak("fp8")
    assert cluster.nics_per_node == 8


@pytest.mark.parametrize("field", ["hbm_usable", "hbm_bandwidth", "tdp", "context", "sm_count"])
def test_a_missing_fact_of_a_gpu_is_named(tmp_path: Path, field: str) -> None:
    kept = "\n".join(line for line in USER_GPU.splitlines() if not line.startswith(f"{field} "))
    message = refusal(tmp_path, f"{USER_NODE}[gpu]{kept}")
    assert f"ours.toml, table [gpu]: field '{field}' is missing" in message


@pytest.mark.parametrize("field", ["nics_per_node", "nic_rate", "fabric", "host_memory"])
def test_a_missing_fact_of_a_node_is_named(tmp_path: Path, field: str) -> None:
    kept = "\n".join(line for line in USER_NODE.splitlines() if not line.startswith(f"{field} "))
    assert f"field '{field}' is missing" in refusal(tmp_path, f"{kept}\n[gpu]{USER_GPU}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('gpu = "H100"', "field 'num_gpus' must be a whole number from 1 to 4,194,304, not None"),
        ('gpu = "H100"\nnum_gpus = 0', "from 1 to 4,194,304, not 0"),
        ("num_gpus = 8", "field 'gpu' is missing: a catalogue name or a table [gpu]"),
        ('gpu = "H10O"\nnum_gpus = 8', "unknown GPU 'H10O'. Did you mean 'h100'"),
        ("gpu = 100\nnum_gpus = 8", "field 'gpu' is neither a catalogue name nor a table"),
        ('gpu = "H100"\nnum_gpus = 8\nlike = "dgx-h10"', "unknown cluster 'dgx-h10'"),
        ('num_gpus = 8\n[gpu]\nlike = "H10O"', "table [gpu]: unknown GPU 'H10O'"),
        ('gpu = "H100"\nnum_gpus = 8\nnics = 4', "field 'nics' is not known (known: "),
        ('gpu = "H100"\nnum_gpus = 8\nfabrik = "roce"', "not known. Did you mean 'fabric'?"),
        (
            'gpu = "H100"\nnum_gpus = 8\nnic_rate = 400',
            "field 'nic_rate': 400 is not in units of bandwidth",
        ),
        ('gpu = "H100"\nnum_gpus = 8\nfabric = "ndr"', "field 'fabric': 'ndr' is not one of"),
        ('gpu = "H100"\nnum_gpus = 8\noversubscription = 0.5', "'oversubscription'"),
        (
            'num_gpus = 8\n[gpu]\nlike = "H100"\nhbm = "80 GB"',
            "hbm_usable is 79.11 GiB, more than hbm (74.51 GiB); datasheets often print GiB",
        ),
        ("gpu = ", "not valid TOML"),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"absent\.toml does not exist"):
        load_cluster_file(tmp_path / "absent.toml")
