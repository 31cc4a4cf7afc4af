"""Which page a JSON file of the planner becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hardware.errors import first_error
from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.cluster_front import ClusterFront, ClusterPoint
from planner.compare.results import Comparison, Scaling
from planner.job.errors import UsageError
from planner.report.pages.front import Entry
from planner.report.pages.page import Page
from planner.report.pages.plans import plans_page, result_page
from planner.report.pages.studies import study_page
from planner.search.plan_file import demand_whole, read_json, read_plan_file

Model = TypeVar("Model", bound=BaseModel)
_MADE_BY = "search, evaluate, compare, buy, scale and budget write such files with -o FILE.json"


def page_of_file(path: Path, before_costing: Callable[[], None] = lambda: None) -> Page:
    """The page of a plan file, or of what `compare`, `buy`, `scale` or `budget` wrote. UsageError
    says what is wrong with the file. `before_costing` is called before shapes are costed."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise UsageError(f"{path} is JSON but no answer of the planner: {_MADE_BY}")
    if "points" in document and "results" in document:
        front = _validated(path, ClusterFront, document)
        for result in front.results.values():
            demand_whole(path, result)
        before_costing()
        return cluster_front_page(front, path)
    if "plans" in document and "request" in document:
        result = read_plan_file(path)
        before_costing()
        return result_page(result, path)
    if "rows" in document and "basis" in document and "model" not in document:
        return study_page(_validated(path, Buying, document))
    if "rows" in document and "basis" in document:
        runs = _with_stages(document["rows"])
        return study_page(_validated(path, Comparison, document | {"rows": runs}))
    if "goal" in document and "law" in document:
        (row,) = _with_stages([document])
        return study_page(_validated(path, Budget, row))
    if "points" in document and "knees" in document:
        runs = _with_stages(document["points"])
        return study_page(_validated(path, Scaling, document | {"points": runs}))
    raise UsageError(f"{path} is JSON but no answer of the planner: {_MADE_BY}")


def cluster_front_page(front: ClusterFront, path: Path | None) -> Page:
    """The page of one front over several clusters. UsageError where the file contradicts itself."""
    entries = [_entry(path, front, point) for point in front.points]
    return plans_page(path, entries, front.notes)


def _entry(path: Path | None, front: ClusterFront, point: ClusterPoint) -> Entry:
    result = front.results.get(point.cluster)
    if result is None or not 1 <= point.plan <= len(result.plans):
        raise UsageError(f"{path}: there is no plan {point.plan} of {point.cluster}; {_MADE_BY}")
    return Entry(result, point.plan, point.cluster)


def _with_stages(rows: Any) -> Any:
    """Rows whose plans have the stages that these files leave out."""
    if not isinstance(rows, list):
        return rows
    return [_with_stage(row) for row in rows]


def _with_stage(row: Any) -> Any:
    match row:
        case {"run": {"plan": dict(plan)} as run}:
            return row | {"run": run | {"plan": {"stages": []} | plan}}
        case _:
            return row


def _validated(path: Path, kind: type[Model], document: Any) -> Model:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        field, wrong = first_error(error)
        raise UsageError(f"{path}: field {field!r}: {wrong}; {_MADE_BY}") from None
