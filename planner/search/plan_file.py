"""Plan files: JSON documents of one `SearchResult`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from hardware.errors import HardwareError
from hardware.files import json_content, read_text
from planner.job.bounds import MOST_LAYERS
from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile, load_framework
from planner.job.frameworks.techniques import Technique
from planner.job.models.catalog import load_model
from planner.job.schedules import SCHEDULES
from planner.predict.plan import PLAN_FILE_VERSION, Plan
from planner.search.result import SearchResult

_MADE_BY = "make one with: planner search ... -o plans.json"


# The kind that reinforcement-learning plan files state.
RL_KIND: Literal["reinforcement learning"] = "reinforcement learning"


def is_rl_file(path: Path) -> bool:
    """Whether a file holds reinforcement-learning plans. UsageError if it is not JSON."""
    document = read_json(path)
    return isinstance(document, dict) and document.get("kind") == RL_KIND


def to_json(result: SearchResult) -> str:
    """The content of a plan file as JSON."""
    return result.model_dump_json(indent=1) + "\n"


def read_plan_file(path: Path) -> SearchResult:
    """The result in a plan file. UsageError says what is wrong with it."""
    document = read_json(path)
    if not isinstance(document, dict) or "version" not in document:
        raise UsageError(f"{path} is JSON but not a plan file; {_MADE_BY}")
    _check_version(path, document)
    if "points" in document and "results" in document:
        raise UsageError(
            f"{path} contains plans of several clusters, but one is needed here; search that one "
            "separately"
        )
    return _result(path, document)


def _check_version(path: Path, document: dict[str, Any]) -> None:
    version = document.get("version")
    if document.get("kind") == RL_KIND:
        raise UsageError(
            f"{path} contains plans of reinforcement learning, which this command does not read; "
            "planner explain, launch and tune do"
        )
    if not isinstance(version, int) or version not in range(1, PLAN_FILE_VERSION + 1):
        raise UsageError(
            f"{path} has plan-file version {version!r}; this planner reads versions 1 to "
            f"{PLAN_FILE_VERSION}; search again with it"
        )


def _from_version_1(_: dict[str, Any], request: dict[str, Any]) -> None:
    """Version 1 to 2: plans were a short, thinned front, with the default probability of fitting or
    none, and a search could also choose the offloaded fraction."""
    if request.get("activation_offload_fraction") == "search":
        request["activation_offload_fraction"] = 1.0  # each plan has its own


def _from_version_2(document: dict[str, Any], request: dict[str, Any]) -> None:
    """Version 2 to 3: `mtp_apart` is renamed to `mtp_standalone`; plans use no techniques."""
    for _, layout in _layouts(document):
        if "mtp_apart" in layout:
            layout["mtp_standalone"] = layout.pop("mtp_apart")
    request["without"] = _unused_before_3(request)
    request["use"] = [one.name for one in _offered(request) if one.use == "asked" and one.without]


def _framework(request: dict[str, Any]) -> FrameworkProfile:
    return load_framework(str(request.get("framework", "megatron-core")))


def _offered(request: dict[str, Any]) -> tuple[Technique, ...]:
    return _framework(request).techniques


def _unused_before_3(request: dict[str, Any]) -> list[str]:
    """Techniques that plans of version 2 did not use: all but those that their profile assumed."""
    return [one.name for one in _offered(request) if one.use != "asked" and not one.without]


def _from_version_3(_: dict[str, Any], request: dict[str, Any]) -> None:
    """Version 3 to 4: requests had an option for CUDA graphs, and searches used three techniques
    only on request."""
    use, without = ([*_list(request.get(name))] for name in ("use", "without"))
    use += ["cuda-graphs"] if request.pop("cuda_graphs", False) else []
    unused = _unused_before_3(request)
    later = ("bf16-gradients", "cuda-graphs", "megatron-fsdp")
    without += [name for name in later if name in unused and name not in (*use, *without)]
    request |= {"use": use, "without": without}


def _from_version_4(document: dict[str, Any], request: dict[str, Any]) -> None:
    """Version 4 to 5: plans may lack two techniques that have been on by default since."""
    used = [_list(plan.get("techniques")) for plan in _plans(document)]
    without = _list(request.get("without"))
    offered = _unused_before_3(request)
    later = [name for name in ("bf16-gradients", "fused-dispatch") if name in offered]
    unused = [name for name in later if not any(name in names for names in (without, *used))]
    request["without"] = [*without, *unused]


def _from_version_5(document: dict[str, Any], _: dict[str, Any]) -> None:
    """Version 5 to 6: layers that recompute in the plan's mode were stored apart from those of
    `others`, with zeros if there were none."""
    for plan, layout in _layouts(document):
        modes = {plan.get("recompute"): layout.get("recomputed"), **layout.pop("others", {})}
        layout["recomputed"] = {
            mode: row for mode, row in modes.items() if not isinstance(row, list) or any(row)
        }


def _from_version_6(_: dict[str, Any], request: dict[str, Any]) -> None:
    """Version 6 to 7: plans train the multi-token prediction that their model was published
    with."""
    request.setdefault("mtp_layers", None)
    if request["mtp_layers"] is None and _framework(request).mtp != "never":
        with suppress(UsageError):  # a model whose file is gone is told where it is needed
            request["mtp_layers"] = load_model(str(request.get("model"))).spec.mtp_layers or None


def _plans(document: dict[str, Any]) -> list[dict[str, Any]]:
    plans = (*_list(document.get("plans")), *_list(document.get("riskier")))
    return [plan for plan in plans if isinstance(plan, dict)]


def _layouts(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for plan in _plans(document):
        if isinstance(layout := plan.get("layout"), dict):
            yield plan, layout


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# Conversions from version n to version n + 1, starting with 1.
_STEPS = (_from_version_1, _from_version_2, _from_version_3, _from_version_4, _from_version_5,
          _from_version_6)  # fmt: skip


def _result(path: Path, document: Any) -> SearchResult:
    if isinstance(document, dict):
        _check_version(path, document)
        request = document.get("request")
        for step in _STEPS[document["version"] - 1 :]:
            step(document, request if isinstance(request, dict) else {})
        document["version"] = PLAN_FILE_VERSION
    try:
        result = SearchResult.model_validate(document)
    except ValidationError as error:
        raise _invalid(path, error) from None
    demand_whole(path, result)
    return result


def demand_whole(path: Path, result: SearchResult) -> None:
    """Raise UsageError for a plan whose parts contradict each other, which no command writes."""
    if not 0 <= result.recommended <= len(result.plans):
        raise UsageError(f"{path}: field 'recommended' is not a plan of the file; {_MADE_BY}")
    for number, plan in enumerate(result.plans):
        if plan.schedule not in SCHEDULES:
            raise UsageError(
                f"{path}: field 'plans.{number}.schedule': {plan.schedule!r} is not a schedule; "
                f"{_MADE_BY}"
            )
        if wrong := _wrong_field(plan):
            raise UsageError(
                f"{path}: field 'plans.{number}.{wrong}' does not agree with pp "
                f"{plan.degrees.pp}; {_MADE_BY}"
            )


class _Point(BaseModel):
    """Identifies a plan of one cluster on the front over several clusters."""

    cluster: str
    plan: Annotated[int, Field(ge=1)]


def _invalid(path: Path, error: ValidationError, table: str = "") -> UsageError:
    first = error.errors(include_url=False)[0]
    field = table + ".".join(str(part) for part in first["loc"])
    return UsageError(f"{path}: field {field!r}: {first['msg']}; {_MADE_BY}")


def _wrong_field(plan: Plan) -> str:
    """The first field whose length or index does not match the plan's stages; empty if all
    match."""
    pp, layout = plan.degrees.pp, plan.layout
    layers = (*layout.block_layers, *chain(*layout.recomputed.values()))
    agrees = {
        "stages": len(plan.stages) == pp,
        "heaviest_stage": 0 <= plan.heaviest_stage < pp,
        "stage_gpus": len(plan.stage_gpus) in (0, pp),
        "layout.block_layers": layout.block_layers and len(layout.block_layers) % pp == 0,
        "layout.recomputed": all(len(row) == pp for row in layout.recomputed.values()),
        "layout": all(0 <= layer <= MOST_LAYERS for layer in layers),
    }
    return next((field for field, right in agrees.items() if not right), "")


def read_plan(path: Path, number: int | None) -> tuple[SearchResult, int]:
    """The result that contains plan `number` of a file (default: the recommended one), and the
    plan's number in that result.

    For a search of one cluster the two numbers are equal; the file of several clusters numbers the
    plans of its front. UsageError says what is wrong.
    """
    document = read_json(path)
    if not isinstance(document, dict) or "points" not in document or "results" not in document:
        result = read_plan_file(path)
        return result, number or result.recommended or 1
    _check_version(path, document)
    points, results = document["points"], document["results"]
    if not isinstance(points, list) or not isinstance(results, dict):
        raise UsageError(f"{path}: 'points' must be a list and 'results' a table; {_MADE_BY}")
    number = 1 if number is None else number
    if not 1 <= number <= len(points):
        raise UsageError(f"there is no plan {number}; the file contains plans 1 to {len(points)}")
    try:
        point = _Point.model_validate(points[number - 1])
    except ValidationError as error:
        raise _invalid(path, error, f"points.{number - 1}.") from None
    return _result(path, results.get(point.cluster)), point.plan


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json_content(text, str(path))
    except HardwareError as error:
        raise UsageError(f"{error}; {_MADE_BY}") from None
