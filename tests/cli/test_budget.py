"""`planner budget`: contradictions, nonsense, files, and what fits nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.job.models.catalog import load_model
from tests.cli.conftest import Run, refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a budget"),
        (("--flops", "1e22", "--days", "3", "--gpus", "8xH100"), "--flops and --days"),
        (("--days", "3"), "--gpus 512xH100"),
        (("--model", "8b", "--params", "8B", "--tokens", "1T"), "give the size once"),
        (("--flops", "1e22", "--model", "8b", "--tokens", "1T"), "two of the three"),
        (("--tokens", "chinchilla"), "for which model"),
        (("--flops", "nan"), "not in the range"),
        (("--flops", "inf"), "not in the range"),
        (("--flops", "1e300"), "not in the range"),
        (("--days", "-1", "--gpus", "8xH100"), "not in the range"),
        (("--params", "1", "--tokens", "1T"), "as 13B"),
        (("--tokens", "many"), "tokens to train on"),
        (("--flops", "1e15"), "shapes are made for"),
        (("--flops", "1e22", "--rate", "EUR=0"), "EUR=1.10"),
        (("--flops", "1e22", "--model", "8b", "--save-model", "m.toml"), "names a model already"),
    ],
)
def test_contradictions_and_nonsense(run: Run, words: tuple[str, ...], said: str) -> None:
    refused(run("budget", *words), said)


def test_on_the_command_line(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "made.toml"
    words = ("budget", "--flops", "1e22", "--save-model", str(model))
    text = run(*words).stdout
    assert "nats a token" in " ".join(text.split()) and "critical batch" in text
    assert load_model(str(model)).spec.layers > 10
    assert run(*words).exit_code == 2  # it is there already
    data = json.loads(run("budget", "--flops", "1e25", "--json").stdout)
    assert data["beyond"] and data["law_source"].startswith("arXiv")


def test_what_fits_nowhere(run: Run) -> None:
    result = run("budget", "--model", "405b", "--days", "3", "--gpus", "1xH100", "--gbs", "8", "-q")
    assert result.exit_code == 1 and "nothing fits" in result.stderr
