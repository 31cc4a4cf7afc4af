"""A wheel with the library of `planner.cost.build_core` is one for its kind of machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINE = Path("planner") / "cost" / "machine"
# Asks for the library to be made now, by the Python that builds (`--no-isolation`).
ASKED = "PLANNER_BUILD_CORE"
# exp, log and pow of the library are those of glibc 2.29.
_TAGS = {
    "linux-x86_64": "py3-none-manylinux_2_29_x86_64",
    "linux-aarch64": "py3-none-manylinux_2_29_aarch64",
}


class CoreBuildHook(BuildHookInterface[Any]):
    """Puts the library into a wheel, where there is one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is written; an editable install has no library."""
        if version == "editable":
            return
        root = Path(self.root)
        if os.environ.get(ASKED):
            subprocess.run([sys.executable, "-m", "planner.cost.build_core"], check=True, cwd=root)
        index = root / MACHINE / "core.json"
        if not index.is_file():
            return
        build_data["pure_python"] = False
        build_data["tag"] = _TAGS[json.loads(index.read_text(encoding="utf-8"))["machine"]]
        for name in ("core.so", "core.json"):
            build_data["force_include"][str(root / MACHINE / name)] = str(MACHINE / name)
