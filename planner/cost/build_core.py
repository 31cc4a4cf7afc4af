"""`python -m planner.cost.build_core`: build the cost core as a shared library for wheels.

Compiles every entry for a baseline processor as position-independent code, and links the object
files with the machine's C compiler. A wheel that is built afterwards contains the library
(`hatch_build.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from planner.cost import _shipped

# The oldest processor of each kind, by LLVM's name, and the features that all of them have.
BASELINE = {"x86_64": ("x86-64", "+sse2"), "aarch64": ("generic", "+neon")}
# Environment variable that asks the compiler for code that can be linked into a library.
LINKABLE = "PLANNER_LINKABLE"


def main() -> None:
    """Build the library in the folder of the sources."""
    machine = _shipped.kind_of_machine()
    processor = BASELINE.get(machine.partition("-")[2])
    if processor is None or not machine.startswith("linux"):
        sys.exit(f"no library can be built for {machine}: its wheels compile on their first run")
    with tempfile.TemporaryDirectory() as folder:
        codes = _compiled(Path(folder), *processor)
        _link(Path(folder), codes)
    sys.stdout.write(f"{_shipped.FOLDER / _shipped.LIBRARY}: {len(codes)} functions\n")


def _compiled(folder: Path, processor: str, features: str) -> dict[str, tuple[str, bytes]]:
    """(symbol, object file) of every entry, by the name of its file in the compile cache. A
    separate process compiles them as if this were a baseline machine."""
    environment = os.environ | {
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": features,
        "PLANNER_CACHE_DIR": str(folder / "cache"),
        LINKABLE: "1",
    }
    subprocess.run([sys.executable, "-m", "planner", "warmup"], check=True, env=environment)
    kept = [path for path in (folder / "cache").rglob("*-*") if path.is_file()]
    return {path.name: _read(path) for path in kept}


def _read(path: Path) -> tuple[str, bytes]:
    from planner.cost._machine_code import parted

    found = parted(path.read_bytes())
    if found is None:
        sys.exit(f"{path}: damaged")
    return found


def _link(folder: Path, codes: dict[str, tuple[str, bytes]]) -> None:
    """Link all object files to one library, and write the index of its functions."""
    objects = []
    for number, (_, code) in enumerate(codes.values()):
        objects.append(folder / f"{number}.o")
        objects[-1].write_bytes(code)
    _shipped.FOLDER.mkdir(exist_ok=True)
    library = _shipped.FOLDER / _shipped.LIBRARY
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-Wl,-s", "-o", str(library), *map(str, objects), "-lm"]
    subprocess.run(command, check=True)
    index = {
        "machine": _shipped.kind_of_machine(),
        "sources": _shipped.sources_hash(),
        "symbols": {name: symbol for name, (symbol, _) in codes.items()},
    }
    text = json.dumps(index, indent=1) + "\n"
    (_shipped.FOLDER / _shipped.INDEX).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
