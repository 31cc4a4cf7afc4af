"""Scripts and files inside YAML: Kubernetes jobs and ConfigMaps, SkyPilot tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.launch.languages.text import Text, join, spaced
from planner.launch.read.yaml_text import documents_of, read_yaml

_JOBS = (
    "JobSet", "TrainJob", "Job", "Pod", "PyTorchJob", "MPIJob", "StatefulSet", "LeaderWorkerSet",
    "Deployment", "CronJob", "TrainingRuntime", "ClusterTrainingRuntime", "RayJob",
)  # fmt: skip
# Where they say what runs.
_RUN = ("command", "args", "run", "entrypoint")


@dataclass(frozen=True)
class Embedded:
    """A text in a YAML file; `name` "": a script that runs, else the file that it becomes."""

    name: str
    text: Text


def pairs(node: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a table whose keys are scalars; none of another node."""
    if node.id == "mapping":
        yield from ((key.value, value) for key, value in node.value if key.id == "scalar")


def items(node: Any) -> Sequence[Any]:
    """The items of a list; none of another node."""
    return node.value if node.id == "sequence" else []


def is_embedding(text: str) -> bool:
    """Whether a YAML text starts a job with a script of its own."""
    tables = [content for content in documents_of(text).contents if isinstance(content, dict)]
    return any(table.get("kind") in _JOBS or _is_task(table) for table in tables)


def _is_task(document: dict[str, object]) -> bool:
    """A SkyPilot task."""
    return "run" in document and bool({"resources", "num_nodes", "workdir"} & document.keys())


def embedded_texts(source: Text) -> Iterator[Embedded]:
    """The files of the ConfigMaps first, then what the containers run."""
    documents = read_yaml(source.value).nodes
    for document in documents:
        for key, node in pairs(document):
            if key == "data":
                for name, value in pairs(node):
                    blocks = (item for item in _scalars(value) if item.style == "|")
                    yield from (Embedded(name, _block(item, source)) for item in blocks)
    for document in documents:
        yield from (Embedded("", script) for script in _scripts(document, source))


def embedded_environment(source: Text) -> dict[str, Text]:
    """Variables of the containers' `env` and `envFrom` and a SkyPilot task's `envs`, the first of
    each name."""
    found: dict[str, Text] = {}
    documents = read_yaml(source.value).nodes
    for document in documents:
        for name, value in _variables(document, source):
            found.setdefault(name, value)
    # `envFrom`: the entries of a ConfigMap.
    tables = [value for one in documents for key, value in pairs(one) if key == "data"]
    for name, node in (entry for table in tables for entry in pairs(table)):
        if "configMapRef" in source.value and name.isidentifier() and node.id == "scalar":
            found.setdefault(name, _word(node, source))
    return found


def _variables(document: Any, source: Text) -> Iterator[tuple[str, Text]]:
    for table in _tables(document):
        stated = items(table["env"]) if "env" in table else ()
        entries = [dict(pairs(item)) for item in stated]
        whole = [entry for entry in entries if {"name", "value"} <= entry.keys()]
        named = [(e["name"].value, e["value"]) for e in whole if e["name"].id == "scalar"]
        named += pairs(table["envs"]) if "envs" in table else ()
        yield from ((name, _word(inner, source)) for name, inner in named if inner.id == "scalar")


def _tables(node: Any) -> Iterator[dict[str, Any]]:
    """A table and those inside it, in the order in which they begin."""
    for item in items(node):
        yield from _tables(item)
    table = dict(pairs(node))
    yield table
    for value in table.values():
        yield from _tables(value)


def _scalars(node: Any) -> list[Any]:
    """The node, or the items of a list, that are scalars."""
    return [item for item in (items(node) or [node]) if item.id == "scalar"]


def _scripts(document: Any, source: Text) -> Iterator[Text]:
    """What `command`, `args` and `run` say: literal blocks, what a shell is given, else words."""
    for table in _tables(document):
        said = [item for name in _RUN if name in table for item in _scalars(table[name])]
        blocks = [_block(item, source) for item in said if item.style == "|"]
        words = [_word(item, source) for item in said]
        given = [after for flag, after in pairwise(words) if re.fullmatch(r"-\w*c", flag.value)]
        yield from blocks or given or ([spaced(words)] if words else [])


def _word(node: Any, source: Text) -> Text:
    """A scalar as it stands in its file, without its quotes; made where it is written otherwise."""
    written = source[node.start_mark.index : node.end_mark.index]
    plain = written[1:-1] if node.style else written
    return plain if plain.value == node.value else Text.made(node.value)


def _block(node: Any, source: Text) -> Text:
    """A literal block without its indentation, every character with its place."""
    lines = node.value.split("\n")
    at = source.value.index("\n", node.start_mark.index) + 1
    pieces: list[Text] = []
    for line in lines if lines[-1] else lines[:-1]:  # `|-` leaves no empty last one
        end = source.value.find("\n", at)
        end = len(source.value) if end < 0 else end
        start = max(at, end - len(line))
        pieces += [source[start:end], Text.made("\n")]
        at = end + 1
    return join(pieces)
