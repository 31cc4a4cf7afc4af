"""The one numba decorator of the project, and where its compiled code is kept.

numba's on-disk cache keys a function by *its own* file's time stamp and does not notice an
edit in another file whose function it calls. So the cache lives in a folder named by a hash
of every source the compiled core is made of: any edit there starts a fresh folder, and a
stale kernel can never be loaded.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

_COST_FOLDER = Path(__file__).parent
CACHE_VARIABLE = "PLANNER_CACHE_DIR"


def _user_cache_root() -> Path:
    """Folder for per-user caches on this platform (XDG on Linux, Library on macOS)."""
    if override := os.environ.get(CACHE_VARIABLE):
        return Path(override)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "trainplan"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainplan"


def source_hash() -> str:
    """Hash of all sources of the compiled core, in file-name order."""
    digest = hashlib.sha256()
    for path in sorted(_COST_FOLDER.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Folder that holds the machine code compiled from the present sources."""
    return _user_cache_root() / "kernels" / source_hash()


def is_compiled() -> bool:
    """Whether a kernel compiled from the present sources is on disk (else: first run)."""
    return any(cache_folder().rglob("*.nbi"))


# numba reads the variable when it is first imported, hence before the import below.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder()))

import numba
from filelock import FileLock
from numba.core.caching import FunctionCache

Function = TypeVar("Function", bound=Callable[..., Any])


class _SharedCache(FunctionCache):
    """numba's cache on disk, written by one process at a time.

    numba numbers a function's kernels in an index that it reads, extends and writes back. Two
    processes that compile the same function for different argument types at once can give both
    kernels one number, and whoever loads it later gets the wrong one.
    """

    def save_overload(self, sig: Any, data: Any) -> None:
        with FileLock(Path(self.cache_path) / "write.lock"):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _compiled(function: Function, **options: Any) -> Function:
    dispatcher = numba.njit(error_model="numpy", **options)(function)
    dispatcher._cache = _SharedCache(function)  # type: ignore[no-untyped-call]
    return cast(Function, dispatcher)


def jit(function: Function) -> Function:
    """Compile a scalar function of the cost core (nopython, IEEE arithmetic, cached on disk)."""
    return _compiled(function)


def jit_parallel(function: Function) -> Function:
    """Compile a loop over candidates whose iterations are independent (`prange`)."""
    return _compiled(function, parallel=True)


prange = numba.prange
