"""When a chain of trials ends."""

from __future__ import annotations

import time
from io import StringIO

import pytest

from planner.job.request import Request
from planner.report.draw import console, draw
from planner.report.fit import nothing_fits_report
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.limit_results import Until
from planner.search.search import find_plans


def test_a_chain_ends_with_its_deadline() -> None:
    until = Until(time.perf_counter() - 1.0)
    assert until.over("gpus")
    assert until.over("gpus")
    assert until.over("offload")
    assert until.untried == ("gpus", "offload")
    assert until.stopped == "time-limit"
    left = until.seconds_left
    assert left is not None
    assert left > 0
    assert not Until().over("gpus")
    assert Until().seconds_left is None


def test_the_time_limit_also_ends_the_search_for_relaxations() -> None:
    request = Request(
        model="llama-3-8b", gpus="2xH100", gbs=16, recompute=("none",), require=("pp<=4",)
    )
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, time_limit_s=1e-3)
    why = caught.value.why
    assert why.stopped == "time-limit"
    assert {"gpus", "optimizer", "sequence"} <= set(why.untried)
    assert why.relaxations == ()
    # What was not decided in time is not called a conflict.
    assert all("not decided in time" in rule.text for rule in why.conflict[:-1])
    assert "time limit came before everything was tried" in why.cut
    assert why.cut in why.sentences()
    assert "The time limit came before everything was tried" in _text(why)
    # Nor is it said of changes that none was found where none was tried.
    assert "None of the changes" not in _text(why)
    assert "exclude each other" not in _text(why)


def _text(why: WhyNothingFits) -> str:
    stream = StringIO()
    draw(nothing_fits_report(why), console(stream))
    return stream.getvalue()


def test_choices_without_effect_are_said_to_be_left_out() -> None:
    """405 B parameters on one node fit no way: the figures are not of what was allowed."""
    request = Request(model="405b", gpus="8xH100", gbs=16, recompute=("none",))
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request)
    (memory,) = caught.value.why.conflict
    assert "with full recompute" in memory.text
    assert memory.text.endswith(
        "Left out here: --recompute none; nothing fits with them or without them"
    )
