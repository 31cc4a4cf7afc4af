"""What a stage holds in each phase, by hand: contents whose sums show which of them count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.cost import phase_shards
from planner.cost import phases as p
from planner.cost.phase_passes import exists
from planner.cost.phase_records import (
    EMBEDDING,
    FORWARD_END,
    LAYER,
    LAYER_LAST,
    LAYER_SECOND,
    OPTIMIZER,
    LayerMaxima,
    Pass,
)
from planner.cost.phase_records import HEAD as HEAD_PHASE
from planner.cost.schedule import SCHEDULE_1F1B, SCHEDULE_ZB_H1
from planner.cost.stage import stage_maxima
from planner.cost.stage_parameters import fill_parameters
from planner.job.frameworks.profile import load_framework
from tests.search.brute import framework_inputs

HOLDS = SimpleNamespace(
    embedding_apart=0.0,
    embedding_working=0.0,
    plain_kept=1, layer_kept=11, embedding_kept=100, mtp_kept=11_000, mtp_logits=10_000,
    head_kept=1_100_000, head_logits=1_000_000, layer_weight=10**7, head_weight=10**8,
    resident=10**9, fetched=2 * 10**9,
    gathered=1200, vocab_gathered=400, mtp_gathered=70,
    trained=1200, embedding_trained=300, head_trained=100, head_made=130,
    made_by_head=130, made_by_mtp=200, made_by_layers=930, mtp_modules=1,
    mtp_working=40, mtp_table=60, mtp_table_waits=80,
    layers=2, layer_casts=1, layer_casts_kept=10, mtp_casts=100, head_casts=1000,
    head=1, logits=10,
)  # fmt: skip
MOST = LayerMaxima(7.0, 8.0, 1e4, 2e4, 3e4, 4e4, 5e4, 0.0, 0.0)
KEY: Any = SimpleNamespace(mbs=1.0, cp=2.0, kept=1.0)
JOB: Any = SimpleNamespace(seq=10.0, hidden=1.0)
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
        assert p.cast_bytes(phase, HOLDS, framework) == LAST_CASTS[phase - FORWARD_END], phase


def test_frozen_units_hold_inputs_of_layers_and_their_gradients_until_backward_ends() -> None:
    """The last layer finds what all layers that recompute keep, and as much of gradients; where
    gradients add up in every pass too."""
    framework = framework_inputs(schedule=SCHEDULE_1F1B, frozen_units_hold=1.0)
    found = p.kept_bytes(LAYER_LAST, HOLDS, one_pass(), grid(), framework)
    assert found == LATER - 1 + 10 + HOLDS.resident
    assert exists(LAYER_LAST, HOLDS, one_pass(accumulates=1.0), grid(), framework)
    assert not exists(LAYER_LAST, HOLDS, one_pass(accumulates=1.0), grid(), framework_inputs())


def test_quantised_copies_of_weights_stay_but_under_zero_3() -> None:
    framework = framework_inputs(weight_casts_stay=1.0)
    stays = [p.resident_casts(HOLDS, grid(zero=zero), framework) for zero in range(4)]
    assert stays == [1101, 1101, 1101, 0]
    assert p.resident_casts(HOLDS, grid(), framework_inputs()) == 0.0
    assert {p.cast_bytes(phase, HOLDS, framework) for phase in range(OPTIMIZER)} == {0.0}


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
        ({"zero": 2} | SHARDED, [0, 0, 0, 0, 2 * 130, *3 * [2 * 200], 2 * 930, 2 * 930]),
        ({"zero": 3} | SHARDED, [0, 0, 0, 0, 2 * 130, *3 * [2 * 200], 2 * 930, 2 * 930]),
    ],
)
def test_gradients_made_along_the_way(changes: dict[str, float], made: list[float]) -> None:
    """Three bytes unsharded, one of them beyond the settled two."""
    framework = framework_inputs(gradient_bytes=2.0, extra_gradient_bytes=1.0, gradients_on_gpu=1.0)
    for phase, size in enumerate(made, FORWARD_END):
        makes, adds = one_pass(accumulates=0.0), one_pass()
        assert p.held_gradients(phase, 9.0, HOLDS, makes, grid(**changes), framework) == size, phase
        assert p.held_gradients(phase, 9.0, HOLDS, adds, grid(**changes), framework) == 9.0
    late = framework._replace(unreduced_gradients=1.0, unreduced_gradient_bytes=4.0)
    whole = p.held_gradients(8, 9.0, HOLDS, one_pass(), grid(**changes), late)
    assert whole == (5 * 1200 if changes else 9.0)
    first = p.held_gradients(8, 9.0, HOLDS, one_pass(accumulates=0.0), grid(**changes), late)
    assert first == (5 if changes else 3) * 930


@pytest.mark.parametrize(("zero", "stays"), [(1.0, True), (2.0, False), (3.0, False)])
def test_gradients_that_the_host_takes(zero: float, stays: bool) -> None:
    """With one rank too they leave from ZeRO-2 on, as a layer makes them; below they wait."""
    away = framework_inputs(gradient_bytes=2.0, gradients_on_gpu=0.0)
    making = one_pass(accumulates=0.0)
    for phase in (LAYER, LAYER_LAST, EMBEDDING):
        made = p.held_gradients(phase, 0.0, HOLDS, making, grid(zero=zero), away)
        assert (made > 0.0) is stays


@pytest.mark.parametrize(
    ("zero", "limit", "size"),
    [
        (0, 9.0, 3 * 2 * 1200),
        (1, 0.0, 3 * 2 * 1200),
        (1, 9e9, 1000.0),
        (2, 9e9, 1000.0),
        (2, 700.0, 700.0),
        (3, 9.0, 0.0),
    ],
)
def test_buckets_are_no_larger_than_what_passes_through_them(
    zero: int, limit: float, size: float
) -> None:
    """5 bytes of 1,600 parameters on two tensor-parallel ranks and four stages; DDP's three
    copies, also of a divided optimizer that has no buckets of its own."""
    framework = framework_inputs(
        gradient_bytes=2.0, weight_bytes=3.0, ddp_bucket_copies=3.0, bucket_bytes=limit,
        model_parameters=1600.0,
    )  # fmt: skip
    key = SimpleNamespace(tp=2.0)
    assert p.bucket_bytes(HOLDS, key, grid(zero=zero, **SHARDED), framework) == size


@pytest.mark.parametrize(("zero", "size"), [(0, 0.0), (1, 1e9), (2, 1e9), (3, 1e9)])
def test_deepspeeds_bucket_is_made_whole_for_a_small_model(zero: int, size: float) -> None:
    profile = load_framework("deepspeed")
    framework = framework_inputs(
        gradient_bytes=2.0, weight_bytes=2.0, model_parameters=1600.0, ddp_bucket_copies=0.0,
        bucket_bytes=profile.state.bucket_bytes,
        whole_bucket_bytes=profile.state.whole_bucket_bytes,
    )  # fmt: skip
    key = SimpleNamespace(tp=1.0)
    assert p.bucket_bytes(HOLDS, key, grid(zero=zero, **SHARDED), framework) == size


ROOT = [0, 407, 407, 400, *5 * [414], 0]
ALL = [1200, 1207, 1200, 1200, 1200, *3 * [1130], 400, 0]
REDUCED = [0, 0, 0, 0, 0, 0, 0, 3 * 8 * 4, 3 * 8 * 4, 4 * 400]


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
        assert phase_shards.gathered_bytes(phase, HOLDS, MOST, degrees, framework) == size, phase
        found = phase_shards.waiting_bytes(phase, HOLDS, degrees, framework)
        assert found == sharded * waiting[phase - FORWARD_END], phase
        found = phase_shards.reduction_bytes(phase, HOLDS, MOST, degrees, framework)
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


def test_a_loss_with_its_linear_has_logits_of_a_few_tokens() -> None:
    """As many tokens as make logits as large as the hidden states; their gradient is gone before
    the head's phase."""
    job: Any = SimpleNamespace(seq=10.0, hidden=6.0, vocab=100.0, vocabulary_multiple=1.0)
    key = SimpleNamespace(mbs=1.0, cp=2.0, tp=1.0, kept=1.0)
    for linear, elements in ((0.0, 5.0 * 100.0), (1.0, 5.0 * 6.0)):
        framework = framework_inputs(linear_loss=linear, activation_bytes=3.0)
        assert p.logits_elements(key, job, framework) == elements
        assert p.loss_bytes(HEAD_PHASE, HOLDS, framework) == (0.0 if linear else 30.0)
    small: Any = SimpleNamespace(seq=10.0, hidden=600.0, vocab=100.0, vocabulary_multiple=1.0)
    assert p.logits_elements(key, small, framework_inputs(linear_loss=1.0)) == 500.0


PIECES = [
    SimpleNamespace(
        parameters=[dense, expert], table=100, table_class=0, casts=casts, update_bytes=dense,
        state=[0, 0], update_flop=[0, 0],
    )
    for dense, expert, casts in ((7, 5, 1), (100, 0, 0), (110, 0, 20), (30, 40, 300), (0, 0, 4000))
]  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "tied", "expected"),
    [
        # Layers, embedding, head, one module of multi-token prediction and its loss.
        ((2, 1, 1, 1, 1), 1, ([254, 50], 100, 110, 210, 70, 4300, 100, 100)),
        ((2, 1, 1, 1, 1), 0, ([254, 50], 100, 110, 110, 70, 4300, 100, 100)),
        ((2, 0, 1, 0, 0), 1, ([224, 10], 0, 210, 210, 0, 0, 0, 0)),
        ((2, 0, 1, 1, 1), 1, ([254, 50], 0, 210, 210, 70, 4300, 100, 0)),
        ((2, 0, 0, 2, 1), 0, ([174, 90], 0, 0, 0, 240, 4600, 100, 0)),
    ],
)
def test_parameters_of_a_stage(counts: Any, tied: int, expected: Any) -> None:
    """A tied head away from the embedding, or a module, has a copy of the table of 100."""
    job: Any = SimpleNamespace(kinds=1, pieces=5, tied_embeddings=tied, mtp_layers=1)
    job.mtp_copies_embedding = 1
    column = np.array(counts, dtype=float)[:, None]
    out, divided = (SimpleNamespace(parameters=[0, 0]) for _ in range(2))
    framework = framework_inputs()
    fill_parameters(0, column, PIECES, grid(**SHARDED), job, framework, out)
    found = (
        out.parameters, out.embedding_trained, out.head_trained, out.head_made, out.mtp_gathered,
        out.mtp_casts, out.mtp_table, out.mtp_table_waits,
    )  # fmt: skip
    assert found == expected
    dense, experts = out.parameters
    assert out.updated == out.states == out.gathered == out.trained == dense + experts
    assert out.vocab_gathered == out.embedding_trained + out.head_trained
    assert out.made_by_head == out.head_made
    assert out.made_by_mtp == out.head_made + out.mtp_gathered
    fill_parameters(0, column, PIECES, grid(zero=2, **SHARDED), job, framework, divided)
    assert divided.states == divided.trained_share == dense / 2 + experts / 5
    assert divided.made_by_head == out.head_trained / 2
    assert divided.made_by_layers == (dense - out.embedding_trained) / 2 + experts / 5
    assert (out.layers, out.layer_casts, out.update_bytes) == (2, 2, 110)
    assert (out.head, out.head_casts) == (counts[2], 20 * counts[2])


@pytest.mark.parametrize(
    ("late", "makes", "phases"),
    [(0, 0, [0, 1, 2, 3, 4, 5, 8]), (0, 1, [0, 1, 2, 3, 4, 5, 7, 8]), (1, 0, [4, 5])],
)
def test_phases_of_a_pass(late: int, makes: int, phases: list[int]) -> None:
    """The last layer's where gradients are made; after the last forward the layers' alone."""
    one = one_pass(accumulates=1.0 - makes)._replace(vocab_parameters=1.0 - late)
    framework = framework_inputs()
    found = [phase for phase in range(OPTIMIZER) if exists(phase, HOLDS, one, grid(), framework)]
    assert found == phases
    assert exists(LAYER_SECOND, HOLDS, one, grid(zero=2, **SHARDED), framework)


@pytest.mark.parametrize(("in_order", "last", "done"), [(1, 11.0, -100.0), (0, 101.0, -10.0)])
def test_first_and_last_layer_of_kinds_in_order(in_order: int, last: float, done: float) -> None:
    """Two kinds that keep 10 and 100: the stage's first layer, and what its last gives back."""
    names = ("weight_gradient", "softmax", "after_core", "again", "offloaded", "casts")
    costs = [
        SimpleNamespace(
            **dict.fromkeys(names, 0.0), saved=saved, saved_recomputed=0.0, working=1.0,
            gathered=1.0, trained=1.0, parameters=[1.0, 0.0],
        )
        for saved in (10.0, 100.0)
    ]  # fmt: skip
    job: Any = SimpleNamespace(kinds=2, kinds_in_order=in_order)
    key = SimpleNamespace(modules=0)
    counts = np.ones((2, 1))
    found = stage_maxima(0, counts, 0 * counts, costs, key, grid(), job, framework_inputs())
    assert (found.last, found.done) == (last, done)
