"""Differences of plans in words."""

from __future__ import annotations

from planner.predict.plan import Degrees
from planner.predict.uncertainty.differences import Ratio
from planner.report.differences import beside_text, gain_text, ratio_text, tie_note, ties
from tests.cli.made_up import plan


def test_a_difference_has_its_interval_in_its_direction() -> None:
    assert ratio_text(Ratio(value=1.03, low=0.99, high=1.07)) == "3.0 % slower, -1 to +7 %"
    assert ratio_text(Ratio(value=1.12, low=1.04, high=1.2)) == "12.0 % slower, 4 to 20 %"
    assert ratio_text(Ratio(value=0.9, low=0.8, high=1.05)) == "10.0 % faster, -5 to +20 %"
    assert beside_text(Ratio(value=0.9, low=0.85, high=0.96)) == "10.0 % (4 to 15 %) faster"
    assert gain_text(Ratio(value=1.04, low=0.97, high=1.11)) == "+4 %, -3 to +11 %"


def test_ties_are_the_plans_that_are_not_surely_slower() -> None:
    first = plan()
    other = first.degrees.model_copy(update={"tp": 8, "cp": 1})
    near, far = (plan(degrees=other, tokens_per_s=pace) for pace in (70_000.0, 35_000.0))
    found = ties([(1, first), (2, near), (3, far)], mixture=False)
    assert list(found) == [2]
    assert tie_note(1, found).startswith(
        "≈ Not surely slower than plan 1: plan 2 is 1.4 % slower, "
    )
    assert ties([], mixture=False) == {} and tie_note(1, {}) == ""


def test_only_the_nearest_ties_are_compared_one_by_one() -> None:
    degrees = Degrees(tp=8, pp=4, vpp=5, cp=1, dp=2, zero=1, grad_acc=256)
    many = [(n, plan(degrees=degrees, tokens_per_s=71_000.0 - 10 * n)) for n in range(2, 9)]
    note = tie_note(1, ties([(1, plan()), *many], mixture=False))
    assert note.count("slower") == 4 and note.endswith("nor are plans 5-8.")
