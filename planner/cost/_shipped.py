"""The cost core in an installed wheel: one shared library, loaded without any compiler.

`planner.cost.build_core` makes it for the oldest processor of its kind, so it runs on all of them.
It needs only the C library: no numba, no llvmlite. A file next to it contains the names of its
functions and the hash of its sources. A library made from other sources is not used, and a clone
has none.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

from constraints import axes

_COST_FOLDER = Path(__file__).parent
FOLDER = _COST_FOLDER / "machine"
LIBRARY, INDEX = "core.so", "core.json"


def sources() -> list[Path]:
    """All sources of the compiled core in file-name order, and the axes that name its columns."""
    return [*sorted(_COST_FOLDER.glob("*.py")), axes.TABLE_FILE, Path(axes.__file__)]


@cache
def sources_hash() -> str:
    """Hash of all sources of the compiled core."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kind_of_machine() -> str:
    """The kind of machine that a library is for, for example `linux-x86_64`."""
    return f"{sys.platform}-{platform.machine()}"


@cache
def symbols() -> dict[str, str]:
    """The symbol of each entry, by the name of its machine code; empty if there is no library for
    these sources and this machine."""
    try:
        index: dict[str, Any] = json.loads((FOLDER / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if index.get("machine") != kind_of_machine() or index.get("sources") != sources_hash():
        return {}
    found: dict[str, str] = index.get("symbols", {})
    return found if _library() is not None else {}


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(FOLDER / LIBRARY))
    except OSError:
        return None


def address(name: str) -> int | None:
    """The address of an entry's function, by the name of its machine code; None if the wheel has
    none."""
    symbol, library = symbols().get(name), _library()
    if symbol is None or library is None:
        return None
    return ctypes.cast(library[symbol], ctypes.c_void_p).value


def has(entry: str) -> bool:
    """Whether the wheel's library has a function for the entry of this name, for arguments of any
    kinds. False without a library for these sources and this machine."""
    return any(name.rpartition("-")[0] == entry for name in symbols())
