"""The table of public launch files, and the command that makes it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.launch import public_files
from tests.launch.public_files import HALVES, VERDICTS, outcome, rows, run
from tests.launch.read.test_recipes import NEMO

MOST_WRONG = 0.2


def test_the_table_says_where_each_file_is() -> None:
    listed = list(rows())
    assert len({(row["repository"], row["path"]) for row in listed}) == len(listed) >= 100
    for row in listed:
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert row["half"] in HALVES
        assert row["verdict"] in VERDICTS
        assert row["reason"], row["path"]
    assert len({row["dialect"] for row in listed}) >= 15


def test_eight_of_ten_files_that_nobody_had_looked_at() -> None:
    """As first judged, before anything was mended for them: of all, and of the newest half."""
    for halves in (HALVES[1:], HALVES[-1:]):
        verdicts = Counter(row["first verdict"] for row in rows() if row["half"] in halves)
        right = verdicts["prediction"] + verdicts["right refusal"]
        assert right >= (1 - MOST_WRONG) * verdicts.total()


def test_a_file_is_checked_on_the_machine_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "a4" / "recipe.py"
    path.parent.mkdir()
    path.write_text(NEMO)
    found = outcome(path)
    assert (found.kind, found.options) == ("prediction", "--gpus 16xB200")
    assert outcome(path, "--gpus 8xH100").options == "--gpus 8xH100"
    path.write_text("import os\n")
    assert outcome(path).kind == "refused"


def test_the_table_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "repository,path,commit,dialect,half,options,verdict,first verdict,reason\n"
        f"a/b,recipe.py,{'0' * 40},nemo2-py,development,,prediction,prediction,x\n"
        f"a/b,gone.py,{'0' * 40},nemo2-py,development,,prediction,prediction,x\n"
    )
    monkeypatch.setattr(public_files, "TABLE", table)
    folder = tmp_path / "files"
    (folder / "a+b").mkdir(parents=True)
    (folder / "a+b" / "recipe.py").write_text(NEMO)
    assert run(folder, None) == 0
    printed = capsys.readouterr()
    assert "gone.py" in printed.err
    assert "prediction    prediction" in printed.out
    assert "development: 1 files" in printed.out
