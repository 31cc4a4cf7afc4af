"""Compiling ahead: everything that a search calls, in the types that it calls it with."""

from __future__ import annotations

from planner.cost import compiled
from planner.cost._entry import Entry
from planner.job.request import Request
from planner.predict import warmup
from planner.search.search import find_plans


def test_a_search_compiles_nothing_more() -> None:
    """Whatever entries a search has used have just the kernels that `warm_up` makes."""
    warmup.warm_up()
    for entry in (*warmup._HERE, *warmup._BESIDE):
        entry.compile_for(*warmup._samples()[entry.__name__])
    before = {entry.__name__: len(entry.functions) for entry in entries()}
    for model, gpus in (("llama-3-8b", "16xH100"), ("qwen3-30b-a3b", "16xH100")):
        find_plans(Request(model=model, gpus=gpus, gbs=64))
    after = {entry.__name__: len(entry.functions) for entry in entries()}
    assert after == before
    assert set(before.values()) == {1}


def entries() -> list[Entry]:
    """Those that a search on GPUs of one type calls."""
    return [*warmup._HERE, *warmup._BESIDE]


def test_the_helper_is_asked_by_names_that_exist() -> None:
    known = {each.__name__ for each in vars(compiled).values() if isinstance(each, Entry)}
    assert {entry.__name__ for entry in entries()} <= known
