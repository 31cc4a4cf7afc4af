"""Machine code of an entry of the cost core, made by LLVM.

`planner.cost._translate` writes the text in LLVM's language. llvmlite's public interface compiles
it to machine code, which needs only the C library. Loops are neither vectorised nor unrolled: that
would take a third more time to compile and would make the core slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

from planner.cost._operations import DECLARED
from planner.cost._translate import Code, Unit, typed
from planner.cost._types import FLOAT, WHOLE, Array, Record, Type, UnplannedError, type_of
from planner.cost.build_core import LINKABLE


def machine_code(symbol: str, function: Callable[..., Any], arguments: list[Any]) -> bytes:
    """The object file of a function for arguments of these types; the function is called `symbol`
    in it."""
    text = translated(symbol, function, arguments)
    try:
        return _compiled(text)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise UnplannedError(f"this version of LLVM is too different: {error}") from error


def translated(symbol: str, function: Callable[..., Any], arguments: list[Any]) -> str:
    """A function and all functions that it calls, in LLVM's language."""
    unit = Unit()
    code = unit.code(cast(Any, function), tuple(map(_argument_type, arguments)))
    texts = [each.text() for each in unit.codes.values()]
    return "\n".join([DECLARED, *texts, _called_outside(code, symbol)])


def _argument_type(argument: Any) -> Type:
    if isinstance(argument, int | float):
        return WHOLE if isinstance(argument, int) else FLOAT
    item = type_of(argument.dtype)
    if not isinstance(item, str | Record):
        raise UnplannedError(f"an argument of type {argument.dtype}")
    return Array(item, (None,) * argument.ndim) if argument.ndim else item


def _called_outside(code: Code, symbol: str) -> str:
    """The function that the planner calls. It always returns a number: 0 if the core's function
    returns none."""
    given = typed(code.arguments)
    call = f"call {code.result()} @{code.name}({given})"
    if code.result() == FLOAT:
        lines = f"%found = {call}\nret double %found"
    else:
        lines = f"{call}\nret double 0.0"
    return f"define double @{symbol}({given}) nounwind {{\n{lines}\n}}\n"


def _compiled(text: str) -> bytes:
    """Optimise a module and make an object file of it."""
    import llvmlite.binding as llvm

    machine = _target_machine()
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def _target_machine() -> Any:
    """LLVM's target: this processor, or the one that numba's environment variables name. The code
    is position-independent if it is for a library (`planner.cost.build_core`)."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = os.environ.get("NUMBA_CPU_FEATURES") or llvm.get_host_cpu_features().flatten()
    linkable = bool(os.environ.get(LINKABLE))
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name(),
        features=features,
        opt=3,
        reloc="pic" if linkable else "default",
        codemodel="default" if linkable else "jitdefault",
    )
