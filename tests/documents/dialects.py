"""`python -m tests.documents.dialects` writes `docs/dialects.md` from the writers' tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from planner.job.models.catalog import load_model, model_names
from planner.job.specs import ModelSpec
from planner.launch.architecture import ArchitectureRow, Table, departures, fields_of, refusals
from planner.launch.options import GONE, SWITCH, DialectOption, run_options
from planner.launch.registry import dialects, table_of, targets
from tests.documents.data_tables import Column, DataTable

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
_HEAD = """# How each launch target says a model and its run

Made by `python -m tests.documents.dialects` from the tables that the writers use (the folders below
`planner/launch/dialects`); a test holds it. A field
of the architecture is written under the target's key, or known to be what the target does unasked
(`unless`), refused by name, or departs by name: then the folder's README and `planner launch` say
what the target does in its place.
"""
_FIELDS = (
    Column("target", "Launch targets that say a model alike.", number=False),
    Column("model", "Of which model, where tables differ by its attention.", number=False),
    Column("field", "Field of the model's architecture.", number=False),
    Column("key", "Under what the target's files have it; empty: under nothing.", number=False),
    Column("unless", "What the target does unasked: then it is not written.", number=False),
    Column("else", "What becomes of values that the target has no key for.", number=False),
)
_SETTINGS = (
    Column("dialect", "Whose files.", number=False),
    Column("table", "Which of its tables.", number=False),
    Column("ours", "The planner's name of a setting of a run.", number=False),
    Column("key", "The dialect's name of it.", number=False),
    Column("values", "Our values as the dialect writes them.", number=False),
    Column("release", "The release that has it first; empty: all known ones.", number=False),
)


@cache
def tables() -> tuple[DataTable, DataTable]:
    """How targets say a model, and how they say its run."""
    fields = [row for names in _alike() for row in _target(names)]
    settings = [
        (dialect, name, *_option(option))
        for dialect in (name for name, dialect in dialects().items() if dialect.targets)
        for name, options in run_options(dialect).items()
        for option in options.values()
    ]
    return (
        DataTable("dialect-models", "Fields of a model, by target", _FIELDS, fields),
        DataTable("dialect-runs", "Settings of a run, by dialect", _SETTINGS, settings),
    )


def page_text() -> str:
    """The page, as it should be."""
    models, runs = tables()
    how = "## How a plan runs\n\nOne table a dialect, for writing, reading and `check --fix`."
    return f"{_HEAD}\n{models.link}\n{_catalogue()}\n{how}\n\n{runs.link}\n"


def _alike() -> list[list[str]]:
    """Targets by the table of the architecture that they share."""
    shown: dict[int, list[str]] = {}
    for name, target in targets().items():
        table = table_of(name, load_model(target.page_models[0]).spec)
        shown.setdefault(id(table), []).append(name)
    return list(shown.values())


def _option(option: DialectOption) -> Sequence[str]:
    states = {SWITCH: "there", GONE: "left out"}
    values = ", ".join(f"{ours}: {states.get(text, text)}" for ours, text in option.written.items())
    return option.ours, option.key, values, option.since


def _target(names: list[str]) -> Iterator[Sequence[str]]:
    """The rows of targets that say a model alike."""
    models = targets()[names[0]].page_models
    for name in models:
        model = load_model(name).spec
        table = table_of(names[0], model)
        for field in fields_of():
            yield ", ".join(names), name if len(models) > 1 else "", field, *_cells(field, table)


def _cells(field: str, table: Table) -> tuple[str, str, str]:
    rows = [row for row in table if field in row.fields]
    keys = ", ".join(row.key for row in rows if row.key)
    defaults = ", ".join(
        f"{row.default!r}" for row in rows if row.key and row.default not in (..., None)
    )
    also = {
        "may be refused": any(row.refuses is not ArchitectureRow(()).refuses for row in rows),
        "may depart": any(row.departs is not ArchitectureRow(()).departs for row in rows),
    }
    return keys, defaults, ", ".join(word for word, has in also.items() if has)


def _catalogue() -> str:
    models = [load_model(name).spec for name in model_names()]
    lines = ["\n## Models of the catalogue\n\n| target | has |\n|---|---|\n"]
    for target in targets():
        refused = {
            model.name: bool(refusals(table_of(target, model), model, "", "")) for model in models
        }
        lines.append(f"| {target} | {_shorter_list(refused)} |\n")
    return "".join((*lines, "\n### What departs\n\n", *_departures(models)))


def _shorter_list(refused: dict[str, bool]) -> str:
    """How many a target takes, and which: or those it refuses, where they are fewer."""
    has = [name for name, no in refused.items() if not no]
    without = [name for name, no in refused.items() if no]
    named = "all but " + ", ".join(without) if len(without) < len(has) else ", ".join(has)
    return f"{len(has)} of {len(refused)}: {named}"


def _departures(models: list[ModelSpec]) -> Iterator[str]:
    """Each sentence with the models and targets that it is of."""
    found: dict[str, dict[str, None]] = {}
    for model in models:
        tables = (table_of(target, model) for target in targets())
        for table in {id(table): table for table in tables}.values():
            if not refusals(table, model, "", ""):
                for sentence in departures(table, model):
                    found.setdefault(sentence, {})[model.name] = None
    for sentence, names in found.items():
        yield f"* {sentence[0].upper()}{sentence[1:]}: {', '.join(names)}.\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
    for each in tables():
        each.write(PAGE.parent)
