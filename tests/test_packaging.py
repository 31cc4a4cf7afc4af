"""The wheel holds exactly our packages with their data, and a foreign package is noticed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import planner

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"planner", "constraints", "hardware"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built without network by the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


# Figures of the pages, which no command reads.
LEFT_OUT = {
    "planner/evidence/data/accuracy.toml",
    "planner/evidence/data/held_out_errors.toml",
}


def test_wheel_holds_exactly_three_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    metadata = f"trainplan-{planner.__version__}.dist-info"
    assert tops == PACKAGES | {metadata}


def test_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for suffix in ("py", "toml", "csv", "j2", "css", "js")
        for path in (ROOT / package).rglob(f"*.{suffix}")
    }
    held = {name for name in wheel.namelist() if name.split("/")[0] in PACKAGES}
    assert wanted - held == LEFT_OUT
    for name in (
        "planner/py.typed",
        "planner/job/models/llama-3-70b.toml",
        "planner/job/frameworks/megatron-core.toml",
        "hardware/catalog/prices.csv",
    ):
        assert name in held


def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    folder = f"trainplan-{planner.__version__}.dist-info"
    metadata = wheel.read(f"{folder}/METADATA").decode()
    assert "\nName: trainplan\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
    assert "planner = planner.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()


def test_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_extras_and_checks_of_ci_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {requirement.split(">")[0] for requirement in project["optional-dependencies"]["dev"]}
    assert {"hatchling", "import-linter", "mypy", "pytest", "ruff"} <= names
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in ("ruff check", "ruff format --check", "mypy", "lint-imports", "pytest"):
        assert command in script


def test_readme_has_two_set_up_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in text.splitlines() if "-m venv .venv &&" in line]
    assert len(commands) == 2
    assert commands[0].endswith("planner search --model 70b --gpus 64xH100 --gbs-tokens 4M")
    assert commands[1].endswith(".venv/bin/pytest")


def test_a_foreign_package_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "__init__.py").write_text("", encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import planner"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "ImportError: the package 'constraints'" in done.stderr
    assert "pipx install trainplan" in done.stderr


def test_no_public_name_hides_a_room() -> None:
    """`planner.search` is the room whatever was imported first, `find_plans` the function."""
    code = (
        "import planner.search.search, planner\n"
        "assert callable(planner.search.search.find_plans) and callable(planner.find_plans)\n"
        "assert callable(planner.evaluate)\n"
        "from pathlib import Path\n"
        "rooms = {path.name for path in Path(planner.__file__).parent.iterdir() if path.is_dir()}\n"
        "assert not rooms & set(planner.__all__), rooms\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
