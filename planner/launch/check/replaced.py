"""Pieces of files replaced by other text, everything else left as it was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.launch.check.spelling import NotInFileError
from planner.launch.read.found import Found
from planner.launch.read.text import Span

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
        key=lambda replacement: (replacement.span.file.path, -replacement.span.start),
    )
    last: dict[str, int] = {}
    for item in ordered:
        file, span = item.span.file.path, item.span
        if span.end > last.get(file, len(span.file.text) + 1):
            raise NotInFileError("two settings share one value in the file")
        text = texts.get(file, span.file.text)
        texts[file] = text[: span.start] + item.text + text[span.end :]
        last[file] = span.start
    for file, text in texts.items():
        # Where the last option went, the backslash that led to it goes too.
        if not _DANGLING.search(found.files[file].text):
            texts[file] = _DANGLING.sub("", text)
    return texts


def without_line(span: Span) -> Replacement:
    """A span taken out: with its line, if nothing else but a backslash stands there."""
    text = span.file.text
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
