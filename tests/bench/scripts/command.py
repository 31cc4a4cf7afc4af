"""Run `planner`; the first argument names a file for the packages that were imported meanwhile."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path

HEAVY = ("numpy", "numba", "scipy", "pandas", "ortools")


def note(path: Path) -> None:
    """Write which heavy packages are loaded."""
    path.write_text(" ".join(name for name in HEAVY if name in sys.modules), encoding="utf-8")


if __name__ == "__main__":
    atexit.register(note, Path(sys.argv.pop(1)))
    from planner.cli import main

    main()
