"""Ctrl-C and --time-limit while the cost core is compiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SEARCH = ["search", "--model", "8b", "--gpus", "8xH100", "--gbs", "64"]
# A signal is heard between two entries, of which each takes a second or two of a processor.
HEARS_WITHIN_S = 8.0


def start(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    """A first run: nothing is compiled."""
    return subprocess.Popen(
        [sys.executable, "-m", "planner", *SEARCH, *more],
        env={**os.environ, "PLANNER_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_time_limit_ends_compiling(tmp_path: Path) -> None:
    began = time.perf_counter()
    child = start(tmp_path, "--time-limit", "0.5")
    output, errors = child.communicate(timeout=120)
    assert child.returncode == 3, errors
    assert output == ""
    assert "planner warmup" in errors
    assert time.perf_counter() - began < 0.5 + HEARS_WITHIN_S + 10.0


def test_ctrl_c_ends_compiling(tmp_path: Path) -> None:
    child = start(tmp_path)
    assert child.stderr is not None
    assert "compiling" in child.stderr.readline()
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    sent = time.perf_counter()
    child.communicate(timeout=120)
    assert child.returncode == 130
    assert time.perf_counter() - sent < HEARS_WITHIN_S
