"""Every example runs, and the README shows what the commands print."""

from __future__ import annotations

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
    spec = importlib.util.spec_from_file_location("refresh_readme", EXAMPLES / "refresh_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_shows_the_true_output() -> None:
    """If this fails: python examples/refresh_readme.py."""
    script = _refresh_script()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- generated: (\S+) -->", readme)) == set(script.BLOCKS)
    assert script.comparable(readme) == script.comparable(script.refreshed(readme))


def test_wall_times_alone_are_left_out() -> None:
    comparable = _refresh_script().comparable
    text = "8 plans; 1.83 s, 45,414 candidates/s costed; 56.7 s"
    assert comparable(text) == "8 plans; TIME costed; 56.7 s"


def test_links_of_the_documents_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (ROOT / target).exists(), f"{name}: {target}"


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
    assert "times as long as the best plan" in done.stdout
