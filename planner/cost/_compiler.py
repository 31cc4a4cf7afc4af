"""Compiling an entry of the cost core with numba, to machine code that needs no numba to run.

numba makes twins of the entry's function and of all that it calls, each with globals of its own in
which the names of marked functions mean their twins. None has a Python wrapper: an entry is called
by its address (`planner.cost._machine_code`), the rest exists inside its machine code.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dis import get_instructions
from enum import EnumMeta
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from planner.cost._jit import marked
from planner.cost.build_core import LINKABLE

Constants = tuple[tuple[str, Any], ...]
"""Names of constants in the core's modules, and what they mean in compiled code instead."""


def machine_code(
    function: Callable[..., Any], arguments: list[Any], constants: Constants = ()
) -> tuple[str, bytes]:
    """(symbol, object file) of a function for arguments of such types."""
    import numba

    types = tuple(numba.typeof(each) for each in arguments)
    twin = _twin(function, constants)
    with _in_haste():
        twin.compile(types)
        compiled = twin.overloads[types]
        symbol: str = compiled.fndesc.llvm_func_name
        return symbol, _linked(compiled.library, symbol)


def _linked(entry: Any, symbol: str) -> bytes:
    """Object file of an entry, whose name alone is seen from outside, with all functions below it:
    callers first, for LLVM drops what nobody calls."""
    found: dict[Any, None] = {}

    def visit(library: Any) -> None:
        if library not in found:
            for below in getattr(library, "calls", ()):
                visit(below)
            found[library] = None

    visit(entry)
    del found[entry]
    whole = entry._codegen.create_library("entry")
    whole._final_module.link_in(entry._final_module, preserve=True)
    for library in reversed(found):
        whole._final_module.link_in(library._get_module_for_linking(), preserve=True)
    whole._final_module.link_in(_allocator(), preserve=True)
    for function in whole._final_module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    whole._optimize_final_module()
    for function in whole._final_module.functions:
        if function.is_declaration and function.name.startswith(("NRT_", "numba_", "Py")):
            raise RuntimeError(f"compiled code needs {function.name} of another numba than planned")
    code: bytes = _target(whole._codegen).emit_object(whole._final_module)
    return code


def _target(codegen: Any) -> Any:
    """What makes machine code: numba's, for this process; for a library (`build_core`) one of
    position-independent code."""
    if not os.environ.get(LINKABLE):
        return codegen._tm
    import llvmlite.binding as llvm

    options = codegen._tm_features, os.environ["NUMBA_CPU_NAME"]
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=options[1], features=options[0], opt=3, reloc="pic", codemodel="default"
    )


@cache
def _allocator() -> Any:
    """Intermediate code that makes and frees arrays as numba's does, by the C library alone.

    Before an array lie six words (`NRT_MemInfo`): the count of references first, its address
    fourth.
    """
    import llvmlite.binding as llvm
    from llvmlite import ir

    word, pointer, nothing = ir.IntType(64), ir.IntType(8).as_pointer(), ir.VoidType()
    module = ir.Module("allocator")

    def function(name: str, result: Any, *arguments: Any) -> Any:
        return ir.Function(module, ir.FunctionType(result, arguments), name)

    malloc, free = function("malloc", pointer, word), function("free", nothing, pointer)
    make = function("NRT_MemInfo_alloc_aligned", pointer, word, ir.IntType(32))
    drop = function("NRT_MemInfo_call_dtor", nothing, pointer)
    make.linkage = drop.linkage = "linkonce_odr"
    code, (size, alignment) = ir.IRBuilder(make.append_basic_block()), make.args
    alignment = code.zext(alignment, word)
    head = code.add(alignment, word(48))
    block = code.call(malloc, [code.add(size, head)])
    words = code.bitcast(block, word.as_pointer())
    code.store(word(1), words)
    last = code.add(code.ptrtoint(block, word), head)
    code.store(code.and_(last, code.neg(alignment)), code.gep(words, [word(3)]))
    code.ret(block)
    code = ir.IRBuilder(drop.append_basic_block())
    code.call(free, [*drop.args])
    code.ret_void()
    return llvm.parse_assembly(str(module))


def _plain_numbers(codes: EnumMeta) -> ModuleType:
    """The members of an enumeration as whole numbers: to numba a member has a type of its own, for
    which it would compile every function that takes one once more."""
    numbers = ModuleType(codes.__name__)
    members: dict[str, int] = dict(codes.__members__)
    vars(numbers).update((name, int(member)) for name, member in members.items())
    return numbers


Twins = Callable[[FunctionType, Constants], Any]
"""What makes the twin of a marked function."""


class TwinGlobals(dict[str, Any]):
    """Globals of a twin: those of the module, marked functions as their twins, made when read,
    enumerations as modules of numbers, and `constants`."""

    def __init__(self, outer: dict[str, Any], constants: Constants, twins: Twins) -> None:
        super().__init__(__name__=outer["__name__"], __builtins__=outer["__builtins__"])
        self._outer, self._constants, self._twins = outer, constants, twins

    def __missing__(self, name: str) -> Any:
        value = dict(self._constants).get(name, self._outer[name])
        if isinstance(value, FunctionType) and value in marked:
            value = self._twins(value, self._constants)
        elif isinstance(value, EnumMeta):
            value = _plain_numbers(value)
        self[name] = value
        return value


@cache
def _makes_arrays(function: FunctionType) -> bool:
    """Whether a function makes an array, or one below it does.

    Only such functions count references to arrays: to count what one is only handed takes a fifth
    of the time, and threads wait for each other's counts of the tables that they share. So a
    function that returns an array must have made it.
    """
    names = {each.argval for each in get_instructions(function) if each.opname == "LOAD_GLOBAL"}
    below = [function.__globals__.get(name) for name in names]
    return "zeros" in function.__code__.co_names or any(
        _makes_arrays(each) for each in below if isinstance(each, FunctionType) and each in marked
    )


@cache
def _twin(function: FunctionType, constants: Constants) -> Any:
    """The numba function of a marked one."""
    import numba

    njit: Any = numba.njit
    same = FunctionType(
        function.__code__,
        TwinGlobals(function.__globals__, constants, _twin),
        function.__name__,
        function.__defaults__,
    )
    same.__qualname__, same.__module__ = function.__qualname__, function.__module__
    twin = njit(
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=_makes_arrays(function),
        pipeline_class=_compiler(),
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
def _compiler() -> Any:
    """numba's compiler, for functions that stay intermediate code of their own.

    numba links each function with all that it calls, optimises that, makes machine code of it, and
    does so again in every caller. Here an entry links all that it needs, once (`_linked`).
    """
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler, DefaultPassBuilder
    from numba.core.compiler_machinery import PassManager

    class InnerLibrary(JITCodeLibrary):
        """Intermediate code of one function, and whom it calls."""

        @property
        def codegen(self) -> Any:
            return self

        @property
        def calls(self) -> list[Any]:
            """The code of functions that this one calls."""
            return self._linking_libraries

        def set_env(self, *_: object) -> None:
            """Environments serve functions that Python calls."""

        def get_pointer_to_function(self, *_: object) -> int:
            """Nobody calls it but other code."""
            return 0

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

        def finalize(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

    class InnerCompiler(Compiler):
        def define_pipelines(self) -> list[PassManager]:
            usual = DefaultPassBuilder.define_nopython_pipeline(self.state).passes
            lean = PassManager("lean")
            # No looking over the statements anew after passes that only might have changed them.
            lean._ENFORCING = False
            lean.passes = [each for each in usual if each[0].__name__ not in _NOT_NEEDED]
            lean.finalize()
            return [lean]

        def __init__(self, typing: Any, target: Any, _: Any, *rest: Any) -> None:
            super().__init__(typing, target, InnerLibrary(target.codegen(), "inner"), *rest)

    return InnerCompiler


# Signatures of numba's own functions and operators by what they were called with.
_known_calls: dict[Any, Any] = {}


@contextmanager
def _in_haste() -> Iterator[None]:
    """Compiles in two thirds of the time: nothing is collected of the many small objects that stay
    until the end; of `a + b` numba tries its dozens of templates once for each pair of types;
    it tells nobody what it does.
    """
    from numba.core import event
    from numba.core.types import functions

    calls: Any = functions.BaseFunction
    by_templates = calls.get_call_type

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        call = self, args, tuple(kws.items())
        if call not in _known_calls:
            _known_calls[call] = by_templates(self, context, args, kws)
        return _known_calls[call]

    def nothing(*_: object, **__: object) -> None:
        """Instead of what need not be done."""

    collects = gc.isenabled()
    gc.disable()
    with ExitStack() as changes:
        for owner, name, value in (
            (calls, "get_call_type", get_call_type),
            (event, "start_event", nothing),
            (event, "end_event", nothing),
        ):
            changes.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
    if collects:
        gc.enable()
