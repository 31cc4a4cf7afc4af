"""One search twice in one process: prints the CPU seconds of each, and the modules loaded.

The first argument names a file of modules to import beforehand; without such a file the first
search counts from the start of the process, imports and all.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import time
from pathlib import Path


def preload(path: Path) -> float:
    """Import the modules that a file names; CPU seconds so far, or none without a file."""
    if not path.is_file():
        return 0.0
    for name in path.read_text(encoding="utf-8").split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return time.process_time()


def main() -> None:
    """Search twice."""
    start = preload(Path(sys.argv[1]))
    from planner.cli.program import planner_command

    seconds = []
    for _ in range(2):
        with contextlib.redirect_stdout(io.StringIO()):
            planner_command.main(sys.argv[2:], prog_name="planner", standalone_mode=False)
        now = time.process_time()
        seconds.append(now - start)
        start = now
    loaded = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
    print(json.dumps({"first_s": seconds[0], "second_s": seconds[1], "modules": loaded}))


if __name__ == "__main__":
    main()
