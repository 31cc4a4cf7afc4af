"""The flow of continuous batching: every sample gets in, and every token is made once."""

from __future__ import annotations

import pytest

from planner.job.length_text import read_lengths
from planner.predict.rl.batching import Load, flow

LENGTHS = (
    "lognormal:median=1200,p95=5000,max=8192",
    "500",
    "100:0.5,4000:0.5",
    "8192:0.9,4000:0.1",
    "400..600",
    "1",
)


@pytest.mark.parametrize("text", LENGTHS)
@pytest.mark.parametrize(
    ("samples", "slots", "room"),
    [(64, 64, 1e9), (1024, 256, 1e9), (1024, 1024, 400e3), (20_000, 4, 1e9), (3000, 1000, 50e3)],
)
def test_all_samples_get_in_and_every_token_is_made(
    text: str, samples: int, slots: int, room: float
) -> None:
    lengths = read_lengths(text)
    found = flow(Load(samples, lengths, 700.0, slots, room))
    assert found.admitted.sum() == pytest.approx(samples, rel=1e-6)
    made = float((found.steps * found.running).sum())
    if lengths.longest > 1:
        assert made == pytest.approx(samples * lengths.mean, rel=0.01)
    assert found.running.max() <= slots + 1e-6
    assert found.left[-1] < 0.6 * min(samples, slots)
    # Nothing runs longer than one after the other.
    assert found.steps.sum() <= samples * lengths.longest + 1.0


def test_windows_and_states_take_what_they_hold() -> None:
    lengths = read_lengths("4000")
    room = 400e3
    full = flow(Load(1000, lengths, 100.0, 1e6, room))
    windowed = flow(Load(1000, lengths, 100.0, 1e6, room, full=0.5, windowed=0.5, window=128.0))
    stated = flow(Load(1000, lengths, 100.0, 1e6, room, full=0.0, state=4000.0))
    assert windowed.steps.sum() < full.steps.sum()
    assert stated.running.max() == pytest.approx(100.0)
    assert stated.preempted == 0.0


def test_a_shared_prompt_is_cached_once() -> None:
    lengths = read_lengths("100")
    alone, shared = (
        flow(Load(1000, lengths, 1000.0, 1e6, 100e3, shared=share)) for share in (0.0, 0.75)
    )
    assert shared.running.max() > 2.0 * alone.running.max()
