"""Predictions of published runs, and the figures that summarise them."""

from __future__ import annotations

import pytest

from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.ranking import rank_groups, spearman
from planner.evidence.runs.report import error_of, family_reports, fit_confusion
from tests.evidence.runs.rows_for_tests import row

# Korthikanti et al. 2022, Table 5: (model, layers, hidden, heads, GPUs, pp, vpp, mbs, gbs,
# recompute, sequence parallel, seconds per iteration).
TABLE_5 = [
    ("22B", 48, 6144, 64, 8, 1, 1, 4, 4, "full", "n", 1.42),
    ("22B", 48, 6144, 64, 8, 1, 1, 4, 4, "selective(attn core)", "y", 1.10),
    ("175B", 96, 12288, 96, 64, 8, 3, 1, 64, "full", "n", 18.13),
    ("175B", 96, 12288, 96, 64, 8, 3, 1, 64, "selective(attn core)", "y", 13.75),
    ("530B", 105, 20480, 128, 280, 35, 3, 1, 280, "full", "n", 49.05),
    ("530B", 105, 20480, 128, 280, 35, 3, 1, 280, "selective(attn core)", "y", 37.83),
    ("1T", 128, 25600, 160, 512, 64, 1, 1, 512, "full", "n", 94.42),
    ("1T", 128, 25600, 160, 512, 64, 1, 1, 512, "selective(attn core)", "y", 71.49),
]


def test_korthikanti_table_5_within_about_three_percent_on_average() -> None:
    rows = [
        row(
            model=f"GPT-{name}", layers=str(layers), hidden=str(hidden), ffn=str(4 * hidden),
            heads=str(heads), kv_heads=str(heads), num_gpus=str(gpus), pp=str(pp), vpp=str(vpp),
            mbs=str(mbs), gbs=str(gbs), recompute=recompute, seq_parallel=sp,
            step_time_s=str(seconds),
        )
        for name, layers, hidden, heads, gpus, pp, vpp, mbs, gbs, recompute, sp, seconds in TABLE_5
    ]  # fmt: skip
    errors = [abs(error_of(prediction, "time") or 9.0) for prediction in predict_rows(rows)]
    assert sum(errors) / len(errors) < 0.031
    assert max(errors) < 0.06


def test_order_is_kept_and_refusals_are_counted() -> None:
    rows = [row(), row(tuning="peft:adalora"), row(pp="4", vpp="1")]
    predictions = predict_rows(rows)
    assert [prediction.row for prediction in predictions] == rows
    assert predictions[1].error is not None
    (family,) = family_reports(predictions, lambda prediction: prediction.row.source)
    assert (family.rows, family.refused) == (3, 1)
    assert family.time is not None
    assert family.time.rows == 2


def test_out_of_memory_is_called() -> None:
    starved = row(recompute="none", mbs="8", gbs="512", tp="1", pp="1", vpp="1", oom="1")
    confusion = fit_confusion(predict_rows([starved, row()]))
    assert (confusion.out_of_memory, confusion.out_of_memory_predicted_to_fit) == (1, 0)
    assert (confusion.ran, confusion.ran_predicted_not_to_fit) == (1, 0)


def test_ranking_follows_the_measurements() -> None:
    times = {"1": "20", "2": "21", "4": "22", "8": "18", "16": "30"}
    rows = [row(pp="8", vpp="1", mbs=mbs, step_time_s=time) for mbs, time in times.items()]
    (group,) = rank_groups(predict_rows(rows))
    assert group.runs == 5
    assert 0.0 < group.pick <= 1.0


def test_spearman_on_known_ranks() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)
