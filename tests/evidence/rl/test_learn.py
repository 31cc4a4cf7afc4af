"""What own runs teach of phases, and how that moves and narrows predictions."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.evidence.rl.learn import (
    PhaseTime,
    demand_one_gpu,
    learn,
    lengths_text,
    times_of_log,
    times_of_rows,
)
from planner.evidence.rl.logs import read_rl_log
from planner.evidence.rl.mapping import map_rl
from planner.evidence.rl.predict import compared, predict_rl
from planner.job.errors import CannotTellError, UsageError
from tests.evidence.rl.cases import COLOCATED, costs, row

LOG = Path(__file__).parent / "logs" / "verl.log"


def time(kind: str = "generation", run: str = "a", log: float = 0.3) -> PhaseTime:
    return PhaseTime(kind, run, 10.0, 10.0 * math.exp(log))


def test_rows_tell_the_kinds_that_their_times_are_mostly_of() -> None:
    found = times_of_rows(predict_rl([row(COLOCATED)], costs))
    assert {one.kind for one in found} == {"generation", "training", "reading", "transfer"}
    training = next(one for one in found if one.kind == "training")
    assert training.log == pytest.approx(0.0)


def test_a_log_is_told_by_its_phases() -> None:
    log = read_rl_log(LOG)
    assert log is not None
    found = {one.kind: one for one in times_of_log(log, costs(map_rl(row(COLOCATED))))}
    assert found["generation"].measured_s == pytest.approx(32.05)
    assert found["generation"].predicted_s == pytest.approx(30.0)
    assert found["training"].log == pytest.approx(math.log(25.95 / 20.0))
    assert lengths_text(log) == "prompt=104,response=lognormal:mean=410,sigma=0.85,max=2048"


def test_times_of_one_run_are_one_witness() -> None:
    one = learn([time(), time(log=0.32), time(log=0.28)], [])
    two = learn([time(), time(run="b")], [])
    assert (one.phases[0].runs, two.phases[0].runs) == (1, 2)
    assert one.phases[0].spread > two.phases[0].spread
    assert one.phases[0].value < two.phases[0].value < math.exp(0.3)


def test_a_cluster_that_was_measured_is_predicted_so_within_a_narrower_bar() -> None:
    found = learn(times_of_rows(predict_rl([row(COLOCATED, train_s="30")], costs)), [])
    cluster = map_rl(row(COLOCATED)).job.trainer.cluster
    known = cluster.model_copy(update={"calibration": found.calibration(None, ["own.csv"])})

    def width(**options: object) -> float:
        [one] = predict_rl([row(COLOCATED)], costs, **options)  # type: ignore[arg-type]
        training = next(each for each in compared(one) if each.figure == "training")
        return math.log(training.high / training.low)

    assert width(cluster=known) < 0.9 * width()


def test_a_calibration_keeps_what_the_cluster_knew() -> None:
    first = learn([time()], []).calibration(None, ["a.csv"])
    both = learn([time("training")], []).calibration(first, ["b.csv"])
    assert both.sources == ("a.csv", "b.csv")
    assert [one.name for one in both.phases] == ["training"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(CannotTellError, match="no run states"):
        learn([], [])
    with pytest.raises(UsageError, match="100 times off"):
        learn([time(log=5.0)], [])
    cluster = map_rl(row(COLOCATED)).job.trainer.cluster
    other = map_rl(row(COLOCATED, gpu="A100")).job.trainer.cluster
    assert demand_one_gpu([cluster, cluster]) == cluster
    with pytest.raises(UsageError, match="one cluster"):
        demand_one_gpu([cluster, other])


def test_no_kind_is_told_by_a_mixture() -> None:
    [one] = predict_rl([row(COLOCATED)], costs)
    assert one.costed is not None
    longer = tuple(
        replace(each, seconds=40.0) if each.name == "transfer" else each
        for each in one.costed.phases
    )
    mixed = replace(one, costed=replace(one.costed, phases=longer))
    assert "generation" not in {each.kind for each in times_of_rows([mixed])}
