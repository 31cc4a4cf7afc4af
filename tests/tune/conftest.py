"""A scheduler on the PATH, and folders whose runs print what a framework prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from planner.tune.runners import process

STUB = Path(__file__).with_name("slurm_stub.py")
Behave = Callable[..., None]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a scheduler that starts at once; `behave` changes what it does."""
    programs, queue = tmp_path / "bin", tmp_path / "queue"
    programs.mkdir()
    queue.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        script = programs / name
        text = STUB.read_text().partition("\n")[2]
        script.write_text(f"#!{sys.executable} -S\n{text}")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STUB", str(queue))
    yield queue
    for job in jobs(queue):
        for pid in process.processes(job["name"]):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def jobs(queue: Path) -> list[dict[str, Any]]:
    """What the scheduler was given."""
    path = queue / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else []


@pytest.fixture
def behave(slurm: Path) -> Behave:
    """Changes what the scheduler does, from now on."""

    def change(**behaviour: object) -> None:
        path = slurm / "behaviour.json"
        told = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**told, **behaviour}))

    return change
