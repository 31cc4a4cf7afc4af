"""Ways to break a text, a table of cells, or a JSON document."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.command_line import hostile_texts

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e-300, 1e300, 10**6, 3.7,
)  # fmt: skip
_PIECES = (
    "[" * 1_000, "{" * 1_000, '{"a":' * 500, "&a [*a]", "<<: *a", "nan", "inf", "-1", "0",
    "9" * 5_000, "2026-13-45", "\ufeff", "\x00", "\t", "\r", '"', "'", "]", "}", ":", "=", ",", "#",
    "\n", "${A}", "$((1/0))", "true", "null", "[[", "1e999", "- ", "!!python/object:os.system",
    "like = -1", "nics_per_node = 0", "\ud800",
)  # fmt: skip


@st.composite
def broken_texts(draw: st.DrawFn, text: str) -> bytes:
    """A text with pieces taken out, doubled, or put in, as bytes."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 20)))
        piece = draw(
            st.one_of(
                st.sampled_from(_PIECES),
                st.just(text[start:end] * 2),
                st.sampled_from([str(number) for number in NUMBERS]),
                hostile_texts(),
                st.just(""),
            )
        )
        text = text[:start] + piece + text[end:]
    return text.encode(errors="surrogatepass")


@st.composite
def broken_values(draw: st.DrawFn, text: str) -> bytes:
    """A text whose words and numbers are replaced by others, one or two of them."""
    for _ in range(draw(st.integers(1, 2))):
        spans = [word.span() for word in re.finditer(r"[\w.+-]+", text)] or [(0, 0)]
        start, end = spans[draw(st.integers(0, len(spans) - 1))]
        new = draw(st.one_of(st.sampled_from([str(number) for number in NUMBERS]), hostile_texts()))
        text = text[:start] + new + text[end:]
    return text.encode(errors="surrogatepass")


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each value of a document stands."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(place for key, inner in items for place in _places(inner, (*at, key)))]


_ANYTHING = st.one_of(
    st.sampled_from(NUMBERS),
    hostile_texts(),
    st.sampled_from([None, True, [], {}, [[]], {"a": 1}, "\ud800", float("nan"), float("inf")]),
)


@st.composite
def broken_documents(draw: st.DrawFn, document: Any) -> bytes:
    """A JSON document with values replaced, taken out, or under other names."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(document) if place]
        if not places:
            break
        *path, key = places[draw(st.integers(0, len(places) - 1))]
        holder = document
        for step in path:
            holder = holder[step]
        match draw(st.integers(0, 5)):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw(hostile_texts())] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = copy.deepcopy(draw(_ANYTHING))
    return json.dumps(document).encode(errors="surrogatepass")
