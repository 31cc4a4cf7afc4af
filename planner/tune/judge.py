"""Judge at each look how a running trial ends: by its log, its job, and the time that it takes.

The log says more than the scheduler: a run ends as soon as its step time is known or it is out of
memory. Only if the log says neither does the state of the job count. If the scheduler does not know
the job, it is waited for before it is given up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.job.quantities import plural, seconds, share
from planner.predict.plan import Degrees
from planner.tune.follow import FollowedLog, Sign, StepTime, is_foreign, step_time
from planner.tune.journal import Kind
from planner.tune.runners.contract import Job

# A step time is known when its standard error is below this share of it.
KNOWN = 0.01
# A run hangs if its log is silent for longer than both: a number of its steps, and seconds.
_SILENT_STEPS, _SILENT_S = 20.0, 120.0
# Seconds to wait for a job that the scheduler no longer knows.
LOST_S = 120.0
# Killed by SIGKILL, usually by the system because host memory ran out.
_KILLED = "exit status 137"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a trial: the most seconds that it runs (`run_s`) and that it waits in a queue
    (`pending_s`). `known`: a step time counts as known once its standard error, as a share of it,
    is at most this."""

    run_s: float = 1800.0
    pending_s: float = math.inf
    known: float = KNOWN


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a candidate by which its log is judged."""

    degrees: Degrees
    seq: int
    framework: str
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial has ended, in a sentence, with its step time if the log gave one."""

    kind: Kind
    sentence: str
    step: StepTime | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a trial. `job`: its job, None while the scheduler does not answer. The other
    fields are times in seconds on the driver's clock: of this look (`now`), since which the trial
    has been running (`running_since`, None if it is not running yet), at which its log last grew
    (`grew_at`), and since which the scheduler has not known the job (`unknown_since`, None if it
    knows it)."""

    job: Job | None
    now: float
    running_since: float | None
    grew_at: float
    unknown_since: float | None


def verdict(
    facts: Facts, logs: Sequence[FollowedLog], look: Look, limits: Limits
) -> Verdict | None:
    """How the trial has ended; None while it continues."""
    log = most_telling(logs)
    ended = look.job is not None and look.job.state in ("done", "failed")
    found = step_time(log.said, facts.degrees, facts.seq, ended=ended)
    return (
        _by_signs(logs)
        or _by_steps(facts, log, found, limits.known)
        or (_at_the_end(logs, look.job, found) if look.job is not None and ended else None)
        or _by_time(facts, log, look, limits)
        or _by_scheduler(look)
    )


def most_telling(logs: Sequence[FollowedLog]) -> FollowedLog:
    """The log with the most steps; the first if none has any."""
    return max(logs, key=lambda log: len(log.said.values))


_SAID: Mapping[Kind, str] = {
    "out-of-memory": "it ran out of memory",
    "too-few-gpus": "the machine has fewer GPUs than the plan",
    "not-a-number": "its loss, or a figure of its log, is not a number",
}


def _by_signs(logs: Sequence[FollowedLog]) -> Verdict | None:
    """The verdict from lines that report an error, whatever else was printed."""
    found = ((kind, words, log.signs.get(kind)) for kind, words in _SAID.items() for log in logs)
    return next((Verdict(kind, f"{words}: {line}") for kind, words, line in found if line), None)


def _by_steps(
    facts: Facts, log: FollowedLog, found: StepTime | None, known: float
) -> Verdict | None:
    """The verdict with the step time, if that is known well enough; a verdict that the log is from
    another framework; otherwise None."""
    if is_foreign(log.format, facts.framework):
        return Verdict(
            "foreign-log",
            f"its log is from {log.format}, but the plan is for {facts.framework}: what was "
            "started is not what the folder says",
        )
    return _measured(found) if found is not None and found.relative_sd <= known else None


def _measured(found: StepTime) -> Verdict:
    steps = f"{found.kept} steps after {found.warm_up} of warm-up"
    text = f"{seconds(found.seconds)} a step ±{share(found.relative_sd)}, of {steps}"
    return Verdict("measured", text, found)


def _at_the_end(logs: Sequence[FollowedLog], job: Job, found: StepTime | None) -> Verdict:
    """The verdict on a job that ended before its step time was known: the time so far, or why there
    is none."""
    said = _sign(logs, "failed")
    if found is not None and (job.state == "done" or job.lost):
        return _measured(found)
    if job.lost:
        return Verdict("lost", f"its job was lost: {job.reason}")
    if missing := _sign(logs, "not-installed"):
        return Verdict("not-installed", f"the machine lacks what the run needs: {missing}")
    if job.state == "failed":
        said = said or next((f"its last line is: {log.last}" for log in logs if log.last), "")
        why = "; usually the host's memory was not enough" if job.reason == _KILLED else ""
        return Verdict("failed", f"it failed ({job.reason}{why})" + (f": {said}" if said else ""))
    lines = plural(sum(log.lines for log in logs), "line")
    return Verdict(
        "no-log",
        f"it ended after {lines} of log, none of which tells how long a step took: what starts it "
        "must end when the training ends, and print what the training prints"
        + (f" ({said})" if said else ""),
    )


def _sign(logs: Sequence[FollowedLog], kind: Sign) -> str:
    """The first line with a kind of error; empty if there is none."""
    return next((log.signs[kind] for log in logs if kind in log.signs), "")


def _by_time(facts: Facts, log: FollowedLog, look: Look, limits: Limits) -> Verdict | None:
    """The verdict on a run that has printed steps and then gone silent for too long, or that
    exceeds its time limit: then with the step time so far, if there is one. None while the run may
    continue, or before it runs."""
    if look.running_since is None:
        return None
    if log.said.values:
        step_s = max(facts.predicted_s, _slowest(facts, log))
        silent_s = look.now - max(look.grew_at, look.running_since)
        if silent_s > max(_SILENT_S, _SILENT_STEPS * step_s):
            return Verdict("hang", f"it hangs: no line of log for {seconds(silent_s)}")
    if look.now - look.running_since <= limits.run_s:
        return None
    found = step_time(log.said, facts.degrees, facts.seq, ended=True)
    if found is not None:
        return _measured(found)
    return Verdict(
        "time-over",
        f"no step time after {seconds(limits.run_s)} (--trial-limit) and "
        f"{plural(log.lines, 'line')} of log",
    )


def _slowest(facts: Facts, log: FollowedLog) -> float:
    found = step_time(log.said, facts.degrees, facts.seq, ended=True)
    return 0.0 if found is None else found.seconds


def _by_scheduler(look: Look) -> Verdict | None:
    """The verdict on a job that the scheduler does not know, or that waits for resources that do
    not exist."""
    if look.unknown_since is not None and look.now - max(look.unknown_since, look.grew_at) > LOST_S:
        return Verdict("lost", f"its job has been unknown to the scheduler for {seconds(LOST_S)}")
    if look.job is not None and look.job.state == "pending" and look.job.never:
        return Verdict(
            "too-few-gpus",
            f"it waits for resources that the cluster does not have: {look.job.reason}",
        )
    return None
