"""`planner buy` end to end, and what `compare` and `scale` recommend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardware.load import gpu_names
from planner.cli.comparing import offers_for
from planner.cli.studies import EVERY_GPU
from planner.compare.buying import MOST_SEARCHES
from tests.cli.conftest import Run

SMALL = ("buy", "--model", "llama-3.2-1b", "--tokens", "1T", "-q")
SIZES = (*SMALL, "--gpus", "8..32xH100")


def test_the_cheapest_that_is_in_time(run: Run) -> None:
    free = json.loads(run(*SIZES, "--json").stdout)["decision"]["best"]
    (cheapest,) = free["choices"]
    assert cheapest["cluster"] in ("8xH100", "16xH100")
    short = f"{free['days'] * 0.7:.0f}d"
    result = run(*SIZES, "--deadline", short)
    assert result.exit_code == 0, result.stderr
    larger = {"8xH100": "16xH100", "16xH100": "32xH100"}[cheapest["cluster"]]
    assert larger in result.stdout and "proven" in result.stdout
    assert "with a probability of" in result.stdout


def test_what_would_be_needed_is_said_and_is_enough(run: Run) -> None:
    result = run(*SIZES, "--budget", "100", "--json")
    assert result.exit_code == 1
    decision = json.loads(result.stdout)["decision"]
    assert decision["best"] is None and decision["least"]["cost"] > 1000.0
    tight = run(*SIZES, "--deadline", "5d", "--json")
    assert tight.exit_code == 1
    least = json.loads(tight.stdout)["decision"]["least"]["time"]
    again = run(*SIZES, "--deadline", f"{least * 1.01:.3f}")
    assert again.exit_code == 0, again.stdout


def test_where_two_limits_must_give_each_is_said_without_the_others(run: Run) -> None:
    words = (*SIZES, "--deadline", "1d", "--budget", "100")
    decision = json.loads(run(*words, "--json").stdout)["decision"]
    assert decision["least"] == {"time": None, "cost": None}
    front = decision["front"]
    assert decision["alone"]["time"] == pytest.approx(min(one["days"] for one in front), rel=1e-3)
    assert decision["alone"]["cost"] == pytest.approx(min(one["cost"] for one in front), rel=1e-3)
    assert "the others lifted, too" in run(*words).stdout


def test_what_no_cluster_could_keep_is_not_searched(run: Run) -> None:
    words = (*SMALL, "--gpus", "8xV100", "--gpus", "64xH100", "--deadline", "20d")
    rows = {row["cluster"]: row for row in json.loads(run(*words, "--json").stdout)["rows"]}
    assert rows["64xH100"]["searched"] and rows["64xH100"]["choice"] is not None
    assert not rows["8xV100"]["searched"] and rows["8xV100"]["reason"]
    assert "(not searched)" in run(*words).stdout


def test_sizes_units_and_minimum_orders_of_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "offers.toml"
    path.write_text(
        '[[cluster]]\nname = "us"\ngpus = "8..16xH100"\non_demand = 2.0\nunit = 24\n'
        '[[cluster]]\nname = "they"\ngpus = "8xH100"\non_demand = 2.0\nminimum = 32\n'
        '[[cluster]]\nname = "plain"\ngpus = "8xH100"\non_demand = 2.0\n'
    )
    found = json.loads(run(*SMALL, "--clusters", str(path), "--json").stdout)
    cost = {row["cluster"]: row["choice"]["cost"]["value"] for row in found["rows"]}
    assert list(cost) == ["us 8xH100", "us 16xH100", "they", "plain"]
    assert cost["us 8xH100"] == pytest.approx(3.0 * cost["plain"])
    assert cost["they"] == pytest.approx(4.0 * cost["plain"])


def test_the_picture_and_the_page(run: Run, tmp_path: Path) -> None:
    picture, answer, page = (tmp_path / name for name in ("buy.svg", "buy.json", "buy.html"))
    assert run(*SIZES, "--plot", str(picture), "-o", str(answer)).exit_code == 0
    assert "16xH100" in picture.read_text() and "null" not in picture.read_text()
    assert run("report", str(answer), "-o", str(page), "-q").exit_code == 0
    assert "Which GPUs to take" in page.read_text()


def test_jobs_of_a_file_share_a_cluster_in_turn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[[job]]\nname = "small"\nmodel = "llama-3.2-1b"\ntokens = "1T"\n'
        '[[job]]\nmodel = "llama-3.2-1b"\ntokens = "300B"\nseq = 4096\n'
    )
    words = ("buy", "--jobs", str(path), "--gpus", "8xH100", "--gpus", "8xA100", "-q", "--json")
    side, turn = (
        json.loads(run(*words, "--order", order).stdout)["decision"]["best"]
        for order in ("side-by-side", "one-after-another")
    )
    assert {one["job"] for one in side["choices"]} == {"small", "llama-3.2-1b"}
    assert len({one["cluster"] for one in turn["choices"]}) == 1
    assert turn["days"] > side["days"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[job]]\nmodel = "8b"\n', ("[[job]] 1", "tokens")),
        ('[[job]]\nmodel = "8b"\ntokens = "x"\n', ("[[job]] 1", "tokens", "15T")),
        ('[[job]]\nmodel = "8b"\ntokens = "1T"\nsequence = 3\n', ("sequence", "seq")),
        ('[[job]]\nmodel = "8b"\ntokens = true\n', ("tokens", "give a value")),
        ('[[job]]\nmodel = "8b"\ntokens = 1\n' * 2, ("two jobs", "name")),
        ("job = 3\n", ("[[job]]",)),
    ],
)
def test_a_wrong_file_says_where(
    run: Run, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    result = run("buy", "--jobs", str(path), "--gpus", "8xH100")
    assert result.exit_code == 2, result.stdout
    assert all(word in result.stderr for word in words), result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "nan"), "sum of money"),
        (("--budget", "-5"), "sum of money"),
        (("--power", "5"), "1.2MW"),
        (("--deadline", "0"), "above 0"),
        (("--certainty", "20%"), "50% or more"),
        (("--gpus", "16..8xH100"), "smaller number first"),
        (("--gpus", "8..xH100"), "64..1024xany"),
        (("--provider", "nobody"), "nobody"),
    ],
)
def test_bad_limits(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run(*SIZES, *arguments)
    assert result.exit_code == 2, result.stdout
    assert words in result.stderr


def test_compare_and_scale_recommend_what_buy_takes(run: Run) -> None:
    job = ("--model", "llama-3.2-1b", "--tokens", "1T", "-q", "--json")
    bought = json.loads(run(*SIZES, "--json").stdout)["decision"]["best"]
    each = [word for size in (8, 16, 32) for word in ("--gpus", f"{size}xH100")]
    compared = json.loads(run("compare", *job, *each).stdout)
    scaled = json.loads(run("scale", *job, "--gpus", "H100", "--counts", "8,16,32").stdout)
    for document in (compared, scaled):
        best = document["decision"]["best"]
        assert best["days"] == pytest.approx(bought["days"])
        assert best["choices"][0]["cluster"] == bought["choices"][0]["cluster"]
    text = run("compare", *job[:-1], "--gpus", "8xH100", "--deadline", "2d").stdout
    assert "nothing keeps all limits" in text and "deadline needed" in text


def test_without_clusters_the_whole_catalogue_is_looked_at() -> None:
    """Every GPU in every size; a file of offers or --gpus narrows it."""
    offers = offers_for({"gpus": (), "clusters": None}, EVERY_GPU)
    asked = {str(offer.gpus).partition("x")[2] for offer in offers}
    assert asked == set(gpu_names())
    assert len(offers) <= MOST_SEARCHES
    assert len(offers_for({"gpus": ("8xH100",), "clusters": None}, EVERY_GPU)) == 1
