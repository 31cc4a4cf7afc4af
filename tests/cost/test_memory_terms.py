"""Memory terms against the closed forms of their papers."""

from __future__ import annotations

import pytest

from planner.cost import memory


@pytest.mark.parametrize(
    ("stage", "pp", "vpp", "grad_acc", "expected"),
    [
        (0, 4, 1, 16, 4),  # 1F1B: the first stage holds p micro-batches
        (3, 4, 1, 16, 1),
        (0, 4, 1, 2, 2),  # never more than there are
        (0, 1, 1, 8, 1),
        # Interleaved (Narayanan et al. 2021): p·(1 + (p-1)/(p·v)) on the first stage.
        (0, 4, 2, 16, 4 * (1 + 3 / 8)),
        (0, 8, 3, 64, 8 * (1 + 7 / 24)),
    ],
)
def test_microbatches_in_flight(
    stage: float, pp: float, vpp: float, grad_acc: float, expected: float
) -> None:
    form = memory.microbatches_in_flight
    assert form(stage, pp, vpp, grad_acc, memory.SCHEDULE_1F1B) == pytest.approx(expected)
    assert form.py_func(stage, pp, vpp, grad_acc, memory.SCHEDULE_1F1B) == pytest.approx(expected)


def test_all_forward_first_holds_every_microbatch() -> None:
    assert memory.microbatches_in_flight(0, 4, 1, 16, memory.SCHEDULE_ALL_FORWARD_FIRST) == 16
