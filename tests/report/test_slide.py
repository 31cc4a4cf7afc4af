"""A recommendation as a slide: its words and bars stay apart, and it is 16:9."""

from __future__ import annotations

import csv
import io
import struct
from itertools import pairwise

import pytest

from planner.compare.comparison import compare_clusters
from planner.compare.offers import Offer
from planner.compare.results import ChoiceLimits, Comparison
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.report.charts.drawing import png
from planner.report.charts.slide import HEIGHT, WIDTH, is_slide, slide_chart

SMALL = Request(model="llama-3.2-1b", gbs=64)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    offers = (Offer(gpus="8xH100"), Offer(gpus="8xA100"))
    return compare_clusters(SMALL, offers, 10**10, Settings())


def _rows(layer: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(layer["data"]["values"])))


def test_it_says_what_to_take_why_and_how_old_prices_are(comparison: Comparison) -> None:
    _, words, _ = slide_chart(comparison)["layer"]
    texts = [row["text"] for row in _rows(words)]
    assert texts[0].startswith("Take 8x")
    assert any(text.startswith("because: ") for text in texts)
    assert any(text.startswith("price: ") and "; drawn 20" in text for text in texts)
    assert {"days", "MWh"} <= set(texts)


def test_lines_of_words_lie_apart(comparison: Comparison) -> None:
    _, words, _ = slide_chart(comparison)["layer"]
    left = [row for row in _rows(words) if row["align"] == "left"]
    by_column: dict[str, list[float]] = {}
    for row in left:
        by_column.setdefault(row["x"], []).append(float(row["y"]))
    for places in by_column.values():
        ordered = sorted(places)
        assert all(b - a >= 18 for a, b in pairwise(ordered))


def test_four_clusters_leave_room_for_the_words_below() -> None:
    offers = [Offer(gpus=f"8x{gpu}") for gpu in ("H100", "A100", "H200", "B200")]
    bars, words, _ = slide_chart(compare_clusters(SMALL, offers, 10**10, Settings()))["layer"]
    lowest = max(float(row["y"]) + float(row["height"]) for row in _rows(bars))
    heights = [float(row["y"]) for row in _rows(words) if row["text"].startswith("because: ")]
    assert len(_rows(bars)) == 4 * 3 * 2
    assert lowest + 16 < min(heights)


def test_it_is_a_slide_of_16_to_9(comparison: Comparison) -> None:
    picture = png(slide_chart(comparison))
    assert struct.unpack(">II", picture[16:24]) == (2 * WIDTH, 2 * HEIGHT)
    assert WIDTH * 9 == HEIGHT * 16


def test_without_a_recommendation_there_is_none() -> None:
    limits = ChoiceLimits(deadline_days=1e-6)
    offers = (Offer(gpus="8xH100"),)
    nothing = compare_clusters(SMALL, offers, 10**10, Settings(), limits=limits)
    with pytest.raises(UsageError, match="nothing to recommend"):
        slide_chart(nothing)


def test_names_of_slides() -> None:
    assert is_slide("slide") and is_slide("Q3-Slide")
    assert not is_slide("slides-of-none.x") and not is_slide("compare")
