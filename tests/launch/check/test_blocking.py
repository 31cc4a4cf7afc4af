"""`planner check` on launches left with CUDA_LAUNCH_BLOCKING=1."""

from __future__ import annotations

import pytest

from planner.launch.check.assess import assess
from planner.launch.check.changes import best_changes
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, rules, script

_PLAIN = script(f"{SMALL} {OVERLAPPED}")


VALUES = [
    ("1", True), ("'1'", True), ("${DEBUG:-1}", True), ("$((1 + 0))", True),
    ("0", False), ("00", False), ("", False), ("false", False), ("$UNKNOWN", False),
]  # fmt: skip


@pytest.mark.parametrize(("value", "blocks"), VALUES)
def test_only_a_value_that_switches_it_on_counts(read: Read, value: str, blocks: bool) -> None:
    text = _PLAIN.replace("export", f"export CUDA_LAUNCH_BLOCKING={value}\nexport", 1)
    found = read(text)
    assert ("blocking-launches" in found.variations) is blocks
    assert ("blocking-launches" in rules(found, "warning")) is blocks


ON = "CUDA_LAUNCH_BLOCKING=1"
ELSEWHERE = [
    (_PLAIN.replace("torchrun", f"{ON} torchrun"), True),
    (_PLAIN.replace("torchrun", f"env {ON} torchrun"), True),
    (_PLAIN.replace("torchrun", f"srun --export=ALL,{ON} torchrun"), True),
    (_PLAIN.replace("#!/bin/bash", f"#!/bin/bash\n#SBATCH --export=ALL,{ON}"), True),
    (_PLAIN.replace("export", f"declare -x {ON}\nexport", 1), True),
    (_PLAIN.replace("export", f"{ON}\nexport", 1), False),
    (_PLAIN.replace("export", f"export {ON}\nunset CUDA_LAUNCH_BLOCKING\nexport", 1), False),
    (f"{_PLAIN}export {ON}\n", False),
]


@pytest.mark.parametrize(("text", "blocks"), ELSEWHERE)
def test_wherever_the_command_gets_it_from(read: Read, text: str, blocks: bool) -> None:
    assert ("blocking-launches" in read(text).variations) is blocks


@pytest.mark.parametrize("program", ["torchrun --nproc_per_node 8", "deepspeed --num_gpus 8"])
def test_whatever_starts_a_trainer(read: Read, program: str) -> None:
    options = "--model_name_or_path meta-llama/Llama-3.1-8B --deepspeed zero2 --bf16"
    found = read(f"{ON} {program} train.py {options} --per_device_train_batch_size 1\n")
    assert found.variations[-1] == "blocking-launches"


def test_it_is_costed_and_unset_in_the_advice(read: Read) -> None:
    blocked = read(_PLAIN.replace("export", "export CUDA_LAUNCH_BLOCKING=1\nexport", 1))
    plain, slow = (assess(one, gpus="8xH100") for one in (read(_PLAIN), blocked))
    assert plain.plan is not None
    assert slow.plan is not None
    assert slow.plan.step_time_s > 1.1 * plain.plan.step_time_s
    first, *_ = best_changes(slow, lambda _what, _done, _total: None)
    assert first.change == "unset CUDA_LAUNCH_BLOCKING"
