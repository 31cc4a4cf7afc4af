"""Logs that grow: what their steps tell and how surely, signs of what went wrong, as frameworks
print them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner import Degrees
from planner.evidence.learn.logs import LogFigures
from planner.tune.follow import (
    FollowedLog,
    autocorrelation_time,
    is_foreign,
    printed_error,
    relative_error,
    step_time,
)

ONE = Degrees(dp=2, mbs=4, grad_acc=1)
LINES = {
    "Megatron-LM": (
        " [2026-01-01] iteration 5/50 | elapsed time per iteration (ms): 1250.0 | "
        "global batch size:    8 | lm loss: 1.0E+00 |"
    ),
    "torchtitan": "step:  5  loss:  7.1  memory:  9.10GiB(11.5%)  tps: 5,120  tflops: 3",
    "DeepSpeed": "step=5, CurrSamplesPerSec=6.4, MemAllocated=1.0GB, MaxMemAllocated=2.0GB",
    "nanotron": "iteration: 5 / 50 | time_per_iteration_ms: 1.25K | lm_loss: 11.2",
    "accelerate": "step 5: loss 10.8123, 1.250 s, peak reserved 9.10 GiB",
    "MaxText": "completed step: 5, seconds: 1.250, TFLOP/s/device: 3.1, loss: 10.9",
}
MEMORY = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
    "[rank3]: torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 1048576 bytes.",
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8G",
]


def followed(tmp_path: Path, *lines: str) -> FollowedLog:
    log = FollowedLog(tmp_path / "train.log")
    log.path.write_text("".join(f"{line}\n" for line in lines))
    log.look()
    return log


@pytest.mark.parametrize("name", LINES)
def test_every_framework_is_followed(name: str, tmp_path: Path) -> None:
    log = followed(tmp_path, *[LINES[name]] * 8)
    found = step_time(log.said, ONE, 1600)
    assert log.format == name
    assert found is not None
    assert found.seconds == pytest.approx(1.25)
    assert not log.signs


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    log = FollowedLog(tmp_path / "train.log")
    assert not log.look()
    with log.path.open("a") as stream:
        stream.write("step 1: loss 1.0, 9.0 s\nstep 2: loss 1.0, 1.2")
        stream.flush()
        assert log.look()
        assert log.said.values == [9.0]
        stream.write("5 s\rstep 3: loss 1.0, 1.24 s\n")
    assert log.look()
    assert log.said.values == [9.0, 1.25, 1.24]
    assert not log.look()
    log.path.write_text("step 1: loss 1.0, 2.0 s")
    log.look()
    assert log.said.values == []
    log.end()
    assert log.said.values == [2.0]


@pytest.mark.parametrize("line", MEMORY)
def test_memory_that_is_not_enough(line: str, tmp_path: Path) -> None:
    assert followed(tmp_path, line).signs["out-of-memory"] == line[:300]


@pytest.mark.parametrize(
    "line",
    [
        " iteration 3/50 | elapsed time per iteration (ms): 10.0 | lm loss: NAN |",
        "step:  3  loss:      nan  memory:  9.10GiB(11.5%)  tps: 5,120",
        "{'loss': 'nan', 'grad_norm': 1.0}",
        "step 3: loss nan, 1.250 s",
        "{'loss': nan, 'learning_rate': 1e-4}",
    ],
)
def test_losses_that_are_no_number(line: str, tmp_path: Path) -> None:
    assert "not-a-number" in followed(tmp_path, line).signs


@pytest.mark.parametrize(
    "line",
    ["loss scale: 1.0 | grad norm: 3.1 | number of nan iterations:   0 |", "inf loss of none",
     "expandable segments: less out of memory", "loss 0.1"],
)  # fmt: skip
def test_what_is_no_sign(line: str, tmp_path: Path) -> None:
    assert not followed(tmp_path, line).signs


def test_a_log_of_another_framework() -> None:
    assert is_foreign("torchtitan", "megatron-core")
    assert not is_foreign("Megatron-LM", "megatron-bridge")
    assert not is_foreign("", "megatron-core")
    assert not is_foreign("MLPerf", "megatron-core")


def alike(count: int, rho: float, sd: float, seed: int) -> np.ndarray:
    """Steps of about 1 s whose errors are an AR(1) process."""
    draw = np.random.default_rng(seed).normal(size=count)
    found = [draw[0]]
    for one in draw[1:]:
        found.append(rho * found[-1] + np.sqrt(1 - rho**2) * one)
    return 1.0 + sd * np.array(found)


@pytest.mark.parametrize(("rho", "wanted"), [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)])
def test_autocorrelation_of_a_known_process(rho: float, wanted: float) -> None:
    """tau of AR(1) is (1 + rho) / (1 - rho)."""
    assert autocorrelation_time(alike(20_000, rho, 1.0, 3)) == pytest.approx(wanted, rel=0.15)


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.7])
@pytest.mark.parametrize("count", [8, 20, 45])
def test_the_error_is_the_one_that_repeats(rho: float, count: int) -> None:
    """The medians of many short runs scatter about as widely as each run says."""
    runs = [alike(count, rho, 0.02, seed) for seed in range(300)]
    true = float(np.std([np.median(run) for run in runs]))
    said = float(np.sqrt(np.mean([relative_error(run) ** 2 for run in runs])))
    assert 0.8 < said / true < 2.5


def test_a_drift_is_no_steady_step() -> None:
    assert relative_error(np.linspace(1.0, 1.1, 40)) > 0.02


def test_few_steps_tell_nothing() -> None:
    said = LogFigures([1.0, 1.0, 1.0, 1.0])
    assert step_time(said, ONE, 1) is None
    ended = step_time(said, ONE, 1, ended=True)
    assert ended is not None
    assert ended.relative_sd > 0.01


def test_rounded_figures_are_not_exact() -> None:
    assert printed_error([0.022] * 40) == pytest.approx(0.001 / 12**0.5 / 0.022, rel=1e-6)
    assert printed_error([1.25, 1.26, 1.27, 1.28]) < printed_error([1.25] * 4)
    said = step_time(LogFigures([0.022] * 40), ONE, 1)
    assert said is not None
    assert said.relative_sd > 0.01


def test_a_mean_over_the_run_is_no_sure_one(tmp_path: Path) -> None:
    log = followed(tmp_path, "{'train_runtime': '20.0', 'train_steps_per_second': '2.0'}")
    found = step_time(log.said, ONE, 1)
    assert found is not None
    assert (found.seconds, found.relative_sd) == (0.5, 0.1)
