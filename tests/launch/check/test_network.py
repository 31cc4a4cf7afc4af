"""`planner check` on launches whose environment changes how NCCL communicates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.launch.check.assess import assess
from planner.launch.check.changes import best_changes
from tests.cli.conftest import lines_are_short, run_cli
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, Write, rules

_SLOW = "NCCL_IB_DISABLE=1"
_TORCHRUN = "torchrun --nnodes 2 --nproc_per_node 8"
_MEGATRON = f"pretrain_gpt.py {SMALL} {OVERLAPPED}"
_TRAINER = (
    "train.py --model_name_or_path meta-llama/Llama-3.2-1B --deepspeed z.json --bf16 "
    "--per_device_train_batch_size 1 --max_seq_length 1024"
)
_JOB = """apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  template:
    spec:
      containers:
      - name: train
        env:
        - {{name: NCCL_IB_DISABLE, value: "1"}}
        command: ["bash", "-c", "{command}"]
"""
# The same variable, wherever a launch may get it from.
LAUNCHES = [
    ("a.sh", f"export {_SLOW}\n{_TORCHRUN} {_MEGATRON}\n"),
    ("a.sh", f"{_SLOW} {_TORCHRUN} {_MEGATRON}\n"),
    ("a.sh", f"env {_SLOW} {_TORCHRUN} {_MEGATRON}\n"),
    ("a.sh", f"#!/bin/bash\n#SBATCH --export=ALL,{_SLOW}\n{_TORCHRUN} {_MEGATRON}\n"),
    ("a.sh", f"export {_SLOW}\ndeepspeed --num_gpus 8 --num_nodes 2 {_TRAINER}\n"),
    ("a.sh", f"export {_SLOW}\naccelerate launch --num_processes 16 {_TRAINER}\n"),
    ("job.yaml", _JOB.format(command=f"{_TORCHRUN} {_MEGATRON}")),
]


@pytest.mark.parametrize(("name", "text"), LAUNCHES)
def test_the_variable_is_read_wherever_it_is_set(write: Write, name: str, text: str) -> None:
    write("z.json", '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    lines = _check(write(name, text), "--gpus", "2x8xA100")
    assert lines[0].startswith("verdict")
    assert lines[1].startswith("first")
    assert "NCCL_IB_DISABLE" in lines[1]


def _check(path: Path, *options: str) -> list[str]:
    result = run_cli("check", str(path), *options, "-q")
    assert result.exit_code in (0, 1), result.output
    assert "--json" in options or lines_are_short(result.output)
    return result.output.splitlines()


def _script(line: str) -> str:
    return f"#!/bin/bash\n{line}\n{_TORCHRUN} {_MEGATRON}\n"


@pytest.mark.parametrize(
    "variable",
    ["NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_IB_HCA=mlx5_0", "NCCL_P2P_DISABLE=1",
     "NCCL_PROTO=LL", "NCCL_NET_GDR_LEVEL=LOC"],
)  # fmt: skip
def test_what_costs_is_said_first_and_its_gain_is_the_first_change(
    read: Read, variable: str
) -> None:
    plain, slow = (assess(read(_script(line)), "2x8xA100") for line in ("", f"export {variable}"))
    assert plain.plan is not None
    assert slow.plan is not None
    assert slow.network is not None
    assert slow.plan.step_time_s > plain.plan.step_time_s
    assert slow.network.without_s == pytest.approx(plain.plan.step_time_s)
    assert plain.network is None
    name = variable.partition("=")[0]
    assert slow.network.variables == (name,)
    if slow.network.costs:
        assert "network-fallback" in {problem.rule for problem in slow.problems}
        changes = best_changes(slow, lambda _what, _done, _total: None)
        if slow.network.ratio > 1.5:
            assert changes[0].change == f"unset {name}"


def test_the_report_gives_the_gain_once(write: Write) -> None:
    lines = _check(write("a.sh", _script(f"export {_SLOW}")), "--gpus", "2x8xA100")
    text = " ".join(" ".join(lines).split())
    assert " first " in text
    assert text.count("traffic between nodes goes over TCP sockets") == 1
    assert "times as fast" in text
    assert "Ethernet (TCP)" in text


def test_one_node_and_an_unset_variable_say_nothing(read: Read) -> None:
    """InfiniBand is nothing to one node, and 0 disables nothing."""
    one = read(f"#!/bin/bash\nexport {_SLOW}\ntorchrun --nproc_per_node 8 {_MEGATRON}\n")
    assert assess(one, "8xA100").network is None
    assert assess(read(_script("export NCCL_IB_DISABLE=0")), "2x8xA100").network is None


def test_the_user_s_own_value_counts(read: Read) -> None:
    found = read(_script(""), environment={"NCCL_IB_DISABLE": "1"})
    assert assess(found, "2x8xA100").network is not None


def test_a_value_that_is_not_known_is_noted(read: Read) -> None:
    found = read(_script("export NCCL_IB_DISABLE=$FROM_THE_CLUSTER"))
    assert "network-unknown" in rules(found, "note")
    assert assess(found, "2x8xA100").network is None


def test_the_loopback_reaches_no_other_node(read: Read) -> None:
    found = read(_script("export NCCL_SOCKET_IFNAME=lo"))
    assert assess(found, "2x8xA100").verdict == "will not run"
    alone = read(
        f"#!/bin/bash\nexport NCCL_SOCKET_IFNAME=lo\ntorchrun --nproc_per_node 8 {_MEGATRON}\n"
    )
    assert assess(alone, "8xA100").verdict == "runs and fits"


def test_json_has_the_cost(write: Write) -> None:
    path = write("a.sh", _script(f"export {_SLOW}"))
    document = json.loads("\n".join(_check(path, "--gpus", "2x8xA100", "--json")))
    network = document["network"]
    assert network["variables"] == ["NCCL_IB_DISABLE"]
    assert network["ratio"] == pytest.approx(network["step_time_s"] / network["without_s"])
    assert network["changes"]
