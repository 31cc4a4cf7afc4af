"""The loop with a runner and a clock that are made up: what it starts, follows, ends and keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from planner.job.errors import CannotTellError
from planner.tune.journal import Journal
from planner.tune.judge import Limits
from planner.tune.loop import Budget, Driver
from planner.tune.runners.contract import UNKNOWN
from tests.tune.fakes import AWAY, REFUSED, FakeClock, FakeJob, FakeRunner, FakeWork, steps

PLANS = {"fast": 1.0, "slow": 1.3}
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
Made = Mapping[str, Callable[[], FakeJob]]
GOOD: Made = {"fast": lambda: steps(1.1), "slow": lambda: steps(1.2)}


@pytest.fixture
def storage() -> optuna.storages.InMemoryStorage:
    return optuna.storages.InMemoryStorage()


class Study:
    """A study whose drivers come and go."""

    def __init__(self, folder: Path, storage: Any, jobs: Made = GOOD) -> None:
        self.folder, self.storage = folder, storage
        self.clock = FakeClock()
        self.runner = FakeRunner(self.clock, jobs)
        self.work = FakeWork(PLANS)
        self.said: list[str] = []

    def driver(self, **options: Any) -> Driver:
        journal = Journal.of_storage(self.storage, self.folder)
        journal.mend()
        return Driver(journal, self.runner, self.work, "tune-x", clock=self.clock,
                      say=self.said.append, **options)  # fmt: skip

    @property
    def kinds(self) -> list[str]:
        records = Journal.of_storage(self.storage, self.folder).records
        return [one.ended.kind if one.ended else "open" for one in records]


@pytest.fixture
def study(tmp_path: Path, storage: Any) -> Study:
    return Study(tmp_path, storage)


def test_it_measures_and_stops_when_nothing_pays(study: Study) -> None:
    ending = study.driver().run()
    assert ending.reason == "no trial pays"
    first, second = study.driver().journal.records
    assert (first.chosen.key, second.chosen.key) == ("fast", "slow")
    assert first.ended is not None
    assert first.ended.step_s == pytest.approx(1.1, rel=0.01)
    assert first.ended.relative_sd is not None
    assert first.ended.relative_sd <= 0.01
    assert (first.ended.peak_bytes, first.ended.memory_kind) == (9 * 2.0**30, "reserved")
    assert first.ended.gpu_s == pytest.approx(2 * (first.ended.at - (first.running_since or 0)))
    # The run had 50 steps, and was ended as soon as its step time was known.
    assert first.ended.steps < 20
    assert study.runner.cancelled == study.runner.submissions == ["tune-x-000", "tune-x-001"]


def test_memory_is_an_observation(tmp_path: Path, storage: Any) -> None:
    jobs = {**GOOD, "fast": lambda: FakeJob([(30.0, MEMORY)], status=1)}
    study = Study(tmp_path, storage, jobs)
    study.driver().run()
    assert study.kinds == ["out-of-memory", "measured"]


@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        (FakeJob([(1.0, "step 1: loss nan, 1.0 s\n")], hangs=True), "not-a-number", "not a number"),
        (FakeJob([(1.0, "step 1: loss 1.0, 1.0 s\n")], hangs=True), "hang", "no line of log for"),
        (FakeJob([(1.0, "starting\n")], hangs=True), "time-over", "--trial-limit"),
        (FakeJob([(1.0, "KeyError: 'model'\n")], status=1), "failed", "KeyError: 'model'"),
        (FakeJob([(1.0, "bye\n")], status=137), "failed", "exit status 137; usually the host"),
    ],
)  # fmt: skip
def test_ends_of_the_plan(
    job: FakeJob, kind: str, words: str, tmp_path: Path, storage: Any
) -> None:
    study = Study(tmp_path, storage, {**GOOD, "fast": lambda: job})
    ending = study.driver().run()
    assert study.kinds == [kind, "measured"]
    assert any(words in line for line in study.said)
    assert ending.reason == "no trial pays"


@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        (FakeJob([]), "no-log", "must end when the training ends"),
        (FakeJob([(0.1, "Submitted batch job 7\n")]), "no-log", "after 1 line of log"),
        (FakeJob([(float(n), f"step: {n} loss: 7.1 memory: 9.1GiB(1%) tps: 5,120\n")
                  for n in range(9)]), "foreign-log", "is from torchtitan"),
        (FakeJob([(1.0, "RuntimeError: CUDA error: invalid device ordinal\n")], status=1),
         "too-few-gpus", "fewer GPUs than the plan"),
    ],
)  # fmt: skip
def test_ends_of_the_setup_stop_the_study(
    job: FakeJob, kind: str, words: str, tmp_path: Path, storage: Any
) -> None:
    """Each further trial would end in the same way, and cost as much."""
    study = Study(tmp_path, storage, {**GOOD, "fast": lambda: job})
    ending = study.driver().run()
    assert (ending.reason, study.kinds) == ("setup", [kind])
    assert words in ending.sentence
    # With the setup mended the study goes on.
    study.runner.jobs = GOOD
    assert study.driver().run().reason == "no trial pays"


def test_refused_by_the_scheduler(study: Study) -> None:
    study.runner.trouble["submit"] = [REFUSED]
    ending = study.driver().run()
    assert (ending.reason, study.kinds) == ("setup", ["refused"])


def test_failures_in_a_row_stop_the_study(tmp_path: Path, storage: Any) -> None:
    plans = dict.fromkeys("abcdef", 1.0)
    study = Study(tmp_path, storage, {name: lambda: FakeJob([], status=1) for name in plans})
    study.work = FakeWork(plans)
    ending = study.driver().run()
    assert (ending.reason, study.kinds) == ("failures", ["failed"] * 3)


def test_failures_are_said_though_no_further_trial_may_start(tmp_path: Path, storage: Any) -> None:
    plans = dict.fromkeys("abcdef", 1.0)
    study = Study(tmp_path, storage, {name: lambda: FakeJob([], status=1) for name in plans})
    study.work = FakeWork(plans)
    assert study.driver(budget=Budget(trials=3)).run().reason == "failures"


class TestLimits:
    def test_trials(self, study: Study) -> None:
        assert study.driver(budget=Budget(trials=1)).run().reason == "trials"
        assert study.kinds == ["measured"]

    def test_gpu_hours_are_not_begun(self, study: Study) -> None:
        ending = study.driver(budget=Budget(gpu_hours=0.01)).run()
        assert (ending.reason, study.kinds) == ("gpu-hours", [])

    def test_gpu_hours_end_a_trial(self, tmp_path: Path, storage: Any) -> None:
        study = Study(tmp_path, storage, {**GOOD, "fast": lambda: FakeJob([], hangs=True)})
        ending = study.driver(budget=Budget(gpu_hours=0.05)).run()
        assert (ending.reason, study.kinds) == ("gpu-hours", ["interrupted"])
        assert study.runner.cancelled == ["tune-x-000"]

    def test_time(self, study: Study) -> None:
        study.runner.jobs = {**GOOD, "fast": lambda: FakeJob([], hangs=True)}
        with pytest.raises(CannotTellError, match="--time-limit is over while tune-x-000"):
            study.driver(budget=Budget(total_s=60.0)).run()
        assert study.kinds == ["open"]

    def test_a_job_that_stays_pending(self, study: Study) -> None:
        """It stays in the queue, where a later driver finds it."""
        study.runner.jobs = {**GOOD, "fast": lambda: FakeJob(steps(1.1).lines, wait_s=7200.0)}
        with pytest.raises(CannotTellError, match=r"--pending-limit.*\(Resources\); it stays"):
            study.driver(limits=Limits(pending_s=3600.0)).run()
        assert (study.kinds, study.runner.cancelled) == (["open"], [])
        assert study.driver(limits=Limits(pending_s=1e6)).run().reason == "no trial pays"
        assert study.runner.submissions == ["tune-x-000", "tune-x-001"]


class TestScheduler:
    def test_it_is_away_for_an_hour(self, study: Study) -> None:
        study.runner.trouble["find"] = [None, None, *[AWAY] * 60]
        assert study.driver().run().reason == "no trial pays"
        assert study.kinds == ["measured", "measured"]
        assert any("does not answer" in line for line in study.said)

    def test_it_stays_away(self, study: Study) -> None:
        study.runner.trouble["submit"] = [AWAY] * 10_000
        with pytest.raises(CannotTellError, match="--resume"):
            study.driver(patience_s=3600.0).run()
        study.runner.trouble.clear()
        assert study.driver().run().reason == "no trial pays"

    def test_its_answer_to_a_submission_is_lost(self, study: Study) -> None:
        """It took the job, and did not say so: it is not submitted again."""
        study.runner.trouble["submitted"] = [AWAY]
        study.driver().run()
        assert study.runner.submissions == ["tune-x-000", "tune-x-001"]

    def test_it_loses_a_job(self, study: Study) -> None:
        study.runner.jobs = {**GOOD, "fast": lambda: FakeJob([], hangs=True)}
        study.runner.lost = {"tune-x-000"}
        driver = study.driver()
        study.said.append("")
        original = study.runner.submit

        def submit(folder: Path, name: str, limit_s: float) -> str:
            handle = original(folder, name, limit_s)
            study.runner.jobs = GOOD
            return handle

        study.runner.submit = submit  # type: ignore[method-assign]
        driver.run()
        assert study.kinds == ["lost", "measured", "measured"]
        # It may turn up again: it is asked to end by its name.
        assert study.runner.cancelled == ["tune-x-000", "tune-x-001", "tune-x-002"]

    def test_a_job_that_it_lost_and_that_prints_is_followed(self, study: Study) -> None:
        original = study.runner.find

        def find(folder: Path, name: str) -> Any:
            job = original(folder, name)
            return job if name != "tune-x-000" or job.state == "failed" else UNKNOWN

        study.runner.find = find  # type: ignore[method-assign]
        study.driver().run()
        assert study.kinds == ["measured", "measured"]

    def test_scancel_is_refused(self, study: Study) -> None:
        """The run ends by itself after its steps; the next waits for that."""
        study.runner.trouble["cancel"] = [REFUSED]
        study.driver().run()
        assert study.kinds == ["measured", "measured"]
        record = study.driver().journal.records[0]
        assert record.ended is not None
        assert "could not be ended (scancel: Access" in record.ended.sentence

    def test_a_job_that_does_not_end(self, study: Study) -> None:
        study.runner.jobs = {
            "fast": lambda: FakeJob(steps(1.1).lines, hangs=True), "slow": lambda: steps(1.2)
        }  # fmt: skip
        study.runner.trouble["cancel"] = [REFUSED] * 1000
        with pytest.raises(CannotTellError, match="job tune-x-000 does not end"):
            study.driver().run()
        study.runner.trouble.clear()
        assert study.driver().run().reason == "no trial pays"
        assert study.runner.submissions == ["tune-x-000", "tune-x-001"]


def test_time_while_no_driver_looked_is_not_the_trial_s(study: Study) -> None:
    """The driver was killed, the run ended by itself, and a day later a driver goes on."""
    import os

    study.runner.trouble["find"] = [None, None, None, KilledError()]  # type: ignore[list-item]
    with contextlib.suppress(KilledError):
        study.driver().run()
    began = study.driver().journal.records[0].running_since
    assert began is not None
    study.clock.now += 60.0
    folder = study.folder / "trials" / "000"
    study.runner.find(folder, "tune-x-000")
    study.clock.now += 86_400.0
    original = study.runner._print

    def printed(at: Path, job: FakeJob) -> None:
        if job is not study.runner.known["tune-x-000"]:
            original(at, job)

    study.runner._print = printed  # type: ignore[method-assign]
    os.utime(folder / "train.log", (began + 60.0, began + 60.0))
    study.driver().run()
    ended = study.driver().journal.records[0].ended
    assert ended is not None
    assert ended.gpu_s == pytest.approx(120.0)


class TestInterrupted:
    def test_ctrl_c_ends_the_job(self, study: Study) -> None:
        def sleep(seconds: float) -> None:
            study.clock.now += seconds
            if study.clock.now > 1.8e9 + 10.0:
                raise KeyboardInterrupt

        study.clock.sleep = sleep  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            study.driver().run()
        assert (study.kinds, study.runner.cancelled) == (["interrupted"], ["tune-x-000"])

    def test_ctrl_c_while_the_scheduler_is_away(self, study: Study) -> None:
        def find(folder: Path, name: str) -> Any:
            if study.runner.submissions:
                raise KeyboardInterrupt
            return original(folder, name)

        original = study.runner.find
        study.runner.find = find  # type: ignore[method-assign]
        study.runner.trouble["cancel"] = [AWAY]
        with pytest.raises(KeyboardInterrupt):
            study.driver().run()
        assert study.kinds == ["open"]
        study.runner.find = original  # type: ignore[method-assign]
        study.driver().run()
        assert study.runner.submissions == ["tune-x-000", "tune-x-001"]


class KilledError(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class Fuse:
    """Burns through at the n-th call of any of what it is put around."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def around(self, function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
        def burning(*words: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not after:
                raise KilledError
            found = function(*words, **more)
            if self.left == 0:
                raise KilledError
            return found

        return burning


STEPS = ("set_trial_user_attr", "create_new_trial", "set_trial_state_values", "set_trial_param")


@pytest.mark.parametrize("after", [False, True])
def test_a_driver_killed_at_any_step(after: bool, tmp_path: Path) -> None:
    """At every write of the journal, and every call of the runner: a later driver ends the study
    with the same measurements, and every job was submitted once."""
    calls, ended = 0, False
    while not ended:
        calls += 1
        study = Study(tmp_path / f"{after}{calls}", optuna.storages.InMemoryStorage())
        fuse = Fuse(calls)
        plain = study.storage, {name: getattr(study.storage, name) for name in STEPS}
        for name in STEPS:
            setattr(study.storage, name, fuse.around(getattr(study.storage, name), after=after))
        runner = {name: getattr(study.runner, name) for name in ("submit", "find", "cancel")}
        for name, function in runner.items():
            setattr(study.runner, name, fuse.around(function, after=after))
        with contextlib.suppress(KilledError):
            study.driver().run()
            ended = True
        for name, function in plain[1].items():
            setattr(study.storage, name, function)
        for name, function in runner.items():
            setattr(study.runner, name, function)
        assert study.driver().run().reason == "no trial pays"
        records = [one for one in study.driver().journal.records if one.ended]
        assert {one.chosen.key for one in records} == set(PLANS)
        assert all(one.ended and one.ended.kind == "measured" for one in records)
        assert len(set(study.runner.submissions)) == len(study.runner.submissions) == 2
        assert set(study.runner.cancelled) <= set(study.runner.submissions)
    assert calls > 20
