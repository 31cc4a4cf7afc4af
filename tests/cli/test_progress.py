"""What is told of a long search where stderr is no terminal, and of slipping benchmarks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.cli import output
from tests.bench import ratios
from tests.bench.report import Row


def test_a_line_is_printed_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.01)
    with output.watched(quiet=False) as say:
        say("solving", 2, 5)
        time.sleep(0.1)
    assert "0 s: solving, 2 of 5" in capsys.readouterr().err


def test_quiet_prints_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.01)
    with output.watched(quiet=True) as say:
        say("solving", 2, 5)
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_command_that_slips_by_a_tenth_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    rows = [Row("bare imports", {"cpu_s": 1.0}), Row("search", {"ratio": 1.4})]
    ratios.record(ratios.ratios_of(rows), path)
    assert ratios.read(path) == {"search": 1.4}
    assert not list(ratios.slips(ratios.read(path), {"search": 1.53, "other": 9.0}))
    assert list(ratios.slips(ratios.read(path), {"search": 1.55})) == [
        "search: 1.55 times the bare imports, 1.40 when last accepted"
    ]
    # A slip that nobody notices is no new measure of things.
    ratios.record({"search": 1.5}, path)
    assert ratios.read(path) == {"search": 1.4}
    ratios.record({"search": 1.5}, path, accept=True)
    assert ratios.read(path) == {"search": 1.5}
