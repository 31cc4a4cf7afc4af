"""Plan the launch of a large-language-model training run.

`find_plans(Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000))` gives the Pareto front of
plans; `evaluate` costs one given configuration. Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import constraints
import hardware
from planner._version import __version__
from planner.predict.displays import provide

if TYPE_CHECKING:
    from planner.job.request import Request
    from planner.launch.plans import find_plans
    from planner.predict.evaluate import evaluate
    from planner.predict.plan import Degrees, Plan
    from planner.search.result import SearchResult

__distribution__ = "trainplan"

__all__ = [
    "Degrees",
    "Plan",
    "Request",
    "SearchResult",
    "__version__",
    "evaluate",
    "find_plans",
]

_HOMES = {
    "Degrees": "planner.predict.plan",
    "Plan": "planner.predict.plan",
    "Request": "planner.job.request",
    "SearchResult": "planner.search.result",
    "evaluate": "planner.predict.evaluate",
    "find_plans": "planner.launch.plans",
}


def _demand_ours(*packages: Any) -> None:
    """ImportError if another distribution's package of the same name overwrote ours."""
    for package in packages:
        if getattr(package, "__distribution__", None) != __distribution__:
            raise ImportError(
                f"the package {package.__name__!r} that was found at "
                f"{getattr(package, '__file__', None) or list(package.__path__)} is not the one of "
                f"{__distribution__}: another distribution overwrote or hides it. Install "
                f"{__distribution__} in an environment of its own: pipx install {__distribution__} "
                f"(or: uv tool install {__distribution__})"
            )


_demand_ours(constraints, hardware)
provide(lambda: import_module("planner.report.plots"))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
