"""Scripts and files inside YAML: Kubernetes jobs and ConfigMaps, SkyPilot tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.launch.read.text import Text, join

if TYPE_CHECKING:
    from yaml.nodes import Node, ScalarNode

_JOBS = ("JobSet", "TrainJob", "Job", "Pod", "PyTorchJob")


@dataclass(frozen=True)
class Embedded:
    """A text in a YAML file; `name` "": a script that runs, else the file that it becomes."""

    name: str
    text: Text


def is_embedding(text: str) -> bool:
    """Whether a YAML text starts a job with a script of its own."""
    from planner.launch.read.yaml_text import YamlError, read_yaml

    try:
        documents = [content for content in read_yaml(text).contents if isinstance(content, dict)]
    except YamlError:
        return False
    return any(document.get("kind") in _JOBS or _is_task(document) for document in documents)


def _is_task(document: dict[str, object]) -> bool:
    """A SkyPilot task."""
    return "run" in document and bool({"resources", "num_nodes", "workdir"} & document.keys())


def embedded_texts(source: Text) -> Iterator[Embedded]:
    """The files of the ConfigMaps first, then the scripts. Only literal blocks (`|`) are read."""
    from planner.launch.read.yaml_text import read_yaml

    documents = read_yaml(source.value).nodes
    for document in documents:
        for key, node in _pairs(document):
            if key == "data":
                for name, pair in _pairs(node):
                    yield from (Embedded(name, _block(text, source)) for text in _blocks(pair))
    for document in documents:
        yield from (Embedded("", _block(script, source)) for script in _scripts(document, ""))


def _pairs(node: Node) -> Iterator[tuple[str, Node]]:
    from yaml.nodes import MappingNode, ScalarNode

    if isinstance(node, MappingNode):
        yield from ((key.value, value) for key, value in node.value if isinstance(key, ScalarNode))


def _blocks(node: Node) -> Iterator[ScalarNode]:
    """The node, if it is a literal block."""
    from yaml.nodes import ScalarNode

    if isinstance(node, ScalarNode) and node.style == "|":
        yield node


def _scripts(node: Node, key: str) -> Iterator[ScalarNode]:
    """Literal blocks under `args`, `command` or `run`."""
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    if isinstance(node, ScalarNode):
        if key in ("args", "command", "run"):
            yield from _blocks(node)
    elif isinstance(node, SequenceNode):
        for pair in node.value:
            yield from _scripts(pair, key)
    elif isinstance(node, MappingNode):
        for name, pair in _pairs(node):
            yield from _scripts(pair, name)


def _block(node: ScalarNode, source: Text) -> Text:
    """A literal block without its indentation, every character with its place."""
    lines = node.value.split("\n")
    at = source.value.index("\n", node.start_mark.index) + 1
    pieces: list[Text] = []
    for line in lines[:-1]:
        end = source.value.find("\n", at)
        end = len(source.value) if end < 0 else end
        start = max(at, end - len(line))
        pieces += [source[start:end], Text.made("\n")]
        at = end + 1
    return join(pieces)
