"""Every example runs, and the README shows what the commands print."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}

SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))
SHELL_SCRIPTS = sorted(EXAMPLES.glob("[0-9]*/run.sh"))
# Words that each example must print.
EXPECTED = {
    "01_search_70b.py": "the fastest takes",
    "02_evaluate_one.py": "stage 3: 20 layers",
    "03_limits_and_frame.py": "peak_gib",
    "04_custom_model": "Neighbours",
    "05_check_a_script": "runs and fits",
}


def _finished(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = ENVIRONMENT | {"PLANNER": f"{sys.executable} -m planner"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
        timeout=300,
    )


def test_examples_are_numbered_and_listed() -> None:
    names = [path.name for path in SCRIPTS] + [path.parent.name for path in SHELL_SCRIPTS]
    assert sorted(names) == sorted(EXPECTED)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_runs(script: Path, tmp_path: Path) -> None:
    done = _finished([sys.executable, "-W", "error", str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[script.name] in done.stdout


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.parent.name)
def test_shell_script_runs(script: Path, tmp_path: Path) -> None:
    done = _finished(["sh", str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[script.parent.name] in done.stdout


def _refresh_script() -> ModuleType:
    """examples/refresh_readme.py, with the modules beside it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module("refresh_readme")
    finally:
        sys.path.remove(str(EXAMPLES))


SCRIPT = _refresh_script()
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", SCRIPT.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_show_the_true_output(page: Path) -> None:
    """If this fails: python examples/refresh_readme.py PAGE."""
    text = page.read_text(encoding="utf-8")
    assert SCRIPT.comparable(text) == SCRIPT.comparable(SCRIPT.refreshed(text))


@pytest.mark.parametrize("page", SCRIPT.DATA)
def test_data_of_a_page_are_what_would_be_written(page: str) -> None:
    """If this fails: python examples/refresh_readme.py PAGE."""
    up = "../" * (page.count("/") - 1)
    text = (ROOT / page).read_text(encoding="utf-8")
    for table in SCRIPT.DATA[page]():
        assert table.link(up) in text
        for name, content in table.files().items():
            assert (ROOT / "docs" / "data" / name).read_text(encoding="utf-8") == content


def test_every_table_that_is_made_is_shown() -> None:
    texts = [page.read_text(encoding="utf-8") for page in SCRIPT.pages()]
    shown = {name for text in texts for name in re.findall(r"<!-- generated: (\S+) -->", text)}
    assert shown == set(SCRIPT.BLOCKS)


def test_output_without_a_command_stands_nowhere() -> None:
    """A block of console output is made by its command, so that a test can tell if it is old."""
    for page in (README, *PAGES):
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"```console\n", text):
            before = text[: match.start()].rstrip()
            assert before.endswith("-->"), (page.name, text[match.start() : match.end() + 60])


def test_no_age_of_a_price_is_shown() -> None:
    for page in (README, *PAGES):
        assert not re.search(r"\d+ weeks\s+old", page.read_text(encoding="utf-8")), page.name


def test_a_page_is_a_session_and_parts_are_cut() -> None:
    output = "a 1\nb 2\nc 3\nd 4\n"
    assert "".join(SCRIPT._parts(output, [])) == output
    assert "".join(SCRIPT._parts(output, ['"b" .. "c"'])) == "...\nb 2\n...\n"
    assert "".join(SCRIPT._parts(output, ['"a" .. "b"', '"d"'])) == "a 1\n...\nd 4\n"
    with pytest.raises(ValueError, match="not in"):
        "".join(SCRIPT._parts(output, ['"x"']))
    page = (
        "<!-- setup: planner search --model gpt2 --gpus 1xH100 --gbs 4 --framework nanogpt "
        "-o p.json -->\n<!-- end -->\n<!-- run: planner explain p.json 1 --no-neighbours -->\n"
        "<!-- end -->\n"
    )
    shown = SCRIPT.refreshed(page)
    assert "$ planner explain p.json 1" in shown and "gpt2" in shown
    assert "$ planner search" not in shown


def test_wall_times_alone_are_left_out() -> None:
    text = "8 plans; 1.83 s, 45,414 candidates/s costed; 56.7 s"
    assert SCRIPT.comparable(text) == "8 plans; TIME costed; 56.7 s"


def test_the_readme_is_short_and_has_its_picture() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    for name in ("docs/images/report.png", "docs/images/report-dark.png"):
        assert f'"{name}"' in text
        assert (ROOT / name).read_bytes().startswith(b"\x89PNG")


def test_links_of_the_documents_lead_somewhere() -> None:
    for page in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:planner|hardware|constraints|tests|examples)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def _notebook() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / "06_notebook.ipynb").read_text(encoding="utf-8"))
    return found


def test_the_notebook_is_the_one_that_its_script_wrote_and_ran() -> None:
    """If this fails: python examples/make_notebook.py."""
    script = runpy.run_path(str(EXAMPLES / "make_notebook.py"))
    cells = _notebook()["cells"]
    assert ["".join(cell["source"]) for cell in cells] == list(script["CELLS"])
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells one after the other; values that end a cell are shown by a notebook alone."""
    code = ["".join(cell["source"]) for cell in _notebook()["cells"] if cell["cell_type"] == "code"]
    done = _finished([sys.executable, "-W", "error", "-c", "\n".join(code)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "times as long as the plan above" in done.stdout
