"""Facts about machines: GPUs, node shapes and prices, each number with unit and source.

This package does not know models or plans. `hardware.link_curves` and `hardware.efficiency` hold
figures fitted on measurements.
"""

# Other distributions have a package named `hardware` too; `planner` checks that this one is ours.
__distribution__ = "trainplan"
