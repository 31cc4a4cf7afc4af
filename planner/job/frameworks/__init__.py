"""Framework profiles: `load_framework(name)`, `framework_names()`."""

from planner.job.frameworks.profile import (
    DtypeModeName,
    FrameworkProfile,
    framework_names,
    load_framework,
)
from planner.job.recompute import RecomputeMode

__all__ = [
    "DtypeModeName",
    "FrameworkProfile",
    "RecomputeMode",
    "framework_names",
    "load_framework",
]
