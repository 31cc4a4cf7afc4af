"""YAML within limits: of size, of depth, of what aliases and merges multiply to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from hardware.errors import HardwareError
from hardware.files import DEEPEST, demand_bounded, number_error
from planner.launch.read.placeholders import as_yaml

# PyYAML reads about a tenth of a megabyte a second.
MOST_CHARACTERS = 2**18
_MOST_MERGED = 10_000
_MERGE = "tag:yaml.org,2002:merge"


class YamlError(ValueError):
    """Why a text is no YAML that is read, with line and column where they are known."""


class _Loader(yaml.SafeLoader):
    """Merges (`<<: *base`) may not multiply without end.

    Counted as written: PyYAML drops repeated keys from 6.0.4 on, and before, it does not.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        # Entries of a table with all that it merges, by the identity of its node.
        self._entries: dict[int, int] = {}

    def flatten_mapping(self, node: MappingNode) -> None:
        if self._count(node) > _MOST_MERGED:
            raise YamlError(f"merges make more than {_MOST_MERGED:,} entries of a table")
        super().flatten_mapping(node)

    def _count(self, node: Node) -> int:
        if isinstance(node, SequenceNode):
            return sum(map(self._count, node.value))
        if not isinstance(node, MappingNode):
            return 0
        if id(node) not in self._entries:
            self._entries[id(node)] = 0  # what merges itself ends here
            self._entries[id(node)] = sum(
                self._count(value) if key.tag == _MERGE else 1 for key, value in node.value
            )
        return self._entries[id(node)]


@dataclass(frozen=True)
class YamlText:
    """The documents of a text: their values, and the nodes that say where each stands."""

    contents: tuple[Any, ...]
    nodes: tuple[Any, ...]

    @property
    def content(self) -> Any:
        """The value of a text of one document, None of an empty one. YamlError for several."""
        if len(self.contents) > 1:
            raise YamlError(f"holds {len(self.contents)} documents; one is read")
        return self.contents[0] if self.contents else None


def read_yaml(text: str) -> YamlText:
    """Values and nodes of a text. YamlError."""
    read = _read_once(text)
    if isinstance(read, YamlError):
        raise read
    return read


def documents_of(text: str) -> YamlText:
    """Values and nodes of a text; none of one that is no YAML."""
    read = _read_once(text)
    return YamlText((), ()) if isinstance(read, YamlError) else read


@lru_cache(maxsize=4)
def _read_once(text: str) -> YamlText | YamlError:
    """What reading comes to, either way: a file is looked at several times."""
    try:
        return _read(text)
    except YamlError as error:
        return error


def _read(text: str) -> YamlText:
    if len(text) > MOST_CHARACTERS:
        raise YamlError(f"too long: {len(text):,} characters, {MOST_CHARACTERS:,} are read")
    contents, nodes = [], []
    try:
        loader = _Loader(as_yaml(text))
        while loader.check_node():
            nodes.append(loader.get_node())
            contents.append(loader.construct_document(nodes[-1]))
        demand_bounded(contents, "the file")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlError(f"{place}{error.problem}") from None
    except RecursionError:
        raise YamlError(f"nested too deep; at most {DEEPEST} levels are read") from None
    except HardwareError as error:
        raise YamlError(str(error).removeprefix("the file: ")) from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlError(
            number_error(error) if isinstance(error, ValueError) else str(error)
        ) from None
    except (LookupError, TypeError, AttributeError):
        # What PyYAML raises for `!!int ""`, `!!timestamp x`.
        raise YamlError("a value does not have the form of its tag") from None
    return YamlText(tuple(map(_text_keys, contents)), tuple(nodes))


def _text_keys(value: Any) -> Any:
    """A value whose tables have texts for keys: YAML takes numbers and dates, too."""
    if isinstance(value, dict):
        return {str(key): _text_keys(inner) for key, inner in value.items()}
    return [_text_keys(inner) for inner in value] if isinstance(value, list) else value
