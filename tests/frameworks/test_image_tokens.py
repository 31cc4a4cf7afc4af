"""Tokens of images against the processors of transformers, for sizes drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from planner.job.images import image_count
from planner.job.models.catalog import load_model

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
DRAWN = 400


def test_tokens_are_the_processors(needs: Callable[[str], ModuleType]) -> None:
    needs("torchvision")
    needs("transformers")
    from tests.frameworks.image_processors import processors, sizes

    for model, count in processors().items():
        vision = load_model(model).with_vision().spec.vision
        assert vision is not None
        for size in sizes(DRAWN):
            assert image_count(vision, *size).tokens == count(*size), (model, size)
