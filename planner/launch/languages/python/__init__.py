"""Python files: the values of their functions and names.

A `Reader` reads modules. `PythonFile.lookup` gives the value of a global name and `Function.call`
the result of a function. Either is a plain value, or a `Record` of an object whose source is not
available.
"""

from planner.launch.languages.python.evaluate import Function as Function
from planner.launch.languages.python.evaluate import PythonFile as PythonFile
from planner.launch.languages.python.evaluate import Reader as Reader
from planner.launch.languages.python.evaluate import dotted_name as dotted_name
from planner.launch.languages.python.evaluate import evaluated as evaluated
from planner.launch.languages.python.syntax import Neighbours as Neighbours
from planner.launch.languages.python.syntax import PythonError as PythonError
from planner.launch.languages.python.syntax import assigned as assigned
from planner.launch.languages.python.syntax import bound_name as bound_name
from planner.launch.languages.python.syntax import last_name as last_name
from planner.launch.languages.python.syntax import written as written
from planner.launch.languages.python.values import UNKNOWN as UNKNOWN
from planner.launch.languages.python.values import Record as Record
from planner.launch.languages.python.values import are_plain as are_plain
from planner.launch.languages.python.values import calculated as calculated
from planner.launch.languages.python.values import compared as compared
