"""Every published recipe that states its degrees, beside the best plan found for the same job.

    python -m tests.recipes [--only TEXT] [--markdown FILE] [--json]

reads the runs that ship. A recipe is predicted as it ran; then all degrees are searched for its
model, GPUs, batch, sequence, precision and framework, with the techniques that the framework offers
(`planner.job.frameworks.techniques`), among plans that fit as surely as the recipe does, at most as
surely as a search demands by default.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hardware.frozen import Frozen
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.job.written import write_text
from tests.fit.command import measured_rows, run
from tests.recipes.compare import (
    RecipeComparison,
    Searched,
    compare_recipe,
    published,
    recipe_rows,
)
from tests.recipes.page import page, recipe_table, reliability_table

COMMAND = "python -m tests.recipes"


def main(arguments: Sequence[str]) -> None:
    """The command."""
    given = _parser().parse_args(arguments)
    rows = measured_rows([])
    recipes = [
        row
        for row in recipe_rows(rows)
        if given.only.lower() in f"{row.source} {row.fact('model')} {row.fact('gpu')}".lower()
    ]
    comparisons = _compared(predict_rows(recipes))
    if given.json:
        records = [asdict(one) for one in comparisons]
        text = json.dumps(records, indent=1, allow_nan=False, default=Frozen.model_dump)
        sys.stdout.write(text + "\n")
        return
    if not given.markdown:
        sys.stdout.write(page(comparisons, ()))
        return
    predictions = predict_rows(rows)
    path = Path(given.markdown)
    write_text(path, page(comparisons, predictions), force=True)
    for table in (recipe_table(comparisons), reliability_table(predictions)):
        table.write(path.parent)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="recipes with this text in source, model or GPU")
    parser.add_argument("--markdown", help="write the page there, and its tables as data beside it")
    parser.add_argument("--json", action="store_true", help="one object a recipe, on stdout")
    return parser


def _compared(predictions: Sequence[Prediction]) -> list[RecipeComparison]:
    """Comparisons in order, with progress on a terminal."""
    found: list[RecipeComparison] = []
    searched: Searched = []
    recipes = published(predictions)
    for number, prediction in enumerate(predictions, start=1):
        if sys.stderr.isatty():
            sys.stderr.write(f"\rrecipe {number} of {len(predictions)}")
        comparison = compare_recipe(prediction, searched, recipes)
        if comparison is not None:
            found.append(comparison)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    return found


if __name__ == "__main__":
    run(main, sys.argv[1:])
