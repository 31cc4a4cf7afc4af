"""Records, families and worst rows."""

from __future__ import annotations

from typing import Any

import pytest

from planner.evidence.runs.document import csv_columns, csv_record, document
from planner.evidence.runs.families import family_by
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.worst import terms, worst_rows
from planner.job.errors import UsageError
from tests.evidence.runs.rows_for_tests import predicted, row

BY_SOURCE = family_by("source")

PREDICTED_COLUMNS = (
    "predicted_step_time_s", "predicted_low_s", "predicted_high_s", "predicted_expected_s",
    "predicted_tokens_per_s_per_gpu", "predicted_peak_mem_gib", "predicted_low_gib",
    "predicted_high_gib", "predicted_fits", "fit_probability", "time_ape", "mem_ape",
    "interval_family", "memory_interval_family", "assumed", "open_facts", "open_values",
    "narrowing_time", "narrowing_memory", "error",
)  # fmt: skip


def test_a_record_holds_the_row_and_its_prediction() -> None:
    content = document(predict_rows([row(vocab=""), row(tuning="peft:adalora")]), BY_SOURCE)
    good, refused = content["rows"]
    assert good["model"] == "GPT-175B"
    assert set(PREDICTED_COLUMNS) <= good.keys()
    assert good["predicted_low_s"] <= good["predicted_step_time_s"] <= good["predicted_high_s"]
    tokens = 64 * 2048 / (good["predicted_step_time_s"] * 64)
    assert good["predicted_tokens_per_s_per_gpu"] == pytest.approx(tokens)
    assert good["time_ape"] == pytest.approx(abs(good["predicted_step_time_s"] / 18.13 - 1))
    assert (good["mem_ape"], good["error"]) == (None, None)
    assert good["assumed"] == ["vocab 50,304"]
    low, peak, high = (good[f"predicted_{name}_gib"] for name in ("low", "peak_mem", "high"))
    assert low < peak < high
    assert good["fit_probability"] > 0.5
    assert good["open_facts"] == ["vocab", "fabric"]
    assert refused["predicted_step_time_s"] is refused["open_facts"] is None
    assert "LoRA" in refused["error"]


def test_tokens_are_those_of_the_stated_batch() -> None:
    """64 sequences in micro-batches of 3: 22, the last of one sequence."""
    found = predicted(2.0, mbs="3", gbs="64")
    (record,) = document([found], BY_SOURCE)["rows"]
    seconds = record["predicted_step_time_s"]
    assert seconds == pytest.approx(2.0 * 64 / 66)
    assert record["predicted_tokens_per_s_per_gpu"] == pytest.approx(2048 / seconds)


def test_the_summary_holds_families_and_both_parts() -> None:
    rows = [predicted(2.0, step_time_s="1"), predicted(1.0, recompute="", step_time_s="1")]
    summary: dict[str, Any] = document(rows, family_by("recompute"))["summary"]
    assert [family["family"] for family in summary["families"]] == ["full", "recompute unstated"]
    assert summary["time"]["mean"] == pytest.approx(0.5)
    assert summary["stated"]["time"]["mean"] == pytest.approx(1.0)
    assert summary["unstated"]["time"]["mean"] == pytest.approx(0.0)
    assert summary["mean_of_sources"]["time_mean"] == pytest.approx(0.5)
    assert summary["refusals"] == {}


def test_csv_columns_are_those_of_all_rows() -> None:
    rows = [predicted(1.0), predicted(1.0, colour="red")]
    columns = csv_columns(rows)
    assert columns[-len(PREDICTED_COLUMNS) :] == list(PREDICTED_COLUMNS)
    assert "colour" in columns
    assert csv_record(predicted(1.0, vocab="", gpus_per_node=""))["assumed"] == (
        "vocab 50,304; gpus_per_node 8"
    )


def test_families_by_what_the_planner_makes_of_a_row() -> None:
    found, other = predicted(1.0), predict_rows([row(tuning="peft:adalora")])[0]
    assert family_by("profile, architecture,scale,kind")(found) == (
        "megatron-lm-2022, ampere, several domains, dense"
    )
    assert family_by("profile")(other) == "refused"
    with pytest.raises(UsageError, match="Did you mean 'model'"):
        family_by("source,modle")


def test_worst_rows_are_worst_by_factor() -> None:
    rows = [predicted(seconds, step_time_s="1") for seconds in (1.5, 0.4, 1.0, 2.0)]
    assert [worst_row.predicted_s for worst_row in worst_rows(rows, 3)] == [0.4, 2.0, 1.5]


def test_a_worst_row_says_why() -> None:
    (first,) = worst_rows([predicted(0.5, step_time_s="1", vocab="")], 1)
    assert first.terms == (("compute", 1.0),)
    assert first.why == "Predicted: compute 100 %. Assumed: vocab 50,304."


def test_terms_leave_out_what_is_small() -> None:
    (predict_row,) = predict_rows([row()])
    shares = terms(predict_row)
    assert shares[0][0] == "compute"
    assert all(share >= 0.05 for _, share in shares)
    assert sum(share for _, share in shares) <= 1.0 + 1e-9
