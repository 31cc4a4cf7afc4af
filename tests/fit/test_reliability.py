"""Stated probabilities of fitting against what happened."""

from __future__ import annotations

from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import states_fit
from tests.evidence.runs.rows_for_tests import predicted, row
from tests.fit.reliability import fit_reliability, of_sources_with_failures


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


def test_a_micro_batch_that_was_chosen_because_it_fits_is_no_evidence() -> None:
    [stated, chosen] = predict_rows([row(oom="0"), row(oom="0", mbs="")])
    assert (states_fit(stated), states_fit(chosen)) == (True, None)


def test_sources_that_list_only_what_ran_are_told_apart() -> None:
    ran, out, other = (
        predicted(1.0, oom=oom, source=source)
        for oom, source in (("0", "a"), ("1", "a"), ("0", "b"))
    )
    silent = predicted(1.0, oom="1", source="c", recompute="")
    assert of_sources_with_failures([ran, out, other, silent]) == [ran, out]
