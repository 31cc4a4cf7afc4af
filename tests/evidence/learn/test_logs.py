# ruff: noqa: E501 (lines as the frameworks print them)
"""Logs of every framework, in the words that their sources print."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hardware.errors import HardwareError
from planner.evidence.learn.logs import read_log, steady
from planner.job.errors import UsageError

# megatron/training/training.py, training_log and report_memory (core 0.14).
MEGATRON = """\
 [2025-06-01 10:00:00.1] iteration        1/     100 | consumed samples:          128 | elapsed time per iteration (ms): 25123.4 | throughput per GPU (TFLOP/s/GPU): 40.1 | learning rate: 1.0E-05 | global batch size:   128 | lm loss: 1.1E+01 | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 30000.5 | max allocated: 41000.25 | reserved: 45000.0 | max reserved: 46080.0
 [2025-06-01 10:00:05.1] iteration        2/     100 | consumed samples:          256 | elapsed time per iteration (ms): 5100.0 | throughput per GPU (TFLOP/s/GPU): 390.1 | global batch size:   128 | lm loss: 1.1E+01 |
 [2025-06-01 10:00:10.1] iteration        3/     100 | consumed samples:          384 | elapsed time per iteration (ms): 5000.0 | throughput per GPU (TFLOP/s/GPU): 390.1 | global batch size:   128 | lm loss: 1.1E+01 |
 [2025-06-01 10:00:15.1] iteration        4/     100 | consumed samples:          512 | elapsed time per iteration (ms): 5050.0 | throughput per GPU (TFLOP/s/GPU): 390.1 | global batch size:   128 | lm loss: 1.1E+01 |
"""
# Argonne's Megatron-DeepSpeed.
ARGONNE = """\
[2024-04-21 02:45:40][INFO][training:1251] -  iteration=       3/  317892 | consumed_samples=         768 | elapsed_time_per_iteration_ms=16071.8 | learning_rate=0.000000 | global_batch_size=  256 | lm loss=11.205435
"""
# torchtitan/components/metrics.py, with colours.
TITAN = """\
[titan] 2025-06-01 10:00:00 - root - INFO - \x1b[31mstep:  1 \x1b[32mloss: 12.2 \x1b[38;2;180;60;0mgrad_norm: 4.3 \x1b[38;2;54;234;195mmemory: 40.25GiB(50.84%) \x1b[34mtps: 500 \x1b[36mtflops: 29.1 \x1b[35mmfu: 2.9%\x1b[39m
[titan] 2025-06-01 10:00:10 - root - INFO - step: 10  loss: 10.1  grad_norm:  2.0  memory: 47.50GiB(60.00%)  tps: 6,000  tflops: 350.11  mfu: 35.40%
[titan] 2025-06-01 10:00:20 - root - INFO - step: 20  loss:  9.1  grad_norm:  2.0  memory: 47.50GiB(60.00%)  tps: 6,020  tflops: 350.11  mfu: 35.40%
"""
# deepspeed/utils/timer.py and runtime/engine.py.
DEEPSPEED = """\
[2025-06-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 100.10 | bwd_microstep: 220.00 | bwd_inner_microstep: 210.00 | bwd_allreduce_microstep: 9.00 | step_microstep: 30.00
[2025-06-01 10:00:00,124] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 400.50 | bwd: 880.00 | bwd_inner: 840.00 | bwd_allreduce: 36.00 | step: 119.50
[2025-06-01 10:00:00,125] [INFO] [timer.py:199:stop] epoch=0/micro_step=8/global_step=2, RunningAvgSamplesPerSec=90.1, CurrSamplesPerSec=91.2, MemAllocated=12.5GB, MaxMemAllocated=33.25GB
"""
PROFILER = (
    "fwd latency:   100.0 ms\niter latency:                    595.62 ms\nsamples/second:  107.45\n"
)
# src/nanotron/trainer.py, with human_format's letters.
NANOTRON = """\
06/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 100 | consumed_tokens: 1.05M | elapsed_time_per_iteration_ms: 20.1K | tokens_per_sec: 52K | tokens_per_sec_per_gpu: 6.5K | global_batch_size: 512 | lm_loss: 11.1 | lr: 0.0003 | model_tflops_per_gpu: 40 | hardware_tflops_per_gpu: 40 | grad_norm: 3
06/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0]:  Memory usage: 10000.00MiB. Peak allocated 20000.00MiB. Peak reserved: 24576.00MiB
06/01/2025 10:00:03 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 100 | consumed_tokens: 2.1M | elapsed_time_per_iteration_ms: 2.54K | tokens_per_sec: 412K | tokens_per_sec_per_gpu: 51.6K | global_batch_size: 512 | lm_loss: 10.9
"""
# As its logger writes since March 2025 (2411b022a75f): marked up, and the batch in tokens.
NANOTRON_2025 = """\
\x1b[2;3m03/27 10:00:00 [INFO|DP=0|PP=0|TP=0|node1]\x1b[0m: iteration: 1 / 100 | consumed_tokens: 1.05M | time_per_iteration_ms: 20.1K | tokens_per_sec: 52.2K | tokens_per_sec_per_gpu: 6.52K | global_batch_size: 1.05M | grad_norm: 3.01 | lm_loss: 11.1 | lr: 0.0003 | model_tflops_per_gpu: 40.3 | eta: 0:33:10
\x1b[2;3m03/27 10:00:00 [INFO|DP=0|PP=0|TP=0|node1]\x1b[0m:
\x1b[2;3m03/27 10:00:00 [INFO|DP=0|PP=0|TP=0|node1]\x1b[0m:  Memory usage: 10000.00MiB. Peak allocated 20000.00MiB. Peak reserved: 24576.00MiB
\x1b[2;3m03/27 10:00:03 [INFO|DP=0|PP=0|TP=0|node1]\x1b[0m: iteration: 2 / 100 | consumed_tokens: 2.1M | time_per_iteration_ms: 995 | tokens_per_sec: 1.05M | tokens_per_sec_per_gpu: 132K | global_batch_size: 1.05M | lm_loss: 10.9
"""
MLPERF = """\
:::MLLOG {"namespace": "", "time_ms": 1717236000000, "event_type": "POINT_IN_TIME", "key": "global_batch_size", "value": 2048, "metadata": {"file": "x.py", "lineno": 1}}
0: :::MLLOG {"namespace": "", "time_ms": 1717236100000, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {"throughput": 400.0}, "metadata": {"step": 2048}}
0: :::MLLOG {"namespace": "", "time_ms": 1717236200000, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {"train_step_time": 5.0, "throughput": 409.6}, "metadata": {"step": 4096}}
:::MLLOG {broken
"""


@pytest.mark.parametrize(
    ("text", "name", "values", "kind", "gib", "memory_kind", "gbs"),
    [
        (MEGATRON, "Megatron-LM", [25.1234, 5.1, 5.0, 5.05], "step_s", 45.0, "reserved", 128),
        (ARGONNE, "Megatron-LM", [16.0718], "step_s", None, "", 256),
        (TITAN, "torchtitan", [500, 6000, 6020], "tokens_per_s_per_gpu", 47.5, "reserved", None),
        (DEEPSPEED, "DeepSpeed", [1.4], "step_s", 33.25, "allocated", None),
        (PROFILER, "DeepSpeed", [0.59562], "step_s", None, "", None),
        (NANOTRON, "nanotron", [20.1, 2.54], "step_s", 24.0, "reserved", 512),
        (NANOTRON_2025, "nanotron", [20.1, 0.995], "step_s", 24.0, "reserved", 1_050_000),
        (MLPERF, "MLPerf", [5.0], "step_s", None, "", 2048),
    ],
)
def test_formats(
    tmp_path: Path, text: str, name: str, values: list[float], kind: str,
    gib: float | None, memory_kind: str, gbs: int | None,
) -> None:  # fmt: skip
    path = tmp_path / "train.log"
    path.write_text("Some launcher's line\n" + text)
    log = read_log(path)
    assert log.format == name
    assert log.figures.values == pytest.approx(values)
    assert log.figures.kind == kind
    assert log.figures.peak_bytes == (None if gib is None else gib * 2**30)
    assert log.figures.memory_kind == memory_kind
    assert log.figures.gbs == gbs


def test_trainer_state(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"loss": 2.0, "step": 10}, {"train_runtime": 100.0, "train_steps_per_second": 0.25}]
    path.write_text(json.dumps({"global_step": 25, "log_history": history}))
    log = read_log(path)
    assert log.figures.values == [0.25]
    assert log.figures.averaged
    history[1]["step"] = 25.4
    path.write_text(json.dumps({"log_history": history}))
    assert read_log(path).figures.values == [pytest.approx(0.254)]
    # Python's JSON has losses that JSON has no word for.
    for loss in (math.nan, math.inf, -math.inf):
        path.write_text(json.dumps({"log_history": [{"grad_norm": loss}, *history]}))
        assert read_log(path).figures.values == [pytest.approx(0.254)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "no 'log_history'"),
        ('{"log_history": [{"loss": 1.0}]}', "train_steps_per_second"),
        ('{"log_history": [{"train_steps_per_second": NaN}]}', "train_steps_per_second"),
        ("{", "not valid JSON"),
    ],
)
def test_trainer_state_without_times(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_log(path)


def test_a_log_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("epoch 1 loss 3\n" * 10)
    with pytest.raises(UsageError, match=r"none of 10 lines tells.*Megatron-LM, torchtitan"):
        read_log(path)


def test_no_text_no_file_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\0\1\2")
    with pytest.raises(UsageError, match="zero byte"):
        read_log(path)
    with pytest.raises(UsageError, match="does not exist"):
        read_log(tmp_path / "other.log")
    with pytest.raises(HardwareError, match="folder"):
        read_log(tmp_path)


def test_a_large_log_of_one_line_is_read_in_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "train.log"
    with path.open("w") as stream:
        for _ in range(200):
            stream.write("x" * 100_000)
        stream.write("\n" + MEGATRON)
    tracemalloc.start()
    assert len(read_log(path).figures.values) == 4
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


# --- steady -------------------------------------------------------------------------------------


def test_warm_up_and_odd_steps_are_dropped_and_said() -> None:
    random = np.random.default_rng(2)
    values = [9.0, 3.0, 2.0, *(1.0 + random.normal(0.0, 0.01, 97)), math.nan, 0.0, -1.0]
    values[50] = 4.0
    found = steady(values, "a.log")
    assert found.value == pytest.approx(1.0, abs=0.005)
    assert (found.warm_up, found.odd, found.unusable) == (3, 1, 3)
    assert found.kept == 96
    assert found.spread == pytest.approx(0.01, rel=0.4)
    assert "3 of warm-up, 1 odd ones, 3 without a positive number" in found.text


def test_rates_are_slow_where_they_are_low() -> None:
    found = steady([50.0, 100.0, 101.0, 99.0, 100.0, 20.0], "a.log", higher_is_faster=True)
    assert found.value == pytest.approx(100.0)
    assert (found.warm_up, found.odd) == (1, 1)


def test_few_steps_may_be_warm_up() -> None:
    """Of torchtitan's first step and the mean of the next nine, the first compiles."""
    assert steady([2.0], "a.log").kept == 1
    assert steady([475.0, 4312.0], "a.log", higher_is_faster=True).value == pytest.approx(4312.0)
    assert steady([1.0, 1.1], "a.log").kept == 2


@pytest.mark.parametrize("values", [[], [0.0], [math.nan, math.inf], [-1.0]])
def test_no_step_with_a_time(values: list[float]) -> None:
    with pytest.raises(UsageError, match="has a time above 0"):
        steady(values, "a.log")
