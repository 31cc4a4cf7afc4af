"""`planner compare` and `planner scale`: what they print, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import Run, lines_are_short, refused, run_cli

# A small model on two GPUs: searched in a moment.
JOB = ("--model", "gpt2", "--tokens", "1T", "--gbs", "16")
ONE = ("compare", *JOB, "--jobs", "1", "--gpus", "2xH100")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A comparison of clusters on the command line and in a file, run once in two processes."""
    folder = tmp_path_factory.mktemp("compare")
    offers = folder / "offers.toml"
    offers.write_text(
        '[[cluster]]\nname = "quote 7"\ngpus = "2xH100"\non_demand = 1.5\ncurrency = "EUR"\n'
        'capex_per_gpu = 30000\n\n[[cluster]]\ncluster = "own.toml"\n',
        encoding="utf-8",
    )
    (folder / "own.toml").write_text('num_gpus = 2\ngpu = "B200"\n', encoding="utf-8")
    path = folder / "out.json"
    result = run_cli(
        "compare", *JOB, "--jobs", "2", "--gpus", "1xV100", "--clusters", str(offers),
        "--rate", "EUR=1.2", "--carbon", "400", "--sort", "cost", "-o", str(path),
    )  # fmt: skip
    return result, path


def test_the_table(compared: tuple[Result, Path]) -> None:
    result, _ = compared
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert lines_are_short(result.stdout)
    assert "quote 7" in text and "own" in text
    assert "1xV100: V100-SXM2-32GB has no bf16 matrix arithmetic" in text
    assert "1.80" in text  # 1.50 EUR at 1.2
    assert "t CO2" in text
    assert "●" in text


def test_the_file_holds_the_same(compared: tuple[Result, Path]) -> None:
    _, path = compared
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in document["rows"]}
    assert set(rows) == {"quote 7", "own", "1xV100"}
    quote = rows["quote 7"]["run"]
    (rental,) = [item for item in quote["rentals"] if item["kind"] == "on_demand"]
    assert rental["price"]["currency"] == "EUR"
    assert rental["per_gpu_hour"] == pytest.approx(1.8)
    assert quote["owning"]["hardware_usd"]["value"] == pytest.approx(36000)
    assert "stages" not in quote["plan"]
    assert rows["own"]["gpu"] == "B200-SXM-180GB"


def test_json_and_csv_are_clean(run: Run) -> None:
    document = json.loads(run(*ONE, "--json").stdout)
    assert document["rows"][0]["run"]["days"]["low"] < document["rows"][0]["run"]["days"]["high"]
    (row,) = csv.DictReader(io.StringIO(run(*ONE, "--csv").stdout))
    assert row["name"] == "2xH100" and float(row["days"]) > 0


def test_the_chain(run: Run) -> None:
    result = run(*ONE, "--explain", "2xH100", "--pue", "1.1")
    assert result.exit_code == 0, result.output
    assert lines_are_short(result.stdout)
    text = " ".join(result.stdout.split())
    assert "PUE 1.1 [--pue]" in text
    assert "MTBF of a GPU 79,228 h" in text
    assert "Sources llama-3" in text
    steps = json.loads(run(*ONE, "--explain", "2xH100", "--json").stdout)["steps"]
    assert {"name", "value", "how", "source", "chapter"} == set(steps[0])


def test_a_job_that_fits_on_none(run: Run) -> None:
    result = run(
        "compare", "--model", "gpt2-xl", "--tokens", "1T", "--gbs", "8", "--gpus", "1xA10",
        "--recompute", "none",
    )  # fmt: skip
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "1xA10: nothing fits" in text
    assert "would fit (searched)" in text
    assert "the job runs on none of the clusters" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", *JOB), "no cluster to compare"),
        (("compare", "--model", "1b", "--tokens", "0", "--gpus", "8xH100"), "number above 0"),
        (("compare", "--model", "1b", "--tokens", "-5T", "--gpus", "8xH100"), "number above 0"),
        (("compare", "--model", "1b", "--gpus", "8xH100"), "say how much to train on"),
        ((*ONE, "--provider", "lamda"), "Did you mean 'lambda'"),
        ((*ONE, "--gpus", "8xH1000"), "unknown GPU or cluster 'H1000'"),
        ((*ONE, "--explain", "8xH200"), "unknown cluster '8xH200'"),
        ((*ONE, "--rate", "EUR:1"), "write EUR=1.10"),
        ((*ONE, "--currency", "euro"), "three capitals"),
        ((*ONE, "--currency", "EUR"), "mixed currencies"),
        ((*ONE, "--restart-time", "soon"), "write a time as"),
        ((*ONE, "--pue", "0.5"), "0.5 is not in the range 1.0<=x<=10.0"),
        ((*ONE, "--capex", "0"), "0.0 is not in the range 0<x"),
        ((*ONE, "--prices", "absent.csv"), "does not exist"),
        ((*ONE, "--skypilot", "absent"), "absent: no SkyPilot catalogue there"),
        ((*ONE, "--clusters", "absent.toml"), "does not exist"),
        ((*ONE, "--json", "--csv"), "not both"),
        (("scale", "--model", "1b", "--gpus", "H100"), "give the numbers of GPUs"),
        (("scale", "--model", "1b", "--gpus", "8xH100", "--counts", "8"), "kind of GPU alone"),
        (("scale", "--model", "1b", "--gpus", "H100", "--counts", "8,x"), "write numbers of GPUs"),
        (
            ("scale", "--model", "1b", "--gpus", "H100", "--counts", "8", "--plot", "a.pdf"),
            "must end in .html",
        ),
        (
            ("scale", "--model", "1b", "--gpus", "H100", "--from", "9", "--to", "8"),
            "smaller number of GPUs first",
        ),
    ],
)
def test_wrong_input(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "write one table [[cluster]]"),
        ('[[cluster]]\nname = "a"\n', "[[cluster]] 1: give gpus = '64xH100' or cluster"),
        ('[[cluster]]\ngpu = "64xH100"\n', "field 'gpu': Extra inputs"),
        ('[[cluster]]\ngpus = "8xH100"\nspot = -1\n', "field 'spot'"),
        ("[[cluster]\n", "not valid TOML"),
    ],
)
def test_wrong_offers(run: Run, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "offers.toml"
    path.write_text(text, encoding="utf-8")
    refused(run("compare", *JOB, "--clusters", str(path)), message)


def test_limits_hold_for_each_cluster(run: Run) -> None:
    document = json.loads(run(*ONE, "--tp", "2", "--json").stdout)
    assert document["rows"][0]["run"]["plan"]["degrees"]["tp"] == 2


def test_scale_prints_and_draws(run: Run, tmp_path: Path) -> None:
    plot = tmp_path / "scale.svg"
    command = (
        "scale", "--model", "gpt2", "--gbs", "16", "--gpus", "H100", "--counts", "2,4",
        "--jobs", "1", "--plot", str(plot),
    )  # fmt: skip
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert lines_are_short(result.stdout)
    assert "Strong scaling" in result.stdout and "knee" in result.stdout
    assert plot.read_text(encoding="utf-8").startswith("<svg")
    again = run(*command)
    assert again.exit_code == 2 and "--force overwrites it" in " ".join(again.output.split())
