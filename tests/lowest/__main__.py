"""The smallest versions that pyproject.toml allows, tried: are they true?

    python -m tests.lowest [FOLDER]

Makes a virtual environment with the lowest version of everything that the project names (uv's
`--resolution lowest-direct`), in FOLDER or a temporary one, and runs there what uses each of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Together they use every package: click, rich and pydantic (cli), the solver, pandas, YAML, TOML,
# tree-sitter (scripts), altair and its drawing (pictures), starlette and uvicorn (serve), pyarrow
# and the locks (sweep), hypothesis.
SMOKE = (
    "tests/cli/test_help.py", "tests/cli/test_search.py", "tests/cli/test_evaluate.py",
    "tests/cli/test_catalogs.py", "tests/cli/test_bad_input.py", "tests/cli/test_pictures.py",
    "tests/cli/test_writers.py", "tests/report/test_serve.py", "tests/report/test_library.py",
    "tests/compare/test_sweep.py", "tests/cli/test_sweep.py", "tests/launch/read/test_scripts.py",
    "tests/launch/test_folder.py", "tests/launch/test_nanotron.py",
    "tests/cost/test_kernel_cache.py", "tests/tune/test_journal.py",
    "tests/evidence/traces", "tests/predict/test_space.py", "tests/test_packaging.py",
)  # fmt: skip


def main() -> int:
    """Exit status of the smoke tests."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "lowest"
        python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        uv = [sys.executable, "-m", "uv"]
        install = ["pip", "install", "--python", str(python), "--resolution", "lowest-direct"]
        for words in (
            [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            [*uv, *install, "--quiet", "--editable", ".[dev]"],
            [*uv, "pip", "list", "--python", str(python)],
            [str(python), "-W", "error", "-m", "planner", "doctor"],
        ):
            subprocess.run(words, cwd=ROOT, check=True)
        words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMOKE]
        return subprocess.run(words, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
