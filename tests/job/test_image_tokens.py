"""Tokens of images as the processors of transformers count them (tests/frameworks)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner.job.images import image_count
from planner.job.models.catalog import load_model

with Path(__file__).with_name("image_tokens.csv").open(encoding="utf-8") as handle:
    COUNTED = list(csv.DictReader(handle))


@pytest.mark.parametrize("row", COUNTED, ids=[" ".join(row.values()) for row in COUNTED])
def test_tokens_are_those_of_the_processor(row: dict[str, str]) -> None:
    vision = load_model(row["model"]).with_vision().spec.vision
    assert vision is not None
    assert image_count(vision, int(row["width"]), int(row["height"])).tokens == int(row["tokens"])
