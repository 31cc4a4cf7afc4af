"""`python -m tests.documents.dialects` writes `docs/dialects.md` from the writers' tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from planner.job.models.catalog import load_model, model_names
from planner.job.specs import ModelSpec
from planner.job.written import markdown_table
from planner.launch.architecture import ArchitectureRow, Table, departures, fields_of, refusals
from planner.launch.options import GONE, SWITCH, DialectOption, run_options
from planner.launch.registry import dialects, table_of, targets
from tests.documents.data_tables import Column, DataTable

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
_PAGE = """# How each launch target says a model and its run

`python -m tests.documents.dialects` makes this page from the tables that the writers use (the
folders below `planner/launch/dialects`), and a test holds it. For each field of a model's
architecture, a target does one of four things:

* it has a key for the field, and the writer sets it;
* it does what the model asks without being told (`unless`), and nothing is written;
* it cannot do it, and the model is refused by name;
* it does something else, which the folder's README and `planner launch` name.

{models}

## Models of the catalogue

{counts}

{catalogue}

### Where a target differs from a model

{departures}

## How a plan runs

Each dialect has one table, for writing, for reading and for `check --fix`.

{runs}
"""
_FIELDS = (
    Column("target", "Launch targets that describe a model in the same way.", number=False),
    Column("model", "The model, if the table depends on its attention.", number=False),
    Column("field", "Field of the model's architecture.", number=False),
    Column("key", "Key of the target's files for it; empty: none.", number=False),
    Column("unless", "The target's own default, which is not written.", number=False),
    Column("else", "What happens to values without a key: refused, or a departure.", number=False),
)
_SETTINGS = (
    Column("dialect", "The dialect of launch files.", number=False),
    Column("table", "The dialect's table of options.", number=False),
    Column("ours", "The planner's name of the setting.", number=False),
    Column("key", "The dialect's name of it.", number=False),
    Column("values", "The planner's values and how the dialect writes them.", number=False),
    Column("release", "The first release that has it; empty: all known ones.", number=False),
)
_DEPARTURES = (
    Column("what", "What a target does in place of what the model asks for.", number=False),
    Column("targets", "The targets that do it.", number=False),
    Column("models", "The models that it concerns.", number=False),
)


@cache
def tables() -> tuple[DataTable, DataTable, DataTable, DataTable]:
    """How targets say a model, which models they take, where they differ, how they say a run."""
    fields = [row for names in _alike() for row in _target(names)]
    settings = [
        (dialect, name, *_option(option))
        for dialect in (name for name, dialect in dialects().items() if dialect.targets)
        for name, options in run_options(dialect).items()
        for option in options.values()
    ]
    return (
        DataTable("dialect-models", "Fields of a model, by target", _FIELDS, fields),
        _catalogue(),
        DataTable("departures", "Differences by model", _DEPARTURES, [*_departures()]),
        DataTable("dialect-runs", "Settings of a run, by dialect", _SETTINGS, settings),
    )


def page_text() -> str:
    """The page, as it should be."""
    models, catalogue, departures, runs = tables()
    counts = (
        (target, f"{sum(row[at] != _REFUSED for row in catalogue.rows)} of {len(catalogue.rows)}")
        for at, target in enumerate(targets(), 1)
    )
    return _PAGE.format(
        models=models.link(),
        counts=markdown_table(("target", "models it takes"), counts, (1,)),
        catalogue=catalogue.link(),
        departures=departures.link(),
        runs=runs.link(),
    )


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
    unasked = [row.default for row in rows if row.key and row.default is not ...]
    defaults = ", ".join(repr(default) for default in unasked if default is not None)
    also = {
        "may be refused": any(row.refuses is not ArchitectureRow(()).refuses for row in rows),
        "may depart": any(row.departs is not ArchitectureRow(()).departs for row in rows),
    }
    return keys, defaults, ", ".join(word for word, has in also.items() if has)


_TAKEN, _DIFFERS, _REFUSED = "yes", "differs", "no"


@cache
def _catalogue_models() -> list[ModelSpec]:
    return [load_model(name).spec for name in model_names()]


def _catalogue() -> DataTable:
    """Each model of the catalogue, and which targets take it."""
    meaning = "Whether {} trains the model: yes, no, or with a difference that is named."
    columns = (
        Column("model", "Name that --model takes.", number=False),
        *(Column(target, meaning.format(target), number=False) for target in targets()),
    )
    rows = [
        (model.name, *(_taken(table_of(target, model), model) for target in targets()))
        for model in _catalogue_models()
    ]
    return DataTable("dialect-catalogue", "Models, by target", columns, rows)


def _taken(table: Table, model: ModelSpec) -> str:
    if refusals(table, model, "", ""):
        return _REFUSED
    return _DIFFERS if [*departures(table, model)] else _TAKEN


def _departures() -> Iterator[Sequence[str]]:
    """Each sentence with the targets and models that it is of."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for model in _catalogue_models():
        for target in targets():
            table = table_of(target, model)
            if _taken(table, model) == _DIFFERS:
                for sentence in departures(table, model):
                    names, models = found.setdefault(sentence, ({}, {}))
                    names[target] = models[model.name] = None
    for sentence, (names, models) in found.items():
        yield f"{sentence[0].upper()}{sentence[1:]}.", ", ".join(names), ", ".join(models)


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
    for each in tables():
        each.write(PAGE.parent)
