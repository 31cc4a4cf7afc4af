"""Facts about machines: GPUs, node shapes and prices, each number with unit and source.

This package knows nothing of models or plans. `hardware.link_curves` and
`hardware.efficiency` hold what was fitted on measurements.
"""

# `hardware` is a name that other distributions use too; `planner` checks whose this one is.
__distribution__ = "trainplan"
