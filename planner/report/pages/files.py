"""Chooses the page for a JSON file of the planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hardware.errors import first_error
from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.cluster_front import ClusterFront
from planner.compare.results import Comparison, Scaling
from planner.job.errors import UsageError
from planner.report.pages.page import Page
from planner.report.pages.plans import cluster_front_page, result_page
from planner.report.pages.studies import Study, study_page
from planner.report.pages.sweep import RESULTS, sweep_page
from planner.report.pages.tune import tune_page
from planner.search.plan_file import RL_KIND, demand_whole, read_json, read_plan_file
from planner.tune.outcome import DOCUMENT, TunedStudy

Model = TypeVar("Model", bound=BaseModel)
# Fields that identify the file of each kind of study.
_STUDIES: dict[type[Study], set[str]] = {
    Comparison: {"rows", "basis", "model"},
    Buying: {"rows", "basis"},
    Budget: {"goal", "law"},
    Scaling: {"points", "knees"},
}
_MADE_BY = (
    "search, evaluate, compare, buy, scale and budget write such files with -o FILE.json, tune and "
    "sweep a folder"
)


def page_of_file(path: Path, before_costing: Callable[[], None] = lambda: None) -> Page:
    """The page of a plan file, of a result of `compare`, `buy`, `scale` or `budget`, or of the
    folder of `tune` or `sweep`. Raises UsageError if the file is wrong. `before_costing` is called
    before shapes are costed."""
    if (path / RESULTS).is_file():
        return sweep_page(path)
    if path.is_dir():
        path = _document_of(path)
    document = read_json(path)
    keys = document.keys() if isinstance(document, dict) else set()
    if isinstance(document, dict) and document.get("kind") == RL_KIND:
        from planner.report.pages.rl import rl_page_of_file

        before_costing()
        return rl_page_of_file(path)
    if {"points", "results"} <= keys:
        front = _validated(path, ClusterFront, document)
        for result in front.results.values():
            demand_whole(path, result)
        before_costing()
        return cluster_front_page(front, path)
    if {"plans", "request"} <= keys:
        result = read_plan_file(path)
        before_costing()
        return result_page(result, path)
    if {"trials", "best", "reason"} <= keys:
        return tune_page(_validated(path, TunedStudy, document))
    for kind, fields in _STUDIES.items():
        if fields <= keys:
            return study_page(_validated(path, kind, _with_stages(document)))
    raise UsageError(f"{path} is JSON but no answer of the planner: {_MADE_BY}")


def _document_of(folder: Path) -> Path:
    """The path of the results in the folder of a `planner tune` study. Raises UsageError if no
    trial has ended yet or if the folder is not that of a study."""
    path = folder / DOCUMENT
    if not path.is_file():
        raise UsageError(
            f"{folder} is a folder without {DOCUMENT}: give a file, or the folder of a study that "
            "planner tune has ended a trial of"
        )
    return path


def _with_stages(document: Any) -> Any:
    """The study with an empty list of stages in each plan, because its file leaves the stages
    out."""
    match document:
        case {"run": {"plan": dict(plan)} as run}:
            document = document | {"run": run | {"plan": {"stages": []} | plan}}
    for name in ("rows", "points"):
        if isinstance(document, dict) and isinstance(document.get(name), list):
            document = document | {name: [*map(_with_stages, document[name])]}
    return document


def _validated(path: Path, kind: type[Model], document: Any) -> Model:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        field, wrong = first_error(error)
        raise UsageError(f"{path}: field {field!r}: {wrong}; {_MADE_BY}") from None
