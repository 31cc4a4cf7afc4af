"""Text that remembers where each character was written, through variables and quoting."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

# Stands in a text for a part that is not known; its origin says why.
HOLE = "\ue000"


def digits(text: str) -> int | None:
    """A whole number in plain digits; None for other text, and for more than 18 digits."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


@dataclass(frozen=True, slots=True)
class Hole:
    """The reason why a part of a text is unknown: a command's output, a variable that no file
    sets."""

    why: str


# File and offset of a character; None: made, not written (the result of arithmetic).
Origin = tuple["SourceFile", int] | Hole | None


@dataclass(frozen=True, repr=False)
class SourceFile:
    """A file's content, and the line of each offset."""

    path: str
    text: str = field(compare=False)

    def __repr__(self) -> str:
        return repr(self.path)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(at + 1 for at, letter in enumerate(self.text) if letter == "\n")]

    def line(self, offset: int) -> int:
        """Line number, from 1."""
        return bisect.bisect_right(self._starts, offset)

    def as_text(self) -> Text:
        """The whole content, every character with its place."""
        return Span(self, 0, len(self.text)).as_text()


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` of a file."""

    file: SourceFile
    start: int
    end: int

    @property
    def line(self) -> int:
        """Line of the first character."""
        return self.file.line(self.start)

    @property
    def place(self) -> str:
        """`train.sh:12`."""
        return f"{self.file.path}:{self.line}"

    @property
    def written(self) -> str:
        """The text that stands there."""
        return self.file.text[self.start : self.end]

    def as_text(self) -> Text:
        """The same, every character with its place."""
        places = zip(repeat(self.file), range(self.start, self.end), strict=False)
        return Text(self.written, tuple(places))


@dataclass(frozen=True)
class Text:
    """A value and where its characters come from.

    A part that is not known is one character, `HOLE`: what stands around it can still be read.
    """

    value: str
    origin: tuple[Origin, ...] = ()

    @cached_property
    def unknown(self) -> str:
        """Why the value, or a part of it, is not known; empty where all of it is."""
        if HOLE not in self.value:
            return ""
        item = self.origin[self.value.index(HOLE)]
        return item.why if isinstance(item, Hole) else ""

    @property
    def known(self) -> str:
        """The value without the parts that are not known."""
        return self.value.replace(HOLE, "")

    @staticmethod
    def made(value: str) -> Text:
        """A value that stands in no file as it is."""
        return Text(value, (None,) * len(value))

    @staticmethod
    def not_known(why: str) -> Text:
        """A value that reading alone cannot tell."""
        return Text(HOLE, (Hole(why),))

    def __getitem__(self, part: slice) -> Text:
        return Text(self.value[part], self.origin[part])

    def span(self) -> Span | None:
        """The place of the value, if it stands in one piece of one file; None otherwise."""
        known = [item for item in self.origin if isinstance(item, tuple)]
        if not known or len(known) < len(self.origin):
            return None
        (file, start), end = known[0], known[-1][1] + 1
        in_place = all(item == (file, start + at) for at, item in enumerate(known))
        return Span(file, start, end) if in_place else None

    def first(self) -> Span | None:
        """Place of the first character that stands in a file."""
        found = next((item for item in self.origin if isinstance(item, tuple)), None)
        return None if found is None else Span(*found, found[1] + 1)

    def replaced(
        self, pattern: str | re.Pattern[str], made: Callable[[re.Match[str]], Text]
    ) -> Text:
        """The text in which `made` replaces each match of a pattern."""
        parts, start = [], 0
        for match in re.finditer(pattern, self.value):
            parts += [self[start : match.start()], made(match)]
            start = match.end()
        return join([*parts, self[start:]]) if parts else self

    def cut(self, pattern: str | re.Pattern[str]) -> Text:
        """The text without the matches of a pattern, of which the first group stays."""
        return self.replaced(
            pattern, lambda match: self[slice(*match.span(1))] if match.re.groups else Text("")
        )

    def split(self) -> Iterator[Text]:
        """Words apart by white space."""
        return (part for part in self.between(r"\s+") if part.value)

    def between(self, pattern: str) -> Iterator[Text]:
        """The texts before, between and behind the matches of a pattern."""
        start = 0
        for match in re.finditer(pattern, self.value):
            yield self[start : match.start()]
            start = match.end()
        yield self[start:]


def join(parts: Iterable[Text]) -> Text:
    """Parts one after another."""
    pieces = list(parts)
    return Text(
        "".join(piece.value for piece in pieces),
        tuple(item for piece in pieces for item in piece.origin),
    )


@dataclass(frozen=True)
class Word:
    """One word of a command: its value, and where the script uses it."""

    text: Text
    used: Span | None = None

    @property
    def base(self) -> str:
        """The value without folders before it."""
        return self.text.value.rsplit("/", 1)[-1]

    @property
    def written(self) -> str:
        """The word as its script spells it."""
        return "" if self.used is None else self.used.written.strip("\"'")


@dataclass
class Files:
    """Every file that was read, by path."""

    by_path: dict[str, SourceFile] = field(default_factory=dict)
    # Files that a script would write.
    written: dict[str, Text] = field(default_factory=dict)

    def add(self, path: str, text: str) -> SourceFile:
        """Remember a file."""
        self.by_path[path] = SourceFile(path, text)
        return self.by_path[path]


def spaced(words: Iterable[Text]) -> Text:
    """Words with blanks between them."""
    parts = [part for word in words for part in (word, Text.made(" "))]
    return join(parts[:-1])
