"""What a fraction of offloaded activations leaves on the GPU, by Megatron-Core's own class.

PLANNER_MEGATRON=folder pytest -n 0 -m frameworks tests/frameworks/test_megatron_offload.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from constraints.offload import kept_groups
from tests.frameworks.test_megatron import answers

pytestmark = pytest.mark.frameworks

SCRIPT = Path(__file__).with_name("megatron_offload.py")
Order = list[tuple[str, int, int]]
MODULES = ("core_attn", "attn_proj", "moe_act")
BATCHES = 16


def one_forward_one_backward(pp: int, rank: int) -> Order:
    """1F1B on one stage (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1)."""
    early = min(pp - rank - 1, BATCHES)
    order: Order = [("F", batch, 0) for batch in range(early)]
    for batch in range(BATCHES - early):
        order += [("F", early + batch, 0), ("B", batch, 0)]
    return order + [("B", batch, 0) for batch in range(BATCHES - early, BATCHES)]


def interleaved(pp: int, rank: int, vpp: int) -> Order:
    """Section 2.2.2, with Megatron's warm-up."""
    total, group = BATCHES * vpp, pp * vpp
    early = min(2 * (pp - rank - 1) + (vpp - 1) * pp, total)

    def place(step: int) -> tuple[int, int]:
        return step // group * pp + step % pp, step % group // pp

    def forward(step: int) -> tuple[str, int, int]:
        return ("F", *place(step))

    def backward(step: int) -> tuple[str, int, int]:
        batch, chunk = place(step)
        return ("B", batch, vpp - 1 - chunk)

    order: Order = [forward(step) for step in range(early)]
    for step in range(total - early):
        order += [forward(early + step), backward(step)]
    return order + [backward(step) for step in range(total - early, total)]


def case(
    order: Order, layers: int, modules: int, fraction: float, *, rank: int = 0, vpp: int = 1,
    delta: int = 0,
) -> dict[str, Any]:  # fmt: skip
    return {
        "layers": layers, "modules": MODULES[:modules], "rank": rank, "vpp": vpp,
        "fraction": fraction, "delta": delta, "order": order,
    }  # fmt: skip


def most_in_flight(order: Order) -> int:
    """Chunks between their forward and backward at once."""
    held = most = 0
    for what, _, _ in order:
        held += 1 if what == "F" else -1
        most = max(most, held)
    return most


def grid() -> dict[str, dict[str, Any]]:
    """Stages of several pipelines, layers of a chunk, modules and fractions."""
    orders = {
        f"pp{pp} rank{rank} vpp{vpp}": (
            one_forward_one_backward(pp, rank) if vpp == 1 else interleaved(pp, rank, vpp),
            rank,
            vpp,
        )
        for pp, rank, vpp in (
            (1, 0, 1), (2, 0, 1), (4, 0, 1), (4, 2, 1), (4, 3, 1), (2, 0, 2), (4, 0, 2), (4, 2, 2),
            (2, 1, 3), (4, 3, 2),
        )
    }  # fmt: skip
    return {
        f"{name} {layers} layers {modules} modules {fraction}": case(
            order, layers, modules, fraction, rank=rank, vpp=vpp
        )
        for name, (order, rank, vpp) in orders.items()
        for layers, modules in ((2, 1), (4, 2), (6, 3))
        for fraction in (1.0, 0.9, 0.5, 0.12)
    }


def test_what_stays_and_what_is_back_is_as_modelled() -> None:
    """Groups that stay of every chunk in flight, and all others of the next one to run backward
    where several are in flight; with one, or where all leave, no more than two layers beside."""
    cases = grid()
    exact = shared = 0
    for name, answer in answers(SCRIPT, cases).items():
        found = cases[name]
        groups, modules = found["layers"] * len(found["modules"]), len(found["modules"])
        kept = kept_groups(groups, found["fraction"])
        flying = most_in_flight(found["order"])
        bound = flying * kept + (groups - kept if flying > 1 and kept else 0)
        assert answer["peak"] <= max(bound, kept + modules), name
        # Fewer where the next chunk's forward comes late (the last stage, interleaved), or the few
        # groups that stay would take more micro-batches to run ahead.
        if flying > 1 and kept:
            shared += 1
            exact += answer["peak"] == bound
    assert shared > len(cases) // 4
    assert exact > shared // 2


def test_a_difference_between_stages_fails() -> None:
    """--delta-offload-bytes-across-pp-ranks: the first stage runs, the others do not."""
    found = answers(
        SCRIPT,
        {
            str(rank): case(one_forward_one_backward(4, rank), 8, 1, 1.0, rank=rank, delta=2)
            for rank in range(4)
        },
    )
    assert "peak" in found["0"]
    assert all("Chunk mismatch" in found[rank]["error"] for rank in ("1", "2", "3"))


def test_chunks_of_one_layer_with_several_modules_fail() -> None:
    """All groups of the first chunk to run backward stay, and after the first of them it counts as
    done."""
    order = one_forward_one_backward(4, 0)
    cases = {
        f"{layers} {modules}": case(order, layers, modules, 1.0)
        for layers in (1, 2)
        for modules in (1, 2, 3)
    }
    found = {name for name, answer in answers(SCRIPT, cases).items() if "error" in answer}
    assert found == {"1 2", "1 3"}
