"""`planner tune --on local` really trains: accelerate's folder of a tiny model, two processes by
gloo on a CPU. One plan runs out of a memory limit, one is slow.

PLANNER_ACCELERATE names the Python of an environment with torch, transformers and accelerate; this
one otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.tune.runners import process
from tests.frameworks.conftest import INSTALL
from tests.tune.plans import plan_file

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

PYTHON = Path(os.environ.get("PLANNER_ACCELERATE", sys.executable))
SITE = Path(__file__).with_name("tune_site")


@pytest.fixture(scope="module")
def trains() -> dict[str, str]:
    """The environment in which plans train; a failure, not a skip, where nothing can."""
    packages = "import accelerate, torch, transformers"
    if subprocess.run([PYTHON, "-c", packages], check=False, capture_output=True).returncode:
        pytest.fail(f"{PYTHON} lacks accelerate, torch or transformers: {INSTALL}")
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(SITE)}  # fmt: skip


def test_it_trains_learns_and_recommends(trains: dict[str, str], tmp_path: Path) -> None:
    plans = plan_file(tmp_path)
    words = [sys.executable, "-m", "planner", "tune", str(plans), "--tokens", "1000000T",
             "--trial-limit", "240s", "--steps", "30", "-o", "study"]  # fmt: skip
    done = subprocess.run(
        [*words, "--on", "local"], cwd=tmp_path, env=trains, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    trials = {one["name"]: one for one in study["trials"]}
    assert trials["plan 1"]["outcome"] == "out-of-memory", done.stderr
    assert "DefaultCPUAllocator: can't allocate memory" in trials["plan 1"]["learnt"]
    measured = {name: one["measured_s"] for name, one in trials.items() if one["measured_s"]}
    assert measured["plan 3"] > measured["plan 2"] + 0.5
    assert study["best_name"] != "plan 1"
    assert study["best_s"] < measured["plan 3"]
    log = tmp_path / "study" / "trials" / "001" / "train.log"
    assert "step 5: loss" in log.read_text()
    assert not any([*process.processes(one["job_name"])] for one in study["trials"])
