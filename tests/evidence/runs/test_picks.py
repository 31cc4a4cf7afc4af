"""Groups whose pick was not the best: what was picked, and what decided."""

from __future__ import annotations

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.worst import MEMORY, OUT, missed_picks
from tests.evidence.runs.rows_for_tests import predicted


def group(*figures: tuple[float, str, float]) -> list[Prediction]:
    """Runs of one group: predicted seconds, measured seconds (empty: out of memory), GiB."""
    return [
        predicted(item, gib, step_time_s=measured, oom="0" if measured else "1", tp=str(tp), dp="")
        for tp, (item, measured, gib) in zip((1, 2, 4, 8, 1, 2), figures, strict=False)
    ]


LIKE = [(20.0 + index, str(20.0 + index), 10.0) for index in range(5)]


def test_a_good_pick_is_not_shown() -> None:
    assert missed_picks(group(*LIKE)) == []


def test_the_term_that_favours_the_pick_is_named() -> None:
    (missed,) = missed_picks(group((10.0, "40", 10.0), *LIKE))
    assert missed.share == 0.5
    assert missed.decided_by == "compute: 10,000 ms less"
    assert missed.picked.startswith("tp1 ")
    assert missed.best.startswith("tp2 ")


def test_memory_decides_where_the_best_was_said_not_to_fit_or_the_pick_ran_out() -> None:
    large, *rest = group((10.0, "10", 200.0), *LIKE)
    (missed,) = missed_picks([large, *rest])
    assert (missed.share, missed.decided_by) == (0.5, MEMORY)
    (missed,) = missed_picks(group((10.0, "", 10.0), *LIKE))
    assert (missed.share, missed.decided_by) == (0.0, OUT)


def test_a_run_that_hardly_fits_is_no_pick_beside_sure_ones() -> None:
    unsure = group((10.0, "", 79.0), *LIKE)
    assert unsure[0].fits
    assert missed_picks(unsure) == []
