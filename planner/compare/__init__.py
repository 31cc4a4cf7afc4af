"""Comparing clusters for a training run: each at its own best plan, in days, money and energy.

`compare` answers for several clusters, `scale` for one kind of GPU in growing numbers. Both
return typed results with `to_frame()` (a pandas DataFrame), which the command line prints.
"""

from planner.compare.comparison import compare
from planner.compare.offers import Offer
from planner.compare.results import Comparison, ComparisonRow, ScalePoint, Scaling
from planner.compare.scaling import scale
from planner.compare.settings import Settings

__all__ = [
    "Comparison",
    "ComparisonRow",
    "Offer",
    "ScalePoint",
    "Scaling",
    "Settings",
    "compare",
    "scale",
]
