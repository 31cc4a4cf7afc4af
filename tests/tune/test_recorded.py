"""Recorded sweeps as candidates, and the replay on them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from planner.cli.schemas import schema_of
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.job.errors import UsageError
from planner.job.written import csv_text
from planner.report.replay import replay_report
from planner.report.tables import Notes, TableData
from planner.tune.groups import group_of
from planner.tune.recorded import Sweep, at_their_word, distinct, sweeps_of
from planner.tune.replay import LOOP, ORDER, TRIALS, replay, source_weights, table_of
from planner.tune.strategies import MOST, at_random, by_prediction, by_tpe, in_order, loop

_SOURCE = "aws-h100-qwen3-30b"


@cache
def _rows() -> tuple[MeasuredRow, ...]:
    """The smallest group that ships: 12 runs."""
    rows = read_rows(PUBLISHED)
    return tuple(row for row in rows if row.source == _SOURCE and row.text("num_gpus") == "64")


@cache
def _sweep() -> Sweep:
    (found,) = sweeps_of(_rows())
    return found


def _row(**cells: str) -> MeasuredRow:
    return MeasuredRow("runs.csv", 2, {"source": "lab", "step_time_s": "2", **cells})


def _written(path: Path, rows: Iterable[MeasuredRow]) -> Path:
    cells = [row.cells for row in rows]
    path.write_text(csv_text(list(cells[0]), cells), encoding="utf-8")
    return path


def test_a_run_in_two_files_is_one() -> None:
    rows = [_row(tp="2", notes="as printed"), _row(tp="2", mfu_pct="40"), _row(tp="4")]
    assert [row.text("tp") for row in distinct(rows)] == ["2", "4"]


def test_a_run_that_one_file_doubts_is_doubted() -> None:
    doubted = _row(tp="2", doubt="time: two figures")
    assert distinct([_row(tp="2"), doubted]) == distinct([doubted, _row(tp="2")]) == [doubted]


def test_at_their_word_rows_have_what_is_doubted_but_not_what_is_withdrawn() -> None:
    assert at_their_word(_row(doubt="time: two figures")).measurement("step_time_s") == 2.0
    assert at_their_word(_row(doubt="time withdrawn: a slip")).measurement("step_time_s") is None


def test_a_group_is_of_one_batch() -> None:
    assert group_of(_row(gbs="64")) != group_of(_row(gbs="128"))
    assert "batch 64" in str(group_of(_row(gbs="64")))


def test_small_groups_are_left_out() -> None:
    assert sweeps_of(_rows()[:11]) == []


def test_the_best_plan_has_no_regret_and_one_out_of_memory_the_worst() -> None:
    sweep = _sweep()
    regrets = [sweep.regret(place) for place in range(len(sweep.seconds))]
    assert min(regrets) == 0.0
    seconds = sweep.seconds.copy()
    seconds[int(np.argmax(regrets) == 0)] = np.inf
    failed = Sweep(sweep.group, sweep.candidates, seconds, sweep.belief)
    gone = int(np.flatnonzero(~failed.ran)[0])
    assert failed.regret(gone) == max(failed.regret(place) for place in range(len(seconds)))
    assert failed.gpu_s(gone) < sweep.gpu_s(gone)


def test_an_order_recommends_the_fastest_that_it_tried() -> None:
    sweep = _sweep()
    order = np.argsort(-sweep.seconds)
    played = in_order(sweep, order)
    assert played.regrets[0] == played.regrets[1] == sweep.regret(int(order[0]))
    assert np.all(np.diff(played.regrets) <= 0.0)
    assert np.all(np.diff(played.gpu_s) > 0.0)


def test_the_order_of_the_prediction_is_its_own() -> None:
    sweep = _sweep()
    sure = [one.fits >= 0.8 for one in sweep.candidates]
    first = min(
        range(len(sure)), key=lambda place: (not sure[place], sweep.candidates[place].step_s)
    )
    assert by_prediction(sweep).regrets[0] == sweep.regret(first)


def test_lots_are_drawn_equally_each_time() -> None:
    assert np.array_equal(at_random(_sweep()).regrets, at_random(_sweep()).regrets)


def test_every_trial_of_the_loop_is_a_new_one() -> None:
    played = loop(_sweep())
    assert len(played.regrets) == MOST + 1
    assert np.all(np.diff(played.gpu_s) > 0.0)
    assert played.regrets[-1] == 0.0


def test_tpe_tries_recorded_runs_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.tune.strategies.REPEATS", 1)
    played = by_tpe(_sweep())
    assert np.all(np.diff(played.regrets) <= 0.0)
    assert np.all(np.diff(played.gpu_s) > 0.0)


def test_sources_weigh_alike_however_many_groups_they_have() -> None:
    weights = source_weights(["a", "a", "a", "b"])
    assert weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_means_are_over_sources() -> None:
    found = table_of([_sweep()], {LOOP: loop, ORDER: by_prediction})
    (group,) = found.groups
    assert [one.regret for one in found.means] == [group.regret[LOOP], group.regret[ORDER]]
    assert found.sources == 1
    assert 0.0 <= found.ends_after <= MOST


def test_a_replay_of_a_file(tmp_path: Path) -> None:
    path = _written(tmp_path / "sweep.csv", _rows())
    found = replay([path, path], with_tpe=False)
    assert found.rows == len(_rows())
    assert [one.runs for one in found.undoubted.groups] == [12]
    assert found.doubtful.groups == ()
    document = json.loads(json.dumps(found.document()))
    jsonschema.validate(document, schema_of("tune-replay"))
    assert document["rows"] == len(_rows())
    report = replay_report(found, whole=True)
    titles = [block.title for block in report.blocks if isinstance(block, TableData)]
    assert titles[0] == "Mean regret by number of trials, 1 group of 1 source"
    assert isinstance(report.blocks[-1], Notes)
    assert len(TRIALS) == len(found.undoubted.means[0].regret)


def test_doubtful_runs_are_a_table_apart(tmp_path: Path) -> None:
    first, *others = _rows()
    doubted = MeasuredRow(first.file, first.line, first.cells | {"doubt": "time: two figures"})
    found = replay([_written(tmp_path / "sweep.csv", [doubted, *others])], with_tpe=False)
    assert found.undoubted.groups == ()
    assert [one.runs for one in found.doubtful.groups] == [12]


def test_files_without_a_sweep_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "sweep.csv", _rows()[:5])
    with pytest.raises(UsageError, match="no group of 12 or more runs"):
        replay([path], with_tpe=False)
