"""Framework profiles: `load_framework(name)`, `framework_names()`."""

from planner.frameworks.profile import (
    FrameworkProfile,
    framework_names,
    load_framework,
)
from planner.recompute import RecomputeMode

__all__ = ["FrameworkProfile", "RecomputeMode", "framework_names", "load_framework"]
