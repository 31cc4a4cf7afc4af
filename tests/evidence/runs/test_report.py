"""Every statistic against runs and predictions made up by hand."""

from __future__ import annotations

import pytest

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.ranking import rank_groups
from planner.evidence.runs.report import (
    RunComparison,
    comparison,
    family_report,
    is_stated,
    mean_of_sources,
    summarise,
)
from planner.predict.plan import Interval
from tests.evidence.runs.rows_for_tests import predicted


def compared(predicted_s: float, measured_s: float, half: float = 0.1) -> RunComparison:
    """A comparison with an interval of so large a share to both sides."""
    interval = Interval(low=predicted_s * (1 - half), high=predicted_s * (1 + half), family="")
    return RunComparison(predicted_s, measured_s, interval)


def test_median_mean_p90_bias_and_worst() -> None:
    summary = summarise([compared(1 + error, 1.0) for error in (-0.1, 0.1, 0.2, -0.4)])
    assert summary is not None
    assert summary.rows == 4
    assert summary.median == pytest.approx(0.15)
    assert summary.mean == pytest.approx(0.2)
    assert summary.p90 == summary.worst == pytest.approx(0.4)
    assert summary.bias == pytest.approx(0.0)
    assert summarise([]) is None


def test_p90_leaves_a_tenth_above() -> None:
    summary = summarise([compared(1 + index / 100, 1.0) for index in range(1, 21)])
    assert summary is not None
    assert summary.p90 == pytest.approx(0.18)
    assert summary.worst == pytest.approx(0.20)


def test_coverage_counts_rows_inside_and_on_the_edge() -> None:
    inside = [compared(1.0, measured) for measured in (0.9, 1.0, 1.1, 1.05)]
    outside = [compared(1.0, measured) for measured in (0.89, 1.2)]
    summary = summarise([*inside, *outside])
    assert summary is not None
    assert summary.coverage == pytest.approx(4 / 6)


def test_rank_correlation_needs_three_rows() -> None:
    rising = [compared(float(index), 2.0 * index) for index in (1, 2, 3)]
    falling = [compared(float(index), 10.0 - index) for index in (1, 2, 3)]
    for rows, expected in ((rising, 1.0), (falling, -1.0), (rising[:2], None)):
        summary = summarise(rows)
        assert summary is not None
        assert summary.rank_correlation == expected


def test_memory_is_compared_in_bytes() -> None:
    found = comparison(predicted(1.0, gib=22.0, peak_mem_gib="20"), "memory")
    assert found is not None
    assert found.error == pytest.approx(0.1)
    assert comparison(predicted(1.0, gib=22.0), "memory") is None
    assert comparison(predicted(1.0, step_time_s=""), "time") is None


# Measured seconds of five runs of one group, told apart by the micro-batch.
TIMES = {"1": "20", "2": "21", "4": "22", "8": "18", "16": "30"}


def group(seconds: dict[str, float], **changes: str) -> list[Prediction]:
    return [
        predicted(seconds[mbs], mbs=mbs, gbs="512", step_time_s=time, **changes)
        for mbs, time in TIMES.items()
    ]


def test_a_perfect_predictor_picks_the_best_and_ranks_all() -> None:
    (rank_group,) = rank_groups(group({mbs: float(time) for mbs, time in TIMES.items()}))
    assert (rank_group.runs, rank_group.pick, rank_group.rank_correlation) == (
        5,
        1.0,
        pytest.approx(1.0),
    )


def test_a_pick_is_the_measured_throughput_of_the_run_ranked_first() -> None:
    (rank_group,) = rank_groups(group({"1": 9.0, "2": 1.0, "4": 2.0, "8": 3.0, "16": 4.0}))
    assert rank_group.pick == pytest.approx(18 / 21)


def test_a_pick_that_ran_out_of_memory_counts_nothing() -> None:
    failed = predicted(0.5, mbs="32", gbs="512", step_time_s="", oom="1")
    (rank_group,) = rank_groups([*group({mbs: float(time) for mbs, time in TIMES.items()}), failed])
    assert rank_group.pick == 0.0
    assert rank_group.rank_correlation == pytest.approx(1.0)


def test_a_run_that_is_said_not_to_fit_is_not_picked() -> None:
    failed = predicted(0.5, gib=500.0, mbs="32", gbs="512", step_time_s="", oom="1")
    (rank_group,) = rank_groups([*group({mbs: float(time) for mbs, time in TIMES.items()}), failed])
    assert rank_group.pick == 1.0


def test_runs_that_the_model_cannot_tell_apart_are_picked_together() -> None:
    (rank_group,) = rank_groups(group({"1": 1.0, "2": 1.0, "4": 2.0, "8": 3.0, "16": 4.0}))
    assert rank_group.pick == pytest.approx((18 / 20 + 18 / 21) / 2)


def test_four_runs_make_no_group() -> None:
    assert rank_groups(group(dict.fromkeys(TIMES, 1.0))[:4]) == []


def test_sources_weigh_the_same() -> None:
    many = [predicted(11.0, source="many", step_time_s="10") for _ in range(9)]
    one = predicted(15.0, source="one", step_time_s="10")
    total = family_report("all", [*many, one])
    means = mean_of_sources([*many, one])
    assert total.time is not None
    assert total.time.mean == pytest.approx((9 * 0.1 + 0.5) / 10)
    assert means["sources"] == 2
    assert means["time_mean"] == pytest.approx((0.1 + 0.5) / 2)
    assert means["memory_mean"] is None


def test_what_a_row_must_state() -> None:
    assert is_stated(predicted(1.0))
    assert not is_stated(predicted(1.0, recompute=""))
    assert not is_stated(predicted(1.0, flash=""))
    assert is_stated(predicted(1.0, flash="", kernel="torch"))
