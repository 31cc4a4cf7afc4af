"""`--gpus 4xH100+4xA100` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import Run, lines_are_short, refused, run_cli

POOL = ("--model", "llama-3.2-1b", "--gpus", "4xH100+4xA100", "--gbs", "64")


@pytest.fixture(scope="module")
def pool_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A search of a pool, and the plan file that it wrote."""
    path = tmp_path_factory.mktemp("pool") / "plans.json"
    few = ("--recompute", "none", "--tp", "1,2", "--mbs", "1")
    return run_cli("search", *POOL, *few, "-o", str(path)), path


def test_the_table_names_the_gpu_of_each_stage(pool_job: tuple[Result, Path]) -> None:
    result, _ = pool_job
    assert result.exit_code == 0, result.output
    assert "stages 0" in result.stdout
    assert "/79.1" in result.stdout
    assert "mean of the GPUs' dense bf16" in result.stdout
    assert "4xH100 alone:" in result.stdout
    assert lines_are_short(result.stdout)


def test_explain_says_where_ranks_live(pool_job: tuple[Result, Path], run: Run) -> None:
    _, path = pool_job
    result = run("explain", str(path), "1")
    assert result.exit_code == 0, result.output
    assert "ranks 0-3" in result.stdout
    assert "ranks 4-7" in result.stdout
    assert "A100-SXM4-80GB" in result.stdout
    assert "Neighbours" in result.stdout
    assert lines_are_short(result.stdout)
    data = json.loads(run("explain", str(path), "1", "--json").stdout)
    assert [place["ranks"] for place in data["places"]] == [[0, 3], [4, 7]]
    assert sum(place["layers"] for place in data["places"]) == 16
    assert {place["gpu"] for place in data["places"]} == {"H100-SXM5-80GB", "A100-SXM4-80GB"}


def test_what_if_solves_changes_of_all_parts(pool_job: tuple[Result, Path], run: Run) -> None:
    _, path = pool_job
    result = run("explain", str(path), "1", "--what-if", "--no-neighbours", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["what_if"]["rows"]}
    assert rows["compute"]["effect"] < 0.0
    assert abs(rows["hbm"]["effect"]) < 0.01


def test_what_pools_cannot_do_is_said(pool_job: tuple[Result, Path], run: Run) -> None:
    _, path = pool_job
    launch = run("launch", str(path), "1", "-o", str(path.parent / "launched"))
    assert launch.exit_code == 2
    assert "several types (4xH100+4xA100), and launch files are written for one" in launch.stderr
    assert not (path.parent / "launched").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", *POOL, "--tokens", "1T"),
        ("memory", "--inference", *POOL[:4]),
    ],
)
def test_other_commands_refuse_pools(arguments: tuple[str, ...], run: Run) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert "several types" in result.output
    assert "unexpectedly" not in result.output


def test_a_configuration_of_a_pool_is_costed_as_it_is_written(run: Run) -> None:
    """The stages lie on the parts in their order; the memory is each stage's."""
    degrees = ("--tp", "4", "--pp", "2", "--json")
    plan = json.loads(run("evaluate", *POOL, *degrees).stdout)["plans"][0]
    assert plan["stage_gpus"] == ["H100-SXM5-80GB", "A100-SXM4-80GB"]
    memory = json.loads(run("memory", *POOL, *degrees).stdout)
    assert memory["total_bytes"] == pytest.approx(plan["peak_bytes"])
    refused(run("evaluate", *POOL, "--tp", "8"), "pool-stages")


def test_nothing_fits_as_json(run: Run) -> None:
    arguments = ("--model", "405b", "--gpus", "4xH100+4xA100", "--gbs", "64", "--time-limit", "2")
    result = run("search", *arguments, "--json")
    assert result.exit_code == 1
    why = json.loads(result.stdout)
    assert why["outcome"] == "nothing-fits"
    assert why["conflict"][0]["name"] == "stage-memory"
    assert result.stderr == ""
