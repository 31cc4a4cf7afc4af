"""Text that records where each character was written, even through variables and quoting."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

# Stands for an unknown part of a text; the reason is in its origin.
HOLE = "\ue000"


def digits(text: str) -> int | None:
    """A text as a whole number if it consists of 1 to 18 digits; otherwise None."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


@dataclass(frozen=True, slots=True)
class Hole:
    """The reason why part of a text is unknown, such as a command's output or a variable that no
    file sets."""

    why: str


# File and offset of a character, or the reason why it is unknown; None if it was computed, not
# written.
Origin = tuple["SourceFile", int] | Hole | None


@dataclass(frozen=True, repr=False)
class SourceFile:
    """A file's content. It can tell the line of an offset."""

    path: str
    text: str = field(compare=False)

    def __repr__(self) -> str:
        return repr(self.path)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(at + 1 for at, letter in enumerate(self.text) if letter == "\n")]

    def line(self, offset: int) -> int:
        """The line number of an offset, from 1."""
        return bisect.bisect_right(self._starts, offset)

    def as_text(self) -> Text:
        """The whole content as a Text with the place of every character."""
        return Span(self, 0, len(self.text)).as_text()


@dataclass(frozen=True, slots=True)
class Span:
    """The characters from `start` up to `end` of a file."""

    file: SourceFile
    start: int
    end: int

    @property
    def line(self) -> int:
        """The line of the first character."""
        return self.file.line(self.start)

    @property
    def place(self) -> str:
        """File and line: `train.sh:12`."""
        return f"{self.file.path}:{self.line}"

    @property
    def written(self) -> str:
        """The characters in the span."""
        return self.file.text[self.start : self.end]

    def as_text(self) -> Text:
        """The span as a Text with the place of every character."""
        places = zip(repeat(self.file), range(self.start, self.end), strict=False)
        return Text(self.written, tuple(places))


@dataclass(frozen=True)
class Text:
    """A value with the origin of each character.

    An unknown part is the single character `HOLE`, so the text around it can still be read.
    """

    value: str
    origin: tuple[Origin, ...] = ()

    @cached_property
    def unknown(self) -> str:
        """The reason why the value, or part of it, is unknown; empty if all is known."""
        if HOLE not in self.value:
            return ""
        item = self.origin[self.value.index(HOLE)]
        return item.why if isinstance(item, Hole) else ""

    @property
    def known(self) -> str:
        """The value without its unknown parts."""
        return self.value.replace(HOLE, "")

    @staticmethod
    def made(value: str) -> Text:
        """A value that is not written in any file, for example a computed one."""
        return Text(value, (None,) * len(value))

    @staticmethod
    def not_known(why: str) -> Text:
        """An unknown value, with the reason."""
        return Text(HOLE, (Hole(why),))

    def __getitem__(self, part: slice) -> Text:
        return Text(self.value[part], self.origin[part])

    def span(self) -> Span | None:
        """The place of the value if it is written in one piece in one file; otherwise None."""
        known = [item for item in self.origin if isinstance(item, tuple)]
        if not known or len(known) < len(self.origin):
            return None
        (file, start), end = known[0], known[-1][1] + 1
        in_place = all(item == (file, start + at) for at, item in enumerate(known))
        return Span(file, start, end) if in_place else None

    def first(self) -> Span | None:
        """The place of the first character that is written in a file; None if there is none."""
        found = next((item for item in self.origin if isinstance(item, tuple)), None)
        return None if found is None else Span(*found, found[1] + 1)

    def replaced(
        self, pattern: str | re.Pattern[str], made: Callable[[re.Match[str]], Text]
    ) -> Text:
        """The text with each match of a pattern replaced by `made(match)`."""
        parts, start = [], 0
        for match in re.finditer(pattern, self.value):
            parts += [self[start : match.start()], made(match)]
            start = match.end()
        return join([*parts, self[start:]]) if parts else self

    def cut(self, pattern: str | re.Pattern[str]) -> Text:
        """The text without the matches of a pattern; the first group of each match, if any, is
        kept."""
        return self.replaced(
            pattern, lambda match: self[slice(*match.span(1))] if match.re.groups else Text("")
        )

    def split(self) -> Iterator[Text]:
        """The words, split at white space."""
        return (part for part in self.between(r"\s+") if part.value)

    def between(self, pattern: str) -> Iterator[Text]:
        """The texts before, between and after the matches of a pattern."""
        start = 0
        for match in re.finditer(pattern, self.value):
            yield self[start : match.start()]
            start = match.end()
        yield self[start:]


def join(parts: Iterable[Text]) -> Text:
    """Texts joined without a separator."""
    pieces = list(parts)
    return Text(
        "".join(piece.value for piece in pieces),
        tuple(item for piece in pieces for item in piece.origin),
    )


@dataclass(frozen=True)
class Word:
    """One word of a command: its value, and the place where the script uses it."""

    text: Text
    used: Span | None = None

    @property
    def base(self) -> str:
        """The value without its leading folders."""
        return self.text.value.rsplit("/", 1)[-1]

    @property
    def written(self) -> str:
        """The word as written in its script, without outer quotes."""
        return "" if self.used is None else self.used.written.strip("\"'")


@dataclass
class Files:
    """Every file that was read, by path."""

    by_path: dict[str, SourceFile] = field(default_factory=dict)
    # Files that a script would write.
    written: dict[str, Text] = field(default_factory=dict)

    def add(self, path: str, text: str) -> SourceFile:
        """Add a file."""
        self.by_path[path] = SourceFile(path, text)
        return self.by_path[path]


def spaced(words: Iterable[Text]) -> Text:
    """Words joined by blanks."""
    parts = [part for word in words for part in (word, Text.made(" "))]
    return join(parts[:-1])
