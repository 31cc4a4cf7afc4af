"""Commands that repeat a request or a configuration, to copy into a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from constraints.axes import AXES
from constraints.rule import Layout
from planner.job.request import Request
from planner.predict.plan import Degrees

# Options that are not named after their field.
_OPTIONS = {"allow_tp_across_domains": "--allow-tp-across-nodes", "use": "--with"}
# Options that are repeated, once for each value.
_REPEATED = ("require", "forbid", "fix", "use", "without", "freeze")
# Fields that follow from others or that a search chooses; a command for a single configuration
# omits them.
_CHOSEN = ("gbs", "gbs_tokens", "gbs_tolerance", "limits", "recompute")
_CONDITIONS = ("require", "forbid", "fix", "fit_probability", "resolution")


def fit_command(request: Request) -> str:
    """`planner fit` for a request."""
    return shlex.join(("planner", "fit", *_words(request)))


def search_command(request: Request) -> str:
    """`planner search --model 70b …`, with every option that is not at its default."""
    return shlex.join(("planner", "search", *_words(request)))


def evaluate_command(
    request: Request,
    degrees: Degrees | None = None,
    recompute: str = "",
    layout: Layout | None = None,
) -> str:
    """`planner evaluate` of a configuration, without degrees if none are given. Empty if no option
    expresses the configuration: the search chooses the modules to offload, or layers mix recompute
    modes."""
    searched = "search" in (request.optimizer_offload, request.activation_offload)
    if searched or (layout is not None and len(layout.recomputed) > 1):
        return ""
    words = ["planner", "evaluate", *_words(request, leave_out=(*_CHOSEN, *_CONDITIONS))]
    if degrees is not None:
        words += _degree_words(request, degrees, recompute)
    if layout is not None and not layout.is_even:
        words += ["--layers-per-stage", _listed(layout.block_layers)]
    if layout is not None and layout.mtp_standalone:
        words.append("--mtp-standalone")
    if degrees is not None and layout is not None and recompute not in ("", "none"):
        again = layout.stage_recomputed
        words += ["--recompute-layers", _listed(again)] if again != layout.stage_layers else []
    return shlex.join(words)


# Degrees that a command states even at their usual value.
_ALWAYS = ("zero", "mbs", "grad_acc")


def degree_options() -> tuple[tuple[str, str, int], ...]:
    """Name, option and default of each degree; a degree at its default needs no option. Default -1:
    the option is always stated."""
    return tuple(
        (name, axis.spelled, -1 if name in _ALWAYS else axis.least) for name, axis in AXES.items()
    )


def _degree_words(request: Request, degrees: Degrees, recompute: str) -> Iterator[str]:
    # Without --etp the framework would use tp.
    experts = degrees.tp > 1 and request.find_model().spec.moe is not None
    for name, option, unsaid in degree_options():
        degree = getattr(degrees, name)
        if degree != unsaid or (name == "etp" and experts):
            yield from (f"--{option}", str(degree))
    if recompute not in ("", "none"):
        yield from ("--recompute", recompute)


# Fields without an option of their own; `framework` uses the word that the user gave.
_NO_OPTION = ("cp_sizes", "overrides", "written_for")


def _words(request: Request, leave_out: tuple[str, ...] = ()) -> Iterator[str]:
    """Options for the fields that differ from their defaults."""
    for name, field in Request.model_fields.items():
        value = getattr(request, name)
        default = field.get_default(call_default_factory=True)
        if name not in (*leave_out, *_NO_OPTION) and value != default:
            yield from _option(name, request.framework_word if name == "framework" else value)


def _option(name: str, value: object) -> Iterator[str]:
    option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
    match value:
        case bool():
            yield option if value else option.replace("--", "--no-", 1)
        case dict():
            for degree, values in value.items():
                yield from (f"--{AXES[degree].spelled}", _listed(values))
        case tuple() if name in _REPEATED:
            for one in value:
                yield from (option, one)
        case tuple():
            yield from (option, _listed(value))
        case _:
            yield from (option, str(value))


def _listed(values: tuple[object, ...]) -> str:
    return ",".join(str(value) for value in values)
