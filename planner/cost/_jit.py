"""Compiling the cost core: plain Python functions here, their compiled twins behind the entries.

Every function of the core is plain Python and may be called as such: one configuration is costed
in milliseconds without a compiler, and tests call any function directly. `jit` only marks those
that may be compiled; an `Entry` (`planner.cost.compiled`) is one that a search calls for thousands
of candidates.
The first call of an entry makes numba twins of it and of all that it calls, each with globals of
its own in which the names of marked functions mean their twins. Only entries have Python wrappers
and are kept on disk; the rest exists inside their machine code.

numba's on-disk cache keys a function by *its own* file's time stamp and does not notice an
edit in another file whose function it calls. So the cache lives in a folder named by a hash
of every source the compiled core is made of: any edit there starts a fresh folder, and a
stale kernel can never be loaded.

Records: handing NamedTuples of many fields down a call tree costs a compiler minutes; a record of
a structured array is one pointer. An entry turns the NamedTuples of `planner.cost.inputs` and
`planner.cost.tables` into records, and float64 tables into rows with named columns.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost.light import light, light_records, write_back

_COST_FOLDER = Path(__file__).parent
CACHE_VARIABLE = "PLANNER_CACHE_DIR"

Function = TypeVar("Function", bound=Callable[..., Any])
Row = Any
"""One record: the columns of a row by name. Plain: `numpy.record` or a NamedTuple."""
Rows = Any
"""An array of records."""

# Tables of records that functions fill.
_OUTPUTS = ("out", "stages")

_marked: set[Callable[..., Any]] = set()
ENTRIES: list[Entry] = []


def _user_cache_root() -> Path:
    """Folder for per-user caches on this platform (XDG on Linux, Library on macOS), or where the
    user says."""
    if override := os.environ.get(CACHE_VARIABLE):
        return Path(override)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "trainplan"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainplan"


@cache
def source_hash() -> str:
    """Hash of numba's version and all sources of the compiled core, in file-name order."""
    digest = hashlib.sha256(version("numba").encode())
    for path in sorted(_COST_FOLDER.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def cache_folder() -> Path:
    """Folder that holds the machine code compiled from the present sources.

    Where it cannot be written, one for temporary files.
    """
    for root in (_user_cache_root(), Path(tempfile.gettempdir()) / f"trainplan-{_user()}"):
        folder = root / "kernels" / source_hash()
        if _is_writable(folder):
            return folder
    return folder


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def cache_is_writable() -> bool:
    """Whether machine code can be kept."""
    return _is_writable(cache_folder())


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def jit(function: Function) -> Function:
    """Mark a function of the cost core that compiled code calls; it stays plain Python."""
    _marked.add(function)
    return function


@lru_cache(maxsize=256, typed=True)
def record(inputs: tuple[Any, ...]) -> Any:
    """A NamedTuple of numbers as a record of the same names: int64 where it holds ints.

    Kept by type as well: two kinds of as many equal numbers are equal tuples.
    """
    fields = inputs._fields  # type: ignore[attr-defined]
    kinds = [
        (name, "i8" if type(value) is int else "f8")
        for name, value in zip(fields, inputs, strict=True)
    ]
    return np.array([tuple(inputs)], dtype=np.dtype((np.record, kinds)))[0]


def rows(table: NDArray[np.float64], row: np.dtype[Any]) -> Rows:
    """A float64 table, columns last, as an array of records over the same memory, or one row as a
    record."""
    flat = np.ascontiguousarray(table)
    if flat.ndim == 1:
        return flat.view(row)[0]
    return flat.view(row).reshape(flat.shape[:-1])


class Entry:
    """A function that compiles on its first call; `tables` names the row of each table argument.

    `plain` takes the same arguments and runs as Python. `allocates` False: nothing below it makes
    an array, so nothing counts references to arrays: that took a fifth of the time, and threads
    wait for each other's counts of the tables that they share.
    """

    def __init__(
        self, function: Callable[..., Any], *, allocates: bool = True, **tables: np.dtype[Any]
    ) -> None:
        self.function, self.allocates = function, allocates
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        names = tuple(signature(function).parameters)
        self._rows = [tables.get(name) for name in names]
        self._outputs = [names.index(name) for name in _OUTPUTS if name in tables]
        ENTRIES.append(self)

    def __call__(self, *arguments: Any) -> Any:
        return self._twin(*self._as_records(arguments))

    def plain(self, *arguments: Any) -> Any:
        """The same, not compiled: on plain objects, divisions by zero as in compiled code."""
        items = [
            light(value, row)
            if row is not None
            else light_records(value)
            if getattr(getattr(value, "dtype", None), "names", None)
            else value
            for value, row in zip(arguments, self._rows, strict=True)
        ]
        with np.errstate(all="ignore"):
            result = self.function(*items)
        for index in self._outputs:
            write_back(items[index], arguments[index])
        return result

    def compile_for(self, *arguments: Any) -> None:
        """Compile for arguments of these types, or load what was; nothing is computed."""
        import numba

        self._twin.compile(tuple(numba.typeof(each) for each in self._as_records(arguments)))

    def is_on_disk(self) -> bool:
        """Whether machine code of the present sources is in the cache."""
        name = f"*.{self.function.__qualname__}-*.nbi"
        return any(cache_folder().glob(name))

    @cached_property
    def _twin(self) -> Any:
        return _twin(self.function, self.allocates, is_entry=True)

    def _as_records(self, arguments: tuple[Any, ...]) -> list[Any]:
        return [
            rows(value, row)
            if row is not None
            else record(value)
            if hasattr(value, "_fields")
            else value
            for value, row in zip(arguments, self._rows, strict=True)
        ]


class _TwinGlobals(dict[str, Any]):
    """Globals of a twin: those of the module, marked functions as their twins, made when read."""

    def __init__(self, outer: dict[str, Any], allocates: bool) -> None:
        super().__init__(__name__=outer["__name__"], __builtins__=outer["__builtins__"])
        self._outer, self._allocates = outer, allocates

    def __missing__(self, name: str) -> Any:
        value = self._outer[name]
        if isinstance(value, FunctionType) and value in _marked:
            value = _twin(value, self._allocates)
        self[name] = value
        return value


@cache
def _twin(function: FunctionType, allocates: bool, *, is_entry: bool = False) -> Any:
    """The numba function of a marked one, below entries that allocate or those that do not."""
    import numba

    njit: Any = numba.njit
    same = FunctionType(
        function.__code__,
        _TwinGlobals(function.__globals__, allocates),
        function.__name__,
        function.__defaults__,
    )
    same.__qualname__, same.__module__ = function.__qualname__, function.__module__
    for_entries, for_others = _compilers()
    if is_entry:
        twin = njit(error_model="numpy", nogil=True, _nrt=allocates, pipeline_class=for_entries)(
            same
        )
        twin._cache = _shared_cache(same)
        return twin
    twin = njit(
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=allocates,
        pipeline_class=for_others,
    )(same)
    # Once for all numbers, not once more for every constant that some caller hands in.
    by_type, unliteral = twin.get_call_template, numba.types.unliteral
    twin.get_call_template = lambda args, kws: by_type([unliteral(each) for each in args], kws)
    return twin


# Passes of numba's compiler for what the core does not use: closures, `with`, literal loops, array
# expressions; each takes another look at every statement.
_NOT_NEEDED = {
    "WithLifting", "InlineClosureLikes", "RewriteSemanticConstants", "DeadBranchPrune",
    "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls",
    "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites",
    "AnnotateTypes", "NoPythonSupportedFeatureValidation", "DumpParforDiagnostics",
}  # fmt: skip


@cache
def _compilers() -> tuple[Any, Any]:
    """(numba's compiler for entries, that for all other functions).

    numba links each function with all that it calls, optimises that, makes machine code of it, and
    does so again in every caller. Here a function stays intermediate code of its own until an
    entry links all that it needs, once.
    """
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler, DefaultPassBuilder
    from numba.core.compiler_machinery import PassManager

    class InnerLibrary(JITCodeLibrary):
        """Intermediate code of one function, and whom it calls."""

        @property
        def codegen(self) -> Any:
            return self

        def set_env(self, *_: object) -> None:
            """Environments serve functions that Python calls."""

        def finalize(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

    class EntryLibrary(JITCodeLibrary):
        """Links all functions below an entry: callers first, for LLVM drops what nobody calls."""

        def finalize(self) -> None:
            found: dict[Any, None] = {}

            def visit(library: Any) -> None:
                if library in found:
                    return
                if isinstance(library, InnerLibrary):
                    for below in library._linking_libraries:
                        visit(below)
                found[library] = None

            for library in self._linking_libraries:
                visit(library)
            self._linking_libraries = list(reversed(found))
            super().finalize()

    class EntryCompiler(Compiler):
        def __init__(self, typing: Any, target: Any, _: Any, *rest: Any) -> None:
            library = EntryLibrary(target.codegen(), "entry")
            library.enable_object_caching()
            super().__init__(typing, target, library, *rest)

        def compile_extra(self, func: Any) -> Any:
            with _in_haste():
                return super().compile_extra(func)

    class InnerCompiler(Compiler):
        def define_pipelines(self) -> list[PassManager]:
            usual = DefaultPassBuilder.define_nopython_pipeline(self.state).passes
            lean = PassManager("lean")
            lean.passes = [each for each in usual if each[0].__name__ not in _NOT_NEEDED]
            lean.finalize()
            return [lean]

        def __init__(self, typing: Any, target: Any, _: Any, *rest: Any) -> None:
            super().__init__(typing, target, InnerLibrary(target.codegen(), "inner"), *rest)

    return EntryCompiler, InnerCompiler


# Signatures of numba's own functions and operators by what they were called with.
_known_calls: dict[Any, Any] = {}


@contextmanager
def _in_haste() -> Iterator[None]:
    """Compiles in four fifths of the time: nothing is collected of the many small objects that stay
    until the end, and of `a + b` numba tries its dozens of templates once for each pair of types.
    """
    from numba.core.types import functions

    calls: Any = functions.BaseFunction
    by_templates = calls.get_call_type

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        call = self, args, tuple(kws.items())
        if call not in _known_calls:
            _known_calls[call] = by_templates(self, context, args, kws)
        return _known_calls[call]

    collects = gc.isenabled()
    gc.disable()
    calls.get_call_type = get_call_type
    try:
        yield
    finally:
        calls.get_call_type = by_templates
        if collects:
            gc.enable()


# What reading a damaged file raises.
_UNREADABLE = (
    OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ImportError,
    pickle.UnpicklingError,
)  # fmt: skip


def _shared_cache(function: Callable[..., Any]) -> Any:
    """numba's cache on disk, written by one process at a time; without a folder none.

    numba numbers a function's kernels in an index that it reads, extends and writes back. Two
    processes that compile the same function for different argument types at once can give both
    kernels one number, and whoever loads it later gets the wrong one. A file that cannot be read
    is as good as none; a disk that is full costs the next run its time.
    """
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
    from numba.core.runtime.nrt import rtsys

    class Place:
        """Where files lie; the folder's name stands for the state of all sources."""

        @classmethod
        def from_function(cls, function: object, file: object) -> Place:
            del function, file
            return cls()

        def ensure_cache_path(self) -> None:
            cache_folder().mkdir(parents=True, exist_ok=True)

        def get_cache_path(self) -> str:
            return str(cache_folder())

        def get_source_stamp(self) -> int:
            return 0

        def get_disambiguator(self) -> str:
            return ""

    class Files(CompileResultCacheImpl):
        _locator_classes: list[type[object]] = [Place]  # noqa: RUF012 (as numba declares it)

    class SharedCache(FunctionCache):
        _impl_class = Files

        def load_overload(self, sig: Any, target: Any) -> Any:
            # numba's version first takes in everything that its compiler knows, which takes as
            # long as importing numba; machine code needs its memory functions alone.
            rtsys.initialize(target)
            try:
                return self._load_overload(sig, target)
            except _UNREADABLE:
                self.flush()
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            from filelock import FileLock

            with suppress(*_UNREADABLE), FileLock(Path(self.cache_path) / "write.lock"):
                super().save_overload(sig, data)

    if not cache_is_writable():
        return NullCache()
    return SharedCache(function)
