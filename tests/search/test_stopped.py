"""A search that is cut short gives what it has, says so, and promises no more than it knows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from planner.cost import linear
from planner.job.errors import CannotTellError, UsageError
from planner.job.request import Request
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.search import search
from planner.search.certificate import verify
from planner.search.infeasibility import DoesNotFitError
from planner.search.layout_model import SolverOptions, make_solver, solve_layout
from planner.search.limit_results import Effort
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.shares import cost_job
from tests.search.brute import all_bounds, explore
from tests.search.test_layout_model import LayoutContext, replace, synthetic_terms

REQUEST = Request(
    model="llama-3-8b", gpus="16xA100-40GB", gbs=64, seq=8192,
    limits={"tp": (2,), "cp": (1,), "pp": (4,), "vpp": (1,), "mbs": (1,)},
)  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> SearchResult:
    return find_plans(REQUEST)


def assert_honest(cut: SearchResult, whole: SearchResult) -> None:
    """Its plans fit and are no better than the proven ones, by no more than the gaps they state."""
    assert cut.plans
    assert not cut.proven
    assert all(plan.fits for plan in cut.plans)
    best = whole.plans[0].tokens_per_s
    first = cut.plans[0]
    assert first.tokens_per_s <= best * 1.01
    assert first.tokens_per_s >= best * (1.0 - first.gap) * 0.99


def test_a_whole_search_says_nothing_of_the_kind(whole: SearchResult) -> None:
    assert whole.stopped == ""
    assert whole.proven


def test_a_time_limit_gives_the_front_so_far(whole: SearchResult) -> None:
    cut = find_plans(REQUEST, time_limit_s=1e-6)
    assert cut.stopped == "time-limit"
    assert any("time limit of 1e-06 s" in note for note in cut.notes)
    assert_honest(cut, whole)


def test_a_front_with_open_gaps_is_not_called_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the work allowed ends before the proof, a plan between two others may be missing."""
    monkeypatch.setattr(search, "Effort", partial(Effort, most_solves=0))
    result = find_plans(REQUEST)
    assert (result.stopped, result.proven, result.complete) == ("", False, False)
    assert verify(result).problems == ()


def test_the_time_limit_begins_before_costing() -> None:
    """A search whose time was over before it began costs its shapes once, and no bounds."""
    job = REQUEST.resolve()
    late = Effort(time_limit_s=1.0, started_s=time.perf_counter() - 2.0)
    costed = cost_job(job)
    plain, cut = costed.explorer(Effort()), costed.explorer(late)
    assert late.deadline == pytest.approx(late.started_s + 1.0)
    # Bounds that were not worked out are the kernel's own: valid, and no tighter.
    every = all_bounds(plain)
    assert (all_bounds(cut) <= every * (1.0 + 1e-9)).all()
    assert (all_bounds(cut) < every * (1.0 - 1e-3)).any()
    limit_results = explore(cut)
    assert cut.spent.stopped == "time-limit"
    assert not cut.solved
    best = explore(plain)[0]
    assert best.point is not None
    assert limit_results[0].bound <= best.point.sample_s


def test_what_is_said_of_memory_does_not_hang_on_the_time_limit() -> None:
    """The memory for an even chance is that, not the smaller one for a safe plan."""
    request = REQUEST.model_copy(update={"model": "llama-3-70b", "optimizer_offload": "search"})
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, time_limit_s=1e-6, relaxed=False)
    even = likely_limit_bytes(request.resolve(), 0.8) / 2**30
    assert f"({even:.1f} to fit with a probability of 80 %)" in caught.value.why.sentences()


def test_offloads_that_the_time_limit_came_before_are_not_called_worse() -> None:
    request = REQUEST.model_copy(update={"optimizer_offload": "search"})
    cut = find_plans(request, time_limit_s=1e-6)
    assert cut.stopped == "time-limit"
    assert not cut.proven
    assert cut.gap == 1.0
    assert all(plan.gap == 1.0 and plan.status == "feasible" for plan in cut.plans)
    assert any(re.search(r"no time was left for \d+ of the choices", note) for note in cut.notes)


def test_a_time_limit_that_ends_costing_leaves_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "COSTING_S", 0.0)
    with pytest.raises(CannotTellError, match="before every configuration was costed"):
        find_plans(REQUEST, time_limit_s=1e-6)


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_time_limit_of_nothing_is_an_error(limit: float) -> None:
    with pytest.raises(UsageError, match="seconds above 0"):
        find_plans(REQUEST, time_limit_s=limit)


def test_ctrl_c_gives_the_front_so_far(whole: SearchResult) -> None:
    """A real SIGINT while layouts are being solved; afterwards Python's handler is back."""
    calls: list[str] = []

    def interrupt(what: str, _done: int, _total: int) -> None:
        if not calls:
            os.kill(os.getpid(), signal.SIGINT)
        calls.append(what)

    cut = find_plans(REQUEST, progress=interrupt)
    assert calls
    assert cut.stopped == "interrupted"
    assert any("interrupted" in note for note in cut.notes)
    assert_honest(cut, whole)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_it() -> None:
    def insist(_what: str, _done: int, _total: int) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        find_plans(REQUEST, progress=insist)


def test_the_solver_leaves_ctrl_c_to_the_search() -> None:
    assert not make_solver(SolverOptions()).parameters.catch_sigint_signal


COMMAND = """
import os, signal, sys
from planner.search.explorer import Explorer
look_at = Explorer.look
sent = []
def interrupted(self, index, look, beside):
    if index == 1 and not sent:
        sent.append(index)
        os.kill(os.getpid(), signal.SIGINT)
    return look_at(self, index, look, beside)
Explorer.look = interrupted
from planner.cli.program import main
sys.argv = ["planner", "search", "--model", "llama-3.2-1b", "--gpus", "4xL40S", "--gbs", "16",
            "--seq", "4096", "--pp", "2,4", "--cp", "1", "--mbs", "1", "--without", "cuda-graphs",
            "-o", sys.argv[1]]
main()
"""


def test_the_command_writes_what_it_has_and_exits_as_interrupted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, f"{tmp_path}/plans.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "interrupted, with layouts left to solve" in done.stdout
    text = (tmp_path / "plans.json").read_text(encoding="utf-8")
    assert SearchResult.model_validate_json(text).stopped == "interrupted"


def test_an_instance_beyond_the_solvers_integers_is_not_given_to_it() -> None:
    """2^50 micro-batches: no layout, no proof beyond the bound that was known."""
    terms = replace(synthetic_terms(0, 2, 1), grad_acc=2**50)
    solution = solve_layout(
        terms, LayoutContext(2, 1, (0,) * 4, usual_split=(2, 2)), within_s=(3.0, 9.0)
    )
    assert (solution.status, solution.layout, solution.bound_s) == ("unknown", None, 3.0)
    less = solve_layout(
        replace(terms, grad_acc=2**20), LayoutContext(2, 1, (0,) * 4, usual_split=(2, 2))
    )
    assert less.status == "optimal"
    assert less.bound_s > 2**20 * terms.layer[0, linear.TERM_FORWARD]


def test_the_front_is_the_same_for_a_seed() -> None:
    one, two = (find_plans(REQUEST, seed=7) for _ in range(2))
    assert [plan.model_dump_json() for plan in one.plans] == [
        plan.model_dump_json() for plan in two.plans
    ]
    assert (two.counts.solved, two.counts.skipped) == (one.counts.solved, one.counts.skipped)
    assert one.proven
