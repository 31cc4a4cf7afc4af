"""Where a job lies on scale-up domains, and what its links reach."""

from __future__ import annotations

import math

import pytest

from hardware.link_curves import load_curve_table, load_link_curves
from hardware.load import parse_gpus
from hardware.schema import Cluster
from planner.cost.communication import all_reduce_time_s, all_to_all_time_s
from planner.predict.links import channels, link_inputs, placed_domain_gpus

GIB = 2.0**30


def cluster(gpu: dict[str, object] | None = None, **changes: object) -> Cluster:
    """Eight nodes of H100, in some respects another."""
    plain = parse_gpus("64xH100")
    other = plain.gpu.model_copy(update=gpu or {})
    return plain.model_copy(update={"gpu": other, **changes})


@pytest.mark.parametrize(
    ("gpus", "domain", "node", "placed"),
    [
        (256, 72, 4, 64),  # four racks, 64 of 72 GPUs each
        (576, 72, 4, 72),  # eight full racks
        (64, 72, 4, 72),  # inside one rack
        (64, 8, 8, 8),
        (104, 72, 4, 52),  # two racks of 52
    ],
)
def test_jobs_take_equal_parts_of_domains(gpus: int, domain: int, node: int, placed: int) -> None:
    assert placed_domain_gpus(gpus, domain, node) == placed


def test_expert_groups_of_32_stay_inside_a_rack() -> None:
    assert link_inputs(parse_gpus("256xGB200")).scale_up_domain % 32 == 0


@pytest.mark.parametrize(
    ("gpus", "count"),
    [("8xV100", 12), ("8xA100", 24), ("8xH800", 16), ("8xH100", 24), ("8xL40S", 2)],
)
def test_channels_of_a_communicator(gpus: str, count: int) -> None:
    """As NCCL logs them; without NVLink the fewest."""
    assert channels(parse_gpus(gpus)) == count


def test_link_inputs_of_a_switched_node() -> None:
    links = link_inputs(cluster())
    assert links.scale_up_domain == 8
    assert links.scale_up_bytes_per_s == pytest.approx(0.83 * 450e9)
    assert links.scale_out_bytes_per_s == pytest.approx(0.96 * 50e9)
    assert links.root_gpus == 0
    assert math.isinf(links.root_bytes_per_s)


def test_a_box_without_nvlink_is_one_domain_of_pcie() -> None:
    box = parse_gpus("8xA100-PCIe-80GB").model_copy(update={"scale_up_domain_gpus": 1})
    links = link_inputs(box)
    assert load_link_curves(box).scale_up.name == "pcie4"
    assert links.scale_up_domain == 8
    assert links.root_gpus == 4
    assert links.scale_up_bytes_per_s < 31e9


def test_an_oversubscribed_fabric_thins_every_nic() -> None:
    full, half = (link_inputs(cluster(oversubscription=ratio)) for ratio in (1.0, 2.0))
    assert half.scale_out_bytes_per_s == pytest.approx(full.scale_out_bytes_per_s / 2)
    assert half.scale_up_bytes_per_s == full.scale_up_bytes_per_s


def test_without_a_network_only_the_domain_is_reachable() -> None:
    alone = cluster(fabric="none", scale_out_bytes_per_s_per_gpu_per_direction=0.0)
    links = link_inputs(alone)
    assert math.isfinite(all_to_all_time_s(GIB, 8, 8, links))
    assert math.isinf(all_reduce_time_s(GIB, 16, 8, links))


def test_unknown_gpu_takes_the_nearest_rate() -> None:
    box = cluster(gpu={"name": "X1"}, scale_up_bytes_per_s_per_gpu_per_direction=950e9)
    assert load_link_curves(box).scale_up.name == "nvlink5"


def test_unknown_fabric_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'carrier-pigeon'.*use one of: efa, .*infiniband"):
        load_link_curves(cluster(fabric="carrier-pigeon"))


def test_what_is_copied_is_labelled_extrapolated() -> None:
    table = load_curve_table()
    xgmi4 = table.scale_up["xgmi4"]
    assert xgmi4.share.provenance == "extrapolated"
    assert xgmi4.share.fitted_on == "as xgmi3"
    assert load_link_curves(cluster()).provenance == "assumed"


def test_every_parameter_has_a_unit_and_a_source() -> None:
    table = load_curve_table()
    shares = ("share", "exchange_share", "dispatch_share")
    units = dict.fromkeys(shares, "1") | {"latency_s": "s", "half_bytes": "B"}
    for curve in (*table.scale_up.values(), *table.scale_out.values()):
        for name, unit in units.items():
            entry = getattr(curve, name, None)
            if entry is not None:
                assert entry.unit == unit, (curve.name, name)
                assert entry.source, (curve.name, name)
            if entry is not None and unit == "1":
                assert 0.0 < entry.value <= 1.0
