"""The rules that make a plan legal. A rule is a name, a sentence, a source and a mask over shapes.

`RULES` (in `constraints.registry`) is the only registry.
"""

# Read by planner/__init__.py: other distributions ship a package of this name too.
__distribution__ = "trainplan"
