"""The fit of differences finds the scales of made-up runs, and judges them without their source."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from planner.predict.uncertainty.differences import Standing
from tests.fit.difference_fit import (
    JudgedRun,
    fitted_all,
    flattering_share,
    left_out,
    pairs_of,
    render,
    scales_of,
)

DEGREES = 0.08


def made_up_runs(sources: int = 24, runs: int = 8) -> list[JudgedRun]:
    """Runs of each source share an error of 20 %; a doubling of tp adds an independent one."""
    draws = np.random.default_rng(3)
    found = []
    for source in range(sources):
        shared, walk = draws.normal(0.0, 0.2), 0.0
        for index in range(runs):
            walk += draws.normal(0.0, DEGREES) if index else 0.0
            standing = Standing(
                gpu="H100", gpus=64, degrees=(2**index, 1, 1, 1), tokens=4096.0, switches=(),
                techniques=frozenset(), exposed=0.1, pace=exp(0.01 * index), mixture=False,
            )  # fmt: skip
            place = JudgedRun(f"source {source}", shared + walk, 0.3, standing, "there", "job")
            found.append(place)
    return found


def test_the_scale_of_degrees_is_found_and_what_runs_share_does_not_count() -> None:
    inside = pairs_of(made_up_runs())
    scales = scales_of(fitted_all(inside, pairs_of([], between=True)))
    assert scales.scales["degrees"] == pytest.approx(DEGREES, rel=0.3)
    one, other = made_up_runs(1)[:2]
    assert scales.deviation(one.standing, other.standing) == pytest.approx(DEGREES, rel=0.5)


def test_intervals_of_sources_left_out_hold_and_are_narrower_than_of_independent_errors() -> None:
    found = left_out(pairs_of(made_up_runs()), pairs_of([], between=True))
    together, apart = found["one_cluster"], found["one_cluster_as_if_independent"]
    assert together["pairs"] == 24 * 28 and together["sources"] == 24
    assert 0.65 < together["held"] < 0.95
    assert together["width"] < apart["width"] and together["score"] < apart["score"]
    assert found["two_clusters"] == {"pairs": 0}


def test_repeats_and_other_jobs_make_no_pairs() -> None:
    one, other, *_ = made_up_runs(1)
    assert len(pairs_of([one, one._replace(log_ratio=0.5)]).values) == 0
    assert len(pairs_of([one, other._replace(job="another")]).values) == 0
    there = other._replace(cluster="elsewhere", standing=other.standing._replace(gpus=128))
    assert len(pairs_of([one, there]).values) == 0
    assert len(pairs_of([one, there], between=True).values) == 1


def test_the_file_names_its_command_and_what_was_judged() -> None:
    inside, between = pairs_of(made_up_runs(8)), pairs_of([], between=True)
    text = render(fitted_all(inside, between), 0.4, left_out(inside, between))
    assert "tests.fit.difference_fit" in text and "[left_out.one_cluster]" in text
    assert "flattering = 0.4" in text


@pytest.mark.parametrize(("scattered", "share"), [("predictions", 1.0), ("truths", 0.0)])
def test_errors_flatter_where_predictions_scatter_about_the_truth(
    scattered: str, share: float
) -> None:
    draws, runs = np.random.default_rng(5), []
    for index, one in enumerate(made_up_runs(1, 8) * 200):
        centre, error = draws.normal(0.0, 0.3), draws.normal(0.0, 0.1)
        predicted = centre - error if scattered == "predictions" else centre
        standing = one.standing._replace(pace=exp(predicted), tokens=1.0 + index)
        runs.append(one._replace(log_ratio=error, standing=standing))
    assert flattering_share(runs) == pytest.approx(share, abs=0.12)
