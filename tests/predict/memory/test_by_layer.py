"""Memory during backward by layer, and what the allocator adds to tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from planner import Degrees, Request
from planner.cli import planner_command
from planner.predict.memory.account import Footprint, backward_by_layer
from planner.predict.memory.terms import ALLOCATION_BYTES, KeptTensor, peak_tensors
from tests.configurations import memory_footprint


def _footprint(framework: str, recompute: str = "none", **degrees: Any) -> Footprint:
    split = Degrees(**degrees)
    request = Request(
        model="llama-3-8b", gpus=f"{split.gpus}xH100", gbs=split.gbs, framework=framework, seq=4096
    )
    return memory_footprint(request, split, recompute)


@pytest.mark.parametrize(
    ("framework", "recompute", "degrees", "falls"),
    [
        # Gradients have buffers of their own: each layer that is done only gives back.
        ("megatron-core", "none", {"dp": 8, "zero": 1, "grad_acc": 4}, True),
        # Checkpoints are small, and each layer leaves its gradients behind.
        ("hf-transformers", "full", {"mbs": 1}, False),
        ("deepspeed", "none", {"dp": 4, "zero": 2, "mbs": 2}, True),
    ],
)
def test_backward_goes_evenly_from_the_last_layer_to_the_first(
    framework: str, recompute: str, degrees: dict[str, int], falls: bool
) -> None:
    for account in _footprint(framework, recompute, **degrees).stages:
        layers = backward_by_layer(account)
        assert [one.layer for one in layers] == list(range(account.layers - 1, -1, -1))
        assert [one.done for one in layers] == list(range(account.layers))
        steps = [after.total_bytes - before.total_bytes for before, after in pairwise(layers)]
        assert steps == pytest.approx([steps[0]] * len(steps))
        assert (steps[0] < 0.0) is falls
        assert max(one.total_bytes for one in layers) <= account.peak.total_bytes * (1 + 1e-9)


def test_a_layer_that_is_done_gives_back_what_it_kept() -> None:
    """Megatron-Core, one micro-batch after the other: the step is a layer's saved tensors."""
    account = _footprint("megatron-core", dp=8, zero=1, grad_acc=4).heaviest
    first, second, *_ = backward_by_layer(account)
    kept = sum(float(account.core.costs[kind].saved) for kind in range(1))
    assert first.total_bytes - second.total_bytes == pytest.approx(kept, rel=0.05)


def test_the_allocator_rounds_every_copy_up() -> None:
    assert KeptTensor("odd", 3 * 1000.0, 3.0).rounding_bytes == 3 * (2 * ALLOCATION_BYTES - 1000)
    assert KeptTensor("whole", 4 * 1024.0, 4.0).rounding_bytes == 0.0
    footprint = _footprint("megatron-core", dp=8, zero=1)
    for tensor in peak_tensors(footprint, footprint.heaviest):
        assert 0.0 <= tensor.rounding_bytes < ALLOCATION_BYTES * tensor.copies


def test_both_are_shown_and_written() -> None:
    words = ["memory", "--model", "llama-3.2-1b", "--gpus", "1xH100", "--tensors", "--by-layer"]
    shown = CliRunner().invoke(planner_command, words, catch_exceptions=False).output
    assert "during backward, by layer" in shown
    assert "to 512 B" in shown
    written = CliRunner().invoke(planner_command, [*words, "--json"], catch_exceptions=False).output
    assert '"backward_by_layer"' in written
    assert '"rounding_bytes"' in written
