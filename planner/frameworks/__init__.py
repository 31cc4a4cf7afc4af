"""Framework profiles: `load_framework(name)`, `framework_names()`."""

from planner.frameworks.profile import (
    FrameworkProfile,
    RecomputeMode,
    framework_names,
    load_framework,
)

__all__ = ["FrameworkProfile", "RecomputeMode", "framework_names", "load_framework"]
