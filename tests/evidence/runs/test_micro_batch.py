"""What a run that states no micro-batch is taken to have had."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import LEAST_GAIN, other_micro_batches, predict_rows
from tests.evidence.runs.rows_for_tests import row

# Narayanan et al. 2021, Table 1: 7.5B, 16 sequences a replica.
SMALL = {
    "model": "GPT-7.5B", "layers": "36", "hidden": "4096", "ffn": "16384", "heads": "32",
    "kv_heads": "32", "num_gpus": "128", "tp": "4", "pp": "1", "vpp": "1", "gbs": "512",
}  # fmt: skip
SIZES = ("1", "2", "4", "8")


def test_stated_micro_batches_have_no_alternative() -> None:
    found = row(**SMALL, mbs="2")
    assert other_micro_batches(found, map_row(found)) == []


def test_alternatives_leave_a_whole_number_of_micro_batches() -> None:
    """Three sequences a replica: two do not divide them, four are more than there are."""
    found = row(**(SMALL | {"gbs": "96"}), mbs="")
    assert [trial.degrees.mbs for trial in other_micro_batches(found, map_row(found))] == [1]


@pytest.fixture(scope="module")
def seconds() -> dict[str, float]:
    runs = predict_rows([row(**SMALL, mbs=size) for size in SIZES])
    return {size: run.step_time_s or 0.0 for size, run in zip(SIZES, runs, strict=True)}


def test_the_smallest_that_is_about_as_fast_as_the_fastest(seconds: dict[str, float]) -> None:
    (run,) = predict_rows([row(**SMALL, mbs="")])
    assert run.mapped is not None
    chosen = str(run.mapped.degrees.mbs)
    limit = (1.0 + LEAST_GAIN) * min(seconds.values())
    assert run.step_time_s == seconds[chosen] <= limit
    assert all(seconds[size] > limit for size in SIZES[: SIZES.index(chosen)])
    # Products of one sequence are slow here.
    assert chosen != "1"


def test_what_does_not_fit_is_not_chosen() -> None:
    """530B in stages of three layers holds 35 micro-batches on its first one."""
    large = {
        "model": "GPT-530B", "layers": "105", "hidden": "20480", "ffn": "81920", "heads": "128",
        "kv_heads": "128", "num_gpus": "280", "pp": "35", "gbs": "280", "recompute": "none",
    }  # fmt: skip
    (run,) = predict_rows([row(**large, mbs="")])
    assert run.mapped is not None
    assert run.mapped.degrees.mbs == 1
