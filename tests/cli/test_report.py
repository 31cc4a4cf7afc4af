"""`planner report`: writes whole pages, overwrites nothing unasked, says what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Run, refused


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small plan file."""
    from tests.cli.conftest import run_cli

    path = tmp_path_factory.mktemp("plans") / "plans.json"
    assert run_cli("search", *SMALL, "-o", str(path), "-q").exit_code == 0
    return path


def test_a_page_is_written_once(run: Run, plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    done = run("report", str(plan_file), "-o", str(path))
    assert done.exit_code == 0, done.output
    first = path.read_bytes()
    assert first.startswith(b"<!doctype html>") and first.endswith(b"</html>\n")
    assert str(path) in done.stdout
    refused = run("report", str(plan_file), "-o", str(path))
    assert refused.exit_code == 2 and "--force overwrites it" in refused.stderr
    assert run("report", str(plan_file), "-o", str(path), "--force").exit_code == 0
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_bad_file_leaves_the_old_page(run: Run, tmp_path: Path) -> None:
    path, bad = tmp_path / "report.html", tmp_path / "bad.json"
    path.write_text("mine", encoding="utf-8")
    bad.write_text("{", encoding="utf-8")
    done = run("report", str(bad), "-o", str(path), "--force")
    assert done.exit_code == 2 and "not valid JSON" in done.stderr
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent.json", "-o", "report.html"), "does not exist"),
        ((".", "-o", "report.html"), "is a folder"),
        (("absent.json",), "Missing option '-o'"),
        (("absent.json", "-o", "no/folder.html"), "the folder no does not exist"),
    ],
)
def test_wrong_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run("report", *arguments), said)


def test_a_missing_library_names_the_extra(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    done = run("report", "absent.json", "-o", str(tmp_path / "report.html"))
    assert done.exit_code == 2
    assert "pip install 'trainplan[plot]'" in done.stderr
