"""Spread of repeated runs, what a perfect prediction reaches, and withdrawn step times."""

from __future__ import annotations

import numpy as np
import pytest

from planner.evidence.runs.document import document
from planner.evidence.runs.families import family_by
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.ranking import rank_groups
from planner.evidence.runs.repeats import perfect_score, repeat_noise
from planner.evidence.runs.report import time_comparison, time_error
from tests.evidence.runs.rows_for_tests import predicted, row


def runs(mbs: str, *seconds: str, **changes: str) -> list[Prediction]:
    """Runs of one setting, told from others by the micro-batch."""
    found = float(mbs)
    return [predicted(found, mbs=mbs, gbs="512", step_time_s=time, **changes) for time in seconds]


def test_spread_of_a_setting_is_slowest_over_fastest() -> None:
    (found,) = repeat_noise([*runs("1", "10", "12", "11"), *runs("2", "20", "21"), *runs("4", "9")])
    assert (found.source, found.scale) == ("korthikanti2022", "several domains")
    assert (found.settings, found.runs) == (2, 5)
    assert found.median == pytest.approx((0.2 + 0.05) / 2)
    assert found.worst == pytest.approx(0.2)
    assert found.pick is None


def test_a_figure_printed_twice_is_no_repeat() -> None:
    assert repeat_noise(runs("1", "10", "10")) == []


def test_settings_that_a_column_or_the_model_tells_apart_are_no_repeats() -> None:
    separate = [*runs("1", "10", software="1.0"), *runs("1", "12", software="2.0")]
    assert repeat_noise(separate) == []
    told = [predicted(seconds, step_time_s=time) for seconds, time in ((1.0, "10"), (2.0, "12"))]
    assert repeat_noise(told) == []


def test_where_a_figure_is_written_does_not_matter() -> None:
    pages = [*runs("1", "10", source_ref="page 1"), *runs("1", "11", source_ref="page 2")]
    (found,) = repeat_noise(pages)
    assert found.median == pytest.approx(0.1)


def test_groups_are_scored_where_enough_settings_repeat() -> None:
    quiet = [run for mbs in ("1", "2", "4", "8", "16") for run in runs(mbs, mbs, f"{mbs}.001")]
    (found,) = repeat_noise(quiet)
    assert (found.groups, found.settings) == (1, 5)
    assert found.pick == pytest.approx(1.0, abs=2e-3)
    assert found.rank_correlation is not None and found.rank_correlation > 0.9


def test_a_perfect_prediction_of_undisturbed_runs_is_exact_and_noise_costs() -> None:
    times = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    exact = perfect_score(times, np.array([0.0]), np.random.default_rng(0))
    assert exact == (1.0, pytest.approx(1.0))
    little = perfect_score(times, np.array([0.1]), np.random.default_rng(0))
    much = perfect_score(times, np.array([1.0]), np.random.default_rng(0))
    assert 1.0 > little[0] > much[0] > 1.0 / 1.5
    assert 1.0 > little[1] > much[1]


def test_a_withdrawn_step_time_is_counted_and_not_compared() -> None:
    doubt = "time withdrawn: bimodal"
    found = predicted(1.0, step_time_s="9", peak_mem_gib="2", doubt=doubt)
    assert row(doubt=doubt).withdraws_time
    assert found.measured("step_time_s") is None
    assert found.measured("peak_mem_gib") == 2.0
    assert time_error(found) is None
    assert time_comparison(found) is None
    summary = document([found, predicted(1.0)], family_by("source"))["summary"]
    assert summary["withdrawn_times"] == 1
    assert summary["time"]["rows"] == 1


def test_a_withdrawn_run_is_neither_picked_nor_ranked() -> None:
    usual = [run for mbs in ("1", "2", "4", "8", "16") for run in runs(mbs, mbs)]
    fast = predicted(0.1, mbs="32", gbs="512", step_time_s="90", doubt="time withdrawn: x")
    (rank_group,) = rank_groups([*usual, fast])
    assert (rank_group.runs, rank_group.pick) == (5, 1.0)
