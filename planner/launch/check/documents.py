"""Pieces of files replaced by other text; of TOML and YAML files by tomlkit and ruamel.yaml, which
keep comments and formatting.

A configuration may stand inside another file, a script's here-document or a ConfigMap: the lines
that change are found in the text itself and written back where they came from, with their
indentation.
"""

from __future__ import annotations

import difflib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.launch.check.spelling import NotInFileError
from planner.launch.read.found import Edit, Found, Setting
from planner.launch.read.text import Span, Text

if TYPE_CHECKING:
    from collections.abc import MutableMapping


# A line that goes on into an empty one.
_DANGLING = re.compile(r"[ \t]*\\\n[ \t]*(?=\n|\Z)")


@dataclass(frozen=True)
class Replacement:
    """`text` in place of a span."""

    span: Span
    text: str


def applied(found: Found, replacements: Sequence[Replacement]) -> dict[str, str]:
    """Texts with replacements made, from the end backwards. NotInFileError if two overlap."""
    texts: dict[str, str] = {}
    ordered = sorted(
        dict.fromkeys(replacements),
        key=lambda replacement: (replacement.span.file, -replacement.span.start),
    )
    last: dict[str, int] = {}
    for item in ordered:
        file, span = item.span.file, item.span
        if span.end > last.get(file, len(found.files[file].text) + 1):
            raise NotInFileError("two settings share one value in the file")
        text = texts.get(file, found.files[file].text)
        texts[file] = text[: span.start] + item.text + text[span.end :]
        last[file] = span.start
    for file, text in texts.items():
        # Where the last option went, the backslash that led to it goes too.
        if not _DANGLING.search(found.files[file].text):
            texts[file] = _DANGLING.sub("", text)
    return texts


def without_line(text: str, span: Span) -> Replacement:
    """A span taken out: with its line, if nothing else but a backslash stands there."""
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.end)
    end = len(text) if end < 0 else end
    if not text[start : span.start].strip() and text[span.end : end].strip() in ("", "\\"):
        last = not text[span.end : end].strip()
        # The line's end stays behind a backslash on the line above: the command ends there.
        return Replacement(Span(span.file, start, end if last else end + 1), "")
    before = span.start
    while before > start and text[before - 1] in " \t":
        before -= 1
    return Replacement(Span(span.file, before, span.end), "")


# Launch formats whose configuration is TOML or YAML.
_FORMATS = ("torchtitan-0.2", "accelerate", "nanotron")
# Lists keep their width: ruamel breaks lines beyond it.
_WIDEST = 2**16


def is_document(found: Found, setting: Setting | None) -> bool:
    """Whether a setting, or a new one, belongs into a TOML or YAML file.

    One that a command line overrides stands there instead.
    """
    if found.document is None or found.format not in _FORMATS:
        return False
    if found.document.value.lstrip().startswith("{"):
        return False
    if setting is None or not setting.spans:
        return True
    places = {place for place in found.document.origin if place is not None}
    return (setting.spans[0].file, setting.spans[0].start) in places


def document_edits(found: Found, edits: Sequence[Edit]) -> list[Replacement]:
    """Values set, added and taken out. NotInFileError where the lines cannot be kept."""
    text = found.document
    if text is None or not edits:
        return []
    toml = found.format.startswith("torchtitan")
    new = _toml(text.value, edits) if toml else _yaml(text.value, edits)
    return _lines(found, text, new)


def _toml(text: str, edits: Sequence[Edit]) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    for edit in edits:
        _change(document, edit, tomlkit.table)
    return tomlkit.dumps(document)


def _yaml(text: str, edits: Sequence[Edit]) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.util import load_yaml_guess_indent

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDEST
    try:
        # The width of lists is ruamel's guess; it makes one of tables from the same lines.
        _, indent, offset = load_yaml_guess_indent(text)
        yaml.indent(mapping=_mapping_indent(text), sequence=indent or 2, offset=offset or 0)
        content = yaml.load(text)
    except YAMLError as error:
        raise NotInFileError("the configuration is no YAML") from error
    before = _dumped(yaml, content)
    for edit in edits:
        _change(content, edit, CommentedMap)
    return _like(text, before, _dumped(yaml, content))


def _mapping_indent(text: str) -> int:
    """Spaces of the first indented line that is no list item."""
    lines = (line for line in text.splitlines() if line.startswith(" "))
    plain = (line for line in lines if not line.lstrip().startswith(("-", "#")))
    return next((len(line) - len(line.lstrip()) for line in plain if line.strip()), 2)


def _dumped(yaml: Any, content: Any) -> str:
    stream = io.StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def _like(text: str, before: str, after: str) -> str:
    """The change from `before` to `after` made in the text, of which `before` is another form."""
    old, dumped, new = (part.splitlines(keepends=True) for part in (text, before, after))
    place = _places(dumped, old)
    result, done = [], 0
    for tag, i, j, k, m in difflib.SequenceMatcher(None, dumped, new, False).get_opcodes():
        if tag == "equal":
            continue
        # An insertion goes behind the line above it.
        above = place.get(i - 1) if i else -1
        start = place.get(i) if j > i else None if above is None else above + 1
        if start is None or any(place.get(i + at) != start + at for at in range(j - i)):
            raise NotInFileError("the file's formatting would not survive; edit it by hand")
        result += [*old[done:start], *new[k:m]]
        done = start + (j - i)
    return "".join([*result, *old[done:]])


def _places(dumped: Sequence[str], old: Sequence[str]) -> dict[int, int]:
    """Line of one form -> the same line of the other, whatever its spaces."""
    one, other = ([" ".join(line.split()) for line in lines] for lines in (dumped, old))
    blocks = difflib.SequenceMatcher(None, one, other, False).get_matching_blocks()
    return {i + at: j + at for i, j, size in blocks for at in range(size)}


def _change(content: MutableMapping[str, Any], edit: Edit, table: Any) -> None:
    """Set, add or take out the value of a dotted key."""
    *names, last = edit.key.split(".")
    for name in names:
        if name not in content:
            content[name] = table()
        content = content[name]
    if edit.value is None:
        content.pop(last, None)
    else:
        content[last] = _typed(edit.value, content.get(last))


def _typed(value: str, before: object) -> object:
    """A value as the file has it: a number in quotes stays in quotes."""
    try:
        found: object = json.loads(value)
    except json.JSONDecodeError:
        return value
    if isinstance(before, str) and not isinstance(found, str):
        return type(before)(value) if type(before) is not str else value
    return found


# --- back into the files --------------------------------------------------------------------------


def _lines(found: Found, text: Text, new: str) -> list[Replacement]:
    """The lines that differ, where they stand in the files."""
    old_lines, new_lines = (part.splitlines(keepends=True) for part in (text.value, new))
    starts = [0]
    for line in old_lines:
        starts.append(starts[-1] + len(line))
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, False)
    made = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        # An insertion goes behind the line above it.
        place = _outer(found, text, starts, i, j) if j > i else None
        anchor = place or _outer(found, text, starts, max(0, i - 1), max(1, i))
        span, indent = anchor
        if place is None:
            at = span.end if i else span.start
            span = Span(span.file, at, at)
        lines = (indent + line if line.strip() else line for line in new_lines[k:m])
        starts_a_line = not span.start or found.files[span.file].text[span.start - 1] == "\n"
        gap = "" if starts_a_line else "\n"
        made.append(Replacement(span, gap + "".join(lines)))
    return made


def _outer(found: Found, text: Text, starts: list[int], i: int, j: int) -> tuple[Span, str]:
    """Whole lines of a file that lines `i` to `j` of a text stand in, and their indentation."""
    every = text.origin[starts[i] : starts[j]]
    origins = [place for place in every if isinstance(place, tuple)]
    if not origins or len({file for file, _ in origins}) != 1:
        raise NotInFileError("the file makes these lines from variables")
    file = origins[0][0]
    whole = found.files[file].text
    start = whole.rfind("\n", 0, origins[0][1]) + 1
    end = whole.find("\n", origins[-1][1])
    end = len(whole) if end < 0 else end + 1
    outer, inner = whole[start:end].splitlines(), text.value[starts[i] : starts[j]].splitlines()
    if [line.strip() for line in outer] != [line.strip() for line in inner]:
        raise NotInFileError("the file makes these lines from variables")
    return Span(file, start, end), whole[start : origins[0][1]]
