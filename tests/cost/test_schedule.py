"""Closed forms of pipeline schedules against the papers' tables and the schedules played."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import schedule as forms
from planner.cost.pipeline import all_forward_first_s, pipeline_time_s
from planner.predict.pipeline_simulator import (
    ChunkTimes,
    Schedule,
    SimulatedPipeline,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved,
    one_forward_one_backward,
    simulate,
    zb_v,
    zero_bubble,
)

# (code, chunks a stage, the order played); DualPipe has two copies of the model.
Order = Callable[[int, int], Schedule]
ORDERS: dict[str, tuple[int, int, Order]] = {
    "1f1b": (forms.SCHEDULE_1F1B, 1, one_forward_one_backward),
    "interleaved": (forms.SCHEDULE_1F1B, 3, lambda p, m: interleaved(p, 3, m)),
    "gpipe": (forms.SCHEDULE_ALL_FORWARD_FIRST, 1, gpipe),
    "zb-h1": (forms.SCHEDULE_ZB_H1, 1, zero_bubble),
    "zb-h1 in chunks": (forms.SCHEDULE_ZB_H1, 2, lambda p, m: zero_bubble(p, m, vpp=2)),
    "zb-h2": (forms.SCHEDULE_ZB_H2, 1, lambda p, m: zero_bubble(p, m, rounds=2)),
    "zb-v": (forms.SCHEDULE_ZB_V, 2, zb_v),
    "dualpipe": (forms.SCHEDULE_DUALPIPE, 1, dualpipe),
    "dualpipev": (forms.SCHEDULE_DUALPIPE_V, 2, dualpipe_v),
}


def held_at(stage: float, pp: float, vpp: float, grad_acc: float, code: int) -> forms.Held:
    """What a stage holds; the compiled function takes floats."""
    floats = (float(item) for item in (stage, pp, vpp, grad_acc))
    return forms.held_microbatches(*floats, code)


def played(
    name: str, pp: int, grad_acc: int, stage: ChunkTimes, share: float = 1.0
) -> SimulatedPipeline:
    """The schedule with even stages; `stage`: seconds of a micro-batch on one of them."""
    order = ORDERS[name][2](pp, grad_acc)
    # Each micro-batch passes all of a stage's chunks, under DualPipe one of the two.
    passed = 1 if name == "dualpipe" else len(order.device) // pp
    times = ChunkTimes(*(seconds / passed for seconds in stage))
    return simulate(order, [times] * len(order.device), share)


def share_of(name: str, pp: int, grad_acc: int, stage: ChunkTimes, validated: bool) -> float:
    code, vpp, _ = ORDERS[name]
    return float(forms.bubble_share(*stage, code, pp, vpp, grad_acc, float(validated), False))


def form_s(name: str, pp: int, grad_acc: int, stage: ChunkTimes, validated: bool) -> float:
    """Span of the closed form with even stages."""
    whole = sum(stage)
    return pipeline_time_s(
        whole, pp * whole, grad_acc, share_of(name, pp, grad_acc, stage, validated)
    )


def period_s(outcome: SimulatedPipeline) -> float:
    """Seconds after which a step can follow that no synchronisation holds up: the longest time of a
    device from start to end (optimizer post-validation, 2401.10241, section 4)."""
    return max(end - start for start, end in zip(outcome.start_s, outcome.end_s, strict=True))


# The first call compiles.
untimed = settings(deadline=None)
# Backward of the inputs takes longer than forward (attention), that of the weights less.
TIMES = st.builds(
    ChunkTimes, st.just(1.0), st.floats(1.0, 2.0), st.floats(0.3, 1.0)
)  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
@untimed
@given(TIMES, st.sampled_from([2, 4, 6]), st.integers(2, 4))
def test_even_stages_take_what_the_play_takes(
    name: str, times: ChunkTimes, pp: int, groups: int
) -> None:
    grad_acc = groups * pp
    outcome = played(name, pp, grad_acc, times)
    assert form_s(name, pp, grad_acc, times, False) == pytest.approx(outcome.span_s)
    if name in ("zb-h1", "zb-h2", "zb-v"):
        assert form_s(name, pp, grad_acc, times, True) == pytest.approx(period_s(outcome))


@pytest.mark.parametrize("rounds", [1, 2])
@untimed
@given(st.integers(1, 12), st.sampled_from([2, 4, 5]))
def test_few_microbatches_leave_less_to_defer(rounds: int, grad_acc: int, pp: int) -> None:
    name = f"zb-h{rounds}"
    times = ChunkTimes(1.0, 1.2, 0.8)
    outcome = played(name, pp, grad_acc, times)
    assert form_s(name, pp, grad_acc, times, True) == pytest.approx(period_s(outcome))


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("pp", "grad_acc"), [(2, 4), (4, 8), (4, 12), (6, 18)])
def test_held_as_played(name: str, share: float, pp: int, grad_acc: int) -> None:
    """In flight and deferred, for every stage, with little and with much memory for W."""
    code, vpp, _ = ORDERS[name]
    outcome = played(name, pp, grad_acc, ChunkTimes(1.0, 1.0, 1.0), share)
    chunks = 2 if name == "dualpipe" else vpp
    for stage in range(pp):
        held = held_at(stage, pp, vpp, grad_acc, code)
        assert held.full * chunks == outcome.full[stage]
        late = held.late_full + share * held.late_deferred
        peak = max(held.full + share * held.deferred, late)
        assert peak * chunks == pytest.approx(outcome.peak[stage])


@pytest.mark.parametrize(("pp", "grad_acc"), [(4, 2), (4, 3), (6, 5)])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2"])
def test_held_with_fewer_microbatches_than_stages(name: str, pp: int, grad_acc: int) -> None:
    code, vpp, _ = ORDERS[name]
    outcome = played(name, pp, grad_acc, ChunkTimes(1.0, 1.0, 1.0), 0.5)
    for stage in range(pp):
        held = held_at(stage, pp, vpp, grad_acc, code)
        late = held.late_full + 0.5 * held.late_deferred
        assert max(held.full + 0.5 * held.deferred, late) == outcome.peak[stage]


def test_table_of_the_zero_bubble_paper() -> None:
    """Qi et al. 2024, Table 2: bubbles (p-1)(F+B+W), (p-1)(F+B-W), (p-1)(F+B-2W)."""
    times, pp, grad_acc = ChunkTimes(5.0, 6.0, 4.0), 8, 24
    bubbles = [
        form_s(name, pp, grad_acc, times, True) - grad_acc * sum(times)
        for name in ("1f1b", "zb-h1", "zb-h2")
    ]
    assert bubbles == pytest.approx([7 * 15.0, 7 * 7.0, 7 * 3.0])


def test_memory_of_the_zero_bubble_paper() -> None:
    """Section 2.3, stage i from 1: (p-i+1)M_B + (i-1)M_W, and (2p-2i+1)M_B + (2i-2)M_W."""
    pp, grad_acc = 8, 32
    for i in range(1, pp + 1):
        first = held_at(i - 1, pp, 1, grad_acc, forms.SCHEDULE_ZB_H1)
        assert (first.full, first.deferred) == (pp - i + 1, i - 1)
        second = held_at(i - 1, pp, 1, grad_acc, forms.SCHEDULE_ZB_H2)
        assert (second.full, second.deferred) == (2 * pp - 2 * i + 1, 2 * i - 2)


@pytest.mark.parametrize("pp", [4, 8, 16])
def test_table_of_dualpipe(pp: int) -> None:
    """DeepSeek-V3, Table 2: bubble (PP/2-1)(F&B + B' - 3W), activations PP+1 of 1/PP of the model.

    B' = B + W and F&B = F + B'; equal to the order played where F = B.
    """
    forward = backward = 3.0
    weight = 2.0
    paper = (pp / 2 - 1) * ((forward + backward + weight) + (backward + weight) - 3 * weight)
    idle = forms.dual_bubble_s(forward, backward, weight, forms.SCHEDULE_DUALPIPE, float(pp), 1.0)
    assert idle == pytest.approx(paper)
    # Two chunks, each 1/PP of the model.
    held = held_at(0, pp, 1, 4 * pp, forms.SCHEDULE_DUALPIPE)
    assert 2 * held.full == pp + 1


@untimed
@given(TIMES, st.sampled_from([4, 8]), st.integers(2, 6))
def test_zero_bubble_is_never_slower_than_1f1b(times: ChunkTimes, pp: int, groups: int) -> None:
    grad_acc = groups * pp
    plain = form_s("1f1b", pp, grad_acc, times, False)
    for name in ("zb-h1", "zb-h2", "zb-v", "dualpipev"):
        for validated in (False, True):
            assert form_s(name, pp, grad_acc, times, validated) <= plain * (1 + 1e-12)


@untimed
@given(st.integers(1, 40), st.integers(1, 40))
def test_gpipe_holds_more_with_more_microbatches(one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    code = forms.SCHEDULE_ALL_FORWARD_FIRST
    low, high = (held_at(1, 4, 1, m, code) for m in (fewer, more))
    assert low.full == fewer
    assert low.head == fewer
    assert low.full <= high.full


@untimed
@given(TIMES, st.floats(0.0, 3.0), st.sampled_from(sorted(ORDERS)), st.booleans())
def test_lower_share_holds_for_any_longer_backward(
    times: ChunkTimes, more: float, name: str, validated: bool
) -> None:
    """What the search's bounds rest on where layers may recompute."""
    code, vpp, _ = ORDERS[name]
    rest = (code, 4, vpp, 16, float(validated))
    lower = forms.bubble_share(*times, *rest, True)
    longer = times._replace(backward_s=times.backward_s + more)
    assert lower <= forms.bubble_share(*longer, *rest, False) * (1 + 1e-9) + 1e-12


uneven = st.lists(st.floats(0.85, 1.15), min_size=4, max_size=4)


@untimed
@given(uneven, uneven)
def test_gpipe_is_exact_for_uneven_stages(forward: list[float], backward: list[float]) -> None:
    times = [ChunkTimes(f, b, 0.5) for f, b in zip(forward, backward, strict=True)]
    outcome = simulate(gpipe(4, 9), times)
    total = sum(sum(time) for time in times)
    longest = max(time.backward_s + time.weight_s for time in times)
    assert all_forward_first_s(max(forward), longest, total, 9) == pytest.approx(outcome.span_s)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2"])
@untimed
@given(uneven)
def test_uneven_stages_within_a_few_percent(name: str, factors: list[float]) -> None:
    """Stages that differ by up to 30 %, 16 micro-batches."""
    code, vpp, order = ORDERS[name]
    times = [ChunkTimes(1.0 * factor, 1.2 * factor, 0.8 * factor) for factor in factors]
    outcome = simulate(order(4, 16), times)
    sums = [sum(time[index] for time in times) for index in range(3)]
    share = forms.bubble_share(*sums, code, 4, vpp, 16, 0.0, False)
    slowest = max(sum(time) for time in times)
    found = pipeline_time_s(slowest, sum(sums), 16, share)
    assert found == pytest.approx(outcome.span_s, rel=0.07)


def test_one_stage_is_no_pipeline() -> None:
    for code in range(7):
        assert forms.bubble_share(1.0, 1.0, 1.0, code, 1.0, 1.0, 8.0, 0.0, False) == 0.0
        held = held_at(0.0, 1.0, 1.0, 8.0, code)
        assert (held.full, held.deferred, held.head) == (1.0, 0.0, 1.0)
