"""Words beside dots find places of their own, or are left out."""

from __future__ import annotations

from planner.report.charts.labels import Labelled, Span, label_columns

AXIS = Span((0.0, 100.0))


def test_the_nearest_free_place_is_taken() -> None:
    (alone,) = label_columns([Labelled(50.0, 50.0, "8xH100", "8")], AXIS, AXIS)
    assert (alone["words"], alone["align"], alone["dx"], alone["dy"]) == ("8xH100", "left", 10, -11)
    assert alone["phone_words"] == "8"
    one, other = label_columns([Labelled(50.0, 50.0, "a"), Labelled(50.5, 50.0, "b")], AXIS, AXIS)
    assert (one["dx"], one["dy"]) != (other["dx"], other["dy"])


def test_words_keep_off_whiskers_and_inside_the_picture() -> None:
    (right,) = label_columns([Labelled(99.0, 50.0, "a long name")], AXIS, AXIS)
    assert right["align"] == "right"
    barred = Labelled(48.0, 53.0, ends=(48.0, 60.0, 50.0, 56.0))
    (beside, _) = label_columns([Labelled(50.0, 50.0, "name"), barred], AXIS, AXIS)
    assert beside["dy"] == 13


def test_words_without_a_free_place_are_left_out() -> None:
    crowd = [Labelled(50.0, 50.0, f"plan {number}") for number in range(40)]
    words = [columns["words"] for columns in label_columns(crowd, AXIS, AXIS)]
    assert words[0] == "plan 0" and "" in words
    logarithmic = Span((1.0, 100.0), logarithmic=True)
    assert abs(logarithmic.share(10.0) - 0.5) < 1e-9
