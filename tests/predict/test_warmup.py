"""Compiling ahead: everything that a search calls, in the types that it calls it with."""

from __future__ import annotations

from planner.cost import _ordinary
from planner.job.request import Request
from planner.predict import warmup
from planner.search.search import find_plans


def test_a_search_compiles_nothing_more() -> None:
    """Whatever entries a search has used have just the kernels that `warm_up` makes."""
    warmup.warm_up()
    entries = [*warmup._HERE, *warmup._BESIDE]
    for entry in entries:
        entry.functions.clear()
        entry.compile_for(*warmup._samples()[entry.__name__])
    for model, gpus in (
        ("llama-3-8b", "16xH100"), ("qwen3-30b-a3b", "16xH100"), ("llama-3-8b", "8xH100+8xA100"),
    ):  # fmt: skip
        find_plans(Request(model=model, gpus=gpus, gbs=64))
    assert {entry.__name__: len(entry.functions) for entry in entries} == {
        entry.__name__: 1 for entry in entries
    }
    # Our own compiler knows all that the core is written in.
    assert _ordinary.why == []
