"""Child processes and what they cost.

This process imports nothing heavy: the kernel counts the memory of the process that starts a child
as the child's own peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
"""Run on the sources of any checkout, which need not have them."""


# Sources that are installed have their bytecode beside them, as the bare imports have.
_NOT_HANDED_ON = ("PLANNER_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Checkout:
    """Sources to measure, and the folder of their compiled core (None: the user's)."""

    folder: Path
    cache: Path | None

    def environment(self, **more: str) -> dict[str, str]:
        """Variables under which Python finds these sources before any installed."""
        found = {name: text for name, text in os.environ.items() if name not in _NOT_HANDED_ON}
        if self.cache is not None:
            found["PLANNER_CACHE_DIR"] = str(self.cache)
        return {**found, "PYTHONPATH": f"{self.folder}{os.pathsep}{SCRIPTS}", **more}

    def script(self, name: str, *arguments: object, **more: str) -> Run:
        """Run a script on these sources."""
        command = [sys.executable, "-P", str(SCRIPTS / name), *map(str, arguments)]
        return run(command, self.environment(**more), self.folder)


@dataclass(frozen=True)
class Run:
    """What a process and those it waited for cost.

    `cpu_s`: user and system; `peak_mib`: largest resident set of one process.
    """

    status: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    output: str
    errors: str

    def json(self) -> Any:
        """What it printed."""
        if self.status != 0:
            raise RuntimeError(self.errors[-2000:])
        return json.loads(self.output)


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Run:
    """Run a command to its end."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=errors,
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        return Run(
            child.returncode,
            wall_s,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024,
            output.read(),
            errors.read(),
        )
