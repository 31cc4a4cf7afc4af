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

_JOBS = ("JobSet", "TrainJob", "Job", "Pod", "PyTorchJob")
# Where they say what runs.
_RUN = ("command", "args", "run")


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
    for line in lines[:-1]:
        end = source.value.find("\n", at)
        end = len(source.value) if end < 0 else end
        start = max(at, end - len(line))
        pieces += [source[start:end], Text.made("\n")]
        at = end + 1
    return join(pieces)
