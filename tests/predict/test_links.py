"""Where a job lies on scale-up domains."""

from __future__ import annotations

import pytest

from hardware import parse_gpus
from planner.predict.links import channels, link_inputs, placed_domain_gpus


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
