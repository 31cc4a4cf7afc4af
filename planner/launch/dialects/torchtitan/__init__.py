"""torchtitan: a TOML file (0.2), or a Python module with a configuration (0.3).

`options.toml` says how a plan runs.
"""

from __future__ import annotations

from planner.launch.options import run_options

TORCHTITAN = run_options("torchtitan")["run"]
# Where torchtitan 0.3 has it.
ASYNC_TP_0_3 = run_options("torchtitan")["run-0.3"]["async-tp"]
