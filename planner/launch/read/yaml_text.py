"""YAML with limits on size, depth, aliases and merges; placeholders in values; and the scripts and
files that YAML may contain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from hardware.errors import HardwareError
from hardware.files import DEEPEST, demand_bounded, number_error
from planner.launch.languages.text import Text, join, spaced

# Placeholders: `--env X=VALUE` fills in those with a name; values with others are unknown. A text
# may contain them in the syntax of Jinja, of a shell or of OmegaConf.
_INSIDE = re.compile(
    r"\{\{-?\s*(?P<jinja>[^{}]*?)\s*-?\}\}"
    r"|\$\{(?:oc\.env:|env:)?(?P<braced>[A-Za-z_][\w.]*)(?:(?P<mark>,|:-|:=|-)(?P<default>[^{}]*))?\}"
)
# Texts that consist of a placeholder: `$NAME`, `<YOUR MODEL>`, `{name}`, OmegaConf's `???`.
_WHOLE = re.compile(
    r"\$(?P<plain>[A-Za-z_]\w*)|<(?P<angle>[A-Za-z][\w ./:-]*)>|\{\s*(?P<single>[A-Za-z_][\w. ]*)\}"
    r"|\?\?\?"
)
# An unquoted `key: {{ X }}`, which is not YAML, and `key: {name}`, which would be a table.
_KEY, _END = r"(?m)^(\s*(?:- )?[\w.\"'-]+\s*:[ \t]+)", r"(?=[ \t]*(?:#.*)?$)"
_DOUBLE = re.compile(_KEY + r"\{\{([^{}'\"\n]*)\}\}" + _END)
_SINGLE = re.compile(_KEY + r"\{([A-Za-z_]\w*)\}" + _END)
# Names in angle brackets that are tokens of a vocabulary: `<pad>`, `<s>`.
_TOKEN = re.compile(r"[a-z0-9_]{1,12}")


@dataclass(frozen=True, slots=True)
class Filled:
    """`value`: the text with placeholders filled in. If one has no value, `unknown` is that
    placeholder as written and `name` the variable that would fill it (empty if there is none);
    `unknown` is empty if all are filled in."""

    value: str
    unknown: str = ""
    name: str = ""


def as_yaml(text: str) -> str:
    """A template made valid YAML: its unquoted placeholders become texts of the same length, so
    that places stay correct."""
    text = _DOUBLE.sub(lambda found: f"{found[1]}'{{{found[2]}}}'", text)
    return _SINGLE.sub(lambda found: f"{found[1]}${found[2]} ", text)


def filled(text: str, variables: Mapping[str, object]) -> Filled:
    """A text with its placeholders replaced by the values of variables, or by their own
    defaults."""
    whole = _WHOLE.fullmatch(text.strip())
    if whole is not None and not _TOKEN.fullmatch(whole["angle"] or ""):
        names = whole.groupdict()
        name = (names["plain"] or names["angle"] or names["single"] or "").strip()
        return _one(text.strip(), name, None, variables)
    result = Filled(text)
    for found in _INSIDE.finditer(text):
        # OmegaConf applies a default after a comma; a shell's default does not apply in YAML.
        default = found["default"] if found["mark"] == "," else None
        part = _one(found[0], (found["jinja"] or found["braced"] or "").strip(), default, variables)
        if part.unknown:
            return part
        result = Filled(result.value.replace(found[0], part.value))
    return result


def _one(written: str, name: str, default: str | None, variables: Mapping[str, object]) -> Filled:
    if name in variables:
        return Filled(str(variables[name]))
    if default is not None:
        return Filled(default.strip())
    return Filled("", written, name if re.fullmatch(r"[A-Za-z_]\w*", name) else "")


# PyYAML reads about a tenth of a megabyte per second.
MOST_CHARACTERS = 2**18
_MOST_MERGED = 10_000
_MERGE = "tag:yaml.org,2002:merge"


class YamlError(ValueError):
    """Raised for a text that cannot be read as YAML. The message gives the reason, with line and
    column if known."""


class _Loader(yaml.SafeLoader):
    """Limits how far merges (`<<: *base`) multiply.

    Entries are counted as written: PyYAML drops repeated keys only since 6.0.4.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        # Number of entries of a table with its merges, by the identity of its node.
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
    """The documents of a YAML text: their values (`contents`), and their syntax-tree nodes, which
    have places."""

    contents: tuple[Any, ...]
    nodes: tuple[Any, ...]

    @property
    def content(self) -> Any:
        """The value of the only document; None if the text is empty. YamlError if there are
        several."""
        if len(self.contents) > 1:
            raise YamlError(f"holds {len(self.contents)} documents; one is read")
        return self.contents[0] if self.contents else None


def read_yaml(text: str) -> YamlText:
    """The documents of a text. YamlError if it cannot be read as YAML."""
    read = _read_once(text)
    if isinstance(read, YamlError):
        raise read
    return read


def documents_of(text: str) -> YamlText:
    """The documents of a text; none if it cannot be read as YAML."""
    read = _read_once(text)
    return YamlText((), ()) if isinstance(read, YamlError) else read


@lru_cache(maxsize=4)
def _read_once(text: str) -> YamlText | YamlError:
    """The documents or the error. The result is cached, because the same file is examined several
    times."""
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
    except ValueError as error:
        raise YamlError(number_error(error)) from None
    except yaml.YAMLError as error:
        raise YamlError(str(error)) from None
    except (LookupError, TypeError, AttributeError):
        # Raised by PyYAML for `!!int ""`, `!!timestamp x`.
        raise YamlError("a value does not have the form of its tag") from None
    return YamlText(tuple(map(_text_keys, contents)), tuple(nodes))


def _text_keys(value: Any) -> Any:
    """The value with all keys of its tables as texts; in YAML they may be numbers or dates."""
    if isinstance(value, dict):
        return {str(key): _text_keys(inner) for key, inner in value.items()}
    return [_text_keys(inner) for inner in value] if isinstance(value, list) else value


_JOBS = (
    "JobSet", "TrainJob", "Job", "Pod", "PyTorchJob", "MPIJob", "StatefulSet", "LeaderWorkerSet",
    "Deployment", "CronJob", "TrainingRuntime", "ClusterTrainingRuntime", "RayJob",
)  # fmt: skip
# A SkyPilot task has one of these besides `run`.
_OF_TASKS = {"resources", "num_nodes", "workdir"}
# Keys with what runs.
_RUN = ("command", "args", "run", "entrypoint")


@dataclass(frozen=True)
class Embedded:
    """A text inside a YAML file: a file with a `name`, or, with an empty name, a script that
    runs."""

    name: str
    text: Text


def pairs(node: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a table with scalar keys; empty for other nodes."""
    if node.id == "mapping":
        yield from ((key.value, value) for key, value in node.value if key.id == "scalar")


def items(node: Any) -> Sequence[Any]:
    """The items of a list; empty for other nodes."""
    return node.value if node.id == "sequence" else []


def is_embedding(text: str) -> bool:
    """Whether a YAML text contains a job with a script."""
    tables = [content for content in documents_of(text).contents if isinstance(content, dict)]
    return any(
        table.get("kind") in _JOBS or ("run" in table and _OF_TASKS & table.keys())
        for table in tables
    )


def embedded_texts(source: Text) -> Iterator[Embedded]:
    """The texts inside a job's YAML: first the files in its ConfigMaps, then the scripts that its
    containers run. YamlError if it cannot be read."""
    documents = read_yaml(source.value).nodes
    for name, value in _data_of(documents):
        blocks = (item for item in _scalars(value) if item.style == "|")
        yield from (Embedded(name, _block(item, source)) for item in blocks)
    for document in documents:
        yield from (Embedded("", script) for script in _scripts(document, source))


def _data_of(documents: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Names and values in the `data` tables of the documents, as ConfigMaps have them."""
    tables = (value for one in documents for key, value in pairs(one) if key == "data")
    return (entry for table in tables for entry in pairs(table))


def embedded_environment(source: Text) -> dict[str, Text]:
    """Environment variables that a job sets, by name: `env` and `envFrom` of containers, `envs` of
    a SkyPilot task. If a name occurs several times, the first counts."""
    found: dict[str, Text] = {}
    documents = read_yaml(source.value).nodes
    for document in documents:
        for name, value in _variables(document, source):
            found.setdefault(name, value)
    # `envFrom`: the entries of a ConfigMap.
    for name, node in _data_of(documents):
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
    """The table that a node is, then all tables inside it, in order; each as name -> node."""
    for item in items(node):
        yield from _tables(item)
    table = dict(pairs(node))
    yield table
    for value in table.values():
        yield from _tables(value)


def _scalars(node: Any) -> list[Any]:
    """The scalars of a list; for a node that is a scalar itself, only that."""
    return [item for item in (items(node) or [node]) if item.id == "scalar"]


def _scripts(document: Any, source: Text) -> Iterator[Text]:
    """Scripts in the keys `command`, `args`, `run` and `entrypoint`. In each table: its literal
    blocks; without these, the argument of `bash -c`; without that, all words as one command."""
    for table in _tables(document):
        said = [item for name in _RUN if name in table for item in _scalars(table[name])]
        blocks = [_block(item, source) for item in said if item.style == "|"]
        words = [_word(item, source) for item in said]
        given = [after for flag, after in pairwise(words) if re.fullmatch(r"-\w*c", flag.value)]
        yield from blocks or given or ([spaced(words)] if words else [])


def _word(node: Any, source: Text) -> Text:
    """A scalar's text without quotes, with its place in the file; without a place if the file
    writes it differently."""
    written = source[node.start_mark.index : node.end_mark.index]
    plain = written[1:-1] if node.style else written
    return plain if plain.value == node.value else Text.made(node.value)


def _block(node: Any, source: Text) -> Text:
    """The text of a literal block (`|`) without its indentation. Each character keeps its place in
    the file."""
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
