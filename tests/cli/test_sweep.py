"""`planner sweep`: its file, what it says, and what it refuses with the line at fault."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

FILE = """tokens = "1B"
recompute = "none"
require = ["zero <= 1"]

[grid]
model = ["gpt2"]
gpus = ["1..2xH100"]
gbs = [8]
price-kind = ["on_demand", "spot"]
"""

LONG = list(range(1, 4_000))


def test_a_sweep_is_reported_and_goes_on(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(FILE)
    assert run("sweep", str(path), "--report").exit_code == 2
    done = run("sweep", str(path), "--processes", "1", "-q")
    assert done.exit_code == 0, done.stderr
    assert "done      2" in done.stdout and "cheapest" in done.stdout
    assert (tmp_path / "grid.sweep" / "results.parquet").exists()
    page = tmp_path / "sweep.html"
    drawn = run("report", str(tmp_path / "grid.sweep"), "-o", str(page))
    assert drawn.exit_code == 0, drawn.stderr
    assert "gpt2 is cheapest with 1xH100, price-kind spot" in page.read_text(encoding="utf-8")
    shown = run("sweep", str(path), "--report", "--csv")
    found = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [row["cluster"] for row in found] == ["1xH100"] * 2 + ["2xH100"] * 2
    assert float(found[0]["cost"]) > float(found[1]["cost"]) > 0.0
    # One more model that fits nowhere: only it is searched.
    path.write_text(FILE.replace('["gpt2"]', '["gpt2", "405b"]'))
    document = json.loads(run("sweep", str(path), "--report", "--json").stdout)
    assert (document["searches"], document["done"], document["left"]) == (4, 2, 2)
    path.write_text(FILE.replace('"1B"', '"2B"'))
    assert json.loads(run("sweep", str(path), "--report", "--json").stdout)["left"] == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("gbs = [8]", "gsb = [8]", ("line 8", "gbs")),
        ("gbs = [8]", "gbs = [8, 8]", ("line 8", "twice")),
        ("gbs = [8]", "gbs = 8", ("line 8", "a list")),
        ("gbs = [8]", "gbs = []", ("line 8", "at least one")),
        ("gbs = [8]", "gbs = [0]", ("line 8", "gbs")),
        ("gbs = [8]", 'gbs = [8]\ngbs-tokens = ["1M"]', ("line 8", "gbs-tokens")),
        ("gbs = [8]", 'gbs = [8]\nframework = ["megatorn"]', ("megatron",)),
        ("recompute", "recompte", ("line 2", "recompute")),
        ('tokens = "1B"', 'tokens = "1B"\nmodel = "8b"', ("line 7", "twice")),
        ("gbs = [8]", "gbs = [8]\nprice_kind = [\"owned\"]", ("line 10", "twice")),
        ('tokens = "1B"', "", ("tokens",)),
        ('["gpt2"]', '["gtp2"]', ("gpt2",)),
        ('["gpt2"]', "[true]", ("line 6", "give a value")),
        ('"1..2xH100"', '"1..2xH1000"', ("H100",)),
        ('gpus = ["1..2xH100"]', "", ("gpus",)),
        ('"spot"]', '"sport"]', ("line 9", "spot")),
        ('"spot"]', '"spot"]\nprovider = ["nobody"]', ("nobody",)),
        ("[grid]", "[grdi]", ("line 5", "grid")),
        ("[grid]", "grid = 3\n[x]", ("[grid]",)),
        ("gbs = [8]", f"gbs = {LONG}\nseq = {LONG}", ("searches; at most",)),
    ],
)  # fmt: skip
def test_a_wrong_file_says_where(
    run: Run, tmp_path: Path, before: str, after: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "grid.toml"
    assert before in FILE
    path.write_text(FILE.replace(before, after))
    result = run("sweep", str(path), "--report")
    assert result.exit_code == 2, result.stdout
    assert all(word in result.stderr for word in words), result.stderr
    assert not (tmp_path / "grid.sweep").exists()


def test_engines_and_folders_that_are_not_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(FILE)
    assert "--engine ray or dask" in run("sweep", str(path), "--address", "a:1").stderr
    for name, module in (("ray", "ray"), ("dask", "distributed")):
        monkeypatch.setitem(sys.modules, module, None)
        result = run("sweep", str(path), "--engine", name, "--address", "127.0.0.1:9")
        assert result.exit_code == 2 and f"trainplan[{name}]" in result.stderr
    monkeypatch.setitem(sys.modules, "distributed", sys)
    assert "--address" in run("sweep", str(path), "--engine", "dask").stderr
    silent = run("sweep", str(path), "--engine", "dask", "--address", "127.0.0.1:9")
    assert silent.exit_code == 3 and "no cluster answers at 127.0.0.1:9" in silent.stderr
    assert run("sweep", str(path), "-o", str(path)).exit_code == 2


def test_a_sweep_without_its_extra_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(FILE)
    monkeypatch.setitem(sys.modules, "filelock", None)
    refused = run("sweep", str(path))
    assert refused.exit_code == 2
    assert "pip install 'trainplan[sweep]'" in refused.stderr
