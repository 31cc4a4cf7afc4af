"""JSON schemas of what the planner reads and prints: `planner schemas`.

Documents that are records of ours have the schema that pydantic derives from them. The others are
declared here, to their first level. A schema's `$id` ends with its version, which rises when a
field goes away or changes its meaning; fields may be added without that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from planner.job.errors import unknown_name

Mode = Literal["validation", "serialization"]
Record = dict[str, Any]


class _Document(BaseModel):
    """A document that a command builds itself; later versions may have more fields."""

    model_config = ConfigDict(extra="allow")


class MemoryDocument(_Document):
    """`planner memory --json`: bytes and seconds."""

    version: int
    request: Record
    model: str
    framework: str
    framework_version: str
    dtype: str
    gpu: str
    seq: int
    degrees: dict[str, int]
    recompute: str
    layout: Record
    total_bytes: float
    interval: Record
    limit_bytes: float
    usable_bytes: float
    fits: bool
    fit_probability: float
    heaviest_stage: int
    dropless_worst_case: Record | None
    stages: list[Record]
    passes: list[Record]
    solution: Record | None
    advice: Record | None
    assumptions: list[str]


class CheckDocument(_Document):
    """`planner check --json`; of files that describe no single run, fewer fields have values."""

    files: list[str]
    format: str
    framework: str
    runs: bool | None
    fits: bool | None
    verdict: str
    passes: bool | None
    problems: list[Record]
    configuration: Record | None
    assumed: list[Any]
    plan: Record | None
    fit_verdict: str | None
    changes: list[Any]
    settings: list[Any]


class LaunchDocument(_Document):
    """`planner launch --json`: what was written, and where."""

    folder: str
    framework: str
    nodes_as: str
    checkpoints: str
    files: list[str]
    kept: Record
    removed: list[str]
    departures: list[Any]
    expectations: Record


class BesideDocument(_Document):
    """`planner explain FILE 1 7 --json`: two plans, seconds and bytes."""

    plans: list[int]
    step_time_s: list[float]
    ratio: dict[str, float]
    peak_bytes: list[float]
    settings: list[Record]
    time_s: list[Record]
    memory_bytes: list[Record]
    summary: str


@dataclass(frozen=True, slots=True)
class Schema:
    """A document: what it is, the version of its form, its type; `lacks`: fields that it
    leaves out of some records."""

    words: str
    version: int
    type: Callable[[], Any]
    mode: Mode = "serialization"
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _search() -> Any:
    from planner.search.result import SearchResult

    return SearchResult


def _explanation() -> Any:
    from planner.search.explanation import Explanation

    return Explanation


def _fit() -> Any:
    from planner.search.fit import FitAnswer

    return FitAnswer


def _comparison() -> Any:
    from planner.compare.results import Comparison

    return Comparison


def _scaling() -> Any:
    from planner.compare.results import Scaling

    return Scaling


def _buying() -> Any:
    from planner.compare.buying import Buying

    return Buying


def _budget() -> Any:
    from planner.compare.budget import Budget

    return Budget


def _request() -> Any:
    from planner.job.request import Request

    return Request


def _model() -> Any:
    from planner.job.specs import ModelSpec

    return ModelSpec


# Studies of many plans print each without its stages.
_NO_STAGES = {"Plan": ("stages",)}

SCHEMAS: Mapping[str, Schema] = {
    "search": Schema("planner search, evaluate: plan files and --json", 7, _search),
    "explain": Schema("planner explain --json", 1, _explanation),
    "explain-two": Schema("planner explain FILE 1 7 --json", 1, lambda: BesideDocument),
    "fit": Schema("planner fit --json", 1, _fit),
    "memory": Schema("planner memory --json", 1, lambda: MemoryDocument),
    "check": Schema("planner check --json", 1, lambda: CheckDocument),
    "launch": Schema("planner launch --json", 1, lambda: LaunchDocument),
    "compare": Schema("planner compare --json", 1, _comparison, lacks=_NO_STAGES),
    "scale": Schema("planner scale --json", 1, _scaling, lacks=_NO_STAGES),
    "buy": Schema("planner buy --json", 1, _buying),
    "budget": Schema("planner budget --json", 1, _budget, lacks=_NO_STAGES),
    "request": Schema("the request of a plan file: options", 1, _request, "validation"),
    "model": Schema("a model file, .toml, of --model", 1, _model, "validation"),
}  # fmt: skip


def schema_of(name: str) -> Record:
    """The schema of a document. UsageError lists the names."""
    if name not in SCHEMAS:
        raise unknown_name("document", name, SCHEMAS, f"known are {', '.join(SCHEMAS)}")
    found = SCHEMAS[name]
    schema = TypeAdapter(found.type()).json_schema(mode=found.mode)
    # Later versions may have more fields, and `--json` of some commands has more than the record.
    schema["additionalProperties"] = True
    for record, fields in found.lacks.items():
        needed = schema["$defs"][record]["required"]
        schema["$defs"][record]["required"] = [one for one in needed if one not in fields]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:trainplan:{name}:{found.version}",
        "description": found.words,
    }
    return head | {key: value for key, value in schema.items() if key not in head}
