"""Growth of errors outside what was measured, from ranges left out."""

from __future__ import annotations

from functools import partial

import pytest

from planner.predict.uncertainty.families import Family
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.residuals import ErrorTable
from tests.fit.error_fit import fitted_errors
from tests.fit.judging import Residual, folds, summarised, with_growth

FAMILY = Family("megatron-core", "hopper", "several domains", "dense")
SIZES = (8, 16, 32, 64, 128, 256, 512)


def runs(per_doubling: float) -> list[Residual]:
    """Six sources on 8 to 512 GPUs; errors of alternating sign grow beyond 16 GPUs."""
    return [
        Residual(
            f"s{source}",
            FAMILY,
            (-1) ** source * (0.02 + per_doubling * max(0, place - 1)) * (0.5 + source / 6),
            Conditions(gpus=gpus, bits=16),
        )
        for source in range(6)
        for place, gpus in enumerate(SIZES)
    ]


def fitted(found: list[Residual]) -> ErrorTable:
    fit = partial(fitted_errors, "time")
    return with_growth(ErrorTable("time", summarised(found), fit(found)), found, fit)


def test_errors_that_grow_give_a_growth_and_others_none() -> None:
    flat, steep = fitted(runs(0.0)).growth["gpus"], fitted(runs(0.1)).growth["gpus"]
    assert flat == 0.0
    assert 0.04 <= steep <= 0.16


def test_folds_leave_out_ranges_and_whatever_has_several_kinds() -> None:
    other = Residual("x", FAMILY._replace(architecture="ampere", model="moe"), 0.0)
    labels = [fold.label for fold in folds([*runs(0.0), other])]
    assert {"gpus to 64", "without ampere", "without hopper", "without moe"} <= set(labels)
    assert "without dense" not in labels
    assert "without megatron-core" not in labels


def test_an_architecture_left_out_counts_what_its_own_kernel_rates_hide() -> None:
    other = [
        Residual(f"x{index}", FAMILY._replace(architecture="ampere"), 0.0) for index in range(3)
    ]
    assert fitted([*runs(0.0), *other]).unmeasured["architecture"] == pytest.approx(0.15)
