"""torchtitan: a TOML file (0.2), or a Python module with a configuration (0.3).

`options.toml` has its settings for running a plan.
"""

from __future__ import annotations

from planner.launch.options import run_options

TORCHTITAN = run_options("torchtitan")["run"]
# The setting's place in torchtitan 0.3.
ASYNC_TP_0_3 = run_options("torchtitan")["run-0.3"]["async-tp"]
