"""A page of figures and reports: one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planner.report.charts.drawing import Specification, script
from planner.report.tables import Block


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart on a page, with the title and the sentence that go with it."""

    name: str
    title: str
    chart: Specification
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Figures, then blocks of a report, under a heading; `plan` is the number of the plan that it
    is about, 0 if it is always shown. `folded`: blocks that open on a click; `side_by_side`: two
    figures in a row where there is space; `picks`: says what the candidate is that was clicked."""

    title: str
    drawings: Sequence[Drawing] = ()
    blocks: Sequence[Block] = ()
    folded: Sequence[Block] = ()
    plan: int = 0
    side_by_side: bool = False
    picks: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """What a page says of a candidate that is clicked: the `command` that costs it, before its
    degrees; the `limit_gib`; number, GiB and tokens/s of a GPU of every plan."""

    command: str
    limit_gib: float
    plans: Sequence[tuple[int, float, float]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page from top to bottom. `plans`: numbers and names of the plans that can be selected;
    `selected` is the number of the one that it opens with."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    plans: Sequence[tuple[int, str]] = ()
    selected: int = 0
    pick: Pick | None = None


def render(page: Page) -> str:
    """The page as HTML. Every text is escaped by the template."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("planner.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    charts = {
        drawing.name: drawing.chart for section in page.sections for drawing in section.drawings
    }
    template = environment.get_template("page.html.j2")
    pick = None if page.pick is None else asdict(page.pick)
    library = script() if charts else ""
    return template.render(page=page, charts=charts, pick=pick, library=library)
