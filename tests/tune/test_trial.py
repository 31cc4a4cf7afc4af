"""Folders of short runs: every launch target keeps to the steps, saves nothing, takes the user's
data, and starts once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from planner.job.errors import UsageError
from planner.job.written_folder import write_folder
from planner.launch.contract import Launch, NodesAs
from planner.tune.trial import ShortRun, missing_settings, short_launch, trial_files
from tests.launch.test_round_trip import EXAMPLES, example
from tests.launch.test_user_settings import NAMED, NEEDED, STUBS

NAME = "tune-study-ab12-003"
SHORT = ShortRun(steps=23, limit_s=600.0)
SBATCH = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "node[1-9]"}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What each framework needs set, and stubs in the places of the process launchers."""
    for name, body in STUBS.items():
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/usr/bin/env bash\n{body}\n")
        stub.chmod(0o755)
    for variable, name in NEEDED.items():
        (tmp_path / variable).mkdir()
        (tmp_path / variable / name).touch()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    # A shell may hold such from another run.
    monkeypatch.setenv("CHECKPOINTS", "/precious")
    monkeypatch.setenv("TRAIN_STEPS", "100000")
    return tmp_path


def short(target: str, nodes_as: NodesAs) -> Launch:
    launch = example(target)
    return short_launch(Launch(launch.plan, launch.request, launch.job, target, nodes_as),
                        SHORT, NAME)  # fmt: skip


@pytest.mark.parametrize("target", EXAMPLES)
def test_every_target_runs_short(
    target: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in NAMED.get(target, {}).items():
        monkeypatch.setenv(name, value)
    for lacking in missing_settings(short(target, "slurm")):
        monkeypatch.setenv(lacking.removeprefix("set ").partition(":")[0], "org/mine")
    launch = short(target, "slurm")
    assert missing_settings(launch) == []
    folder = settings / "trial"
    write_folder(folder, trial_files(launch), force=False)
    shutil.copy(folder / "trial.sbatch", settings / "spooled")
    started = ["bash", str(settings / "spooled")]
    environment = {**os.environ, **SBATCH, "SLURM_SUBMIT_DIR": str(folder)}
    for _ in range(2):
        subprocess.run(started, cwd="/", env=environment, check=True)
    # Twice, and it ran once.
    said = (folder / "train.log").read_text()
    assert (folder / "started" / "status").read_text() == "0\n", said
    [words] = [line for line in said.splitlines() if line.startswith(("torchrun", "accel", "env"))]
    assert "/precious" not in said
    assert "100000" not in said
    if target == "nanotron":
        assert "export TRAIN_STEPS=23" in (folder / "launch.sbatch").read_text()
    else:
        assert "23" in words.replace("=", " ").split()
    assert "export PYTHONUNBUFFERED=1" in (folder / "launch.sbatch").read_text()
    kept = [
        line for line in (folder / "trial.sbatch").read_text().splitlines() if "#SBATCH" in line
    ]
    assert f"#SBATCH --nodes={launch.nodes}" in kept
    assert not any(word in line for line in kept for word in ("--time", "--requeue", "--job-name"))


def test_what_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATRON_LM", raising=False)
    [lacking] = missing_settings(short("megatron-core", "slurm"))
    assert lacking.startswith("set MEGATRON_LM: folder of a Megatron-LM checkout")


def test_the_user_s_data_are_taken(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text: whatever a variable holds, nothing of it is run."""
    value = "/data/a b$(touch /tmp/no)`id`\"'}"
    monkeypatch.setenv("DATASET", value)
    launch = short("accelerate", "torchrun")
    write_folder(settings / "trial", trial_files(launch), force=False)
    script = (settings / "trial" / "launch.sh").read_text()
    shown = subprocess.run(
        ["bash", "-c", script.partition("set -euo")[0] + "\n".join(
            line for line in script.splitlines() if line.startswith("export DATASET")
        ) + '\nprintf %s "$DATASET"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == value


def test_control_characters_are_refused(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings
    monkeypatch.setenv("DATASET", "/data\nrm -rf /")
    with pytest.raises(UsageError, match="DATASET"):
        short("accelerate", "torchrun")


def test_kubernetes(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings
    for name in ("IMAGE", "CLAIM"):
        monkeypatch.delenv(name, raising=False)
    assert len(missing_settings(short("megatron-core", "k8s"))) == 2
    monkeypatch.setenv("IMAGE", "mine.io/train:7")
    monkeypatch.setenv("CLAIM", "my-disk")
    launch = short("megatron-core", "k8s")
    assert missing_settings(launch) == []
    text = trial_files(launch)["jobset.yaml"]
    for word in ("value: /set/", "set-me-claim", "registry.example.com"):
        assert word not in text.replace("PLACEHOLDERS", "")
    [job] = [one for one in yaml.safe_load_all(text) if one["kind"] == "JobSet"]
    assert job["metadata"]["name"] == NAME
    assert job["spec"]["failurePolicy"]["maxRestarts"] == 0
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "mine.io/train:7"
    assert pod["volumes"][1]["persistentVolumeClaim"]["claimName"] == "my-disk"


def test_a_launch_folder_of_a_person_is_as_before() -> None:
    from planner.launch.folder import launch_folder

    files = launch_folder(example("megatron-core")).files
    assert "trial.sh" not in files
    assert 'export TRAIN_STEPS="${TRAIN_STEPS:-50}"' in files["launch.sh"]
