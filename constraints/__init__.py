"""What makes a plan legal: one rule = a name, a sentence, a source and a mask over shapes.

`RULES` (in `constraints.registry`) is the only registry.
"""

# Read by planner/__init__.py: other distributions ship a package of this name too.
__distribution__ = "trainplan"
