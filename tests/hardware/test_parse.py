"""What people type for --gpus: accepted spellings and the text of refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import HardwareError
from hardware.load import gpu_names, load_cluster_shape, load_gpu, parse_gpus


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("H100-80GB-SXM", "H100-SXM5-80GB"),
        ("h100 sxm", "H100-SXM5-80GB"),
        ("h100_sxm5_80g", "H100-SXM5-80GB"),
        ("H100SXM5", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("H100-96GB-HBM2e-500W", "H100-SXM5-96GB-HBM2e"),
        ("H100-94/96GB-HBM2e", "H100-SXM5-96GB-HBM2e"),
        ("a100", "A100-SXM4-80GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("v100-16gb", "V100-SXM2-16GB"),
        ("RTX4090-24GB", "RTX4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 5090", "RTX5090"),
        ("GB200 NVL72", "GB200-186GB"),
        ("NVIDIA GH200 480GB", "GH200-900W-96GB"),
        ("AMD Instinct MI300X OAM", "MI300X-192GB"),
        ("h20", "H20-96GB"),
        ("b300", "B300-SXM-288GB"),
        # The memory that a source prints: stacks or what is left of them, GB or GiB.
        ("GB300-278GB", "GB300-279GB"),
        ("B300-270GB", "B300-SXM-288GB"),
        ("GB200-189GB", "GB200-186GB"),
        ("A100-SXM-64GB", "A100-SXM4-64GB"),
        ("H100 64GB", "H100-SXM5-64GB"),
        ("NVIDIA GH200 120GB", "GH200-96GB"),
    ],
)
def test_spellings_of_a_gpu(spelling: str, name: str) -> None:
    assert load_gpu(spelling).name == name
    assert parse_gpus(f"16x{spelling}").gpu.name == name


@pytest.mark.parametrize("spelling", ["B300-100GB", "H200-96GB", "GB300-141GB"])
def test_another_memory_is_another_gpu(spelling: str) -> None:
    with pytest.raises(HardwareError, match="unknown GPU"):
        parse_gpus(f"8x{spelling}")


def test_64_h100_are_eight_dgx_nodes() -> None:
    cluster = parse_gpus("64xH100")
    assert cluster.name == "dgx-h100"
    assert (cluster.num_gpus, cluster.num_nodes, cluster.gpus_per_node) == (64, 8, 8)
    assert cluster.scale_up_domain_gpus == 8
    assert cluster.scale_up_bytes_per_s_per_gpu_per_direction == 450e9
    assert (cluster.nics_per_node, cluster.nic_bytes_per_s) == (8, 50e9)
    assert cluster.scale_out_bytes_per_s_per_gpu_per_direction == 50e9
    assert cluster.describe() == (
        "8 nodes of 8×H100-SXM5-80GB, NVLink 450 GB/s, 8×400 Gb/s InfiniBand"
    )


@pytest.mark.parametrize("text", ["8x8xH100-80GB-SXM", " 64 x H100 ", "64XH100", "64×h100"])
def test_other_ways_to_say_the_same(text: str) -> None:
    assert parse_gpus(text) == parse_gpus("64xH100")


def test_a_cluster_shape_may_stand_for_its_gpu() -> None:
    cluster = parse_gpus("64xaws-p5")
    assert (cluster.gpu.name, cluster.num_gpus) == ("H100-SXM5-80GB", 64)
    assert (cluster.nics_per_node, cluster.fabric) == (32, "efa")
    assert cluster.scale_out_bytes_per_s_per_gpu_per_direction == 50e9
    assert parse_gpus("8x8xp5.48xlarge") == cluster


def test_p4d_shares_four_nics_among_eight_gpus() -> None:
    assert parse_gpus("16xaws-p4d").scale_out_bytes_per_s_per_gpu_per_direction == 6.25e9


def test_a_partial_node() -> None:
    cluster = parse_gpus("2xH100")
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.node_gpus) == (1, 2, 8)
    assert cluster.scale_out_bytes_per_s_per_gpu_per_direction == 50e9
    assert cluster.describe().startswith("1 node of 2×H100-SXM5-80GB, ")
    assert cluster.with_gpus(64) == parse_gpus("64xH100")


def test_65_gpus_end_in_a_node_of_one() -> None:
    cluster = parse_gpus("65xH100")
    assert (cluster.num_nodes, cluster.gpus_per_node) == (9, 8)
    assert "9 nodes of 8×H100-SXM5-80GB (the last has 1)" in cluster.describe()


def test_smaller_nodes_keep_each_gpus_share() -> None:
    cluster = parse_gpus("12x4xH100")
    assert (cluster.num_gpus, cluster.num_nodes, cluster.node_gpus) == (48, 12, 4)
    assert (cluster.nics_per_node, cluster.scale_up_domain_gpus) == (4, 4)
    assert cluster.scale_out_bytes_per_s_per_gpu_per_direction == 50e9
    assert cluster.host_memory_bytes_per_node == 1024e9


def test_a_domain_may_span_nodes() -> None:
    cluster = parse_gpus("144xGB200")
    assert (cluster.gpus_per_node, cluster.num_nodes) == (4, 36)
    assert cluster.scale_up_domain_gpus == 72
    assert parse_gpus("2x72xGB200").scale_up_domain_gpus == 72
    assert parse_gpus("36x4xGB200") == cluster
    assert "NVLink 900 GB/s in domains of 72" in cluster.describe()


def test_a_pcie_box_has_domains_of_one_gpu() -> None:
    cluster = parse_gpus("8xA100-PCIe")
    assert (cluster.gpus_per_node, cluster.scale_up_domain_gpus) == (8, 1)
    assert "PCIe 31.5 GB/s" in cluster.describe()
    assert parse_gpus("8xH100-NVL").scale_up_domain_gpus == 2


def test_a_mesh_has_a_rate_for_a_pair() -> None:
    gpu = parse_gpus("8xMI300X").gpu
    pair = gpu.scale_up_pair_bytes_per_s_per_direction
    assert pair == 64e9
    assert gpu.scale_up_bytes_per_s_per_gpu_per_direction == 7 * pair


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("64xH10O", r"'64xH10O': unknown GPU or cluster 'H10O'\. Did you mean 'h100'"),
        ("64xH1OO", r"unknown GPU or cluster 'H1OO'\. Did you mean 'h100'"),
        ("8xB2O0", r"Did you mean 'b200'"),
        ("64xH100x", r"unknown GPU or cluster 'H100x'\. Did you mean 'h100'"),
        ("64xaws-p55", r"Did you mean 'aws-p5'"),
        ("9xTPU-v5p", r"unknown GPU or cluster 'TPU-v5p'\..*planner hardware"),
        ("0xH100", r"'0xH100': 0 is not a number of GPUs; give one from 1 to 4,194,304"),
        ("-8xH100", r"-8 is not a number of GPUs; give one from 1 to 4,194,304"),
        ("8x0xH100", r"0 is not a number of GPUs"),
        (
            "4x16xH100",
            r"DGX H100 has at most 8 GPUs per node, but 16 were given; .*--cluster FILE\.toml",
        ),
        ("H100", r"'H100' names no GPUs: how many\? Write for example 8xH100"),
        ("64xH100,64xA100", r"give --gpus again for another cluster.*64xH100\+64xA100"),
        ("8:H100", r"did you mean 8xH100\?"),
        ("H100:64", r"'H100:64' names no GPUs: did you mean 64xH100\?"),
        ("64H100", r"'64H100' names no GPUs: did you mean 64xH100\?"),
        ("", r"'' names no GPUs: write COUNTxGPU \(64xH100\)"),
        ("x8", r"'x8' names no GPUs: .*list them with: planner hardware"),
        ("64x", r"'64x' names no GPUs"),
    ],
)
def test_refusals_say_what_was_given_and_the_nearest_fix(text: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        parse_gpus(text)


def test_unknown_names_of_the_loaders() -> None:
    with pytest.raises(HardwareError, match=r"unknown GPU 'h10'.*planner hardware"):
        load_gpu("h10")
    with pytest.raises(HardwareError, match=r"unknown cluster 'dgx-h10'\. Did you mean 'dgx-h100'"):
        load_cluster_shape("dgx-h10")


def test_a_cluster_has_at_least_one_gpu() -> None:
    with pytest.raises(HardwareError, match="0 GPUs: a cluster has at least 1"):
        parse_gpus("8xH100").with_gpus(0)


@given(st.sampled_from(gpu_names()), st.integers(1, 20_000))
def test_any_count_of_any_gpu(name: str, count: int) -> None:
    cluster = parse_gpus(f"{count}x{name}")
    assert (cluster.gpu.name, cluster.num_gpus) == (name, count)
    assert (cluster.num_nodes - 1) * cluster.gpus_per_node < count
    assert count <= cluster.num_nodes * cluster.gpus_per_node
    assert cluster.with_gpus(count) == cluster


@given(st.text(max_size=20))
def test_any_text_is_a_cluster_or_a_hardware_error(text: str) -> None:
    try:
        assert parse_gpus(text).num_gpus >= 1
    except HardwareError as error:
        assert repr(text) in str(error)
