"""The answer of a search of reinforcement learning: a card, a page of its plan file, a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.report.pages.files import page_of_file
from planner.report.pages.page import render
from planner.report.rl_verdict import RlVerdict
from planner.search.rl.plan_file import read_rl_plan
from tests.cli.conftest import run_cli

JOB = (
    "search", "--model", "qwen3-0.6b", "--gpus", "8xH100", "--rl", "grpo", "--prompts", "32",
    "--samples-per-prompt", "8", "--lengths", "prompt=256,response=mean=500", "-q",
)  # fmt: skip


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("rl") / "plans.json"
    return path, run_cli(*JOB, "-o", str(path)).stdout


def test_the_answer_comes_first(plans: tuple[Path, str]) -> None:
    path, text = plans
    result, number = read_rl_plan(path)
    assert text.startswith(f"Use plan {number}, {result.plans[number - 1].placement}")
    assert max(map(len, text.splitlines())) <= 80 or "    planner" in text
    assert "risk" in text and "next" in text and "samples an hour" in " ".join(text.split())


def test_parts_of_the_bar_are_the_phases(plans: tuple[Path, str]) -> None:
    result, _ = read_rl_plan(plans[0])
    verdict = RlVerdict(result)
    drawn = sum(size for sums in verdict.sides.values() for size in sums.values())
    assert drawn == pytest.approx(sum(phase.seconds for phase in verdict.plan.phases))
    for side, sums in verdict.sides.items():
        assert side == "step" or sum(sums.values()) <= verdict.plan.step_s * (1 + 1e-9)
    assert verdict.memory_share == pytest.approx(min(1.0, verdict.plan.peak_share))
    numbers = [number for number, *_ in verdict.alternatives]
    assert len(numbers) == len(set(numbers)) and result.recommended not in numbers


def test_a_plan_file_has_its_page(plans: tuple[Path, str]) -> None:
    page = page_of_file(plans[0])
    assert page.card is not None and page.card.headline.startswith("Use plan ")
    assert {f"rl-phases-{number}" for number, _ in page.plans} <= page.charts.keys()
    assert len(render(page).encode()) < 6e6


def test_a_step_is_traced(plans: tuple[Path, str], tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    told = run_cli("explain", str(plans[0]), "1", "--no-neighbours", "--trace", str(trace))
    assert told.exit_code == 0, told.output
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_a_file_name_is_quoted_in_commands_to_type(plans: tuple[Path, str]) -> None:
    result, number = read_rl_plan(plans[0])
    assert RlVerdict(result).next("my plans.json") == (
        f"planner launch 'my plans.json' {number} -o run"
    )
