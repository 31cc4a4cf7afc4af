"""Scripts and files inside YAML: Kubernetes jobs and ConfigMaps, SkyPilot tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.launch.read.text import Text, join, spaced

if TYPE_CHECKING:
    from yaml.nodes import Node, ScalarNode

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


def is_embedding(text: str) -> bool:
    """Whether a YAML text starts a job with a script of its own."""
    from planner.launch.read.yaml_text import documents_of

    tables = [content for content in documents_of(text).contents if isinstance(content, dict)]
    return any(table.get("kind") in _JOBS or _is_task(table) for table in tables)


def _is_task(document: dict[str, object]) -> bool:
    """A SkyPilot task."""
    return "run" in document and bool({"resources", "num_nodes", "workdir"} & document.keys())


def embedded_texts(source: Text) -> Iterator[Embedded]:
    """The files of the ConfigMaps first, then what the containers run."""
    from planner.launch.read.yaml_text import read_yaml

    documents = read_yaml(source.value).nodes
    for document in documents:
        for key, node in _pairs(document):
            if key == "data":
                for name, value in _pairs(node):
                    blocks = (item for item in _scalars(value) if item.style == "|")
                    yield from (Embedded(name, _block(item, source)) for item in blocks)
    for document in documents:
        yield from (Embedded("", script) for script in _scripts(document, source))


def embedded_environment(source: Text) -> dict[str, Text]:
    """Variables of the containers' `env` and a SkyPilot task's `envs`, the first of each name."""
    from planner.launch.read.yaml_text import read_yaml

    found: dict[str, Text] = {}
    for document in read_yaml(source.value).nodes:
        for name, value in _variables(document, source):
            found.setdefault(name, value)
    return found


def _variables(node: Node, source: Text) -> Iterator[tuple[str, Text]]:
    from yaml.nodes import ScalarNode, SequenceNode

    items = node.value if isinstance(node, SequenceNode) else []
    for item in items:
        yield from _variables(item, source)
    for key, value in _pairs(node):
        if key == "env" and isinstance(value, SequenceNode):
            entries = (dict(_pairs(item)) for item in value.value)
            named = ((entry.get("name"), entry.get("value")) for entry in entries)
        elif key == "envs":
            named = ((ScalarNode("", name), inner) for name, inner in _pairs(value))
        else:
            yield from _variables(value, source)
            continue
        for name, inner in named:
            if isinstance(name, ScalarNode) and isinstance(inner, ScalarNode):
                yield name.value, _word(inner, source)


def _pairs(node: Node) -> Iterator[tuple[str, Node]]:
    from yaml.nodes import MappingNode, ScalarNode

    if isinstance(node, MappingNode):
        yield from ((key.value, value) for key, value in node.value if isinstance(key, ScalarNode))


def _scalars(node: Node) -> list[ScalarNode]:
    """The node, or the items of a list, that are scalars."""
    from yaml.nodes import ScalarNode, SequenceNode

    items = node.value if isinstance(node, SequenceNode) else [node]
    return [item for item in items if isinstance(item, ScalarNode)]


def _scripts(node: Node, source: Text) -> Iterator[Text]:
    """What `command`, `args` and `run` say: literal blocks, what a shell is given, else words."""
    from yaml.nodes import SequenceNode

    for item in node.value if isinstance(node, SequenceNode) else ():
        yield from _scripts(item, source)
    pairs = dict(_pairs(node))
    said = [item for name in _RUN if name in pairs for item in _scalars(pairs[name])]
    blocks = [_block(item, source) for item in said if item.style == "|"]
    words = [_word(item, source) for item in said]
    given = [after for flag, after in pairwise(words) if re.fullmatch(r"-\w*c", flag.value)]
    yield from blocks or given or ([spaced(words)] if words else [])
    for name, value in pairs.items():
        if name not in _RUN:
            yield from _scripts(value, source)


def _word(node: ScalarNode, source: Text) -> Text:
    """A scalar as it stands in its file, without its quotes; made where it is written otherwise."""
    written = source[node.start_mark.index : node.end_mark.index]
    plain = written[1:-1] if node.style else written
    return plain if plain.value == node.value else Text.made(node.value)


def _block(node: ScalarNode, source: Text) -> Text:
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
