"""`python -m tests.documents.dialects` writes `docs/dialects.md` from the writers' tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.job.models.catalog import load_model, model_names
from planner.job.specs import ModelSpec
from planner.launch.architecture import ArchitectureRow, Table, departures, fields_of, refusals
from planner.launch.options import GONE, SWITCH, DialectOption, run_options
from planner.launch.registry import dialects, table_of, targets

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
_HEAD = """# How each launch target says a model and its run

Made by `python -m tests.documents.dialects` from the tables that the writers use (the folders below
`planner/launch/dialects`); a test holds it. A field
of the architecture is written under the target's key, or known to be what the target does unasked
(`unless`), refused by name, or departs by name: then the folder's README and `planner launch` say
what the target does in its place.
"""
_COLUMNS = "\n| field | key | unless | |\n|---|---|---|---|\n"


def page_text() -> str:
    """The page, as it should be."""
    shown: dict[int, list[str]] = {}
    for name, target in targets().items():
        shown.setdefault(id(table_of(name, load_model(target.page_models[0]).spec)), []).append(
            name
        )
    return _HEAD + "".join(map(_target, shown.values())) + _catalogue() + _runs()


def _runs() -> str:
    """The tables of how a plan runs, which writers, readers and --fix share."""
    head = "\n## How a plan runs\n\nOne table a dialect, for writing, reading and `check --fix`.\n"
    columns = "\n| ours | key | values | release |\n|---|---|---|---|\n"
    parts = [head]
    written = (name for name, dialect in dialects().items() if dialect.targets)
    for dialect in written:
        for name, options in run_options(dialect).items():
            parts.append(f"\n### {dialect}: {name}\n{columns}")
            parts += [_option(option) for option in options.values()]
    return "".join(parts)


def _option(option: DialectOption) -> str:
    states = {SWITCH: "there", GONE: "left out"}
    values = ", ".join(
        f"{ours}: {states.get(text, f'`{text}`')}" for ours, text in option.written.items()
    )
    return f"| {option.ours} | `{option.key}` | {values} | {option.since} |\n"


def _target(names: list[str]) -> str:
    """The tables of targets that say a model alike."""
    parts, models = [f"\n## {' and '.join(names)}\n"], targets()[names[0]].page_models
    for name in models:
        model = load_model(name).spec
        if len(models) > 1:
            parts.append(f"\n### {'Latent' if model.mla else 'Grouped-query'} attention\n")
        table = table_of(names[0], model)
        parts.append(_COLUMNS + "".join(_line(field, table) for field in fields_of()))
    return "".join(parts)


def _line(field: str, table: Table) -> str:
    rows = [row for row in table if field in row.fields]
    keys = ", ".join(f"`{row.key}`" for row in rows if row.key)
    defaults = ", ".join(
        f"{row.default!r}" for row in rows if row.key and row.default not in (..., None)
    )
    also = {
        "may be refused": any(row.refuses is not ArchitectureRow(()).refuses for row in rows),
        "may depart": any(row.departs is not ArchitectureRow(()).departs for row in rows),
    }
    said = ", ".join(word for word, has in also.items() if has)
    return f"| `{field}` | {keys or '–'} | {defaults} | {said} |\n"


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
