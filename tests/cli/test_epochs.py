"""Trainings in samples and epochs: the same tokens whatever the command, in hours and dollars."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.compare.epochs import mean_tokens, tokens_of, training_title, trainings
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from tests.cli.conftest import Run

TUNED = (
    "--model", "llama-3.2-1b", "--framework", "hf-transformers", "--lengths", "300:1,900:1",
    "--zero", "3", "--tp", "1", "-q",
)  # fmt: skip
EPOCHS = ("--samples", "52k", "--epochs", "3")
# 52,000 samples of 600 tokens, three times.
TOKENS = 93_600_000


def test_tokens_of_samples() -> None:
    request = Request(model="llama-3.2-1b", framework="hf-transformers", lengths="300:1,900:1")
    assert (mean_tokens(request), tokens_of(request, 52_000, 3)) == (600, TOKENS)
    short = request.model_copy(update={"seq": 500})
    assert mean_tokens(short) == 400
    assert mean_tokens(Request(model="llama-3.2-1b", seq=2048)) == 2048


def test_fit_says_hours_and_dollars(run: Run) -> None:
    result = run("fit", *TUNED, *EPOCHS, "--gpus", "4xH100", "--gbs", "32", "--json")
    found = json.loads(result.stdout)
    plan = found["result"]["plans"][found["result"]["recommended"] - 1]
    hours = TOKENS / plan["tokens_per_s"] / 3600
    said = re.search(
        r"\(93\.60 M tokens, ([\d,]+) steps\): ([\d.]+) \(.*?\$([\d.]+)", found["training"]
    )
    assert said is not None
    assert float(said[2]) == pytest.approx(hours, rel=0.01)
    dollars_an_hour = float(found["training"].split("at $")[1].split()[0])
    assert float(said[3]) == pytest.approx(hours * 4 * dollars_an_hour, rel=0.02)
    assert int(said[1].replace(",", "")) == pytest.approx(TOKENS / plan["gbs_tokens"], abs=1)


def test_search_and_compare_and_buy_take_them(run: Run, tmp_path: Path) -> None:
    searched = run("search", *TUNED, *EPOCHS, "--gpus", "4xH100", "--gbs", "32")
    assert "3 epochs of 52,000 samples (93.60 M tokens" in " ".join(searched.stdout.split())
    compared = run("compare", *TUNED, *EPOCHS, "--gpus", "4xH100", "--json")
    assert json.loads(compared.stdout)["tokens"] == TOKENS
    file = tmp_path / "jobs.toml"
    file.write_text('[[job]]\nmodel = "llama-3.2-1b"\nsamples = "52k"\nepochs = 3\n')
    bought = run("buy", *TUNED[2:], "--jobs", str(file), "--gpus", "4xH100", "--json")
    days = json.loads(bought.stdout)["rows"][0]["choice"]["days"]["value"]
    other = json.loads(compared.stdout)["rows"][0]["run"]["days"]["value"]
    assert days == pytest.approx(other)


def test_a_batch_of_samples_is_assumed_and_said(run: Run) -> None:
    loud = [word for word in TUNED if word != "-q"]
    result = run("compare", *loud, *EPOCHS, "--gpus", "4xH100", "--json")
    assert "Batch: about 128 samples (76,800 tokens)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "--model", "8b", "--gpus", "8xH100", "--epochs", "3"), "Give --samples too"),
        (("search", "--model", "8b", "--gpus", "8xH100", "--samples", "0"), "give the samples"),
        (("search", "--model", "8b", "--gpus", "8xH100", "--samples", "4", "--epochs", "0"), "0"),
        (("compare", "--model", "8b", "--gpus", "8xH100"), "say how much to train on"),
        (
            ("compare", "--model", "8b", "--gpus", "8xH100", "--samples", "4", "--tokens", "1T"),
            "say how much to train on",
        ),
        (("buy", "--model", "8b"), "give --model 70b --tokens 15T"),
    ],
)
def test_what_is_missing_is_said(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_what_would_fit_says_hours_and_dollars() -> None:
    request = Request(model="llama-3.2-1b", framework="hf-transformers", lengths="300:1,900:1",
                      gpus="1xRTX4090", gbs=8)  # fmt: skip
    plan = evaluate(request, Degrees(grad_acc=8))
    changes = ("--train lora", "--gpus 1xH100", "--gpus 1xRTX4090 --seq 512")
    found = dict(trainings(request, [(change, plan) for change in changes], 52_000, 3))
    hours = f"{TOKENS / plan.tokens_per_s / 3600:.3g} ("
    assert all(text.startswith(hours) for text in found.values())
    assert "of electricity" in found["--train lora"]
    assert "a GPU hour on demand" in found["--gpus 1xH100"]
    assert "of electricity" in found["--gpus 1xRTX4090 --seq 512"]
    assert training_title(request, 52_000, 3) == "3 epochs of 52,000 samples (93.60 M tokens)"
