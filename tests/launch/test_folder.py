"""The folder: golden files, all or nothing on disk, a README with numbers, a way back."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest

from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import read_rows
from planner.job.errors import UsageError
from planner.job.written_folder import RECORD, write_folder
from planner.launch.contract import Launch
from planner.launch.folder import LaunchFolder, launch_folder, write_launch
from planner.launch.readme import expectations
from planner.search.plan_file import read_plan_file
from tests.launch.plans import bridge, megatron
from tests.launch.refresh import GOLDEN, golden_files, golden_launches


@pytest.fixture(scope="module")
def launches() -> Mapping[str, Launch]:
    return golden_launches()


@pytest.fixture(scope="module")
def folder() -> LaunchFolder:
    return launch_folder(replace(megatron("uneven"), nodes_as="slurm"))


def test_golden_files(launches: Mapping[str, Launch]) -> None:
    """Refresh with: python -m tests.launch.refresh"""
    assert {path.name for path in GOLDEN.iterdir()} >= set(launches)
    for name, launch in launches.items():
        golden = {path.name: path.read_text() for path in (GOLDEN / name).iterdir()}
        assert dict(golden_files(launch)) == golden, name


def test_files_of_a_folder(folder: LaunchFolder) -> None:
    assert set(folder.files) == {"launch.sbatch", "plan.json", "measured.csv", "README.md",
                                 "preflight.py"}  # fmt: skip


def test_written_at_once(folder: LaunchFolder, tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_folder(path, folder.files, force=False)
    assert {item.name for item in path.iterdir()} == {*folder.files, RECORD}
    assert [item.name for item in tmp_path.iterdir()] == ["run"]
    assert (path / "launch.sbatch").read_text() == folder.files["launch.sbatch"]
    with pytest.raises(UsageError, match="--force"):
        write_folder(path, folder.files, force=False)


def test_force_touches_only_what_was_written(folder: LaunchFolder, tmp_path: Path) -> None:
    """Checkpoints, logs and sources stay; an edited file is kept beside the new one, with the plan
    that it was made for; what this launch has not goes only where nobody edited it."""
    path = tmp_path / "run"
    old = {**folder.files, "plan.json": "the old plan", "launch.sh": "old", "edited.sh": "old"}
    write_folder(path, old, force=False)
    theirs = {
        "checkpoints/iter_100/model.pt": "weights", "slurm-7.log": "loss", ".git/HEAD": "ref",
        "plan.json.yours": "mine",
    }  # fmt: skip
    for name, text in theirs.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    inode = path.stat().st_ino
    (path / "measured.csv").write_text("step_time_s\n12.5\n")
    (path / "edited.sh").write_text("mine")
    found = write_launch(path, folder, force=True)
    assert found.kept == {
        name: f"{name}.yours2" for name in ("measured.csv", "edited.sh", "plan.json")
    }
    assert found.removed == ("launch.sh",)
    assert not (path / "launch.sh").exists() and not (path / "edited.sh").exists()
    assert (path / "measured.csv.yours2").read_text() == "step_time_s\n12.5\n"
    assert (path / "edited.sh.yours2").read_text() == "mine"
    assert (path / "plan.json.yours2").read_text() == "the old plan"
    assert (path / "measured.csv").read_text() == folder.files["measured.csv"]
    assert {name: (path / name).read_text() for name in theirs} == theirs
    assert path.stat().st_ino == inode
    again = write_launch(path, folder, force=True)
    assert (again.kept, again.removed) == ({}, ())


def test_measurements_that_are_kept_belong_to_the_plan_that_is_kept(tmp_path: Path) -> None:
    first, second = launch_folder(megatron("dense")), launch_folder(megatron("uneven"))
    path = tmp_path / "run"
    write_launch(path, first, force=False)
    row = (path / "measured.csv").read_text().rstrip("\n")
    (path / "measured.csv").write_text(row.replace(",,", ",12.5,", 1) + "\n")
    write_launch(path, second, force=True)
    (kept,) = read_rows(path / "measured.csv.yours")
    assert kept.text("plan_file") == str(path / "plan.json.yours")


@pytest.mark.parametrize("name", ["launch.sbatch", "plan.json", RECORD, "folder"])
def test_links_are_neither_followed_nor_replaced(
    name: str, folder: LaunchFolder, tmp_path: Path
) -> None:
    path, mine = tmp_path / "run", tmp_path / "mine"
    write_folder(path, folder.files, force=False)
    mine.write_text("years of work")
    if name == "folder":
        path, linked = tmp_path / "link", path
        path.symlink_to(linked)
    else:
        (path / name).unlink()
        (path / name).symlink_to(mine)
    with pytest.raises(UsageError, match="is a link"):
        write_folder(path, folder.files, force=True)
    assert mine.read_text() == "years of work"


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_lost_by_a_write_that_fails(
    when: str, folder: LaunchFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, in a folder of an earlier launch or where there is none."""
    path = tmp_path / "run"
    if when == "after":
        write_folder(path, {"plan.json": "old"}, force=False)
        (path / "plan.json").write_text("edited")

    def full(_: int) -> None:
        raise OSError(ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"disk full.*run"):
        write_folder(path, folder.files, force=True)
    assert [item.name for item in tmp_path.iterdir()] == (["run"] if when == "after" else [])
    if when == "after":
        assert {item.name for item in path.iterdir()} == {"plan.json", RECORD}
        assert (path / "plan.json").read_text() == "edited"


def test_what_planner_did_not_write_is_not_replaced(folder: LaunchFolder, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("years of work")
    for record in (None, "{}", '{"sha256": 5}', "[" * 60_000, '{"sha256": {"../thesis": "0"}}'):
        if record is not None:
            (tmp_path / RECORD).write_text(record)
        with pytest.raises(UsageError, match=r"did not write it|does not say"):
            write_folder(tmp_path, folder.files, force=True)
        assert (tmp_path / "README.md").read_text() == "years of work"
    with pytest.raises(UsageError, match="is a file"):
        write_folder(tmp_path / "README.md", folder.files, force=True)
    write_folder(tmp_path / "a" / "b", folder.files, force=True)
    assert (tmp_path / "a" / "b" / "plan.json").is_file()


def test_the_plan_file_is_read_back(folder: LaunchFolder, tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_folder(path, folder.files, force=False)
    result = read_plan_file(path / "plan.json")
    assert result.plans == (megatron("uneven").plan,)


@pytest.mark.parametrize(
    "name",
    ["uneven", "full-some-layers", "shards-of-8", "fp8-states", "offload", "latent-pipeline"],
)
def test_a_measurement_is_compared_with_the_same_prediction(name: str, tmp_path: Path) -> None:
    launch = megatron(name)
    write_folder(tmp_path / "run", launch_folder(launch).files, force=False)
    file = tmp_path / "run" / "measured.csv"
    (row,) = csv.DictReader(io.StringIO(file.read_text()))
    row |= {"step_time_s": "12.5", "peak_mem_gib": "40"}
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, row)
        writer.writeheader()
        writer.writerow(row)
    (prediction,) = predict_rows(read_rows(file))
    assert prediction.error is None
    assert prediction.step_time_s == pytest.approx(launch.plan.step_time_s, rel=1e-9)
    expected = expectations(launch)
    allocated = max(stage.allocated_bytes for stage in expected.stages)
    assert prediction.memory_bytes("allocated") == pytest.approx(allocated, rel=1e-9)
    assert prediction.memory_bytes() == pytest.approx(launch.plan.peak_bytes, rel=1e-9)


def test_a_plan_file_that_is_gone_is_named(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    text = launch_folder(megatron("dense")).files["measured.csv"]
    file.write_text(text)
    (prediction,) = predict_rows(read_rows(file))
    assert prediction.error is not None
    assert str(tmp_path / "plan.json") in prediction.error


def test_expectations_add_up() -> None:
    launch = megatron("uneven")
    found = expectations(launch)
    assert found.heaviest.total_bytes == pytest.approx(launch.plan.peak_bytes)
    assert found.heaviest.total_high_bytes == pytest.approx(launch.plan.peak_interval.high)
    for stage in found.stages:
        assert stage.allocated_bytes < stage.total_bytes
        assert stage.reserved_bytes < stage.total_bytes
    gpus = launch.plan.degrees.gpus
    assert found.tokens_per_s_per_gpu_low * found.step_time_high_s * gpus == pytest.approx(
        launch.plan.gbs_tokens
    )


def test_the_readme_says_what_to_expect_and_when_to_worry(folder: LaunchFolder) -> None:
    text, plan = folder.files["README.md"], megatron("uneven").plan
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles == [
        "Yours to set",
        "Files",
        "What each choice is for",
        "Memory to expect",
        "Step time to expect",
        "The first ten steps",
        "Compare with the prediction",
        "After a change of these files",
        "Taken for granted",
    ]
    assert f"Worry above {plan.step_time.high:.2f} s" in " ".join(text.split())
    assert f"ln(vocabulary) = {math.log(128256):.1f}" in " ".join(text.split())
    assert "planner validate --data measured.csv" in text
    for note in plan.assumptions:
        assert note in " ".join(text.split())
    stages = [line for line in text.splitlines() if re.match(r"\| \d+( to \d+)? \| \d+ \|", line)]
    assert len(stages) == 4
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert max(len(line) for line in prose) <= 88


def test_experts_are_told_of_their_load() -> None:
    assert "1 times the mean load" in " ".join(
        launch_folder(bridge("latent")).files["README.md"].split()
    )
