"""A clock that passes when it is asked to, a runner of made-up jobs, and work of two plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner import Degrees
from planner.launch.contract import NodesAs
from planner.tune.journal import Chosen, TrialRecord
from planner.tune.judge import Facts
from planner.tune.loop import Next, counted
from planner.tune.runners.contract import LOG, UNKNOWN, AwayError, Job, RefusedError

STEP = "step {}: loss 1.0, {:.4f} s, peak reserved 9.00 GiB\n"


@dataclass
class FakeClock:
    """Starts in 2026."""

    now: float = 1.8e9

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeJob:
    """`lines`: (seconds after its start, text) that it prints; it ends with `status` after the
    last, unless it `hangs`; it starts `wait_s` after its submission."""

    lines: Sequence[tuple[float, str]]
    status: int = 0
    hangs: bool = False
    wait_s: float = 0.0
    submitted_at: float = 0.0
    cancelled_at: float | None = None

    @property
    def starts_at(self) -> float:
        return self.submitted_at + self.wait_s

    @property
    def ends_at(self) -> float:
        return self.starts_at + (
            1e9 if self.hangs else max((at for at, _ in self.lines), default=0.0)
        )


def steps(step_s: float, count: int = 50, after: float = 20.0) -> FakeJob:
    """A run of steps that scatter by half a percent."""
    jitter = (0.0, 0.004, -0.005, 0.002, -0.003)
    lines, at = [], after
    for number in range(1, count + 1):
        taken = step_s * (1.0 + jitter[number % 5] + (0.5 if number < 3 else 0.0))
        at += taken
        lines.append((at, STEP.format(number, taken)))
    return FakeJob(lines)


@dataclass
class FakeRunner:
    """Runs `jobs` by the plan's key. `trouble`: name of a call -> errors that it raises, first
    come, first served. `submissions`: names, in their order."""

    clock: FakeClock
    jobs: Mapping[str, Callable[[], FakeJob]]
    nodes_as: NodesAs = "torchrun"
    known: dict[str, FakeJob] = field(default_factory=dict)
    submissions: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    trouble: dict[str, list[Exception | None]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def _fails(self, call: str) -> None:
        error = self.trouble[call].pop(0) if self.trouble.get(call) else None
        if error is not None:
            raise error

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:  # noqa: ARG002
        self._fails("submit")
        self.submissions.append(job_name)
        job = self.jobs[(folder / "key").read_text()]()
        job.submitted_at = self.clock.now
        self.known[job_name] = job
        self._fails("submitted")
        return "4711"

    def find(self, folder: Path, job_name: str) -> Job:
        self._fails("find")
        job = self.known.get(job_name)
        if job is None or job_name in self.lost:
            return UNKNOWN
        self._print(folder, job)
        now = self.clock.now
        if job.cancelled_at is not None and now >= job.cancelled_at:
            return Job("failed", "4711", "CANCELLED", lost=True)
        if now < job.starts_at:
            return Job("pending", "4711", "Resources")
        if now < job.ends_at:
            return Job("running", "4711")
        return Job("failed" if job.status else "done", "4711", f"exit status {job.status}")

    def _print(self, folder: Path, job: FakeJob) -> None:
        until = min(self.clock.now, job.cancelled_at or 1e18)
        text = "".join(line for at, line in job.lines if job.starts_at + at <= until)
        if text:
            (folder / LOG).write_text(text)

    def cancel(self, folder: Path, job_name: str, *, force: bool = False) -> None:  # noqa: ARG002
        self._fails("cancel")
        self.cancelled.append(job_name)
        self.known[job_name].cancelled_at = self.clock.now

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:  # noqa: ARG002
        return (folder / LOG,)


AWAY = AwayError("squeue: Unable to contact slurm controller")
REFUSED = RefusedError("scancel: Access/permission denied")


@dataclass
class FakeWork:
    """Plans with their predicted steps; the next one is the fastest that was not tried."""

    plans: Mapping[str, float]
    most: int = 99

    @property
    def keys(self) -> Sequence[str]:
        return list(self.plans)

    def choice(self, records: Sequence[TrialRecord]) -> Next:
        tried = {one.chosen.key for one in counted(records)}
        left = sorted((s, key) for key, s in self.plans.items() if key not in tried)
        if not left or len(tried) >= self.most:
            return Next(None, 1.0, 2.0, "another trial would cost more than it saves")
        return Next(left[0][1], 900.0, 100.0, f"{left[0][1]} is the fastest that was not tried")

    def chosen(self, choice: Next, job_name: str, at: float) -> Chosen:
        key = choice.key or ""
        return Chosen(key, job_name, 2, 8, self.plans[key], 0.9, choice.saves_gpu_s,
                      choice.costs_gpu_s, choice.sentence, at)  # fmt: skip

    def files(self, key: str, job_name: str) -> Mapping[str, str]:
        return {"key": key, "name": job_name}

    def facts(self, key: str) -> Facts:
        return Facts(Degrees(dp=2, mbs=4), 1024, "hf-fsdp2", self.plans[key])
