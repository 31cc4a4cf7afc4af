"""The page of recipes: its figures, its tables as data, and how reliable probabilities are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import median

from hardware.files import shipped_text
from planner.evidence.runs.predict import Prediction
from planner.job.quantities import share
from planner.job.written import markdown_table
from planner.predict.uncertainty.differences import Ratio
from tests.documents.data_tables import Column, DataTable
from tests.fit.reliability import (
    FitErrors,
    fit_errors,
    fit_reliability,
    of_sources_with_failures,
)
from tests.recipes.compare import NOT_CLAIMED, NOTABLE, RecipeComparison, Verdict


def page(comparisons: Sequence[RecipeComparison], predictions: Sequence[Prediction]) -> str:
    """Markdown; how reliable probabilities are where predictions of runs are given."""
    parts = [_text("page.md"), _summary(comparisons), recipe_table(comparisons).link()]
    if predictions:
        parts.append(_reliability(predictions))
    return "\n\n".join(parts) + "\n"


@cache
def _text(name: str) -> str:
    return shipped_text("tests.recipes", name).rstrip()


def _summary(comparisons: Sequence[RecipeComparison]) -> str:
    gains = [one.gain for one in comparisons if one.gain is not None]
    if not gains:
        return "No recipe was compared."
    counts = Counter(one.verdict for one in comparisons)
    beyond = sum(one.peak_share > 1.0 for one in comparisons)
    slower = sum(gain < -_RESOLVED for gain in gains)
    left = [1.0 - 1.0 / one.expected.value for one in comparisons if one.expected is not None]
    sure = [one for one in comparisons if one.expected is not None and one.expected.low > 1.0]
    large = [sum(gain > _LARGE for gain in some) for some in (gains, left)]
    rows = ((name, words, str(counts[name])) for name, words in _VERDICTS.items())
    return (
        f"Of {len(comparisons)} recipes {slower} are faster as predicted than the best plan found. "
        f"The median gain is {share(median(gains))}, or {share(median(left))} as expected of the "
        f"best of many plans. The gain is over {share(_LARGE, 0)} for {large[0]} recipes as "
        f"predicted and for {large[1]} as expected; for {len(sure)} the whole interval is a gain. "
        f"{beyond} recipes are predicted to need more memory than there is, though they ran.\n\n"
        + markdown_table(("verdict", "the best plan is", "recipes"), rows, (2,))
    )


_RESOLVED = 0.001
# A gain from which on a tuned recipe is hardly believed to leave so much.
_LARGE = 0.15
_VERDICTS: dict[Verdict, str] = {
    "as good": f"at most {share(NOTABLE, 0)} faster",
    "gain": "faster by more, and the row names the cause",
    "within the error bar": f"faster by more, but {NOT_CLAIMED}",
    "cannot tell": "faster by more without an unused technique, but the prediction of the recipe "
    "itself is more than 10 % off",
    "lost": "slower, or there is none, although the search includes the recipe",
}


_RECIPE_COLUMNS = (
    Column("source", "Who published the recipe.", number=False),
    Column("model", "Model.", number=False),
    Column("gpus", "Number and kind of GPUs.", number=False),
    Column("precision", "Precision.", number=False),
    Column("framework", "Framework.", number=False),
    Column("recipe", "Degrees, micro-batches and recomputation as published.", number=False),
    Column("measured_low_s", "Published step time, s; the least where it was published again."),
    Column("measured_high_s", "The greatest of these, s."),
    Column("predicted_s", "Step time predicted for the recipe, s."),
    Column("fits", "Stated probability that it fits, without its own source, %."),
    Column("best", "The fastest plan found for the same job that is as sure to fit.", number=False),
    Column("best_s", "Step time predicted for that plan, s."),
    Column("gain", "Step time that it saves of the recipe's as predicted, %."),
    Column("expected", "The same as expected of the fastest of many plans, %."),
    Column("expected_low", "Lower end of its 80 % interval, %."),
    Column("expected_high", "Upper end, %."),
    Column("verdict", "As good, gain, within the error bar, cannot tell, or lost.", number=False),
    Column("what_differs", "What differs, and the terms of the step time that fall most.", False),
)


def recipe_table(comparisons: Sequence[RecipeComparison]) -> DataTable:
    """One row for each recipe, with all measurements of it."""
    same: dict[tuple[object, ...], list[RecipeComparison]] = {}
    for one in comparisons:
        same.setdefault((*_job(one), one.recipe, f"{one.predicted_s:.4g}"), []).append(one)
    rows = [_row(members) for members in same.values()]
    return DataTable("recipes", "Recipes and best plans", _RECIPE_COLUMNS, rows)


def _job(one: RecipeComparison) -> tuple[str, ...]:
    return one.source, one.model, one.gpus, one.precision, one.framework


def _row(members: Sequence[RecipeComparison]) -> tuple[str, ...]:
    one = members[0]
    measured = (pick(member.measured_s for member in members) for pick in (min, max))
    return (
        *_job(one),
        one.recipe,
        *(f"{seconds:.3g}" for seconds in measured),
        f"{one.predicted_s:.3g}",
        f"{100.0 * one.probability:.0f}",
        one.best or "none",
        "" if one.best_s is None else f"{one.best_s:.3g}",
        "" if one.gain is None else f"{100.0 * one.gain:.1f}",
        *_saved(one.expected),
        one.verdict,
        one.reason,
    )


def _saved(expected: Ratio | None) -> tuple[str, str, str]:
    """Percent of the step time saved, as expected of the best of many, with its interval."""
    if expected is None:
        return "", "", ""
    ends = (expected.value, expected.low, expected.high)
    value, low, high = (f"{100.0 * (1.0 - 1.0 / end):.0f}" for end in ends)
    return value, low, high


_BIN_COLUMNS = (
    Column("runs_of", "Which runs.", number=False),
    Column("stated_low", "Lower end of the stated probability of fitting, %."),
    Column("stated_high", "Upper end, %."),
    Column("runs", "Runs."),
    Column("mean_stated", "Mean stated probability, %."),
    Column("ran", "Runs that ran, %."),
)


def reliability_table(predictions: Sequence[Prediction]) -> DataTable:
    """How often runs fit that were said to, by stated probability, for each kind of runs."""
    rows = [
        (name, *(f"{100.0 * one:.0f}" for one in (found.low, found.high)), str(found.rows),
         *(f"{100.0 * one:.0f}" for one in (found.stated, found.ran)))
        for name, members in _groups(predictions).items()
        for found in fit_reliability(members)
    ]  # fmt: skip
    return DataTable("reliability", "Runs by stated probability", _BIN_COLUMNS, rows)


def _groups(predictions: Sequence[Prediction]) -> dict[str, Sequence[Prediction]]:
    """Runs by kind: apart are mixtures of experts and Blackwell."""
    known = [one for one in predictions if one.mapped]
    return {
        "all runs": predictions,
        "sources that list failures too": of_sources_with_failures(predictions),
        "mixtures of experts": [one for one in known if one.job.model.moe],
        "dense models": [one for one in known if not one.job.model.moe],
        "on Blackwell": [one for one in known if one.job.cluster.gpu.architecture == "blackwell"],
    }


def _reliability(predictions: Sequence[Prediction]) -> str:
    """Both errors of the stated probabilities, for each kind of runs."""
    rows = (
        (name, *_error_cells(fit_errors(members))) for name, members in _groups(predictions).items()
    )
    titles = ("runs", "ran", "of these lost", "given 80 % or more", "of these wrong")
    table = markdown_table(titles, rows, range(1, 5))
    return f"{_text('reliability.md')}\n\n{table}\n\n{reliability_table(predictions).link()}"


def _error_cells(errors: FitErrors) -> tuple[str, ...]:
    """Numbers of runs, and what part of them was judged wrongly."""
    pairs = ((errors.ran, errors.lost), (errors.sure, errors.wrong))
    return tuple(
        cell
        for whole, part in pairs
        for cell in (str(whole), f"{part} ({share(part / whole)})" if whole else str(part))
    )
