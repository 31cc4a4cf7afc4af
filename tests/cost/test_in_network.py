"""Collectives with reductions in the switches: closed forms, limits, properties, and expectations
that NCCL's developers published. No measurement of them is known here."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.load import parse_gpus
from hardware.sharp import with_sharp
from planner.cost.codes import CollectiveKind
from planner.cost.communication import all_gather_time_s, all_reduce_time_s
from planner.cost.in_network import in_network_stream, serves, switch_tiers
from planner.cost.inputs import LinkInputs
from planner.predict.links import link_inputs
from tests.cost.test_communication import IDEAL as RATES

GB = 1e9
# Rates only: no latency, no ramp, no reduction inside a domain.
IDEAL = RATES._replace(
    scale_up_bytes_per_s=1e15,
    in_network_bytes_per_s=50e9,
    in_network_leaf_ports=32.0,
    in_network_groups=256.0,
    in_network_gathers=1.0,
)


def links_of(text: str) -> LinkInputs:
    return link_inputs(with_sharp(parse_gpus(text)))


A100, H100, NVL72 = links_of("64xA100"), links_of("1024xH100"), links_of("2304xGB200")


def all_reduce_s(payload: float, size: float, members: float, links: LinkInputs) -> float:
    return float(
        in_network_stream(CollectiveKind.ALL_REDUCE, payload, size, members, links).seconds
    )


# -- closed forms -----------------------------------------------------------------------------


def test_a_nic_sends_half_of_a_rings_bytes() -> None:
    """S/m up and S/m down, at the same time, against 2 (n - 1)/n S/m of a ring."""
    switched = all_reduce_s(8 * GB, 1024, 8, IDEAL)
    assert switched == pytest.approx(8 * GB / 8 / 50e9)
    hosts = all_reduce_time_s(8 * GB, 1024, 8, IDEAL)
    assert hosts == pytest.approx(2 * 1023 / 1024 * switched)


def test_two_domains_gain_nothing() -> None:
    """The tree between two domains sends the payload once already."""
    assert all_reduce_s(8 * GB, 16, 8, IDEAL) == pytest.approx(
        all_reduce_time_s(8 * GB, 16, 8, IDEAL)
    )


@pytest.mark.parametrize(("nics", "expected"), [(4, 80e9), (8, 110e9)])
def test_what_nccls_developers_expect_of_a_dgx_a100(nics: int, expected: float) -> None:
    """NVIDIA/nccl issue 320: algorithm bandwidth of 4 NICs limited by these, of 8 by NVLink."""
    links = A100._replace(in_network_bytes_per_s=nics / 8 * 25e9 * 0.8)
    assert 64 * GB / all_reduce_s(64 * GB, 64, 8, links) == pytest.approx(expected, rel=0.03)


def test_a_scatter_moves_what_a_ring_does() -> None:
    switched = in_network_stream(CollectiveKind.REDUCE_SCATTER, 8 * GB, 1024.0, 8.0, IDEAL)
    assert switched.seconds == pytest.approx(8 * GB / 8 / 50e9)
    assert switched.between == pytest.approx(switched.seconds)
    hosts = all_gather_time_s(8 * GB, 1024, 8, IDEAL)
    assert hosts == pytest.approx(1023 / 1024 * switched.seconds)


@pytest.mark.parametrize(
    ("domains", "tiers"), [(2, 1), (32, 1), (33, 2), (1024, 2), (1025, 3), (32768, 3)]
)
def test_tiers_of_the_tree(domains: int, tiers: int) -> None:
    assert switch_tiers(float(domains), IDEAL) == tiers


def test_latency_grows_with_the_tiers_not_with_the_ranks() -> None:
    links = IDEAL._replace(in_network_latency_s=10.0, in_network_tier_s=1.0)
    assert [all_reduce_s(1.0, 8.0 * d, 8.0, links) for d in (2, 32, 64, 1024)] == pytest.approx(
        [10.0, 10.0, 12.0, 12.0]
    )


def test_each_tier_is_crossed_up_and_down_and_each_chain_twice() -> None:
    links = IDEAL._replace(scale_up_latency_s=1.0, scale_up_start_s=100.0)
    assert all_reduce_s(1.0, 64.0, 8.0, links) == pytest.approx(2 * (100.0 + 7.0))
    scatter = in_network_stream(CollectiveKind.REDUCE_SCATTER, 1.0, 64.0, 8.0, links)
    assert scatter.seconds == pytest.approx(107.0)


def test_the_switch_of_a_domain_reduces_before_the_network_does() -> None:
    """2 S (m - 1)/m over NVLS's gain inside a node of H100."""
    free = H100._replace(in_network_bytes_per_s=1e15)
    inside = in_network_stream(CollectiveKind.ALL_REDUCE, 64 * GB, 1024.0, 8.0, free).inside
    ring = 2 * 7 / 8 * 64 * GB / H100.scale_up_bytes_per_s
    assert inside == pytest.approx(ring / H100.scale_up_reduction_gain)


def test_oversubscription_beyond_the_leaf_costs_nothing() -> None:
    thin = with_sharp(parse_gpus("1024xH100").model_copy(update={"oversubscription": 4.0}))
    assert link_inputs(thin).in_network_bytes_per_s == H100.in_network_bytes_per_s
    assert link_inputs(thin).scale_out_bytes_per_s == H100.scale_out_bytes_per_s / 4


# -- who is served ----------------------------------------------------------------------------


def test_more_groups_than_trees_go_through_the_hosts() -> None:
    """Megatron's log line: a Quantum switch has SHARP for 8 process groups, a Quantum-2 for 256."""
    reduce = CollectiveKind.ALL_REDUCE
    assert serves(reduce, 64.0, 1.0, 8.0, A100)
    assert not serves(reduce, 64.0, 1.0, 9.0, A100)
    assert serves(reduce, 64.0, 1.0, 256.0, H100)
    assert not serves(reduce, 64.0, 1.0, 257.0, H100)


def test_groups_inside_a_domain_and_clusters_without_sharp_are_not_served() -> None:
    assert not serves(CollectiveKind.ALL_REDUCE, 8.0, 8.0, 1.0, H100)
    assert not serves(CollectiveKind.ALL_REDUCE, 64.0, 8.0, 1.0, link_inputs(parse_gpus("64xH100")))


def test_scatters_need_a_nic_for_each_gpu() -> None:
    """NCCL 2.21, tuning.cc: CollNet's gathers and scatters are off where GPUs share NICs."""
    shared = with_sharp(parse_gpus("64xH100").model_copy(update={"nics_per_node": 4}))
    assert serves(CollectiveKind.ALL_REDUCE, 64.0, 8.0, 1.0, link_inputs(shared))
    assert not serves(CollectiveKind.REDUCE_SCATTER, 64.0, 8.0, 1.0, link_inputs(shared))
    assert serves(CollectiveKind.ALL_GATHER, 64.0, 8.0, 1.0, H100)


# -- properties -------------------------------------------------------------------------------

KINDS = st.sampled_from(
    [CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER]
)
LINKS = st.sampled_from([IDEAL, A100, H100, NVL72])
GROUPS = st.sampled_from([(16.0, 8.0), (64.0, 1.0), (1024.0, 8.0), (12.0, 6.0)])
BYTES = st.floats(1.0, 1e11)


@given(kind=KINDS, group=GROUPS, payload=BYTES, links=LINKS)
def test_more_bytes_or_less_bandwidth_is_never_faster(
    kind: int, group: tuple[float, float], payload: float, links: LinkInputs
) -> None:
    found = in_network_stream(kind, payload, *group, links)
    assert in_network_stream(kind, 2 * payload, *group, links).seconds >= found.seconds
    slow = links._replace(in_network_bytes_per_s=links.in_network_bytes_per_s / 2)
    assert in_network_stream(kind, payload, *group, slow).seconds >= found.seconds
    assert found.inside <= found.seconds
    assert found.between <= found.seconds


@given(kind=KINDS, group=GROUPS, payload=BYTES, links=LINKS)
def test_never_faster_than_what_must_cross_the_nics(
    kind: int, group: tuple[float, float], payload: float, links: LinkInputs
) -> None:
    least = payload / group[1] / links.in_network_bytes_per_s
    found = in_network_stream(kind, payload, *group, links)
    assert found.seconds >= least * (1 - 1e-12)


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER])
def test_infinite_bandwidth_without_latency_takes_no_time(kind: int) -> None:
    instant = IDEAL._replace(scale_up_bytes_per_s=math.inf, in_network_bytes_per_s=math.inf)
    assert in_network_stream(kind, GB, 64.0, 8.0, instant).seconds == 0.0
