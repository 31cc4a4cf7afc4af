"""The page of recipes: the table, what it says in figures, and how reliable fits are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import median

from hardware.files import shipped_text
from planner.evidence.runs.predict import Prediction
from planner.job.quantities import share, signed_share
from planner.job.written import markdown_table
from planner.predict.uncertainty.differences import Ratio
from tests.fit.reliability import (
    FitErrors,
    fit_errors,
    fit_reliability,
    of_sources_with_failures,
)
from tests.recipes.compare import NOT_CLAIMED, NOTABLE, RecipeComparison, Verdict


def page(comparisons: Sequence[RecipeComparison], predictions: Sequence[Prediction]) -> str:
    """Markdown; the tables of reliability where predictions of runs are given."""
    parts = [_text("page.md"), _summary(comparisons), _table(comparisons)]
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
    verdicts = "; ".join(f"{words}: {counts[name]}" for name, words in _VERDICTS.items())
    beyond = sum(one.peak_share > 1.0 for one in comparisons)
    slower = sum(gain < -_RESOLVED for gain in gains)
    left = [1.0 - 1.0 / one.expected.value for one in comparisons if one.expected is not None]
    sure = [one for one in comparisons if one.expected is not None and one.expected.low > 1.0]
    large = [sum(gain > _LARGE for gain in some) for some in (gains, left)]
    return (
        f"{len(comparisons)} recipes; the best plan is slower than the recipe as predicted in "
        f"{slower}; median gain {share(median(gains))}, as expected of the best of so many plans "
        f"{share(median(left))}. More than {share(_LARGE, 0)} are gained in {large[0]} as "
        f"predicted, in {large[1]} as expected; in {len(sure)} any gain is sure (80 % interval). "
        f"{verdicts}. Of all, {beyond} are predicted beyond their memory, though they ran."
    )


_RESOLVED = 0.001
# A gain from which on a tuned recipe is hardly believed to leave so much.
_LARGE = 0.15
_VERDICTS: dict[Verdict, str] = {
    "as good": f"at most {share(NOTABLE, 0)} faster",
    "gain": "faster by more, which is named",
    "within the error bar": f"faster by more, but {NOT_CLAIMED}",
    "cannot tell": "faster by more without an unused technique, but the recipe itself is predicted "
    "more than 10 % off, so nobody can tell",
    "lost": "slower, or none found, though the recipe is one of the plans searched",
}


def _table(comparisons: Sequence[RecipeComparison]) -> str:
    """One row for each recipe, with all measurements of it."""
    titles = (
        "source, model, GPUs", "recipe", "measured s", "predicted", "fits", "best found", "s",
        "gain", "expected", "verdict, what differs",
    )  # fmt: skip
    same: dict[tuple[object, ...], list[RecipeComparison]] = {}
    for one in comparisons:
        same.setdefault((*_job(one), one.recipe, f"{one.predicted_s:.4g}"), []).append(one)
    return markdown_table(titles, map(_row, same.values()))


def _job(one: RecipeComparison) -> tuple[str, ...]:
    return one.source, one.model, one.gpus, one.precision, one.framework


def _row(members: Sequence[RecipeComparison]) -> tuple[str, ...]:
    one = members[0]
    low, high = (pick(member.measured_s for member in members) for pick in (min, max))
    measured = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
    errors = signed_share(one.predicted_s / high - 1.0, 0)
    if high > low:
        errors += f" to {signed_share(one.predicted_s / low - 1.0, 0)}"
    cells = (
        ", ".join(_job(one)),
        one.recipe,
        measured,
        f"{one.predicted_s:.3g} ({errors})",
        share(one.probability, 0),
        one.best or "none",
        "" if one.best_s is None else f"{one.best_s:.3g}",
        "" if one.gain is None else signed_share(one.gain),
        "" if one.expected is None else _saved_text(one.expected),
        f"{one.verdict}: {one.reason}" if one.reason else one.verdict,
    )
    return tuple(cell.replace("|", "/") for cell in cells)


def _saved_text(expected: Ratio) -> str:
    """Step time saved, as expected of the best of many: `+4 % (-3 to +10)`."""
    ends = (expected.value, expected.low, expected.high)
    value, low, high = (signed_share(1.0 - 1.0 / end, 0) for end in ends)
    return f"{value} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"


def _reliability(predictions: Sequence[Prediction]) -> str:
    """How often runs fit that were said to, apart for mixtures of experts and Blackwell."""
    known = [one for one in predictions if one.mapped]
    groups = {
        "all runs": predictions,
        "sources that list failures too": of_sources_with_failures(predictions),
        "mixtures of experts": [one for one in known if one.job.model.moe],
        "dense models": [one for one in known if not one.job.model.moe],
        "on Blackwell": [one for one in known if one.job.cluster.gpu.architecture == "blackwell"],
    }
    lines = [_text("reliability.md")]
    for name, members in groups.items():
        rows = (
            (f"{share(one.low, 0)} to {share(one.high, 0)}", str(one.rows), share(one.stated, 0),
             share(one.ran, 0))
            for one in fit_reliability(members)
        )  # fmt: skip
        bins = markdown_table(("stated", "runs", "mean stated", "ran"), rows)
        lines += ["", f"### {name}", "", _errors_text(fit_errors(members)), "", bins]
    return "\n".join(lines)


def _errors_text(errors: FitErrors) -> str:
    lost, wrong = (
        share(part / whole) if whole else "none"
        for part, whole in ((errors.lost, errors.ran), (errors.wrong, errors.sure))
    )
    return (
        f"{errors.lost} of {errors.ran} runs that ran lost ({lost}), {errors.wrong} of "
        f"{errors.sure} that were given 80 % or more ran out ({wrong})."
    )
