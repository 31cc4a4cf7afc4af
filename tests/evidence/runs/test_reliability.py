"""Stated probabilities of fitting against what happened."""

from __future__ import annotations

from planner.evidence.runs.report import fit_reliability, of_sources_with_failures, states_fit
from tests.evidence.runs.rows_for_tests import predicted


def test_bins_hold_what_was_stated_and_what_ran() -> None:
    rows = [predicted(1.0, oom=oom) for oom in ("0", "0", "0", "1")]
    (only,) = fit_reliability(rows)
    assert (only.rows, only.ran) == (4, 0.75)
    assert only.low <= only.stated <= only.high


def test_rows_that_do_not_say_whether_they_fit_are_no_evidence() -> None:
    silent = [predicted(1.0, oom=""), predicted(1.0, oom="0", recompute="")]
    assert [states_fit(item) for item in silent] == [None, None]
    assert fit_reliability(silent) == []
    assert states_fit(predicted(1.0, oom="1")) is False


def test_sources_that_list_only_what_ran_are_told_apart() -> None:
    ran, out, other = (
        predicted(1.0, oom=oom, source=source)
        for oom, source in (("0", "a"), ("1", "a"), ("0", "b"))
    )
    silent = predicted(1.0, oom="1", source="c", recompute="")
    assert of_sources_with_failures([ran, out, other, silent]) == [ran, out]
