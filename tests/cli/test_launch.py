"""`planner launch`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, lines_are_short, refused, run_cli

JOB = ("--model", "smollm2-1.7b", "--gpus", "8xH100", "--gbs", "64")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plans.json"
    assert run_cli("evaluate", *JOB, "--tp", "2", "-o", str(path)).exit_code == 0
    return str(path)


def test_writes_a_folder_and_says_what_to_expect(run: Run, plan_file: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = run("launch", plan_file, "1", "--nodes-as", "slurm", "-o", str(path))
    assert result.exit_code == 0, result.output
    for text in ("launch.sbatch", "README.md", "sbatch", "80 % probability", "GiB",
                 "plan         1 of "):  # fmt: skip
        assert text in result.stdout
    assert lines_are_short(result.stdout.replace(str(path), "run"))
    assert (path / "launch.sbatch").is_file()
    refused(run("launch", plan_file, "-o", str(path)), "--force")
    forced = run("launch", plan_file, "-o", str(path), "--force", "--nodes-as", "k8s")
    assert forced.exit_code == 0, forced.output
    assert not (path / "launch.sbatch").exists()


def test_json(run: Run, plan_file: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = run("launch", plan_file, "-o", str(path), "--json")
    document = json.loads(result.stdout)
    assert set(document["files"]) == {item.name for item in path.iterdir()} - {".trainplan.json"}
    expected = document["expectations"]
    plan = json.loads(Path(plan_file).read_text())["plans"][0]
    assert expected["step_time_s"] == plan["step_time_s"]
    assert expected["stages"][0]["total_bytes"] == plan["stages"][0]["peak"]


def test_its_measured_csv_is_validated(run: Run, plan_file: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert run("launch", plan_file, "-o", str(path)).exit_code == 0
    file = path / "measured.csv"
    file.write_text(file.read_text().replace("plan.json,,,", "plan.json,1.5,20,"))
    result = run("validate", "--data", str(file), "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(Path(plan_file).read_text())["plans"][0]
    (row,) = json.loads(result.stdout)["rows"]
    assert plan["step_time_s"] == pytest.approx(row["predicted_step_time_s"], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("--framework", "megatrom"), ("Did you mean 'megatron'", "planner frameworks")),
        (("--framework", "nanogpt"), ("nothing writes launch files for nanogpt", "torchtitan")),
        (("--nodes-as", "ssh"), ("slurm", "k8s")),
        (("9",), ("only plan 1",)),
    ],
)
def test_wrong_input(
    run: Run, plan_file: str, tmp_path: Path, arguments: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    result = run("launch", plan_file, *arguments, "-o", str(tmp_path / "run"))
    assert result.exit_code == 2, result.output
    for text in texts:
        assert text in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_expressed_is_not_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    job = ("--model", "gemma-2-2b", "--gpus", "8xH100", "--gbs", "64")
    assert run("evaluate", *job, "--tp", "2", "-o", str(path)).exit_code in (0, 1)
    refused(run("launch", str(path), "-o", str(tmp_path / "run")), "sandwich")
    assert not (tmp_path / "run").exists()


def test_a_folder_is_demanded(run: Run, plan_file: str) -> None:
    refused(run("launch", plan_file), "--output")


def test_kubernetes_may_be_written_out(run: Run, plan_file: str, tmp_path: Path) -> None:
    for word in ("k8s", "kubernetes"):
        result = run("launch", plan_file, "-o", str(tmp_path / word), "--nodes-as", word, "--json")
        assert json.loads(result.stdout)["nodes_as"] == "k8s"
