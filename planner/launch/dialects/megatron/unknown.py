"""Options that no Megatron known here has, and what is not certain because of words not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice

from planner.launch.dialects.megatron.arguments import RELEASE, Arguments, options
from planner.launch.dialects.megatron.table import FLAGS
from planner.launch.read.found import (
    Edit,
    Problem,
    Setting,
    Severity,
    is_slip,
    nearest,
)
from planner.launch.read.own_effects import effect_of

# More unknown options tell no more.
MOST_NAMED = 50


@cache
def _of_the_model() -> frozenset[str]:
    """Options that say which model it is."""
    return frozenset(row.key for row in FLAGS)


def core_like(unknown: Setting) -> str:
    """Core's option that is most like an unknown one; empty where none is near."""
    return _option_like(_plain(unknown))


def slip_of(unknown: Setting) -> str:
    """Core's option of which an unknown one is surely a slip, or the start, which argparse does not
    take for it here; empty for one of a fork."""
    close, name = core_like(unknown), _plain(unknown)
    return close if close and (is_slip(name, close) or close.startswith(name)) else ""


@lru_cache
def _option_like(name: str) -> str:
    return nearest(name, options(), 0.75)


def _plain(setting: Setting) -> str:
    return setting.key.removeprefix("--").replace("_", "-")


def unknown_problems(arguments: Arguments, parser: str = RELEASE) -> Iterator[Problem]:
    """Each option that no parser has, with the nearest that core has; `parser`: whose it is not."""
    for setting in islice({item.key: item for item in arguments.unknown}.values(), MOST_NAMED):
        close = core_like(setting)
        text = f"{setting.key}: {parser} has no such option and refuses it"
        severity: Severity = "error"
        if parser != RELEASE:
            text = f"{setting.key}: no option that is known of {parser}"
            if hidden := _hidden_by(setting, close):
                severity, text = "missing", f"{text}: {hidden} is not known"
        if not setting.key.startswith("--"):
            text = f"{setting.key!r} stands where an option should"
            close = ""
        sure = close and close not in arguments.given and is_slip(_plain(setting), close)
        yield Problem(
            "unknown-option",
            text,
            severity,
            places=(setting.place,),
            fix=f"--{close}" if close else "",
            edits=(Edit(setting.key, None, f"--{close}"),) if sure else (),
        )


def _hidden_by(setting: Setting, close: str) -> str:
    """What a fork's option decides, by the name of core's nearest or by its own; empty for one that
    decides nothing, or that is off."""
    if f"--{close}" in _of_the_model():
        return "what it does to the model"
    if str(setting.value).lower() in ("0", "1", "false", "none"):
        return ""
    decides = {"trains": "what is trained", "parallel": "how the model is divided"}
    return decides.get(effect_of(setting.key), "")


def as_sure_as_read(problems: list[Problem], arguments: Arguments) -> list[Problem]:
    """What is said to be absent may stand in words whose value is not known."""
    hidden = [item for item in arguments.problems if item.rule == "unresolved"]
    if not hidden:
        return problems
    fix = ", ".join(dict.fromkeys(item.fix for item in hidden))
    return [
        replace(
            problem,
            severity="missing",
            fix=fix,
            edits=(),
        )
        if problem.severity in ("error", "missing") and _is_of_absence(problem, arguments)
        else problem
        for problem in problems
    ]


def _is_of_absence(problem: Problem, arguments: Arguments) -> bool:
    """Whether an option that is not given would take a problem away."""
    if problem.rule in ("model-unknown", "micro-batch", "precision-unknown"):
        return not problem.places  # an option that is given may leave a model to a checkpoint
    keys = [edit.key.removeprefix("--") for edit in problem.edits if edit.value is not None]
    return bool(keys) and all(key[0] != "$" and key not in arguments.given for key in keys)
