"""What measured runs reach, and distances beyond it."""

from __future__ import annotations

import pytest

from planner.predict.uncertainty.measured_range import (
    AXES,
    UNKNOWN,
    Conditions,
    beyond_text,
    common_ranges,
    doublings,
    ranges,
)


def test_an_axis_reaches_as_far_as_two_sources() -> None:
    sources = [{"gpus": (8.0, 64.0)}, {"gpus": (32.0, 512.0)}, {"gpus": (1.0, 8.0)}]
    assert common_ranges(sources) == {"gpus": (8.0, 64.0)}
    assert common_ranges(sources[:1]) == {"gpus": (8.0, 64.0)}
    assert common_ranges([]) == {}


def test_ranges_leave_out_what_is_not_known() -> None:
    runs = [Conditions(gpus=8, seq=4096), Conditions(gpus=64)]
    assert ranges(runs) == {"gpus": (8, 64), "seq": (4096, 4096)}
    assert ranges([UNKNOWN]) == {}


def test_distances_are_doublings_on_either_side() -> None:
    measured = {"gpus": (8.0, 64.0), "hidden": (1024.0, 8192.0)}
    assert doublings(measured, Conditions(gpus=256, hidden=512)) == {"gpus": 2.0, "hidden": 1.0}
    assert doublings(measured, Conditions(gpus=8, hidden=8192)) == {}
    assert doublings(measured, UNKNOWN) == {}


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_has_words(axis: str) -> None:
    at = UNKNOWN._replace(**{axis: 4.0})
    assert "(measured: up to " in beyond_text(axis, {axis: (1.0, 2.0)}, at)
    assert " or more)" in beyond_text(axis, {axis: (8.0, 16.0)}, at)


def test_sources_without_a_value_in_common_are_both_named() -> None:
    text = beyond_text("gpus", {"gpus": (64.0, 8.0)}, Conditions(gpus=16.0))
    assert text == "16 GPUs (measured by one source each: up to 8, from 64)"


def test_overhead_reads_as_the_share_of_communication() -> None:
    text = beyond_text("overhead", {"overhead": (1.0, 2.0)}, Conditions(overhead=4.0))
    assert text == "exposed communication 75 % of the step (measured: up to 50 %)"
