"""The published laws: their constants from the published data, and what follows of them."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest

from planner.compare.interval import Range
from planner.compare.laws import FLOP_PER_PARAMETER_AND_TOKEN as SIX
from planner.compare.laws import load_laws, price_of

LOSS, BATCH = load_laws()
# Of hlzhang109/critical-batch-size, plots/chinchilla.ipynb: tokens of the target loss (steps at 256
# sequences of 512); fitted S = a + b/B; critical batch in sequences.
MODELS = [
    (13282, 1293.83, 2834258.2, 745.320),
    (23438, 1752.42, 5677478.8, 955.158),
    (46875, 2095.35, 11383269.9, 1393.727),
    (93750, 2459.93, 19449688.6, 1888.523),
    (187500, 3897.31, 43381130.2, 2533.411),
]


def exactly(tokens: float) -> Range:
    return Range(value=tokens, low=tokens, high=tokens)


def test_standard_errors_are_those_published() -> None:
    """Besiroglu et al. 2024: of E (1.81686), alpha and beta."""
    errors = [sqrt(row[index]) for index, row in enumerate(LOSS.covariance)]
    assert exp(LOSS.estimates[2]) * errors[2] == pytest.approx(0.02566, rel=0.01)
    assert errors[3:] == pytest.approx([0.01540, 0.02060], rel=0.002)
    assert np.linalg.eigvalsh(np.array(LOSS.covariance)).min() > 0.0


def test_the_loss_and_its_optimum() -> None:
    flop = 5.76e23
    best = LOSS.best_parameters(flop).value
    tokens = flop / SIX / best
    # Chinchilla's budget: about 70 B parameters, about 20 tokens each.
    assert best == pytest.approx(70e9, rel=0.05) and 15 < tokens / best < 25
    by_hand = 1.81686 + 482.00572 / best**0.34781 + 2085.4342 / tokens**0.36585
    least = LOSS.loss(best, exactly(tokens)).value
    assert least == pytest.approx(by_hand, rel=1e-4)
    for other in (0.8 * best, 1.25 * best):
        assert LOSS.loss(other, exactly(flop / SIX / other)).value > least
    assert LOSS.best_tokens(best).value == pytest.approx(tokens)
    assert LOSS.best_size(tokens).value == pytest.approx(best)


def test_intervals_are_those_of_the_constants() -> None:
    """The delta method against samples of the constants."""
    rng = np.random.default_rng(0)
    a, b, _, alpha, beta = rng.multivariate_normal(LOSS.estimates, LOSS.covariance, 20000).T
    ratio = a + np.log(alpha) - b - np.log(beta)
    sampled = np.exp((ratio + beta * log(1e25 / SIX)) / (alpha + beta))
    best = LOSS.best_parameters(1e25)
    assert [best.low, best.high] == pytest.approx(np.percentile(sampled, [10, 90]), rel=0.05)


def test_fewer_tokens_lose_more_and_widen_the_interval() -> None:
    sure, unsure = exactly(1e12), Range(value=1e12, low=5e11, high=1.1e12)
    narrow, wide = LOSS.loss(7e9, sure), LOSS.loss(7e9, unsure)
    assert wide.high - wide.value > narrow.high - narrow.value > 0
    assert wide.value == narrow.value
    assert LOSS.beyond(7e9, 1e11) == "" and "parameters" in LOSS.beyond(70e9, 1e11)


def test_the_critical_batch_is_a_regression_of_the_published_steps() -> None:
    x = np.log([steps * 256 * 512.0 for steps, *_ in MODELS])
    of_authors = np.log([batch * 512.0 for *_, batch in MODELS])
    of_mccandlish = np.log([BATCH.overhead * b / a * 512.0 for _, a, b, _ in MODELS])
    for fit, y in zip(BATCH.fits, (of_authors, of_mccandlish), strict=True):
        design = np.column_stack([np.ones(5), x - x.mean()])
        constants, *_ = np.linalg.lstsq(design, y, rcond=None)
        residual = sqrt(((y - design @ constants) ** 2).sum() / 3.0)
        errors = residual * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
        assert [fit.log_batch, fit.exponent] == pytest.approx(constants.tolist(), rel=1e-3)
        stated = [fit.log_batch_error, fit.exponent_error, fit.residual]
        assert stated == pytest.approx([*errors, residual], rel=0.01)
    assert BATCH.log_tokens == pytest.approx(x.mean(), rel=1e-6)


def test_what_a_batch_costs() -> None:
    """At the critical batch it is what defines it; twice the batch costs twice as much."""
    critical = BATCH.critical(1e12)
    assert critical.low < critical.value < critical.high
    at = price_of(critical.value, round(critical.value), 1e12)
    assert at.extra.value == pytest.approx(BATCH.overhead) and at.extrapolated
    assert price_of(2 * critical.value, 1, 1e12).extra.value == pytest.approx(2 * BATCH.overhead)
    small, large = (price_of(float(batch), batch, 1e12) for batch in (10**6, 10**9))
    assert small.batch < small.critical.value and large.batch > large.critical.high
    assert BATCH.critical(BATCH.tokens_for(4e6)).value == pytest.approx(4e6)
    assert not price_of(1e6, 10**6, 6e9).extrapolated
