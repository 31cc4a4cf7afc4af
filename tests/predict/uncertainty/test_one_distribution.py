"""The bar of a peak, the probability of fitting and the limit of a search are one distribution."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.job.job import Job
from planner.predict.uncertainty.intervals import fit_probability, peak_interval, spread_of
from planner.predict.uncertainty.likely import likely_limit_bytes
from tests.cost.jobs import make_job

JOBS = (
    make_job("llama-3-70b", "64xH100"),
    make_job("mixtral-8x7b", "64xH100"),
    make_job("llama-3-8b", "8xA100"),
)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.model.name)
def test_a_peak_fits_with_90_percent_at_the_end_of_its_bar_and_with_10_at_the_other(
    job: Job,
) -> None:
    peak = 50.0 * 2**30
    spread, _ = spread_of(job, "memory")
    bar = peak_interval(job, peak)
    # An end that would leave the prediction outside is moved to it.
    if spread.high > 0.0:
        assert fit_probability(job, peak, bar.high) == pytest.approx(0.9)
    if spread.low < 0.0:
        assert fit_probability(job, peak, bar.low) == pytest.approx(0.1)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.model.name)
def test_the_limit_of_a_search_is_the_peak_that_fits_as_surely_as_was_asked(job: Job) -> None:
    limit = job.hbm_limit_bytes
    for asked in (0.6, 0.8, 0.95):
        largest = likely_limit_bytes(replace(job, fit_probability=asked), asked)
        if largest < limit:
            assert fit_probability(job, largest, limit) == pytest.approx(asked, abs=1e-4)
        else:
            assert fit_probability(job, largest, limit) >= asked
