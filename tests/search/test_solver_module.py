"""The solver's module without pandas, and pandas where it is asked for after all."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
from planner.search.solver_module import cp_model
module = cp_model()
assert "pandas" not in sys.modules
model = module.CpModel()
number = model.new_int_var(0, 3, "")
model.maximize(number)
solver = module.CpSolver()
assert solver.solve(model) == module.OPTIMAL and solver.value(number) == 3
assert "pandas" not in sys.modules
import pandas
series = model.new_int_var_series("x", pandas.Index(range(2)), 0, 1)
assert isinstance(series, pandas.Series) and len(series) == 2
assert cp_model() is module
"""


def test_series_work_although_the_solver_was_imported_without_pandas() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)


def test_where_pandas_is_there_nothing_stands_for_it() -> None:
    script = """
import pandas
from planner.search.solver_module import cp_model
assert cp_model().pd is pandas
"""
    subprocess.run([sys.executable, "-c", script], check=True)
