"""Python files: the values that their functions would return, and what their text says.

A `Reader` reads modules; `PythonFile.lookup` gives the value of a global name, `Function.call` what
a function returns, both plain values or a `Record` of what is not there.
"""

from planner.launch.languages.python.evaluate import (
    Function,
    PythonFile,
    Reader,
    dotted_name,
    evaluated,
)
from planner.launch.languages.python.syntax import (
    Neighbours,
    PythonError,
    assigned,
    bound_name,
    last_name,
    written,
)
from planner.launch.languages.python.values import UNKNOWN, Record, are_plain, calculated

__all__ = [
    "UNKNOWN",
    "Function",
    "Neighbours",
    "PythonError",
    "PythonFile",
    "Reader",
    "Record",
    "are_plain",
    "assigned",
    "bound_name",
    "calculated",
    "dotted_name",
    "evaluated",
    "last_name",
    "written",
]
