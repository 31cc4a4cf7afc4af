"""`python -m tests.documents.dialects` writes `docs/dialects.md` from the writers' tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.job.models.catalog import load_model, model_names
from planner.job.specs import ModelSpec
from planner.launch.architecture import ArchitectureRow, Table, departures, fields_of, refusals
from planner.launch.dialects import DIALECTS
from planner.launch.options import GONE, OPTIONS, SWITCH, DialectOption

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
_HEAD = """# How each launch target says a model and its run

Made by `python -m tests.documents.dialects` from the tables that the writers use
(`planner/launch/*_table.py`, `hf_files.py`, `nanotron.py`, `options.py`); a test holds it. A field
of the architecture is written under the target's key, or known to be what the target does unasked
(`unless`), refused by name, or departs by name: then the folder's README and `planner launch` say
what the target does in its place.
"""
# Target -> models whose tables are shown: a block each.
_BLOCKS = {
    "megatron-core": ("llama-3-8b",),
    "megatron-bridge": ("llama-3-8b",),
    "torchtitan": ("llama-3-8b", "deepseek-v3"),
    "accelerate": ("llama-3-8b",),
    "nanotron": ("llama-3-8b",),
}
_TITLES = {"accelerate": "accelerate and deepspeed: config.json of transformers"}
_COLUMNS = "\n| field | key | unless | |\n|---|---|---|---|\n"


def page_text() -> str:
    """The page, as it should be."""
    return _HEAD + "".join(_target(target) for target in _BLOCKS) + _catalogue() + _runs()


def _runs() -> str:
    """The tables of how a plan runs, which writers, readers and --fix share."""
    head = "\n## How a plan runs\n\nOne table a dialect, for writing, reading and `check --fix`.\n"
    columns = "\n| ours | key | values | release |\n|---|---|---|---|\n"
    titles: dict[int, list[str]] = {}
    for target, options in OPTIONS.items():
        titles.setdefault(id(options), []).append(target)
    parts = [head]
    for targets in titles.values():
        parts.append(f"\n### {', '.join(targets)}\n{columns}")
        parts += [_option(option) for option in OPTIONS[targets[0]].values()]
    return "".join(parts)


def _option(option: DialectOption) -> str:
    states = {SWITCH: "there", GONE: "left out"}
    values = ", ".join(
        f"{ours}: {states.get(text, f'`{text}`')}" for ours, text in option.written.items()
    )
    return f"| {option.ours} | `{option.key}` | {values} | {option.since} |\n"


def _target(target: str) -> str:
    parts = [f"\n## {_TITLES.get(target, target)}\n"]
    for name in _BLOCKS[target]:
        model = load_model(name).spec
        if len(_BLOCKS[target]) > 1:
            parts.append(f"\n### {'Latent' if model.mla else 'Grouped-query'} attention\n")
        table = DIALECTS[target](model)
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
    for target, table in DIALECTS.items():
        refused = {model.name: bool(refusals(table(model), model, "", "")) for model in models}
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
        for table in {
            id(table_of(model)): table_of(model) for table_of in DIALECTS.values()
        }.values():
            if not refusals(table, model, "", ""):
                for sentence in departures(table, model):
                    found.setdefault(sentence, {})[model.name] = None
    for sentence, names in found.items():
        yield f"* {sentence[0].upper()}{sentence[1:]}: {', '.join(names)}.\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
