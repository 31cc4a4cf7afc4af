"""A page of charts and reports: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from planner.report.charts.drawing import Drawing, Specification, on_page, script
from planner.report.tables import Block, Facts, TableData

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Section:
    """Charts and then blocks of a report, under a heading. `plan`: number of the plan to which the
    section belongs, 0 if it is always shown. `folded`: blocks that open on a click. `side_by_side`:
    two charts to a row if there is room. `picks`: this section describes the candidate that the
    user clicks."""

    title: str
    drawings: Sequence[Drawing] = ()
    blocks: Sequence[Block] = ()
    folded: Sequence[Block] = ()
    plan: int = 0
    side_by_side: bool = False
    picks: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """Data with which a page describes a clicked candidate. `command`: the command that evaluates
    it, without the degrees. `plans`: number, GiB and tokens/s per GPU of every plan. `options`: for
    each degree its name, its option, and the value at which the option is not needed, or -1."""

    command: str
    limit_gib: float
    plans: Sequence[tuple[int, float, float]]
    options: Sequence[tuple[str, str, int]]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a card: its name, its amount in words, and its parts as (share of the bar, kind,
    words). Kinds are CSS classes of the page. `limit`: position of the limit as a share of the bar.
    """

    name: str
    amount: str
    parts: Sequence[tuple[float, str, str]]
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """The answer at the top of a page: a sentence, bars, rows of facts, and alternatives.
    `choices`: for each alternative the number of its plan (0 if it is not on the page), the reason
    to take it, and its cost."""

    headline: str
    bars: Sequence[Bar] = ()
    facts: Sequence[tuple[str, str]] = ()
    choices: Sequence[tuple[int, str, str]] = ()


def beside_card(blocks: Iterable[Block], card: Card | None) -> list[Block]:
    """The blocks of a report, without facts that the page's card already shows and without the note
    that repeats the card's headline. All blocks if there is no card."""
    found: list[Block] = []
    for block in blocks:
        if card is None or isinstance(block, TableData):
            found.append(block)
        elif isinstance(block, Facts):
            rows = tuple(row for row in block.rows if row not in card.facts)
            found += [replace(block, rows=rows)] if rows else []
        elif block.lines != (card.headline,):
            found.append(block)
    return found


@dataclass(frozen=True, slots=True)
class Page:
    """A page from top to bottom. `plans`: numbers and names of the plans that the user can select;
    `selected`: the number of the plan shown first; `card`: the answer, above everything else;
    `beside`: for each plan, the values to compare it with another
    (`planner.report.beside.compared`)."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    plans: Sequence[tuple[int, str]] = ()
    selected: int = 0
    pick: Pick | None = None
    card: Card | None = None
    beside: Mapping[int, Mapping[str, object]] = field(default_factory=dict)

    @property
    def charts(self) -> dict[str, Specification]:
        """The charts of all sections by name."""
        drawings = (one for section in self.sections for one in section.drawings)
        return {one.name: on_page(one.chart) for one in drawings}

    @property
    def data(self) -> dict[str, object]:
        """The data for the page's script."""
        pick = None if self.pick is None else asdict(self.pick)
        return {"charts": self.charts, "pick": pick, "beside": self.beside}


def render(page: Page) -> str:
    """The page as HTML. Every text is escaped by the template."""
    template = environment().get_template("page.html.j2")
    library = script() if any(section.drawings for section in page.sections) else ""
    return template.render(page=page, data=page.data, library=library)


def render_answer(page: Page) -> str:
    """The list of plans and the sections of a page, without the rest of the page."""
    return environment().get_template("answer.html.j2").render(page=page)


@cache
def environment() -> Environment:
    """The Jinja2 environment, which escapes every text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("planner.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["heading"] = _heading
    return found


def _heading(title: str) -> str:
    """A column title on one line. On a terminal, titles have line breaks."""
    return re.sub(r"(?<=[×/])\n|\n(?=/)", "", title.replace("-\n", "")).replace("\n", " ")
