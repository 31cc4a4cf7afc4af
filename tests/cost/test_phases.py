"""What a stage holds in each phase, by hand: contents whose sums show which of them count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost import phases as p
from planner.cost.phase_records import FORWARD_END, OPTIMIZER, LayerMaxima, Pass
from planner.cost.schedule import SCHEDULE_1F1B, SCHEDULE_ZB_H1
from tests.search.brute import framework_inputs

HOLDS = SimpleNamespace(
    plain_kept=1, layer_kept=11, embedding_kept=100, mtp_kept=11_000, mtp_logits=10_000,
    head_kept=1_100_000, head_logits=1_000_000, layer_weight=10**7, head_weight=10**8,
    resident=10**9, fetched=2 * 10**9,
    dense=1000, expert=200, embedding_parameters=300, head_parameters=100, head_made=130,
    mtp_dense=20, mtp_expert=50, mtp_modules=1, mtp_working=40, mtp_table=60, mtp_table_waits=80,
    layers=2, layer_casts=1, layer_casts_kept=10, mtp_casts=100, head_casts=1000,
    head=1, logits=10,
)  # fmt: skip
MOST = LayerMaxima(7.0, 1e4, 2e4, 3e4, 4e4, 5e4, 0.0, 0.0)
KEY, JOB = SimpleNamespace(mbs=1.0, cp=2.0), SimpleNamespace(seq=10.0, hidden=1.0)
# Whatever is divided: gradients, and weights that live as fp32 shards.
SHARDED = {"shards": 2.0, "expert_shards": 5.0}


def one_pass(in_flight: float = 3.0, accumulates: float = 1.0, deferred: float = 0.0) -> Pass:
    return Pass(in_flight, accumulates, deferred, 2.0, deferred, 1.0, 1.0, 1.0)


def grid(**changes: float) -> Any:
    return SimpleNamespace(
        **({"zero": 0, "shards": 1.0, "expert_shards": 1.0, "pp": 4.0, "vpp": 1.0, "grad_acc": 8.0}
           | changes)
    )  # fmt: skip


def ends(head: int, mtp: int) -> int:
    """Bytes of so many micro-batches at the head and at multi-token prediction."""
    return head * 1_100_000 + mtp * 11_000


# Three micro-batches in flight, two of them before the loss's gradient.
START, LATER = 333 + ends(2, 2), 333 + ends(1, 1)
KEPT = [
    START, START, START, START - 1_000_000, 333 + ends(1, 2) - 10_000,
    LATER, LATER - 1, LATER, LATER - 11, LATER - 11,
]  # fmt: skip
CHUNKS = [*KEPT[:6], LATER, LATER, LATER, LATER - 5.5]
LAST_CASTS = [1110, 1101, 1110, 1110, 110, 10, 10, 10, 0, 0]


@pytest.mark.parametrize(("vpp", "kept"), [(1.0, KEPT), (2.0, CHUNKS)])
def test_activations_that_micro_batches_keep(vpp: float, kept: list[float]) -> None:
    framework = framework_inputs(schedule=SCHEDULE_1F1B)
    for phase, size in enumerate(kept, FORWARD_END):
        found = p.kept_bytes(phase, HOLDS, one_pass(), grid(vpp=vpp), framework)
        assert found == size + HOLDS.resident, phase
        assert p.cast_bytes(phase, HOLDS) == LAST_CASTS[phase - FORWARD_END], phase


def test_the_last_micro_batch_fetches_and_a_split_backward_keeps_for_its_weights() -> None:
    framework = framework_inputs(schedule=SCHEDULE_ZB_H1)
    waits = [p.on_their_way(phase, HOLDS, one_pass(1.0)) for phase in range(OPTIMIZER)]
    assert waits == [10**9] * 7 + [2 * 10**9, 0.0]
    inside, table = (
        p.kept_bytes(phase, HOLDS, one_pass(3.0, 1.0, 2.0), grid(), framework) for phase in (7, 8)
    )
    assert inside == LATER + 2 * (10**7 + 10**8) + 10**9
    assert table == inside - 111 + 100 + 10**7


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        ({}, [0, 0, 0, 0, 3 * 130, *3 * [3 * 200], 3 * 930, 3 * 930]),
        ({"zero": 2} | SHARDED, [0, 0, 0, 0, 100, *3 * [140], 2 * 390, 2 * 390]),
        ({"zero": 3} | SHARDED, [0, 0, 0, 0, 100, *3 * [140], 2 * 390, 2 * 390]),
    ],
)
def test_gradients_made_along_the_way(changes: dict[str, float], made: list[float]) -> None:
    """Three bytes unsharded, one of them beyond the settled two."""
    framework = framework_inputs(gradient_bytes=2.0, extra_gradient_bytes=1.0)
    for phase, size in enumerate(made, FORWARD_END):
        makes, adds = one_pass(accumulates=0.0), one_pass()
        assert p.held_gradients(phase, 9.0, HOLDS, makes, grid(**changes), framework) == size, phase
        assert p.held_gradients(phase, 9.0, HOLDS, adds, grid(**changes), framework) == 9.0
    late = framework._replace(unreduced_gradients=1.0)
    whole = p.held_gradients(8, 9.0, HOLDS, one_pass(), grid(**changes), late)
    assert whole == (3 * 1200 if changes else 9.0)


ROOT = [0, 407, 407, 400, *5 * [414], 0]
ALL = [1200, 1207, 1200, 1200, 1200, *3 * [1130], 400, 0]
REDUCED = [0, 0, 0, 0, 0, 0, 0, 3 * 7 * 4, 3 * 7 * 4, 4 * 400]


@pytest.mark.parametrize(("zero", "gathered"), [(0, 10 * [0]), (2, ALL), (3, ROOT)])
def test_weights_that_are_gathered_and_gradients_that_wait(
    zero: int, gathered: list[float]
) -> None:
    framework = framework_inputs(
        weight_bytes=1.0, gradient_bytes=4.0, root_stays_gathered=1.0, gathered_layers=2.0,
        reduce_buffer_layers=3.0,
    )  # fmt: skip
    degrees, sharded = grid(zero=zero, **SHARDED), zero > 1
    waiting = [0, 0, 0, 130, *5 * [130], 400]
    for phase, size in enumerate(gathered, FORWARD_END):
        assert p.gathered_bytes(phase, HOLDS, MOST, degrees, framework) == size, phase
        found = p.waiting_bytes(phase, HOLDS, degrees, framework)
        assert found == sharded * waiting[phase - FORWARD_END], phase
        found = p.reduction_bytes(phase, HOLDS, MOST, degrees, framework)
        assert found == sharded * REDUCED[phase - FORWARD_END], phase


# Embedding and head: five elements of the stream; two bytes of the head's gradient, four of a
# table's; inside the layers the head's gradient, and the table's that wait for their sum.
HEAD, TABLE, INSIDE = 5 + 2 * 130, 5 + 4 * 300, 2 * 130 + 4 * 80
PLAIN = [0, 0, 0, HEAD, 260 + 240, INSIDE + 1e4, INSIDE + 2e4, INSIDE + 2e4, INSIDE + 5e4, TABLE]
MADE = [*PLAIN[:5], INSIDE + 3e4, INSIDE + 4e4, *PLAIN[7:]]


@pytest.mark.parametrize(("accumulates", "sizes"), [(1.0, PLAIN), (0.0, MADE)])
def test_what_a_phase_works_on(accumulates: float, sizes: list[float]) -> None:
    framework = framework_inputs(
        weight_bytes=4.0, weight_gradient_bytes=2.0, persistent_gradients=1.0, residual_bytes=1.0,
        logits_forward_bytes=2.0, activation_bytes=3.0, logits_transient_bytes=4.0,
    )  # fmt: skip
    shape = (KEY, grid(), JOB, framework)
    sharded = (KEY, grid(zero=2, **SHARDED), JOB, framework)
    logits = [0, 20, 40, 30, 40, 0, 0, 0, 0, 0]
    for phase, size in enumerate(sizes, FORWARD_END):
        found = p.working_bytes(phase, HOLDS, MOST, one_pass(3.0, accumulates), *shape)
        assert found == size, phase
        less = {2: 260, 3: 500 - 40, 8: 1200}.get(phase, INSIDE if phase > 2 else 0)
        found = p.working_bytes(phase, HOLDS, MOST, one_pass(3.0, accumulates), *sharded)
        assert found == size - less, phase
        assert p.loss_bytes(phase, HOLDS, framework) == logits[phase - FORWARD_END], phase
