"""Splits that a framework cannot write down: the reason, and the nearest that it can."""

from __future__ import annotations

import pytest

from constraints.layout_context import LayoutContext, LayoutShape
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate, nearest_split
from planner.predict.plan import Degrees


@pytest.mark.parametrize(
    ("layouts", "vpp", "wanted", "nearest"),
    [
        ("even", 1, (7, 3, 3, 3), (4, 4, 4, 4)),
        ("even-or-ends", 1, (3, 5, 4, 4), (4, 4, 4, 4)),
        ("even-or-ends", 1, (2, 6, 6, 2), (2, 6, 6, 2)),
        ("even-or-ends", 2, (1, 3, 3, 1, 2, 3, 3, 0), (1, 3, 3, 1, 1, 3, 3, 1)),
        ("any", 1, (7, 3, 3, 3), (4, 4, 4, 4)),
    ],
)
def test_nearest_split(
    layouts: LayoutShape, vpp: int, wanted: tuple[int, ...], nearest: tuple[int, ...]
) -> None:
    even = (4 // vpp,) * (4 * vpp)
    ctx = LayoutContext(4, vpp, (0,) * 16, layouts, usual_split=even)
    assert nearest_split(wanted, ctx) == nearest


@pytest.mark.parametrize(
    ("framework", "blocks", "words"),
    [
        ("nanotron", (16, 16), r"nanotron places the layers itself.*nearest: \[18, 14\]"),
        ("megatron-lm-2022", (15, 17), r"the same number of layers; nearest: \[16, 16\]"),
        ("megatron-core", (16, 17), r"they add up to 33, but llama-3.1-8b has 32"),
    ],
)
def test_the_refusal_says_what_and_what_instead(
    framework: str, blocks: tuple[int, ...], words: str
) -> None:
    request = Request(model="llama-3.1-8b", gpus="16xH100", gbs=64, framework=framework)
    degrees = Degrees(tp=2, pp=2, dp=4, zero=1, grad_acc=16)
    with pytest.raises(UsageError, match=words):
        evaluate(request, degrees, block_layers=blocks)
