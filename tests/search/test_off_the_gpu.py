"""What a search offers where nothing fits on the GPU alone."""

from __future__ import annotations

import pytest

from planner.job.request import Request
from planner.predict.evaluate import Proposal
from planner.predict.memory.advice import advise
from planner.predict.plan import Degrees
from planner.search.infeasible import DoesNotFitError
from planner.search.search import find_plans


def test_weights_in_host_memory_are_tried_where_nothing_fits() -> None:
    """13 B parameters on a card of 24 GB hold no 16-bit weights."""
    request = Request(
        model="llama-2-13b", gpus="1xRTX4090", gbs=2, seq=2048, framework="deepspeed",
        limits={"zero": (3,), "mbs": (1,)}, recompute=("full",),
    )  # fmt: skip
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, fastest_only=True)
    changes = {one.change: one.plan for one in caught.value.why.relaxations}
    plan = changes["--with parameter-offload --optimizer-offload 1"]
    assert plan.techniques == ("parameter-offload",)
    assert plan.fits


def test_advice_raises_the_stage_that_weights_need() -> None:
    request = Request(model="llama-3-8b", gpus="8xA100", gbs=16, seq=2048, framework="deepspeed")
    found = advise(Proposal(request, Degrees(dp=8, zero=2, mbs=1, grad_acc=2)))
    moves = (*found.sufficient, *found.partial)
    flags = {move.flags for move in moves}
    assert "--zero 3 --with parameter-offload" in flags


def test_drives_are_tried_where_the_host_has_too_little_memory() -> None:
    """66 B parameters are a TB with their states; the node of the card has half of that."""
    request = Request(
        model="opt-66b", gpus="1xV100-32GB", gbs=4, seq=1024, framework="deepspeed",
        precision="fp16", limits={"mbs": (4,)}, recompute=("full",),
    )  # fmt: skip
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, fastest_only=True)
    tried = {one.change for one in caught.value.why.relaxations}
    assert "--with parameter-nvme --with optimizer-nvme --optimizer-offload 1" in tried
    assert "--with parameter-offload --optimizer-offload 1" not in tried
