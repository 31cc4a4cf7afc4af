"""Error bars: their spread from residuals, the family they name, the probability of fitting."""

from __future__ import annotations

from math import exp
from statistics import NormalDist

import pytest

from planner.calibrate.residual_fit import collect, render, spread
from planner.measured.predict import predict_rows
from planner.uncertainty import (
    fit_probability,
    peak_interval,
    spread_of,
    step_time_interval,
)
from tests.cost.jobs import make_job
from tests.measured.rows_for_tests import row

Z = NormalDist().inv_cdf(0.9)


def test_the_spread_holds_eighty_percent_of_one_source() -> None:
    residuals = [(sign * value / 100, "a") for value in range(1, 11) for sign in (-1, 1)]
    assert spread(residuals) == pytest.approx(0.08 / Z)


def test_a_large_source_does_not_drown_a_small_one() -> None:
    """Weights are square roots: 100 exact rows against 4 with an error of 0.3 weigh 10 to 2."""
    assert spread([(0.0, "big")] * 100 + [(0.3, "small")] * 4) == 0.0
    assert spread([(0.0, "big")] * 25 + [(0.3, "small")] * 4) == pytest.approx(0.3 / Z)


def test_an_interval_names_the_family_it_comes_from() -> None:
    interval = step_time_interval(make_job("llama-3-70b", "64xH100"), 10.0)
    assert interval.low < 10.0 < interval.high
    assert interval.low * interval.high == pytest.approx(100.0)
    assert "megatron-core on hopper" in interval.family
    assert "dense" in interval.family


def test_what_was_never_measured_is_wider_and_says_so() -> None:
    near = spread_of(make_job("llama-3-70b", "64xH100"), "time")
    far = spread_of(make_job("llama-3-70b", "64xMI300X"), "time")
    assert far.value >= near.value
    assert "other GPUs" in far.family or "nothing nearer" in far.family


def test_fit_probability_follows_the_normal_law() -> None:
    job = make_job("llama-3-70b", "64xH100")
    limit = job.hbm_limit_bytes
    sigma = spread_of(job, "memory").value
    assert fit_probability(job, limit, limit) == pytest.approx(0.5)
    assert fit_probability(job, limit / exp(sigma), limit) == pytest.approx(NormalDist().cdf(1.0))
    assert fit_probability(job, limit, 0.0) == 0.0
    assert peak_interval(job, limit).high == pytest.approx(limit * exp(Z * sigma))


def test_a_refit_writes_families_that_the_loader_reads() -> None:
    rows = [row(step_time_s=str(18.0 + 0.1 * i)) for i in range(6)]
    text = render(collect(predict_rows(rows)))
    assert 'framework = "megatron-lm-2022"' in text
    assert 'architecture = "ampere"' in text
    assert "time_rows = 6" in text
