"""The loop: choose a trial, write its folder, start it, follow it, learn, choose the next.

Whatever ends the driver, a later one continues from the journal. A job's name is in the journal
before the job is submitted. A driver that finds a name without the note that it was submitted looks
the job up first, more than once, and the trial's start script lets only one start run. Only jobs
whose names are in this journal are ever ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from planner.job.errors import CannotTellError
from planner.job.quantities import HOUR_S, seconds
from planner.job.written_folder import write_folder
from planner.tune.follow import FollowedLog
from planner.tune.journal import OF_THE_PLAN, SETUP, TELLING, Chosen, Ended, Journal, TrialRecord
from planner.tune.judge import Facts, Limits, Look, Verdict, most_telling, verdict
from planner.tune.runners.contract import AwayError, Job, RefusedError, Runner

Answer = TypeVar("Answer")
Say = Callable[[str], None]

# Failures in a row after which the setup is at fault, not the plans.
MOST_FAILURES = 3
# A job that an earlier driver has just submitted shows up within this time.
_SETTLE_S = 10.0
# Time for a job to end when asked; after that it is killed.
_GRACE_S = 60.0
_MOST_PAUSE_S = 60.0


class Clock(Protocol):
    """Unix time in seconds, and sleeping."""

    def time(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Next:
    """The next trial. `key`: its candidate, None if no trial pays; `saves_gpu_s`, `costs_gpu_s`:
    GPU-seconds that it is expected to save and to cost; `sentence`: the reason."""

    key: str | None
    saves_gpu_s: float
    costs_gpu_s: float
    sentence: str


class Work(Protocol):
    """The work of a study. `keys`: of all candidates, unchanged during the study; `choice`: the
    next trial; `chosen`: a trial as the journal stores it; `files`: of its folder; `facts`: by
    which its log is judged."""

    @property
    def keys(self) -> Sequence[str]: ...
    def choice(self, records: Sequence[TrialRecord]) -> Next: ...
    def chosen(self, choice: Next, job_name: str, at: float) -> Chosen: ...
    def files(self, key: str, job_name: str) -> Mapping[str, str]: ...
    def facts(self, key: str) -> Facts: ...


Reason = Literal["no trial pays", "trials", "gpu-hours", "time", "failures", "setup", "running"]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a study, or of one run of its driver. `reason`: its kind; `sentence`: the
    explanation for people."""

    reason: Reason
    sentence: str


GOES_ON = Ending("running", "the study has not ended yet")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of all trials together; seconds of the driver, GPU-hours of the trials."""

    trials: int = 5
    gpu_hours: float = math.inf
    total_s: float = math.inf


@dataclass
class Driver:
    """One driver of a study. `poll_s`: seconds between two looks; `patience_s`: seconds without an
    answer of the scheduler before the driver gives up; `follow`: reads a log as it grows."""

    journal: Journal
    runner: Runner
    work: Work
    name: str
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    clock: Clock = field(default_factory=lambda: time)
    say: Say = lambda _: None
    poll_s: float = 2.0
    patience_s: float = 24 * HOUR_S
    after: Callable[[], None] = lambda: None
    follow: Callable[[Path], FollowedLog] = FollowedLog
    _began: float = field(default=0.0, init=False)
    # Ends of the trials that this driver followed.
    _done: list[Ended] = field(default_factory=list, init=False)

    def run(self) -> Ending:
        """Run trials until none pays or a limit is reached. CannotTellError if the driver cannot
        continue; the study is kept."""
        self._began = self.clock.time()
        for record in self.journal.records:
            if record.ended is None:
                self.say(f"trial {record.number} goes on: {record.chosen.key}")
                self._conduct(record, again=True)
        while True:
            choice = self.work.choice(self.journal.records)
            if (ending := next(self._ending(choice), None)) is not None:
                return ending
            record = self.journal.choose(self.work.keys, self._chosen(choice))
            self.say(f"trial {record.number}: {record.chosen.key}. {record.chosen.sentence}")
            self._conduct(record, again=False)

    def _chosen(self, choice: Next) -> Callable[[int], Chosen]:
        def made(number: int) -> Chosen:
            return self.work.chosen(choice, f"{self.name}-{number:03d}", self.clock.time())

        return made

    def _ending(self, choice: Next) -> Iterator[Ending]:
        """Every reason why no further trial starts, in order. Nothing if the next trial `choice`
        may start."""
        records = self.journal.records
        done = self._done
        if done and done[-1].kind in SETUP:
            yield Ending("setup", done[-1].sentence)
        if choice.key is None:
            yield Ending("no trial pays", choice.sentence)
        if (failed := _failures(done)) >= MOST_FAILURES:
            text = f"{failed} trials in a row gave no step time; the last: {done[-1].sentence}"
            yield Ending("failures", text)
        if len(counted(records)) >= self.budget.trials:
            what = f"--trials {self.budget.trials} are done"
            yield Ending("trials", f"{what}; {choice.sentence}")
        spent = spent_gpu_s(records)
        if spent + choice.costs_gpu_s > self.budget.gpu_hours * HOUR_S:
            text = (
                f"{spent / HOUR_S:.1f} GPU-hours are spent, and the next trial would take "
                f"{choice.costs_gpu_s / HOUR_S:.1f} of --max-gpu-hours {self.budget.gpu_hours:g}"
            )
            yield Ending("gpu-hours", text)
        if self._over_s() <= 0.0:
            yield Ending("time", "--time-limit is over; --resume goes on")

    def _over_s(self) -> float:
        """Seconds that are left of the driver's time limit; zero or negative once it is over."""
        return self._began + self.budget.total_s - self.clock.time()

    # --- one trial ---------------------------------------------------------------------------

    def _conduct(self, record: TrialRecord, *, again: bool) -> None:
        """Run a trial to its end, even if an earlier driver began it."""
        try:
            record = self._submitted(record, again=again)
            record, found, logs = self._followed(record)
        except RefusedError as error:
            found, logs = Verdict("refused", f"its job was refused: {error}"), []
        except KeyboardInterrupt:
            self._interrupted(record)
            raise
        at = self._ended_at(record, logs)
        sentence = found.sentence + self._stopped(record)
        self._end(record, Verdict(found.kind, sentence, found.step), logs, at)

    def _ended_at(self, record: TrialRecord, logs: Sequence[FollowedLog]) -> float | None:
        """The Unix time at which a job ended, taken from the last change of its logs. None if the
        job is still alive, or if that time is before the trial was seen to run or in the future."""
        job = self._asked(lambda: self.runner.find(self._folder(record), record.chosen.job_name))
        times = [log.path.stat().st_mtime for log in logs if log.path.is_file()]
        since, last = record.running_since, max(times, default=0.0)
        seen = since is not None and since <= last <= self.clock.time()
        return last if seen and not job.is_alive else None

    def _end(
        self,
        record: TrialRecord,
        found: Verdict,
        logs: Sequence[FollowedLog],
        at: float | None = None,
    ) -> None:
        now = self.clock.time()
        ended = _ended(found, now, self._gpu_s(record, at or now), logs)
        self.journal.ended(record, ended)
        self._done.append(ended)
        self.say(f"trial {record.number}: {found.sentence}")
        self.after()

    def _gpu_s(self, record: TrialRecord, now: float) -> float:
        since = record.running_since
        return 0.0 if since is None else record.chosen.gpus * (now - since)

    def _submitted(self, record: TrialRecord, *, again: bool) -> TrialRecord:
        """Start the job, unless it was started before: nothing is started twice."""
        folder = self._folder(record)
        if record.handle is not None:
            return record
        if again:
            until = self.clock.time() + _SETTLE_S
            while True:
                job = self._asked(lambda: self.runner.find(folder, record.chosen.job_name))
                if job.state != "unknown":
                    return self.journal.submitted(record, job.handle)
                if self.clock.time() >= until:
                    break
                self.clock.sleep(min(self.poll_s, _SETTLE_S))
        write_folder(folder, self.work.files(record.chosen.key, record.chosen.job_name), force=True)
        handle = self._asked(lambda: self._handed_over(record, folder))
        return self.journal.submitted(record, handle)

    def _handed_over(self, record: TrialRecord, folder: Path) -> str:
        """Submit the job, unless the scheduler already has it because only its answer was lost."""
        name = record.chosen.job_name
        job = self.runner.find(folder, name)
        if job.state != "unknown":
            return job.handle
        return self.runner.submit(folder, name, self.limits.run_s)

    def _folder(self, record: TrialRecord) -> Path:
        return self.journal.folder / record.folder

    def _followed(self, record: TrialRecord) -> tuple[TrialRecord, Verdict, list[FollowedLog]]:
        """Look at the job and its log until a verdict says that it has ended."""
        watch = _Watch(self.clock.time(), self._folder(record))
        while True:
            job = self._looked_up(record, watch)
            self._read(record, watch, job)
            now = self.clock.time()
            logs = [*watch.logs.values()] or [FollowedLog(watch.folder / "none")]
            if record.running_since is None and _has_begun(job, logs):
                record = self.journal.running(record, now)
            look = Look(job, now, record.running_since, watch.grew_at, watch.unknown_since)
            found = verdict(self.work.facts(record.chosen.key), logs, look, self.limits)
            found = found or self._over_budget(record, now)
            if found is not None:
                return record, found, logs
            self._demand_patience(record, watch, job, now)
            self.clock.sleep(self.poll_s)

    def _looked_up(self, record: TrialRecord, watch: _Watch) -> Job | None:
        """The job now; None while the scheduler does not answer."""
        try:
            job = self.runner.find(watch.folder, record.chosen.job_name)
        except AwayError as error:
            if watch.away_since is None:
                watch.away_since = self.clock.time()
                self.say(f"the scheduler does not answer ({error}); the log is followed meanwhile")
            return None
        watch.away_since = None
        if job.state == "unknown":
            watch.unknown_since = watch.unknown_since or self.clock.time()
        else:
            watch.unknown_since = None
        return job

    def _read(self, record: TrialRecord, watch: _Watch, job: Job | None) -> None:
        """Read the new lines of its logs."""
        try:
            paths = self.runner.logs(watch.folder, record.chosen.job_name)
        except AwayError:
            return
        for path in paths:
            log = watch.logs.setdefault(path, self.follow(path))
            if log.look():
                watch.grew_at = self.clock.time()
            if job is not None and job.state in ("done", "failed"):
                log.end()

    def _over_budget(self, record: TrialRecord, now: float) -> Verdict | None:
        """The verdict that ends a trial once the GPU-hours of all trials, this one included, exceed
        their limit; None before that."""
        spent = spent_gpu_s(self.journal.records) + self._gpu_s(record, now)
        if spent > self.budget.gpu_hours * HOUR_S:
            return Verdict("interrupted", f"--max-gpu-hours {self.budget.gpu_hours:g} are spent")
        return None

    def _demand_patience(
        self, record: TrialRecord, watch: _Watch, job: Job | None, now: float
    ) -> None:
        """Raise CannotTellError if the scheduler has not answered for too long, the job has been
        queued for too long, or the driver's time is over. The job is not ended."""
        name, kept = record.chosen.job_name, f"{self.journal.resume} goes on"
        if watch.away_since is not None and now - watch.away_since > self.patience_s:
            raise CannotTellError(
                f"the scheduler has not answered for {seconds(self.patience_s)}; {kept} with {name}"
            )
        waits = job is not None and job.state == "pending"
        if waits and now - record.chosen.at > self.limits.pending_s:
            why = f" ({job.reason})" if job is not None and job.reason else ""
            raise CannotTellError(
                f"job {name} has waited for {seconds(self.limits.pending_s)} (--pending-limit)"
                f"{why}; it stays in the queue, and {kept} with it"
            )
        if self._over_s() <= 0.0:
            raise CannotTellError(
                f"--time-limit is over while {name} runs or waits; {kept} with it"
            )

    def _stopped(self, record: TrialRecord) -> str:
        """End the job if it is alive and wait until it is gone, because the next one needs its
        GPUs. Returns the scheduler's words if it refuses, otherwise an empty text."""
        if record.handle is None:
            return ""
        folder, name = self._folder(record), record.chosen.job_name
        asked_at, force, said = self.clock.time(), False, ""
        state = self._asked(lambda: self.runner.find(folder, name)).state
        if state in ("done", "failed"):
            return ""
        while True:
            try:
                # This includes a job that the scheduler has lost, because it may find it again.
                self._asked(lambda force=force: self.runner.cancel(folder, name, force=force))  # type: ignore[misc]
            except RefusedError as error:
                if not said:
                    said = f"; its job could not be ended ({error}), and was waited for"
                    self.say(f"trial {record.number}{said}")
            for _ in range(math.ceil(_GRACE_S / self.poll_s)):
                if not self._asked(lambda: self.runner.find(folder, name)).is_alive:
                    return said
                self.clock.sleep(self.poll_s)
            force = True
            if self.clock.time() - asked_at > max(self.limits.run_s, 2 * _GRACE_S):
                raise CannotTellError(
                    f"job {name} does not end{said}: end it, then {self.journal.resume} goes on"
                )

    def _interrupted(self, record: TrialRecord) -> None:
        """After Ctrl-C: end the job and record that, unless the scheduler fails to end it."""
        try:
            self.runner.cancel(self._folder(record), record.chosen.job_name)
        except (AwayError, RefusedError) as error:
            self.say(f"{record.chosen.job_name} was not ended: {error}; --resume finds it again")
            return
        self._end(record, Verdict("interrupted", "interrupted; its job was ended"), [])

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        """The scheduler's answer, asked again while it does not answer. CannotTellError after the
        patience or the time limit."""
        began, pause = self.clock.time(), self.poll_s
        while True:
            try:
                return ask()
            except AwayError as error:
                if self.clock.time() - began > self.patience_s or self._over_s() <= 0.0:
                    raise CannotTellError(
                        f"the scheduler does not answer: {error}; {self.journal.resume} goes on"
                    ) from None
                self.say(f"the scheduler does not answer ({error}); asked again")
                self.clock.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)


@dataclass
class _Watch:
    """The driver's memory between two looks at a trial."""

    grew_at: float
    folder: Path
    logs: dict[Path, FollowedLog] = field(default_factory=dict)
    away_since: float | None = None
    unknown_since: float | None = None


def _has_begun(job: Job | None, logs: Sequence[FollowedLog]) -> bool:
    """Whether a job runs or has run: the scheduler says so, or its log does."""
    told = job is not None and job.state in ("running", "done", "failed")
    return told or any(log.lines for log in logs)


def _ended(found: Verdict, at: float, gpu_s: float, logs: Sequence[FollowedLog]) -> Ended:
    """How a trial ended, as the journal stores it."""
    ended = Ended(found.kind, found.sentence, at, gpu_s)
    if logs:
        log = most_telling(logs)
        peak_bytes, kind = log.said.peak_bytes, log.said.memory_kind
        ended = replace(ended, peak_bytes=peak_bytes, memory_kind=kind, parts=dict(log.parts()))
    if found.step is None:
        return ended
    step = found.step
    return replace(ended, step_s=step.seconds, relative_sd=step.relative_sd, steps=step.kept)


def counted(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The ended trials that say something about their plan. Trials that failed for other reasons,
    and trials that have not ended, are left out."""
    return [one for one in records if one.ended is not None and one.ended.kind in OF_THE_PLAN]


def _failures(done: Sequence[Ended]) -> int:
    """The number of trials, counted back from the latest, since one gave a step time or ran out of
    memory."""
    found = 0
    for ended in reversed(done):
        if ended.kind in TELLING:
            break
        found += 1
    return found


def spent_gpu_s(records: Sequence[TrialRecord]) -> float:
    """GPU-seconds of all trials that have ended."""
    return math.fsum(one.ended.gpu_s for one in records if one.ended is not None)
