"""Oversubscribed networks: what stays below a leaf switch keeps its rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware.load import load_cluster_file, parse_gpus
from hardware.schema import Cluster
from hardware.sharp import leaf_nodes
from planner.cost import fields as f
from planner.cost.codes import CollectiveKind
from planner.cost.leaf import group_links, stays_below_leaf
from planner.cost.piece_traffic import collective_stream
from planner.predict.cost_model import CostModel
from planner.predict.links import link_inputs
from planner.predict.links import network as both_links
from tests.cost.jobs import cost, make_job


def network(ratio: float, nodes: int, gpus: str = "512xH100") -> Cluster:
    """An oversubscribed cluster with so many nodes below a leaf."""
    changes = {"oversubscription": ratio, "leaf_nodes": nodes}
    return parse_gpus(gpus).model_copy(update=changes)


@pytest.mark.parametrize(
    ("gpus", "ratio", "rails", "nodes"),
    [
        ("512xH100", 1.0, True, 32),
        ("512xH100", 3.0, True, 48),
        ("512xH100", 1.0, False, 4),
        ("512xA100", 1.0, True, 20),
        ("512xB300", 1.0, True, 72),
        ("512xaws-p5", 2.0, True, 0),
    ],
)
def test_nodes_below_a_leaf_switch(gpus: str, ratio: float, rails: bool, nodes: int) -> None:
    """Half of 64 ports lead down without oversubscription, three quarters at 3:1; without rails a
    node takes eight of them."""
    changes = {"oversubscription": ratio, "rail_optimised": rails}
    assert leaf_nodes(parse_gpus(gpus).model_copy(update=changes)) == nodes


def test_a_cluster_file_states_them(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    text = 'gpu = "H100"\nnum_gpus = 512\noversubscription = 2\n'
    path.write_text(text, encoding="utf-8")
    assert load_cluster_file(path).leaf_nodes == 42
    path.write_text(text + "leaf_nodes = 16\n", encoding="utf-8")
    cluster = load_cluster_file(path)
    assert cluster.leaf_nodes == 16
    links = link_inputs(cluster)
    assert (links.leaf_gpus, links.oversubscription) == (128.0, 2.0)


def test_only_the_networks_rates_are_those_below_the_leaf() -> None:
    thin = link_inputs(network(4.0, 16))
    below = both_links(thin)[1]
    assert below.tolist() == pytest.approx(
        thin._replace(
            scale_out_bytes_per_s=4 * thin.scale_out_bytes_per_s,
            scale_out_pair_bytes_per_s=4 * thin.scale_out_pair_bytes_per_s,
            scale_out_exchange_bytes_per_s=4 * thin.scale_out_exchange_bytes_per_s,
            scale_out_dispatch_bytes_per_s=4 * thin.scale_out_dispatch_bytes_per_s,
        )
    )
    full = link_inputs(parse_gpus("512xH100"))
    assert below.scale_out_bytes_per_s == pytest.approx(full.scale_out_bytes_per_s)


@pytest.mark.parametrize(
    ("size", "stride", "below"),
    [(16, 8, True), (128, 1, True), (32, 8, False), (2, 128, False), (2, 64, True), (48, 1, False)],
)
def test_groups_whose_blocks_nest_below_a_leaf(size: int, stride: int, below: bool) -> None:
    """Sixteen nodes of 8 below a leaf; groups of 48 start anywhere, so some cross."""
    links = link_inputs(network(2.0, 16))
    assert stays_below_leaf(float(size), float(stride), links) is below
    found = group_links(float(size), float(stride), both_links(links))
    assert bool(found.scale_out_bytes_per_s > links.scale_out_bytes_per_s) is below


def test_what_is_not_known_is_taken_to_cross_the_spine() -> None:
    both = both_links(link_inputs(network(2.0, 0)))
    assert group_links(16.0, 8.0, both) == both[0]


@pytest.mark.parametrize(
    "kind",
    [
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.REDUCE_SCATTER,
    ],
)
def test_groups_below_a_leaf_meet_a_full_network(kind: int) -> None:
    full, thin = link_inputs(parse_gpus("512xH100")), link_inputs(network(4.0, 16))
    near, far = (16.0, 8.0), (64.0, 8.0)
    seconds = {
        (name, where): collective_stream(kind, *group, 1e9, both_links(links)).seconds
        for name, links in (("full", full), ("thin", thin))
        for where, group in (("near", near), ("far", far))
    }
    assert seconds["thin", "near"] == pytest.approx(seconds["full", "near"])
    assert seconds["thin", "far"] > 2 * seconds["full", "far"]


def test_experts_below_a_leaf_train_as_on_a_full_network() -> None:
    """Rails keep 32 nodes together, their absence 4: an exchange over 8 nodes tells."""
    degrees = {"ep": 64, "dp": 128, "zero": 1}
    job = make_job("qwen3-30b-a3b", "128xH100")
    railed, scattered = (
        cost(CostModel(replace(job, cluster=network(4.0, nodes, "128xH100"))), **degrees)[1]
        for nodes in (8, 4)
    )
    plain = cost(CostModel(job), **degrees)[1]
    assert railed[f.STEP_EP] == pytest.approx(plain[f.STEP_EP])
    assert scattered[f.STEP_EP] > 1.5 * plain[f.STEP_EP]
