"""What the views of memory show is what the compiled core costs, on random configurations."""

from __future__ import annotations

import random

import pytest

from tests.predict.memory.cases import SCHEDULES, demand_views, random_case, schedule_case


@pytest.mark.parametrize("block", range(8))
def test_views_show_the_compiled_peaks(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        demand_views(random_case(seed), f"seed {seed}")


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_views_show_the_compiled_peaks_under_every_schedule(index: int) -> None:
    rng = random.Random(index)
    for draw in range(12):
        demand_views(schedule_case(index, rng), f"{SCHEDULES[index]}, draw {draw}")
