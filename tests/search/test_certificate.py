"""The proof of a search, verified without the solver; changed proofs and plans fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.job.request import Request
from planner.search import layout_model, solver_module
from planner.search.certificate import verify
from planner.search.plan_file import read_plan_file, to_json
from planner.search.result import SearchResult
from planner.search.search import find_plans, launchable_shares

JOBS = {
    "dense": Request(model="llama-3-8b", gpus="8xL40S", gbs=32, limits={"cp": (1,), "mbs": (1,)}),
    "mixture of experts": Request(
        model="gpt-oss-20b", gpus="8xH100", gbs=64, seq=4096, limits={"cp": (1,), "mbs": (1,)}
    ),
    "torchtitan": Request(model="8b", gpus="8xH100", gbs=32, framework="torchtitan"),
    "deepspeed": Request(model="llama-2-7b", gpus="8xA100-80GB", gbs=32, framework="deepspeed"),
    "offloaded": Request(
        model="llama-3.2-1b", gpus="4xL40S", gbs=16, seq=4096, optimizer_offload="search"
    ),
}
each_job = pytest.mark.parametrize("name", JOBS)


@cache
def found(name: str) -> SearchResult:
    return find_plans(JOBS[name])


@pytest.fixture(autouse=True)
def no_solver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Search first, then take the solver away."""
    name = getattr(request.node, "callspec", None)
    found(name.params.get("name", "dense") if name else "dense")

    def refuse(*_: object) -> None:
        raise AssertionError("the solver was asked")

    monkeypatch.setattr(layout_model, "solve_layout", refuse)
    monkeypatch.setattr(solver_module, "cp_model", refuse)


@each_job
def test_a_search_proves_what_it_says(name: str, tmp_path: Path) -> None:
    """As read from its plan file."""
    path = tmp_path / "plans.json"
    path.write_text(to_json(found(name)), encoding="utf-8")
    verdict = verify(read_plan_file(path))
    assert verdict.problems == ()
    assert verdict.limits >= len(found(name).plans) > 1
    assert verdict.by_solver < verdict.legal / 4


def test_a_short_front_proves_what_it_says() -> None:
    assert verify(find_short()).problems == ()


def test_that_nothing_fits_is_a_bound_that_plan_files_can_hold(tmp_path: Path) -> None:
    """CP-SAT's word that no layout fits is an infinite bound; JSON has no infinity."""
    result = found("dense")
    assert result.proof is not None
    first, *others = result.proof.by_solver
    nothing = first.model_copy(update={"sample_s": math.inf, "limit_bytes": 2.0**30})
    proof = result.proof.model_copy(update={"by_solver": (nothing, *others, first)})
    path = tmp_path / "plans.json"
    path.write_text(to_json(result.model_copy(update={"proof": proof})), encoding="utf-8")
    assert "Infinity" not in path.read_text(encoding="utf-8")
    read = read_plan_file(path)
    assert read.proof == proof
    assert verify(read).problems == ()


@pytest.mark.parametrize("name", ["mixture of experts"])
def test_every_combination_of_techniques_is_costed_and_bounded(name: str) -> None:
    """Searched techniques, and none: the proof is over the configurations of each."""
    result = found(name)
    shares = launchable_shares(result.request.resolve())
    tried = {frozenset(job.job.techniques) for job in shares.jobs}
    assert len(tried) == len(shares.jobs) >= 4
    assert verify(result).legal == result.counts.legal
    plain = result.request.model_copy(update={"without": ("ep-overlap", "fused-dispatch")})
    problems = verify(result.model_copy(update={"request": plain})).problems
    assert any("no legal configuration" in problem for problem in problems), problems


def find_short() -> SearchResult:
    return found("dense").model_copy(update={"plans": found("dense").plans[:3], "complete": False})


def changed(path: str, change: Callable[[Any], Any]) -> SearchResult:
    """The dense job's result with one value changed; `path`: plans.0.gbs."""
    document = found("dense").model_dump(mode="json")
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place: Any = document
    for key in keys:
        place = place[key]
    place[last] = change(place[last])
    return SearchResult.model_validate(document)


def moved(layers: list[int]) -> list[int]:
    """One layer of the fullest block is on the next."""
    full = layers.index(max(layers))
    layers[full] -= 1
    layers[(full + 1) % len(layers)] += 1
    return layers


CHANGES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a faster step": ("plans.1.step_time_s", lambda seconds: 0.9 * seconds, "s a step, not"),
    "a lighter peak": ("plans.1.peak_bytes", lambda held: 0.9 * held, "at its peak, not"),
    "other degrees": ("plans.0.degrees.tp", lambda tp: 16 * tp, "no legal configuration"),
    "other techniques": (
        "plans.0.techniques", lambda _: ["tp-overlap"], "no legal configuration",
    ),
    "another layer": ("plans.0.layout.block_layers", lambda layers: [99, *layers[1:]], "plan 1"),
    "a moved layer": ("plans.0.layout.block_layers", moved, "plan 1"),
    "a higher bound": ("proof.limits.0.sample_s", lambda bound: 1.02 * bound, "nothing shows"),
    "a wider limit": ("proof.limits.5.limit_bytes", lambda limit: 1.3 * limit, "nothing shows"),
    "a lower bound": (
        "proof.limits",
        lambda limits: [{**one, "sample_s": 0.99 * one["sample_s"]} for one in limits],
        "no limit of the proof shows that it is optimal",
    ),
    "no limits": ("proof.limits", lambda _: [], "no limit of the proof shows that it is optimal"),
    "a plan left out": ("plans", lambda plans: [plans[0], *plans[3:]], "may be missing"),
    "another choice": ("recommended", lambda number: number + 1, "not the one to recommend"),
    "less sure": (
        "request.fit_probability", lambda _: 0.999, "it fits less surely than requested",
    ),
    "no proof": ("proof", lambda _: None, "no proof"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_found(change: str) -> None:
    path, how, said = CHANGES[change]
    problems = verify(changed(path, how)).problems
    assert any(said in problem for problem in problems), problems


def test_the_solvers_bounds_are_needed_and_not_believed_blindly() -> None:
    """Without them something is open; one that a known layout beats is a problem."""
    result = found("dense")
    assert result.proof is not None
    assert result.proof.by_solver
    without = result.model_copy(update={"proof": result.proof.model_copy(update={"by_solver": ()})})
    trusted = verify(result).by_solver
    assert bool(verify(without).problems) == (trusted > 0)
    bold = [
        claim.model_copy(update={"sample_s": 10.0 * claim.sample_s, "limit_bytes": 2.0**50})
        for claim in result.proof.by_solver
    ]
    forged = result.proof.model_copy(update={"by_solver": tuple(bold)})
    problems = verify(result.model_copy(update={"proof": forged})).problems
    assert any("faster than CP-SAT's bound" in problem for problem in problems)
