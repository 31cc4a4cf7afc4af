"""Whole runs of serving engines that others have published, against the time predicted.

`generation_runs.csv`: requests that come at once (or `at_once` at a time), tokens of a prompt and
of an answer on average, the standard deviation of ln(tokens of an answer), 0 where all have as
many. The CPU figures of engines were read off some of these runs.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median

import pytest

from planner.job.request import Request
from planner.job.rl.engines import engine_generations
from planner.job.rl.request import RlRequest
from planner.job.rl.spec import EngineName
from planner.predict.rl.generation import generate
from planner.predict.rl.plan import EngineLayout

_FILE = Path(__file__).with_name("generation_runs.csv")
# Answers of ShareGPT end here.
_LONGEST = 1200


def _answers(mean: float, spread: float) -> str:
    if not spread:
        return f"{mean:.0f}"
    middle = mean / exp(spread**2 / 2.0)
    return f"lognormal:median={middle:.0f},p95={middle * exp(1.645 * spread):.0f},max={_LONGEST}"


def _predicted(row: dict[str, str]) -> float:
    answers = _answers(float(row["response"]), float(row["spread"]))
    job = RlRequest(
        trainer=Request(
            model=row["model"], gpus=f"{row['gpus']}x{row['gpu']}", framework="hf-fsdp2",
            lengths=f"prompt={float(row['prompt']):.0f},response={answers}", seq=65536,
        ),
        algorithm="ppo", prompts=int(row["requests"]), samples_per_prompt=1,
    ).resolve()  # fmt: skip
    name: EngineName = engine_generations()[row["engine"]].engine
    engine = replace(
        job.engine, name=name, generation=row["engine"], weights=row["weights"], chunk=None,
        logprobs=False,
    )  # fmt: skip
    layout = EngineLayout(
        1, int(row["tp"]), ep=int(row["ep"]), kv_share=float(row["share"]),
        sequences=int(row["at_once"] or row["slots"]),
    )  # fmt: skip
    return generate(replace(job, engine=engine), layout).phase.seconds


@cache
def errors() -> dict[str, list[float]]:
    """ln(predicted / measured) of each run, by the engine's generation."""
    found: dict[str, list[float]] = {}
    with _FILE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            error = log(_predicted(row) / float(row["seconds"]))
            found.setdefault(row["engine"], []).append(error)
    return found


@pytest.mark.parametrize(("engine", "most"), [("vllm", 0.15), ("sglang", 0.2), ("vllm-async", 0.1)])
def test_half_of_the_runs_of_an_engine_are_near(engine: str, most: float) -> None:
    assert median(abs(error) for error in errors()[engine]) < most


def test_no_run_is_far_off() -> None:
    every = [error for one in errors().values() for error in one]
    assert len(every) > 40
    assert max(abs(error) for error in every) < log(1.9)
    assert sum(abs(error) < log(1.3) for error in every) > 0.7 * len(every)
