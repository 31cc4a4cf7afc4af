"""A step of reinforcement learning on the terminal."""

import io
from itertools import pairwise

from planner.predict.rl.timeline import bars
from planner.report.draw import console, draw
from planner.report.rl_step import drawn_bar, step_blocks
from planner.report.tables import Report
from tests.predict.rl.test_step import made


def shown(*given, **more):
    _, _, step = made(*given, **more)
    stream = io.StringIO()
    draw(Report(tuple(step_blocks(step))), console(stream))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return step, " ".join(text.split())


def test_phases_stand_in_order_under_a_clock_within_eighty_columns():
    step, text = shown()
    order = ["new weights", "engines wake", "generation", "engines sleep", "old log", "policy's"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "add up to the step" in text
    assert "█" in text
    assert f"{step.generation.tail_s:.0f}" in text


def test_sides_that_wait_for_each_other_are_said():
    _, synchronous = shown("separate")
    assert "--staleness" in synchronous
    _, behind = shown("separate", 1)
    assert "from 1 update ago" in behind
    assert "GPUs that train wait for 50 %" in behind


def test_bars_cover_the_clock_once_where_all_take_turns():
    _, _, step = made()
    drawn = bars(step)
    assert drawn[0].start_s == 0.0
    assert abs(drawn[-1].end_s - step.step_s) < 1e-9
    assert all(a.end_s == b.start_s for a, b in pairwise(drawn))
    assert all(1 <= len(drawn_bar(bar, step.step_s)) <= 25 for bar in drawn)
