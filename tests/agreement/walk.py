"""Every plan of a search through `evaluate`, `launch` and `check`, and what they disagree about."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from hardware.errors import HardwareError
from planner.cli.declared import command
from planner.cli.evaluate import given_configuration
from planner.job.errors import CannotTellError, NothingFitsError, UsageError
from planner.job.request import Request
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.folder import launch_folder, write_folder
from planner.launch.plans import CannotExpressError, find_plans, launch_of
from planner.launch.read.found import Hints
from planner.launch.registry import Target, target_of_profile
from planner.predict.command_line import evaluate_command
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.search.result import SearchResult

# `evaluate` computes the same sums outside of the compiled kernel.
EQUAL = 1e-6
# A launch file has whole numbers of layers and no more digits of a share than it prints.
READ_BACK = 1e-3


@dataclass(frozen=True)
class Disagreement:
    """Two commands that say different things of a plan."""

    request: Request
    plan: Plan
    between: str
    text: str

    def __str__(self) -> str:
        told = self.request.model_dump(exclude_defaults=True, mode="json")
        return f"{self.between}: {self.text}\n    {self.plan!r}\n    {told}"


@dataclass
class Walked:
    """What a search's plans went through. `refused`: by a writer, as the search had said."""

    plans: int = 0
    written: int = 0
    refused: int = 0
    why_none: str = ""


def walk(
    request: Request, folder: Path, time_limit_s: float = 20.0, most: int | None = None
) -> tuple[Walked, list[Disagreement]]:
    """A search, and each of its plans, `most` at most, through the other three commands."""
    try:
        result = find_plans(request, time_limit_s=time_limit_s)
    except (UsageError, HardwareError, NothingFitsError, CannotTellError) as error:
        return Walked(why_none=str(error).splitlines()[0]), []
    walked, found = Walked(plans=len(result.plans)), []
    for number, plan in enumerate(result.plans[:most], start=1):
        found += [
            Disagreement(request, plan, *said)
            for said in (*_evaluated(request, plan), *_launched(result, number, folder, walked))
        ]
    return walked, found


def _evaluated(request: Request, plan: Plan) -> Iterator[tuple[str, str]]:
    """Differences from `evaluate` of the same configuration, by library and by command line."""
    decided, layout = decided_request(request, plan), plan.layout
    layers = layout.block_layers, layout.recomputed or None, layout.mtp_standalone
    try:
        again = evaluate(decided, plan.degrees, plan.recompute, *layers)
    except (UsageError, HardwareError) as error:
        yield "search, evaluate", str(error)
        return
    yield from (("search, evaluate", text) for text in _differences(plan, again, EQUAL))
    text = evaluate_command(decided, plan.degrees, plan.recompute, layout)
    if not text:
        return
    options = command("evaluate").make_context("evaluate", shlex.split(text)[2:]).params
    try:
        again = given_configuration(options).plan()
    except (UsageError, HardwareError) as error:
        yield "search, evaluate's command", f"{error}: {text}"
        return
    for said in _differences(plan, again, EQUAL):
        yield "search, evaluate's command", f"{said}: {text}"


def _launched(
    result: SearchResult, number: int, folder: Path, walked: Walked
) -> Iterator[tuple[str, str]]:
    """Differences from what `check` says of the launch folder, if a writer takes the plan."""
    plan, request = result.plans[number - 1], result.request
    target = target_of_profile(request.framework)
    if target is None:
        return
    decided = decided_request(request, plan)
    try:
        launch = launch_of(plan, decided, target, "torchrun", result.job.used_gpus)
    except CannotExpressError as error:
        walked.refused += 1
        known = any(refusal.reason in note for refusal in error.refusals for note in result.notes)
        if not known:
            yield "search, launch", str(error)
        return
    rmtree(folder, ignore_errors=True)
    write_folder(folder, launch_folder(launch).files, force=False)
    walked.written += 1
    yield from _checked(plan, decided, target, folder)


def _checked(
    plan: Plan, request: Request, target: Target, folder: Path
) -> Iterator[tuple[str, str]]:
    # A person names the model of a Python configuration, which holds its size alone.
    hints = Hints(model=request.model) if target.name == "torchtitan" else Hints()
    gpus = f"{plan.degrees.gpus}x{(request.gpus or '').partition('x')[2]}"
    try:
        found = read_given([str(folder)], hints, 1, gpus, None).found
        assessment = assess(found, gpus=gpus)
    except (UsageError, HardwareError, CannotTellError) as error:
        yield "launch, check", str(error)
        return
    yield from (("launch, check", f"{one.rule}: {one.text}") for one in assessment.problems)
    if assessment.plan is None:
        yield "launch, check", "no prediction"
        return
    for text in _differences(plan, assessment.plan, READ_BACK):
        yield "launch, check", text


def _canonical(plan: Plan) -> Degrees:
    """The degrees; where nothing is replicated all ZeRO stages are the same."""
    degrees = plan.degrees
    alone = degrees.dp * degrees.cp == 1
    return degrees.model_copy(update={"zero": 0}) if alone else degrees


def _differences(plan: Plan, other: Plan, within: float) -> Iterator[str]:
    """Fields that another command has otherwise, numbers beyond a share."""
    if _canonical(plan) != _canonical(other):
        yield f"degrees {plan.degrees} and {other.degrees}"
    for name in ("step_time_s", "peak_bytes", "limit_bytes"):
        one, two = getattr(plan, name), getattr(other, name)
        if abs(two / one - 1.0) > within:
            yield f"{name} {one:.6g} and {two:.6g}"
    if within == EQUAL and set(plan.techniques) != set(other.techniques):
        yield f"techniques {plan.techniques} and {other.techniques}"
