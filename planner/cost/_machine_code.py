"""Machine code of the cost core: kept on disk, and loaded without the compiler.

The code needs only the C library (`planner.cost._llvm`), so a process that finds it on disk just
loads it.

The files are in a folder named by a hash of all sources of the compiled core, llvmlite's version
and the processor: any edit starts a fresh folder, so stale code is never loaded. Only this user can
write there (`planner.cost._private_folder`), and files of another user are not loaded. Each file is
written completely under a temporary name first, so two processes may write it at once. It starts
with a hash of the rest, and a damaged file is ignored.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost._private_folder import private_folder, read_mine, refused, write_mine
from planner.cost._shipped import sources_hash

_DIGEST_BYTES = 32


@cache
def source_hash() -> str:
    """Hash of the sources of the compiled core in file-name order, the table of axes, llvmlite's
    version and the processor (another one if NUMBA_CPU_NAME is set)."""
    import llvmlite.binding as llvm

    features = os.environ.get("NUMBA_CPU_FEATURES") or llvm.get_host_cpu_features().flatten()
    processor = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    words = (version("llvmlite"), processor, features, sources_hash())
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


@cache
def cache_folder() -> Path:
    """The private folder for machine code compiled from the present sources."""
    return private_folder(Path("kernels") / source_hash())


def why_not_kept() -> str:
    """Why machine code is lost when this process ends; empty if it is kept."""
    cache_folder()
    return "; ".join(refused)


def read_code(name: str) -> tuple[str, bytes] | None:
    """(symbol, object file) in the cache under a name; None if it is missing or damaged."""
    return parted(read_mine(cache_folder() / name) or b"")


def parted(text: bytes) -> tuple[str, bytes] | None:
    """(symbol, object file) in the content of a cache file; None if it is damaged."""
    digest, rest = text[:_DIGEST_BYTES], text[_DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\0")
    return symbol.decode(), code


def write_code(name: str, symbol: str, code: bytes) -> None:
    """Write an object file to the cache. If the disk is full it is not kept, and the next run
    compiles again."""
    rest = symbol.encode() + b"\0" + code
    with suppress(OSError):
        write_mine(cache_folder() / name, hashlib.sha256(rest).digest() + rest)


@cache
def _engine() -> Any:
    """LLVM's loader of object files into this process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), target.create_target_machine(jit=True)
    )


Kind = tuple[np.dtype[Any], int] | type
"""A compiler's view of an argument: dtype and number of axes (0 for a record), or int or float."""


def kind_of(argument: Any) -> Kind:
    """The key by which machine code is chosen for an argument: (dtype, number of axes) of an array,
    otherwise the Python type."""
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim
    return type(argument)


def loaded(symbol: str, code: bytes, kinds: tuple[Kind, ...]) -> Callable[..., float]:
    """The function in an object file, for arguments of these kinds."""
    import llvmlite.binding as llvm

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return callable_at(engine.get_function_address(symbol), kinds)


def callable_at(address: int, kinds: tuple[Kind, ...]) -> Callable[..., float]:
    """The function at an address, for arguments of these kinds. It releases the interpreter's lock.

    Numbers are passed as they are, records as their address, arrays as their address and the size
    of each axis. The result is a float64 number.
    """
    word, where = ctypes.c_int64, ctypes.c_void_p
    types: list[Any] = []
    for kind in kinds:
        if isinstance(kind, tuple):
            types += [where, *[word] * kind[1]]
        else:
            types.append(word if kind is int else ctypes.c_double)
    function = ctypes.CFUNCTYPE(ctypes.c_double, *types)(address)

    def call(*arguments: Any) -> float:
        values: list[Any] = []
        for each in arguments:
            values += _parts(each) if isinstance(each, np.ndarray) else [each]
        result: float = function(*values)
        return result

    return call


def _parts(array: np.ndarray) -> list[Any]:
    if not array.flags.c_contiguous:
        raise ValueError("compiled code needs contiguous arrays")
    return [array.ctypes.data, *array.shape]
