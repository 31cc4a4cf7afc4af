"""Continuous batching played out, sequence by sequence: what the flow of the product is held to.

Lengths are drawn; a scheduler lets sequences in, grows them, preempts the youngest when the cache
is full and lets them in again first, as vLLM's does. A step takes what the product's costs say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.predict.rl.generation import SamplingEngine

HOPS = 700


@dataclass
class Played:
    """Seconds of one rank's phase, and how many sequences lost their place."""

    seconds: float
    preempted: int


def play_phase(made: SamplingEngine, samples: int, rng: np.random.Generator) -> float:
    """Seconds until the last of all ranks has ended `samples` sequences each."""
    lanes = made.layout.replicas * made.layout.dp
    return max(play_rank(made, samples, rng).seconds for _ in range(lanes))


def play_rank(made: SamplingEngine, samples: int, rng: np.random.Generator) -> Played:
    """One rank, a few steps at a time."""
    load = made.load
    lengths = rng.choice(load.lengths.tokens, size=samples, p=np.asarray(load.lengths.shares))
    hop = max(1.0, load.lengths.tokens[-1] / HOPS)
    queue = list(range(samples - 1, -1, -1))
    done = np.zeros(samples)
    running: list[int] = []
    prefill_s, preempted = 0.0, 0
    steps: list[tuple[float, int, float, float]] = []
    while queue or running:
        ids = np.asarray(running, dtype=int)
        taken = list(_taken(made, done[ids] + hop))
        used = sum(taken)
        lost = False
        while used > load.room and len(running) > 1:
            last = running.pop()
            used -= taken.pop()
            queue.append(last)
            preempted += 1
            lost = True
        while queue and not lost and len(running) < load.slots:
            need = float(_taken(made, np.asarray([done[queue[-1]] + hop]))[0])
            if used + need > load.room and running:
                break
            used += need
            one = queue.pop()
            running.append(one)
            again = done[one] if done[one] else 0.0
            prefill_s += made.prefill_s(0.0 if again else 1.0, again)
        ids = np.asarray(running, dtype=int)
        made_steps = min(hop, float((lengths[ids] - done[ids]).min())) if len(ids) else hop
        cached = done[ids] + load.prompt + made_steps / 2
        windowed = np.minimum(cached, load.window) if load.window else 0.0 * cached
        steps.append((made_steps, len(ids), float(cached.sum()), float(windowed.sum())))
        done[ids] += made_steps
        running = [one for one in running if lengths[one] - done[one] > 1e-9]
    return Played(prefill_s + _steps_s(made, steps), preempted)


def _taken(made: SamplingEngine, ages: NDArray[np.float64]) -> NDArray[np.float64]:
    load = made.load
    own = load.prompt * (1.0 - load.shared) + ages
    return load.state + load.full * own + load.windowed * np.minimum(own, load.window)


def _steps_s(made: SamplingEngine, steps: list[tuple[float, int, float, float]]) -> float:
    """Seconds of all steps at once: when a sequence gets its place depends on tokens alone."""
    count, running, cached, windowed = np.asarray(steps).T
    return float((count * sum(made.terms(running, cached, windowed).values())).sum())
