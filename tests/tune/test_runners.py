"""Every runner starts a job once, finds it again by its name, and ends no other."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.launch.settings_text import Code, filled
from planner.tune.runners import process
from planner.tune.runners.command import CommandRunner, LocalRunner
from planner.tune.runners.contract import AwayError, Job, RefusedError, Runner
from planner.tune.runners.kubernetes import KubernetesRunner
from planner.tune.runners.slurm import SlurmRunner
from tests.tune.conftest import Behave, jobs

# Processes are known by it: other tests that run at the same time have another.
STUDY = f"tune-study-{os.getpid()}"
NAME = f"{STUDY}-001"
QUICK = "echo step 1: loss 1.0, 0.5 s\n"
LONG = "echo begun\nsleep 60\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A trial's folder: its scripts, without what they train."""
    place = tmp_path / "study" / "trials" / "001"
    place.mkdir(parents=True)
    (place / "trial.sh").write_text(filled("trial.sh.txt", place=(), command=Code('"$@"')))
    there = [Code('cd "${SLURM_SUBMIT_DIR}" || exit 2')]
    body = filled("trial.sh.txt", place=there, command=Code("bash launch.sbatch"))
    (place / "trial.sbatch").write_text(body)
    yield place
    for pid in process.processes(NAME):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)


def trains(folder: Path, text: str) -> None:
    for name in ("launch.sh", "launch.sbatch"):
        (folder / name).write_text(text)


def until(runner: Runner, folder: Path, good: Callable[[Job], bool]) -> Job:
    for _ in range(200):
        job = runner.find(folder, NAME)
        if good(job):
            return job
        time.sleep(0.05)
    pytest.fail(f"{job}")


RUNNERS: list[Callable[[], Runner]] = [
    LocalRunner, SlurmRunner, lambda: CommandRunner("bash {folder}/launch.sh"),
]  # fmt: skip


@pytest.mark.parametrize("make", RUNNERS)
@pytest.mark.usefixtures("slurm")
class TestEach:
    def test_a_run_is_found_and_ends(self, make: Callable[[], Runner], folder: Path) -> None:
        runner = make()
        trains(folder, QUICK)
        assert runner.find(folder, NAME).state == "unknown"
        runner.submit(folder, NAME, 600.0)
        until(runner, folder, lambda job: job.state == "done")
        [log, *_] = runner.logs(folder, NAME)
        assert log.read_text() == "step 1: loss 1.0, 0.5 s\n"
        assert runner.find(folder, f"{STUDY}-002").state in ("unknown", "done")

    def test_a_failure_has_its_status(self, make: Callable[[], Runner], folder: Path) -> None:
        runner = make()
        trains(folder, "exit 7\n")
        runner.submit(folder, NAME, 600.0)
        job = until(runner, folder, lambda job: not job.is_alive and job.state != "unknown")
        assert job.state == "failed"
        assert not job.lost

    def test_it_is_ended_and_no_other(self, make: Callable[[], Runner], folder: Path) -> None:
        runner = make()
        trains(folder, LONG)
        runner.submit(folder, NAME, 600.0)
        until(runner, folder, lambda job: job.state == "running")
        runner.cancel(folder, f"{STUDY}-0")
        assert runner.find(folder, NAME).state == "running"
        runner.cancel(folder, NAME)
        until(runner, folder, lambda job: not job.is_alive)
        for _ in range(200):
            if not [*process.processes(NAME)]:
                break
            time.sleep(0.05)
        assert not [*process.processes(NAME)]

    def test_two_starts_are_one_run(self, make: Callable[[], Runner], folder: Path) -> None:
        """As where a driver was killed before it knew that its submission was taken."""
        runner = make()
        trains(folder, "sleep 0.3\n" + QUICK)
        for _ in range(2):
            runner.submit(folder, NAME, 600.0)
        until(runner, folder, lambda job: job.state == "done")
        time.sleep(0.3)
        runner.find(folder, NAME)
        time.sleep(0.3)
        assert (folder / "train.log").read_text() == "step 1: loss 1.0, 0.5 s\n"


@pytest.mark.parametrize("make", [LocalRunner, lambda: CommandRunner("bash {folder}/launch.sh")])
def test_a_killed_run_is_lost(make: Callable[[], Runner], folder: Path) -> None:
    """The node is gone, or somebody ended it with kill -9."""
    runner = make()
    trains(folder, LONG)
    runner.submit(folder, NAME, 600.0)
    # Until there is none: one may just have started another.
    while found := [*process.processes(NAME)]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
    job = until(runner, folder, lambda job: not job.is_alive)
    assert (job.state, job.lost) == ("failed", True)


def test_workers_that_left_the_group_are_ended(folder: Path) -> None:
    """torchrun's workers have sessions of their own."""
    trains(folder, "setsid sleep 60 &\nsetsid sleep 60\n")
    runner = LocalRunner()
    runner.submit(folder, NAME, 600.0)
    for _ in range(100):
        if len([*process.processes(NAME)]) >= 4:
            break
        time.sleep(0.05)
    while [*process.processes(NAME)]:
        runner.cancel(folder, NAME, force=True)
    until(runner, folder, lambda job: not job.is_alive)


class TestCommand:
    def test_its_words_are_no_shell_text(self, folder: Path, tmp_path: Path) -> None:
        odd = tmp_path / "a b;touch '$(x)"
        folder.rename(odd)
        script = tmp_path / "mine.py"
        script.write_text("import sys; print(sys.argv[1:])")
        runner = CommandRunner(f"{sys.executable} {script} {{folder}} '$HOME `id`' --name={{name}}")
        runner.submit(odd, NAME, 600.0)
        until(runner, odd, lambda job: job.state == "done")
        said = (odd / "train.log").read_text().strip()
        assert said == str([str(odd), "$HOME `id`", f"--name={NAME}"])

    @pytest.mark.parametrize(
        ("text", "words"),
        [("train it", "{folder}"), ("", "{folder}"), ("train '{folder}", "No closing quotation")],
    )
    def test_what_it_refuses(self, text: str, words: str) -> None:
        with pytest.raises(UsageError, match=words.replace("{", r"\{")):
            CommandRunner(text)

    def test_a_program_that_is_not_there(self, folder: Path) -> None:
        runner = CommandRunner("no-such-program {folder}")
        runner.submit(folder, NAME, 600.0)
        job = until(runner, folder, lambda job: job.state == "failed")
        assert job.reason == "exit status 127"


class TestSlurm:
    def test_what_sbatch_is_told(self, folder: Path, slurm: Path) -> None:
        trains(folder, QUICK)
        assert SlurmRunner().submit(folder, NAME, 601.0) == "100"
        [job] = jobs(slurm)
        assert job["words"] == [
            "--parsable", "--no-requeue", f"--job-name={NAME}", "--output=train.log",
            "--open-mode=append", "--time=11", "trial.sbatch",
        ]  # fmt: skip
        assert job["folder"] == str(folder)

    def test_it_waits(self, folder: Path, behave: Behave) -> None:
        behave(start_after=1000)
        trains(folder, QUICK)
        SlurmRunner().submit(folder, NAME, 600.0)
        assert SlurmRunner().find(folder, NAME) == Job("pending", "100", "PENDING (Resources)")
        behave(reason="PartitionNodeLimit")
        assert SlurmRunner().find(folder, NAME).never
        behave(start_after=0)
        until(SlurmRunner(), folder, lambda job: job.state == "done")

    def test_it_lies(self, folder: Path, behave: Behave) -> None:
        """It says that a job runs which has ended: the job's own script knows better."""
        behave(says="RUNNING")
        trains(folder, QUICK)
        SlurmRunner().submit(folder, NAME, 600.0)
        assert until(SlurmRunner(), folder, lambda job: job.state == "done").reason

    def test_it_loses_a_job(self, folder: Path, behave: Behave) -> None:
        trains(folder, LONG)
        SlurmRunner().submit(folder, NAME, 600.0)
        behave(lost=[NAME])
        assert SlurmRunner().find(folder, NAME).state == "unknown"

    @pytest.mark.parametrize("accounts", [True, False])
    def test_without_accounts(self, folder: Path, behave: Behave, accounts: bool) -> None:
        behave(no_accounts=not accounts)
        trains(folder, QUICK)
        SlurmRunner().submit(folder, NAME, 600.0)
        assert until(SlurmRunner(), folder, lambda job: job.state == "done")

    @pytest.mark.parametrize("call", ["submit", "find", "cancel"])
    def test_it_is_away(self, call: str, folder: Path, behave: Behave) -> None:
        behave(away=1)
        runner = SlurmRunner()
        with pytest.raises(AwayError, match="Unable to contact slurm controller"):
            getattr(runner, call)(folder, NAME, *((600.0,) if call == "submit" else ()))

    def test_it_refuses(self, folder: Path, behave: Behave) -> None:
        behave(refuse="Requested node configuration is not available", refuse_cancel=True)
        with pytest.raises(RefusedError, match="node configuration is not available"):
            SlurmRunner().submit(folder, NAME, 600.0)
        with pytest.raises(RefusedError, match="permission denied"):
            SlurmRunner().cancel(folder, NAME)

    def test_there_is_none(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(UsageError, match="sbatch is not on the PATH"):
            SlurmRunner().submit(folder, NAME, 600.0)


KUBECTL = """#!{python} -S
import json, os, sys
from pathlib import Path
place = Path(os.environ["KUBE_STUB"])
words = sys.argv[1:]
told = json.loads((place / "told.json").read_text())
with (place / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
if "away" in told:
    sys.exit("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout")
match words[:2]:
    case ["create", "-f"]:
        if "jobset" in told:
            sys.exit('Error from server (AlreadyExists): jobsets "x" already exists')
    case ["get", "jobset"]:
        if "jobset" not in told:
            sys.exit('Error from server (NotFound): jobsets.jobset.x-k8s.io "x" not found')
        print(json.dumps({{"status": told["jobset"]}}))
    case ["get", "pods"]:
        print(json.dumps(told.get("pods", {{"items": []}})))
    case ["logs", _]:
        print(told.get("log", ""))
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Sets what kubectl finds; gives the calls so far."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(KUBECTL.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "calls").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBE_STUB", str(tmp_path))

    def tell(**told: object) -> list[list[str]]:
        (tmp_path / "told.json").write_text(json.dumps(told))
        return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return tell


class TestKubernetes:
    def test_a_name_is_taken_once(self, folder: Path, cluster: Callable[..., object]) -> None:
        runner = KubernetesRunner()
        cluster()
        assert runner.find(folder, NAME).state == "unknown"
        assert runner.submit(folder, NAME, 600.0) == NAME
        cluster(jobset={})
        assert runner.submit(folder, NAME, 600.0) == NAME

    def test_states(self, folder: Path, cluster: Callable[..., object]) -> None:
        runner = KubernetesRunner()
        waits = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
        cluster(jobset={}, pods={"items": [{"status": {"conditions": [waits]}}]})
        assert runner.find(folder, NAME) == Job("pending", NAME, "0/4 nodes are available")
        cluster(jobset={"replicatedJobsStatus": [{"ready": 1}]})
        assert runner.find(folder, NAME).state == "running"
        for kind, state in (("Completed", "done"), ("Failed", "failed")):
            cluster(jobset={"conditions": [{"type": kind, "status": "True", "message": "so"}]})
            assert runner.find(folder, NAME) == Job(state, NAME, f"{kind}: so")  # type: ignore[arg-type]

    def test_its_log_is_fetched(self, folder: Path, cluster: Callable[..., object]) -> None:
        cluster(jobset={}, log="step 1: loss 1.0, 0.5 s")
        [path] = KubernetesRunner().logs(folder, NAME)
        assert path.read_text() == "step 1: loss 1.0, 0.5 s\n"

    def test_the_one_job_is_deleted(
        self, folder: Path, cluster: Callable[..., list[list[str]]]
    ) -> None:
        cluster(jobset={})
        KubernetesRunner().cancel(folder, NAME)
        [call] = cluster()
        assert call[:3] == ["delete", "jobset,configmap", NAME]

    def test_it_is_away(self, folder: Path, cluster: Callable[..., object]) -> None:
        cluster(away=True)
        with pytest.raises(AwayError, match="Unable to connect"):
            KubernetesRunner().find(folder, NAME)
