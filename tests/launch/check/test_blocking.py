"""`planner check` on launches left with CUDA_LAUNCH_BLOCKING=1."""

from __future__ import annotations

import pytest

from planner.launch.check.assess import assess
from planner.launch.check.changes import best_changes
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, rules, script

_PLAIN = script(f"{SMALL} {OVERLAPPED}")


@pytest.mark.parametrize(("value", "blocks"), [("1", True), ("0", False), ("", False)])
def test_only_a_value_that_switches_it_on_counts(read: Read, value: str, blocks: bool) -> None:
    text = _PLAIN.replace("export", f"export CUDA_LAUNCH_BLOCKING={value}\nexport", 1)
    found = read(text)
    assert ("blocking-launches" in found.variations) is blocks
    assert ("blocking-launches" in rules(found, "warning")) is blocks


def test_it_is_costed_and_unset_in_the_advice(read: Read) -> None:
    blocked = read(_PLAIN.replace("export", "export CUDA_LAUNCH_BLOCKING=1\nexport", 1))
    plain, slow = (assess(one, gpus="8xH100") for one in (read(_PLAIN), blocked))
    assert plain.plan is not None
    assert slow.plan is not None
    assert slow.plan.step_time_s > 1.1 * plain.plan.step_time_s
    first, *_ = best_changes(slow, lambda _what, _done, _total: None)
    assert first.change == "unset CUDA_LAUNCH_BLOCKING"
