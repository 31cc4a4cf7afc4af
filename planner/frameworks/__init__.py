"""Framework profiles: `load_framework(name)`, `framework_names()`."""

from planner.frameworks.profile import (
    DtypeModeName,
    FrameworkProfile,
    RecomputeMode,
    framework_names,
    load_framework,
)

__all__ = [
    "DtypeModeName",
    "FrameworkProfile",
    "RecomputeMode",
    "framework_names",
    "load_framework",
]
