"""`planner tune` from its options to its files, on a scheduler that is made up: what it starts,
says, keeps, and refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
from click.testing import CliRunner, Result

import planner.cli.tune
from planner.cli.program import planner_command
from planner.cli.schemas import schema_of
from planner.tune.loop import Ending
from planner.tune.runners import process
from planner.tune.work import StudyWork
from tests.tune.conftest import Behave, jobs
from tests.tune.plans import plan_file

# What stands for a training: steps as accelerate's program prints them, by what its file says.
ACCELERATE = """#!{python} -S
import sys, time
text = open("accelerate.yaml").read()
whole = "fsdp_reshard_after_forward: false" in text
again = "fsdp_activation_checkpointing: true" in text
if {no_memory}:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
step = 0.045 if {slow} else 0.030
for number in range(1, int(sys.argv[sys.argv.index("--steps") + 1]) + 1):
    taken = step * (1 + 0.002 * (number % 3) + (number < 3))
    time.sleep({pause})
    print(f"step {{number}}: loss {loss}, {{taken:.6f}} s, peak reserved 1.50 GiB", flush=True)
"""
SRUN = '#!/usr/bin/env bash\nshift 2\nexec "$@"\n'
MUCH = ("--tokens", "1000000T")
Trains = Callable[..., None]


class KnownWork(StudyWork):
    """Candidates and what is believed of them before trials, worked out once for all tests."""

    known: ClassVar[dict[str, tuple[Any, Any]]] = {}

    @property
    def _place(self) -> str:
        request = self.result.request
        return f"{request.gpus} {request.seq} {self.nodes_as}"

    @property
    def candidates(self) -> Any:
        if self._place not in self.known:
            work = StudyWork(self.result, self.target, self.nodes_as, self.short, self.tokens)
            self.known[self._place] = work.candidates, work.prior
        return self.known[self._place][0]

    @property
    def prior(self) -> Any:
        return self.known[self._place][1] if self.candidates else None


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model's file stays, whose name is in the plans."""
    return tmp_path_factory.mktemp("model")


@pytest.fixture
def trains(slurm: Path) -> Trains:
    """Changes what the training does."""

    def change(
        pause: float = 0.01, no_memory: str = "False", slow: str = "False", loss: str = "7.0"
    ) -> None:
        text = ACCELERATE.format(
            python=sys.executable, pause=pause, no_memory=no_memory, slow=slow, loss=loss
        )
        program(slurm.parent / "bin" / "accelerate", text)

    return change


@pytest.fixture
def plans(
    tmp_path: Path,
    model_folder: Path,
    slurm: Path,
    trains: Trains,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    trains()
    program(slurm.parent / "bin" / "srun", SRUN)
    monkeypatch.setattr(planner.cli.tune, "_POLL_S", dict.fromkeys(planner.cli.tune._POLL_S, 0.05))
    monkeypatch.setattr(planner.cli.tune, "StudyWork", KnownWork)
    monkeypatch.chdir(tmp_path)
    return plan_file(model_folder)


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def tune(*words: object) -> Result:
    return CliRunner().invoke(planner_command, ["tune", *map(str, words)], catch_exceptions=False)


def study_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return found


def test_a_study_on_slurm(plans: Path, slurm: Path, trains: Trains, tmp_path: Path) -> None:
    """From the plan file to the table, the page, the cluster file and the runs behind it."""
    trains(no_memory="not whole and not again", slow="not whole")
    done = tune(plans, "--on", "slurm", "-o", "study", *MUCH)
    assert done.exit_code == 0, done.output
    study = study_of(tmp_path / "study")
    outcomes = {one["name"]: one["outcome"] for one in study["trials"]}
    assert outcomes == {"plan 1": "out-of-memory", "plan 2": "measured", "plan 3": "measured"}
    assert (study["best_name"], study["reason"]) == ("plan 2", "no trial pays")
    assert [job["name"] for job in jobs(slurm)] == [one["job_name"] for one in study["trials"]]
    measured = {one["name"]: one["measured_s"] for one in study["trials"]}
    assert measured["plan 2"] == pytest.approx(0.030, rel=0.01)
    assert measured["plan 3"] == pytest.approx(0.045, rel=0.01)
    for words in ("→ Take plan 2 (", "The study ended:", "out of memory", "GPU-hours"):
        assert words in done.stdout
    assert "trial 0:" in done.stderr
    page = CliRunner().invoke(planner_command, ["report", "study", "-o", "study.html"])
    assert page.exit_code == 0, page.output
    assert "Predicted and measured" in Path("study.html").read_text()
    rows = [*csv.DictReader(io.StringIO(Path("study/measured.csv").read_text()))]
    assert len(rows) == len([one for one in outcomes.values() if one != "lost"])
    learnt = CliRunner().invoke(
        planner_command, ["calibrate", "--from", "study/measured.csv", "--accept-worse", "--json"]
    )
    assert learnt.exit_code == 0, learnt.output
    if study["cluster_file"]:
        words = f"search --model {plans.parent}/tiny.json --cluster study/cluster.toml --gbs 16"
        found = CliRunner().invoke(
            planner_command, [*words.split(), "--seq", "128", "--framework", "accelerate"]
        )
        assert found.exit_code == 0, found.output


def test_forms_of_the_answer(plans: Path) -> None:
    done = tune(plans, "--on", "slurm", "-o", "a", "--json", "--quiet", "--trials", 1, *MUCH)
    study = json.loads(done.stdout)
    assert study["reason"] in ("trials", "no trial pays")
    jsonschema.validate(study, schema_of("tune"))
    assert done.stderr == ""
    again = tune("--resume", "a", "--csv", "--trials", 1)
    [row] = csv.DictReader(io.StringIO(again.stdout))
    assert (row["outcome"], row["gpus"]) == ("measured", "2")


def test_a_dry_run_starts_nothing(plans: Path, slurm: Path, tmp_path: Path) -> None:
    done = tune(plans, "--on", "slurm", "--dry-run", "--json", *MUCH)
    trials = json.loads(done.stdout)
    assert trials[0]["plan"]
    assert trials[0]["saves_gpu_hours"] > trials[0]["costs_gpu_hours"] > 0.0
    cheap = json.loads(tune(plans, "--dry-run", "--json", "--tokens", "1M").stdout)
    assert cheap[0]["configuration"] is None
    assert "another trial would cost" in cheap[0]["why"]
    assert "Nothing was started" in tune(plans, "--dry-run", *MUCH).stdout
    assert jobs(slurm) == []
    assert not (tmp_path / "study").exists()


def test_local_and_command(plans: Path) -> None:
    local = tune(plans, "--on", "local", "-o", "a", "--trials", 1, *MUCH)
    assert local.exit_code == 0, local.output
    mine = tune(plans, "--run", "bash {folder}/launch.sh", "-o", "b", "--trials", 1, *MUCH)
    assert mine.exit_code == 0, mine.output
    times = [study_of(Path(name))["trials"][0]["measured_s"] for name in "ab"]
    assert times == pytest.approx([0.030, 0.030], rel=0.01)


def test_all_out_of_memory_is_no(plans: Path, trains: Trains) -> None:
    trains(no_memory="True")
    some = tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
    assert some.exit_code == 0, some.output
    done = tune("--resume", "study", "--trials", 99)
    assert done.exit_code == 1, done.output


class TestTrouble:
    """A sentence, the study kept, and the exit status of the table."""

    def test_a_command_that_returns_at_once(self, plans: Path) -> None:
        done = tune(plans, "--run", "true {folder}", "-o", "study", *MUCH)
        assert done.exit_code == 3
        assert "must end when the training ends" in " ".join(done.stdout.split())
        assert study_of(Path("study"))["trials"][0]["outcome"] == "no-log"

    def test_a_log_of_another_framework(self, plans: Path, tmp_path: Path) -> None:
        script = tmp_path / "other.py"
        line = "step:  5  loss:  7.1  memory:  9.10GiB(11.5%)  tps: 5,120  tflops: 3"
        script.write_text(f"print('''{line}\\n''' * 9)")
        done = tune(plans, "--run", f"{sys.executable} {script} {{folder}}", "-o", "study", *MUCH)
        assert done.exit_code == 3
        assert "its log is from torchtitan" in " ".join(done.stdout.split())

    def test_a_run_that_prints_nan(self, plans: Path, trains: Trains) -> None:
        trains(loss="nan")
        done = tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
        assert "is not a number" in " ".join(done.stdout.split())
        assert done.exit_code == 3
        assert study_of(Path("study"))["trials"][0]["outcome"] == "not-a-number"

    def test_jobs_that_stay_pending(self, plans: Path, slurm: Path, behave: Behave) -> None:
        behave(start_after=10_000)
        done = tune(plans, "--on", "slurm", "-o", "study", "--pending-limit", "1s", *MUCH)
        assert done.exit_code == 3
        assert "stays in the queue" in done.stderr
        behave(start_after=0)
        again = tune("--resume", "study", "--trials", 1)
        assert again.exit_code == 0, again.output
        assert len(jobs(slurm)) == 1

    def test_a_cluster_smaller_than_the_plan(self, plans: Path, behave: Behave) -> None:
        behave(refuse="Batch job submission failed: Requested node configuration is not available")
        done = tune(plans, "--on", "slurm", "-o", "study", *MUCH)
        assert done.exit_code == 3
        assert "Requested node configuration is not available" in " ".join(done.stdout.split())

    def test_jobs_that_never_start(self, plans: Path, slurm: Path, behave: Behave) -> None:
        behave(start_after=10_000, reason="PartitionNodeLimit")
        done = tune(plans, "--on", "slurm", "-o", "study", *MUCH)
        assert done.exit_code == 3
        assert "waits for resources that the cluster does not have" in " ".join(done.stdout.split())
        assert jobs(slurm)[0]["state"].startswith("CANCELLED")

    def test_scancel_that_is_refused(self, plans: Path, behave: Behave, trains: Trains) -> None:
        trains(pause=0.05)
        behave(refuse_cancel=True)
        done = tune(plans, "--on", "slurm", "-o", "study", "--trials", 2, *MUCH)
        assert done.exit_code == 0, done.output
        assert "could not be ended (scancel: scancel: error" in done.stderr

    def test_a_scheduler_that_is_away(self, plans: Path, slurm: Path, behave: Behave) -> None:
        behave(away=6, sbatch_forgets=1)
        done = tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
        assert done.exit_code == 0, done.output
        assert "does not answer" in done.stderr
        assert len(jobs(slurm)) == 1

    def test_a_full_disk(self, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A trial's folder cannot be written; with room again the study goes on."""

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device", "study/trials/000")

        with monkeypatch.context() as patch:
            patch.setattr("planner.tune.loop.write_folder", full)
            done = tune(plans, "--on", "slurm", "-o", "study", *MUCH)
        assert done.exit_code == 74
        assert "study/trials/000: No space left on device" in done.stderr
        again = tune("--resume", "study", "--trials", 1)
        assert again.exit_code == 0, again.output
        assert len(study_of(Path("study"))["trials"]) == 1

    @pytest.mark.parametrize("limit", [0, 4096, 40_960])
    def test_a_journal_that_cannot_be_begun(self, limit: int, plans: Path) -> None:
        """No file may grow beyond the limit; without it the same folder serves."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            done = tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, kept)
        assert done.exit_code == 74, done.output
        assert "study/study.sqlite3: " in done.stderr
        again = tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
        assert again.exit_code == 0, again.output

    def test_a_command_that_fails(self, plans: Path, tmp_path: Path) -> None:
        """Its last line is said, and where its log is; a plan that no run told of is no answer."""
        script = tmp_path / "fails.py"
        script.write_text("import sys\nprint('no such partition')\nsys.exit(1)\n")
        words = ("--run", f"{sys.executable} {script} {{folder}}", "-o", "study", *MUCH)
        done = tune(plans, *words, "--trials", 1)
        assert done.exit_code == 3
        assert "its last line is: no such partition" in " ".join(done.stdout.split())
        assert "study/trials/000/: the last trial without a result" in done.stdout

    def test_a_folder_of_something_else(self, plans: Path) -> None:
        Path("study").mkdir()
        Path("study/notes.txt").write_text("mine")
        done = tune(plans, "--on", "slurm", "-o", "study", *MUCH)
        assert (done.exit_code, "--force" in done.stderr) == (2, False)
        assert "exists and is not empty; give another folder" in done.stderr


def test_limits_outlive_the_driver(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later driver has the first one's limits, unless it says otherwise."""
    given: list[tuple[int, float]] = []

    class Idle(planner.cli.tune.Driver):
        def run(self) -> Ending:
            given.append((self.budget.trials, self.budget.gpu_hours))
            return Ending("time", "none is started")

    monkeypatch.setattr(planner.cli.tune, "Driver", Idle)
    tune(plans, "--on", "slurm", "-o", "study", "--trials", 2, "--max-gpu-hours", 7)
    tune("--resume", "study")
    tune("--resume", "study", "--trials", 9)
    assert given == [(2, 7.0), (2, 7.0), (9, 7.0)]


class TestRefused:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("", "give the plans to try"),
            ("PLANS", "give the folder of the study"),
            ("PLANS -o study --on slurm --run 'x {folder}'", "each of them starts trials"),
            ("PLANS -o study --run 'x'", "say where the folder of a trial goes"),
            ("PLANS -o study --on pbs", "is not one of"),
            ("PLANS -o study --trials 0", "--trials"),
            ("PLANS -o study --max-gpu-hours 0", "--max-gpu-hours"),
            ("PLANS -o study --tokens none", "--tokens"),
            ("--resume nothing", "contains no study"),
            ("nothing.json -o study", "does not exist"),
            ("PLANS PLANS -o study", "one plan file is tuned at a time"),
            ("PLANS --dry-run --resume study", "--dry-run tells of a new study"),
            ("--replay -o study", "leave -o out"),
            ("--replay --csv", "--replay prints tables"),
            ("--replay PLANS", "plans.json"),
        ],
    )
    def test_options(self, words: str, said: str, plans: Path) -> None:
        done = tune(
            *[
                word.strip("'")
                for word in re.findall(r"'[^']*'|\S+", words.replace("PLANS", str(plans)))
            ]
        )
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert not Path("study").exists()

    def test_nodes_that_one_machine_has_not(self, plans: Path, tmp_path: Path) -> None:
        assert plans
        (tmp_path / "many").mkdir()
        many = plan_file(tmp_path / "many", gpus="2x1xA100")
        done = tune(many, "--on", "local", "-o", "study")
        assert done.exit_code == 2
        assert "--on local starts one node, and the plans take 2 of 1 GPUs" in done.stderr

    def test_another_study(self, plans: Path, tmp_path: Path) -> None:
        tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
        begun = tune(plans, "--on", "slurm", "-o", "study", *MUCH)
        assert (begun.exit_code, "--resume study goes on" in begun.stderr) == (2, True)
        (tmp_path / "other").mkdir()
        other = plan_file(tmp_path / "other", seq=64)
        done = tune(other, "--resume", "study")
        assert done.exit_code == 2
        assert "study is a study of tiny by its own plans" in done.stderr
        kept = tune("--resume", "study", "--on", "local")
        assert (kept.exit_code, "leave --on out" in kept.stderr) == (2, True)

    def test_another_version(self, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tune(plans, "--on", "slurm", "-o", "study", "--trials", 1, *MUCH)
        monkeypatch.setattr(planner.cli.tune, "__version__", "9.9")
        done = tune("--resume", "study")
        assert done.exit_code == 2
        assert "this is 9.9: they may predict differently" in done.stderr


@pytest.mark.parametrize("after", [0.0, 0.8])
def test_a_killed_driver_s_study_goes_on(
    after: float, plans: Path, slurm: Path, trains: Trains
) -> None:
    """kill -9 at some moment after the first job was submitted: nothing is started twice."""
    trains(pause=0.05)
    words = [sys.executable, "-m", "planner", "tune", str(plans), "--on", "slurm", "-o", "study",
             "--trials", "2", *MUCH]  # fmt: skip
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 120.0
    while not jobs(slurm) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(after)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    done = tune("--resume", "study", "--trials", 2)
    assert done.exit_code == 0, done.output
    trials = study_of(Path("study"))["trials"]
    assert [job["name"] for job in jobs(slurm)] == [one["job_name"] for one in trials]
    assert {one["outcome"] for one in trials} <= {"measured", "out-of-memory"}
    # A job that has ended may take a moment to leave the table of processes.
    deadline = time.monotonic() + 30.0
    while any([*process.processes(one["job_name"])] for one in trials):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_ends_the_job(plans: Path, slurm: Path, trains: Trains) -> None:
    trains(pause=0.5)
    words = [sys.executable, "-m", "planner", "tune", str(plans), "--on", "slurm", "-o", "study"]
    driver = subprocess.Popen([*words, *MUCH], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              text=True, env=dict(os.environ))  # fmt: skip
    deadline = time.monotonic() + 120.0
    while not any(job["state"] == "RUNNING" for job in jobs(slurm)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate()
    assert driver.returncode == 130, said
    assert "--resume study goes on" in said
    assert jobs(slurm)[0]["state"].startswith("CANCELLED")


def test_commands_to_go_on_with_are_words_of_a_shell(plans: Path) -> None:
    folder = "my study; $(id)"
    done = tune(plans, "--run", f"{sys.executable} -c pass {{folder}}", "-o", folder, *MUCH)
    assert done.exit_code == 3
    assert f"planner tune --resume '{folder}' --trials N" in done.stdout


def test_nothing_that_pays_is_no_table(plans: Path) -> None:
    done = tune(plans, "--dry-run", "--tokens", 1)
    assert (done.exit_code, "configuration" in done.stdout) == (0, False)
    assert "Nothing was started" in done.stdout


def test_plans_are_tried_as_launch_writes_them(tmp_path: Path) -> None:
    """Plans of preferences under FSDP2 are TRL's to run, not accelerate's."""
    words = [
        "search", "--model", "qwen2.5-0.5b", "--gpus", "1xH100", "--gbs", "4", "--seq", "512",
        "--framework", "hf-fsdp2",
    ]  # fmt: skip
    file = str(tmp_path / "dpo.json")
    found = CliRunner().invoke(planner_command, [*words, "--objective", "dpo", "-o", file])
    assert found.exit_code == 0, found.output
    done = tune(file, "--dry-run")
    assert done.exit_code == 0, done.output


def test_arguments_are_read_before_the_extra_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(*_: str) -> None:
        raise AssertionError("asked for the extra")

    monkeypatch.setattr(planner.cli.tune, "demand_installed", absent)
    for words in ((), (str(tmp_path / "nowhere.json"), "-o", str(tmp_path / "study"))):
        result = CliRunner().invoke(planner_command, ["tune", *words])
        assert result.exit_code == 2, result.output
