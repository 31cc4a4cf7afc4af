"""The shipped tables of errors: `residuals.json`, read once."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files

from pydantic import TypeAdapter

from planner.predict.uncertainty.families import Family, Figure, is_tuned_kind
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.residuals import PARTS, ErrorTable, Further, Spread

# Key of a residuals file for the tables of fine-tuning.
TUNED = "tuned"

_TABLE = TypeAdapter(ErrorTable)


def parse_tables(document: dict[str, object]) -> dict[Figure, ErrorTable]:
    """Tables by figure (time, memory) from the content of a residuals file; a figure without runs
    is left out."""
    return {
        figure: _TABLE.validate_python({**block, "figure": figure, "entries": block["runs"]})
        for figure in PARTS
        if isinstance(block := document.get(figure), dict)
    }


@cache
def _shipped() -> dict[str, object]:
    """The content of `planner/predict/uncertainty/residuals.json`."""
    path = files("planner.predict.uncertainty").joinpath("residuals.json")
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return content


@cache
def shipped_tables() -> dict[Figure, ErrorTable]:
    """The tables of runs that train all weights on rows of one length."""
    return parse_tables(_shipped())


@cache
def tuned_tables() -> dict[Figure, ErrorTable]:
    """The tables of runs that train part of the weights, or train on samples that differ in
    length."""
    block = _shipped().get(TUNED, {})
    tables = parse_tables(block) if isinstance(block, dict) else {}
    full = shipped_tables()
    return {figure: replace(table, beside=full.get(figure)) for figure, table in tables.items()}


def shipped_table(figure: Figure, family: Family) -> ErrorTable:
    """The table for runs of a family: that of tuned runs if its kind of model is tuned and such a
    table exists, else that of runs that train all weights."""
    tuned = tuned_tables().get(figure) if is_tuned_kind(family.model) else None
    return tuned or shipped_tables()[figure]


@lru_cache(maxsize=4096)
def shipped_further(figure: Figure, family: Family, at: Conditions, without: str = "") -> Further:
    """The error to add for conditions that no shipped run covers, with one source left out."""
    return shipped_table(figure, family).further(family, at, without)


@lru_cache(maxsize=4096)
def shipped_spread(figure: Figure, family: Family, at: Conditions, without: str = "") -> Spread:
    """Spread of a job of a family in the shipped tables, with one source left out."""
    return shipped_table(figure, family).spread(family, at, without)
