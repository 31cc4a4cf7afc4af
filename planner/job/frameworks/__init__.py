"""Framework profiles: `load_framework(name)`, `framework_names()`."""

from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import DtypeModeName, FrameworkProfile, load_framework
from planner.job.recompute import RecomputeMode

__all__ = [
    "DtypeModeName",
    "FrameworkProfile",
    "RecomputeMode",
    "framework_names",
    "load_framework",
]
