"""Machine code of the cost core: kept on disk, loaded and called without the compiler.

It needs the C library alone (`planner.cost._llvm`), so a process that finds it on disk only loads
it.

The files lie in a folder named by a hash of every source that the compiled core is made of, of
llvmlite's version and of the processor: any edit starts a fresh folder, and stale code is never
loaded. Only this user can write there (`planner.cost._private_folder`), and what another user owns
is not loaded. Each file is written whole under another name first, so two processes may write it at
once, and starts with a hash of what follows: a damaged one is as good as none.
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
    """Hash of all sources of the compiled core, in file-name order, of the table of axes, of who
    compiles them and for which processor (NUMBA_CPU_NAME: for another than this)."""
    import llvmlite.binding as llvm

    features = os.environ.get("NUMBA_CPU_FEATURES") or llvm.get_host_cpu_features().flatten()
    processor = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    words = (version("llvmlite"), processor, features, sources_hash())
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


@cache
def cache_folder() -> Path:
    """Private folder that holds the machine code compiled from the present sources."""
    return private_folder(Path("kernels") / source_hash())


def why_not_kept() -> str:
    """Why machine code goes when this process ends; empty where it is kept."""
    cache_folder()
    return "; ".join(refused)


def read_code(name: str) -> tuple[str, bytes] | None:
    """(symbol, object file) that was kept by a name; None if there is none, or it is damaged."""
    return parted(read_mine(cache_folder() / name) or b"")


def parted(text: bytes) -> tuple[str, bytes] | None:
    """(symbol, object file) of a file of the cache; None if it is damaged."""
    digest, rest = text[:_DIGEST_BYTES], text[_DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\0")
    return symbol.decode(), code


def write_code(name: str, symbol: str, code: bytes) -> None:
    """Keep an object file; a disk that is full costs the next run its time."""
    rest = symbol.encode() + b"\0" + code
    with suppress(OSError):
        write_mine(cache_folder() / name, hashlib.sha256(rest).digest() + rest)


@cache
def _engine() -> Any:
    """What loads object files into this process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), target.create_target_machine(jit=True)
    )


Kind = tuple[np.dtype[Any], int] | type
"""What distinguishes arguments to a compiler: dtype and axes (a record has none), int or float."""


def kind_of(argument: Any) -> Kind:
    """The kind of an argument."""
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim
    return type(argument)


def loaded(symbol: str, code: bytes, kinds: tuple[Kind, ...]) -> Callable[..., float]:
    """A function of an object file, for arguments of such kinds."""
    import llvmlite.binding as llvm

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return callable_at(engine.get_function_address(symbol), kinds)


def callable_at(address: int, kinds: tuple[Kind, ...]) -> Callable[..., float]:
    """The function at an address, for arguments of such kinds; lets go of the interpreter.

    Numbers are handed over as they are, records as their address, arrays as their address and the
    size of each axis. The result is a float64 number.
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
        raise ValueError("compiled code takes contiguous arrays")
    return [array.ctypes.data, *array.shape]
