"""Parses the arguments of pretrain_gpt.py by the options of megatron-core 0.19."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, pairwise, takewhile
from typing import Any, TypeVar

from hardware.files import shipped_text
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.languages.text import HOLE, Span, Text, Word
from planner.launch.read.command import setting_of, switch_of
from planner.launch.read.found import Edit, Placed, Problem, Setting, nearest, telling
from planner.launch.registry import package_of

RELEASE = "megatron-core 0.19"
# Values that releases of 2024 accepted (core 0.8 to 0.10, training/arguments.py) and that change no
# figure.
_OLDER_CHOICES = {MEGATRON["tokenizer-kind"].name: ("Llama3Tokenizer", "MistralTokenizer")}


# Placeholder values that somebody still has to fill in.
_TO_FILL = re.compile(r"(?i)x{2,}|to-?do\b.*|fixme|tbd|your\W?\w*.*|<.*>|\?+|\.{2,}|_{2,}\w+_{2,}")


# The type by which argparse reads an option's text, and its words for the type.
_NUMBERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"), "float": (float, "a number"),
}  # fmt: skip


Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the parser. `values`: how many values it takes: `switch` (none), `one`, `maybe`
    (none or one), `many`, or a number; `type`: int, float, or empty for any text."""

    name: str
    values: str
    default: str
    choices: tuple[str, ...]
    type: str = ""


@cache
def options() -> dict[str, Option]:
    """Every option, under each of its names without dashes."""
    found: dict[str, Option] = {}
    for row in rows_of("flags.tsv"):
        names, values, default, choices, kind, *_ = (*row, "", "", "")
        first, *_ = names.split()
        option = Option(first, values, default, tuple(filter(None, choices.split(","))), kind)
        found |= dict.fromkeys(names.split(), option)
    return found


@cache
def other_options() -> dict[str, tuple[Option, str]]:
    """Options that only other parsers have, each with the name of the parser."""
    rows = rows_of("flags_other.tsv")
    return {name: (Option(name, values, "", ()), whose) for name, values, whose in rows}


def rows_of(name: str) -> Iterator[list[str]]:
    """Rows of a tab-separated table in this folder."""
    lines = shipped_text(package_of("megatron"), name).splitlines()
    return (line.split("\t") for line in lines if not line.startswith("#"))


@dataclass
class Arguments(Placed):
    """The given options, by the first of their names.

    Words that cannot be read become `problems`. `unknown`: options that no known parser has;
    `foreign`: for each option that only another variant of Megatron has, the name of its parser.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    unknown: list[Setting] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    foreign: dict[str, str] = field(default_factory=dict)
    # Problems of options whose value is not among core's choices.
    strange_values: dict[str, Problem] = field(default_factory=dict)
    # Options with the effect that the prediction leaves out, as in `Found.unmodelled`.
    left_out: list[tuple[Setting, str]] = field(default_factory=list)
    # Options that some function has read.
    used: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        """Whether an option (a switch) is given."""
        self.used.add(name)
        return name in self.settings

    def text(self, name: str) -> str | None:
        """The value of an option, or its default if it is not given; None if there is neither or
        the value is unknown."""
        setting = self.setting(name)
        if setting is not None:
            return None if setting.unknown else str(setting.value)
        option = options().get(name)
        return (option.default or None) if option else None

    def setting(self, name: str) -> Setting | None:
        """The option as given, or None."""
        self.used.add(name)
        return self.settings.get(name)

    def _number(self, name: str, made: Callable[[str], Number], what: str) -> Number | None:
        text = self.text(name)
        try:
            return made(text) if text else None
        except ValueError:
            self.not_a_number(name, text or "", what)
            return None

    def number(self, name: str) -> int | None:
        """The value of an option as a whole number; None if it has none."""
        return self._number(name, int, _NUMBERS["int"][1])

    def stated_real(self, name: str) -> float | None:
        """The value of an option as a number; None, not 0, if it has none."""
        return self._number(name, float, _NUMBERS["float"][1])

    def real(self, name: str) -> float:
        """The value of an option as a number; 0 if it has none."""
        return self.stated_real(name) or 0.0

    def many(self, name: str) -> tuple[str, ...]:
        """The values of an option that takes several; empty if it is not given or its value is
        unknown. Defaults do not count."""
        setting = self.setting(name)
        if setting is None or setting.unknown:
            return ()
        return tuple(setting.value) if isinstance(setting.value, tuple) else (str(setting.value),)

    def refuse(self, rule: str, text: str, *names: str, **more: Any) -> None:
        """Add the problem that options break a rule. `names`: the options; `more`: other fields of
        `Problem`."""
        self.problems.append(self.problem(rule, text, *names, **more))

    def beyond(self, text: str, *names: str) -> None:
        """Add a problem: the options ask for a feature that the cost model does not have."""
        self.problems.append(self.unpredictable(text, *names))

    def not_a_number(self, name: str, text: str, what: str) -> None:
        """Add a problem, only once, for a value that is not a number."""
        problem = self.wrong(f"--{name} {text!r} is not {what}", name)
        if _TO_FILL.fullmatch(text):
            said = f"--{name} {text!r} is a placeholder: give {what}"
            problem = self.wrong(said, name, severity="missing", fix=f"its value in {name}")
        if problem not in self.problems:
            self.problems.append(problem)


def parse_arguments(words: Sequence[Word]) -> Arguments:
    """Parse the options of a command as argparse does, but without abbreviations."""
    arguments = Arguments()
    at = 0
    while at < len(words):
        at = _read_one(words, at, arguments)
    return arguments


def _read_one(words: Sequence[Word], at: int, arguments: Arguments) -> int:
    """Read the option at an index and return the index of the next one."""
    word = words[at]
    text = word.text.value
    if not text.startswith("--"):
        if why := word.text.unknown:
            where = (word.used.place,) if word.used else ()
            taken = f"{why}: read as no arguments"
            arguments.problems.append(Problem("unresolved", taken, "warning", where, telling(why)))
        elif text:
            arguments.unknown.append(setting_of(text, Text(""), word.used, word.used))
        return at + 1
    name, equals, _ = text[2:].partition("=")
    place = f"{word.used.file.path}: " if word.used else ""
    refuse_unmodelled(name, f"{place}--{name}")
    option = _option_named(name, arguments)
    end = at + 1
    values: list[Word] = []
    if equals:
        values = [Word(word.text[len(name) + 3 :], None)]
    elif option is None or option.values != "switch":
        taken = "one" if option is None else option.values
        most = 1 if taken in ("one", "maybe") else int(taken) if taken.isdigit() else len(words)
        # Options begin with two dashes, because negative numbers begin with one.
        following = takewhile(lambda one: not one.text.value.startswith("--"), words[end:])
        values = list(islice(following, most))
        end += len(values)
    if option is None:
        arguments.unknown.append(_setting(f"--{name}", word, values))
        return end
    arguments.settings[option.name] = _setting(f"--{name}", word, values)
    _check_values(option, arguments)
    return end


def _option_named(name: str, arguments: Arguments) -> Option | None:
    """The option with a name, of core or of another parser; Megatron-LLM writes core's with
    underscores."""
    spelled = name.replace("_", "-")
    if (option := options().get(name)) is not None:
        return option
    if (option := options().get(spelled)) is not None:
        arguments.foreign[option.name] = "fork"
        return option
    known = other_options()
    if (named := known.get(spelled) or known.get(name)) is None:
        return None
    option, arguments.foreign[named[0].name] = named
    return option


def _setting(key: str, word: Word, values: Sequence[Word]) -> Setting:
    whole = _with_quote(_whole([word, *values]))
    if not values:
        return switch_of(key, word, whole)
    first = setting_of(key, values[0].text, values[0].used, whole)
    if len(values) == 1:
        return first
    span = _whole(values)
    texts = tuple(value.text.value for value in values)
    return replace(first, value=texts, spans=(span,) if span else (), unknown="")


def _with_quote(span: Span | None) -> Span | None:
    """A span extended by its closing quote, which an array element's span leaves out."""
    if span is None:
        return None
    text = span.file.text
    closing = text[span.end : span.end + 1]
    is_open = closing in ("'", '"') and text.count(closing, span.start, span.end) % 2
    return replace(span, end=span.end + 1) if closing and is_open else span


def _whole(words: Sequence[Word]) -> Span | None:
    """The span from the first to the last of some words; None if they do not follow each other in
    one file."""
    spans = [word.text.span() or word.used for word in words]
    spans[1:] = [word.used or word.text.span() for word in words[1:]]
    known = [span for span in spans if span is not None]
    if len(known) < len(spans) or len({span.file for span in known}) != 1:
        return None
    if any(one.end > two.start for one, two in pairwise(known)):
        return None
    return Span(known[0].file, known[0].start, known[-1].end)


def _check_values(option: Option, arguments: Arguments) -> None:
    """Report values that argparse would refuse: missing ones, and those not among the choices."""
    given = arguments.settings[option.name]
    if option.values == "one" and given.value is True:
        arguments.problems.append(arguments.wrong(f"{given.key} needs a value", option.name))
        del arguments.settings[option.name]
        return
    _check_type(option, arguments)
    if not option.choices or given.unknown or option.values == "many":
        return
    text = str(given.value)
    if text not in (*option.choices, *_OLDER_CHOICES.get(option.name, ())):
        close = nearest(text, option.choices, 0.5)
        said = f"{given.key} {text}: {RELEASE} has {', '.join(option.choices)}"
        edits = (Edit(given.key, close),) if close else ()
        problem = Problem("option-value", said, places=(given.place,), edits=edits)
        arguments.problems.append(problem)
        arguments.strange_values[option.name] = problem


def _check_type(option: Option, arguments: Arguments) -> None:
    """Report values that argparse's `int` or `float` refuses. Python's int also accepts `1_000`."""
    if option.type not in _NUMBERS:
        return
    made, what = _NUMBERS[option.type]
    given = arguments.settings[option.name]
    texts = given.value if isinstance(given.value, tuple) else (given.value,)
    for text in map(str, texts if not given.unknown else ()):
        if HOLE in text:
            continue
        try:
            made(text)
        except ValueError:
            arguments.not_a_number(option.name, text, what)


def choices_of_many(arguments: Arguments, name: str, choices: Sequence[str]) -> tuple[str, ...]:
    """The values of an option that are among `choices`; any other value is a problem."""
    given = arguments.many(name)
    for wrong in (setting for setting in given if setting not in choices):
        close = nearest(wrong, choices, 0.5)
        mended = " ".join(close if setting == wrong else setting for setting in given)
        text = f"--{name} {wrong}: {RELEASE} has {', '.join(choices)}"
        edits = (Edit(f"--{name}", mended),) if close else ()
        arguments.refuse("option-value", text, name, edits=edits)
    return tuple(setting for setting in given if setting in choices)
