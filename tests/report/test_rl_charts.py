"""Pictures of a step of reinforcement learning."""

import json

from planner.report.charts.drawing import svg
from planner.report.charts.rl import step_drawings
from tests.predict.rl.test_step import made


def test_a_shared_step_is_phases_memory_and_tail():
    step = made()[2]
    drawn = {one.name: one for one in step_drawings(step)}
    assert list(drawn) == ["rl-phases", "rl-memory", "rl-tail"]
    phases = drawn["rl-phases"].chart["layer"][0]["data"]["values"]
    assert phases.count("\n") == 1 + len(step.phases)
    for one in drawn.values():
        assert svg(one.chart).startswith("<svg")


def test_sides_on_their_own_have_a_picture_of_memory_each():
    names = [one.name for one in step_drawings(made("separate", 1)[2])]
    assert names == ["rl-phases", "rl-memory-engine", "rl-memory-trainer", "rl-tail"]


def test_stacks_end_at_the_peak():
    step = made()[2]
    chart = next(one.chart for one in step_drawings(step) if one.name == "rl-memory")
    ends = [
        float(line.split(",")[3]) for line in chart["layer"][0]["data"]["values"].splitlines()[1:]
    ]
    assert abs(max(ends) - step.peak_bytes / 2**30) < 1e-3
    assert "HBM" in json.dumps(chart)
