"""Error bars of fine-tuning, which are made of runs of their own."""

from __future__ import annotations

import json

from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import TUNED_RUNS, read_rows
from planner.predict.uncertainty.families import Family
from planner.predict.uncertainty.shipped import (
    TUNED,
    parse_tables,
    shipped_table,
    shipped_tables,
    tuned_tables,
)
from tests.fit.command import measured_rows
from tests.fit.residual_fit import fit_tuned, render, residuals

ADAPTERS = Family("hf-transformers", "ampere", "one domain", "tuned dense")


def test_fits_of_full_training_read_no_run_of_fine_tuning() -> None:
    tuned = {row.file for row in read_rows(TUNED_RUNS)}
    assert tuned and not tuned & {row.file for row in measured_rows(()) if row.text("lora_rank")}
    assert not {"qwen_readme", "ms_swift_benchmark"} & set(shipped_tables()["time"].sources)


def test_a_table_of_fine_tuning_is_written_beside_the_others_and_read_back() -> None:
    rows = read_rows(TUNED_RUNS / "qwen_readme.csv")
    predictions = predict_rows(row for row in rows if row.text("model") == "Qwen-7B")
    content = json.loads(render([], fit_tuned(predictions, {})))
    (entry,) = {one.family for one in parse_tables(content[TUNED])["memory"].entries} & {ADAPTERS}
    assert entry.model == "tuned dense"
    # Among runs of full training those of adapters count as such runs, as before.
    assert {one.family.model for one in residuals(predictions, "time")} == {"dense"}


def test_a_job_with_adapters_has_the_bars_of_such_runs() -> None:
    assert shipped_table("memory", ADAPTERS) is tuned_tables()["memory"]
    full = ADAPTERS._replace(model="dense")
    assert shipped_table("memory", full) is shipped_tables()["memory"]
