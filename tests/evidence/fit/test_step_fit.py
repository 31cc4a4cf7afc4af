"""The refit on whole steps finds a constant again in runs that were made with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.evidence.fit.step_fit import (
    CONSTANTS,
    Constant,
    TrialModel,
    chosen_constants,
    fit,
    main,
)
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.job.errors import UsageError

SOURCES = ("korthikanti2022", "narayanan2021-table1", "megatron-jan2021")


@pytest.fixture(scope="module")
def rows() -> list[MeasuredRow]:
    """A few runs of three sources on A100."""
    chosen = [row for row in read_rows(PUBLISHED) if row.source in SOURCES]
    return [row for source in SOURCES for row in [it for it in chosen if it.source == source][:4]]


def made_with(constant: Constant, factor: float, rows: list[MeasuredRow]) -> list[Prediction]:
    """The rows as if they had been measured where the constant is `factor` times as large."""
    changed = dict.fromkeys(constant.fields, factor)
    run = cost_predictions(predict_rows(rows), lambda job: TrialModel(job, changed))
    measured = [
        replace(item.row, cells=item.row.cells | {"step_time_s": repr(item.step_time_s)})
        for item in run
    ]
    return predict_rows(measured)


@pytest.mark.parametrize("factor", [1.0, 1.1**-2])
def test_constant_is_found_again(rows: list[MeasuredRow], factor: float) -> None:
    (constant,) = chosen_constants(["a100-sxm-16bit"])
    found = fit(constant, made_with(constant, factor, rows))
    assert found is not None
    assert found.shipped == pytest.approx(constant.shipped())
    assert found.best == pytest.approx(factor * found.shipped)
    assert found.best_error == pytest.approx(0.0, abs=1e-9)
    assert found.held_out_error == pytest.approx(0.0, abs=1e-9)
    assert set(found.without) == set(SOURCES)
    assert (found.shipped_error > 0.01) == (factor != 1.0)


def test_limits_are_kept(rows: list[MeasuredRow]) -> None:
    """No share above one, however fast the runs are."""
    (constant,) = chosen_constants(["a100-sxm-16bit"])
    found = fit(constant, made_with(constant, 1.9, rows))
    assert found is not None
    assert found.best <= 1.0


def test_constants_without_a_run_have_no_fit(rows: list[MeasuredRow]) -> None:
    (constant,) = chosen_constants(["blackwell-8bit"])
    assert fit(constant, predict_rows(rows)) is None


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda item: item.name)
def test_shipped_values_lie_within_their_limits(constant: Constant) -> None:
    assert 0.0 < constant.shipped() <= constant.most


def test_unknown_constant() -> None:
    with pytest.raises(UsageError, match="hopper-16bit"):
        chosen_constants(["hopper-16bits"])


def test_command(tmp_path: Path) -> None:
    table = PUBLISHED / "megatron_lm_tables.csv"
    header, *lines = table.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("narayanan2021-table1")][:2]
    runs = tmp_path / "runs.csv"
    runs.write_text("\n".join([header, *kept]), encoding="utf-8")
    result = CliRunner().invoke(
        main, ["a100-sxm-16bit", "hopper-16bit", "--runs", str(runs), "--json"]
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["runs"] == 2
    assert document["held_out_error"] is None
    assert "hopper-16bit: no run depends on it" in result.stderr
    wrong = CliRunner().invoke(main, ["hopper", "--runs", str(runs)])
    assert wrong.exit_code == 2
