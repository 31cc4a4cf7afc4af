"""Published laws: the loss of a model after a number of tokens, and the batch above which tokens
are wasted. Both are data (`laws.toml`) with the errors of their constants; results outside the
range of the fitted runs are called extrapolated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import exp, hypot, log, sqrt

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.compare.interval import DEVIATIONS_80, Range
from planner.job.quantities import short_count

FLOP_PER_PARAMETER_AND_TOKEN = 6.0
_STEP = 1e-4


Span = tuple[float, float]


class LossLaw(Frozen):
    """L = E + A/N^alpha + B/D^beta, nats a token; `estimates`: ln A, ln B, ln E, alpha, beta.

    `covariance`: of the estimates; `spread`: distance from the law within which four of five runs
    lie, as a share of the loss; `parameters`, `tokens`: ranges that these runs span.
    """

    name: str
    source: str
    estimates: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    spread: float
    parameters: Span
    tokens: Span

    def loss(self, parameters: float, tokens: Range) -> Range:
        """Loss with its 80 % interval: the errors of the constants (delta method), the spread of
        runs around the law, and the interval of the tokens, added in quadrature."""

        def at(constants: Sequence[float], trained: float = tokens.value) -> float:
            a, b, e, alpha, beta = constants
            return exp(e) + exp(a - alpha * log(parameters)) + exp(b - beta * log(trained))

        value = at(self.estimates)
        deviation = hypot(DEVIATIONS_80 * self._deviation(at), self.spread * value)
        fewer, more = at(self.estimates, tokens.low), at(self.estimates, tokens.high)
        down, up = hypot(deviation, value - more), hypot(deviation, fewer - value)
        return Range(value=value, low=value - down, high=value + up)

    def best_parameters(self, flop: float) -> Range:
        """The N with the lowest loss for 6·N·D = flop, with its 80 % interval.

        N = (alpha A / (beta B))^(1/(alpha+beta)) (flop/6)^(beta/(alpha+beta)): Hoffmann et al.
        2022, equation 4.
        """

        def at(constants: Sequence[float]) -> float:
            a, b, _, alpha, beta = constants
            ratio = a + log(alpha) - b - log(beta)
            return (ratio + beta * log(flop / FLOP_PER_PARAMETER_AND_TOKEN)) / (alpha + beta)

        return self._power(at)

    def best_tokens(self, parameters: float) -> Range:
        """The D for which this model size is optimal: beta B / D^beta = alpha A / N^alpha."""

        def at(constants: Sequence[float]) -> float:
            a, b, _, alpha, beta = constants
            return (log(beta) + b - log(alpha) - a + alpha * log(parameters)) / beta

        return self._power(at)

    def best_size(self, tokens: float) -> Range:
        """The N for which this number of tokens is optimal: the inverse of `best_tokens`."""

        def at(constants: Sequence[float]) -> float:
            a, b, _, alpha, beta = constants
            return (log(alpha) + a - log(beta) - b + beta * log(tokens)) / alpha

        return self._power(at)

    def beyond(self, parameters: float, tokens: float) -> str:
        """A sentence that names the parameters or tokens outside the range of the law's runs; empty
        if neither is."""
        given = (("parameters", parameters, self.parameters), ("tokens", tokens, self.tokens))
        return "; ".join(
            f"its runs have {short_count(low)} to {short_count(high)} {name}, "
            f"not {short_count(value)}"
            for name, value, (low, high) in given
            if not low <= value <= high
        )

    def _power(self, at: Callable[[Sequence[float]], float]) -> Range:
        """exp of a figure `at` the constants, with an interval from the error of the logarithm."""
        value, end = at(self.estimates), DEVIATIONS_80 * self._deviation(at)
        return Range(value=exp(value), low=exp(value - end), high=exp(value + end))

    def _deviation(self, at: Callable[[Sequence[float]], float]) -> float:
        """Standard deviation of a figure due to the errors of the constants, to first order."""
        slopes = []
        for index in range(len(self.estimates)):
            up, down = list(self.estimates), list(self.estimates)
            up[index] += _STEP
            down[index] -= _STEP
            slopes.append((at(up) - at(down)) / (2.0 * _STEP))
        rows = (sum(c * s for c, s in zip(row, slopes, strict=True)) for row in self.covariance)
        return sqrt(sum(s * product for s, product in zip(slopes, rows, strict=True)))


class BatchFit(Frozen):
    """Constants of the law ln B = log_batch + exponent · (ln D - log_tokens) for the critical batch
    B after D tokens, with the standard errors of `log_batch` and `exponent`. `residual`: how far,
    in ln, a model lies from the law."""

    log_batch: float
    exponent: float
    log_batch_error: float
    exponent_error: float
    residual: float


class BatchLaw(Frozen):
    """A law for the critical batch: the batch, in tokens, at which `overhead` (a share) more
    training tokens are needed for the same loss.

    `fits`: the authors' reading of their measurements first, then other possible readings;
    `tokens`: the range of training tokens of the runs; `quantile`: the half width of an 80 %
    interval, in standard errors.
    """

    name: str
    source: str
    overhead: float
    log_tokens: float
    tokens: Span
    quantile: float
    fits: tuple[BatchFit, ...]

    def critical(self, tokens: float) -> Range:
        """The critical batch; its interval spans the 80 % intervals of all readings."""
        away = log(tokens) - self.log_tokens
        found = []
        for fit in self.fits:
            value = fit.log_batch + fit.exponent * away
            error = hypot(fit.log_batch_error, fit.exponent_error * away, fit.residual)
            found.append((value, value - self.quantile * error, value + self.quantile * error))
        return Range(
            value=exp(found[0][0]),
            low=exp(min(low for _, low, _ in found)),
            high=exp(max(high for _, _, high in found)),
        )

    def tokens_for(self, batch: float) -> float:
        """The number of training tokens at which the critical batch reaches this batch."""
        fit = self.fits[0]
        return exp((log(batch) - fit.log_batch) / fit.exponent + self.log_tokens)


class BatchPrice(Frozen):
    """A batch compared with the critical one, in tokens; `extra`: share of additional tokens for
    the same loss, B / B_crit of McCandlish et al. 2018 with B_crit = B* / overhead."""

    batch: int
    critical: Range
    extra: Range
    extrapolated: bool


class CriticalBatch(Frozen):
    """The critical batch of a training run, in tokens; `extrapolated`: the number of training
    tokens is outside the range of the law's runs."""

    tokens: Range
    extrapolated: bool


def critical_batch(tokens: float) -> CriticalBatch:
    """The critical batch for training on a number of tokens."""
    law = load_laws()[1]
    low, high = law.tokens
    return CriticalBatch(tokens=law.critical(tokens), extrapolated=not low <= tokens <= high)


def price_of(batch: float, largest: int, tokens: float) -> BatchPrice:
    """The additional tokens that a batch costs. `batch`: mean over the training tokens (for a
    ramp); `largest`: the batch to compare with the critical one."""
    critical, extra = critical_batch(tokens), load_laws()[1].overhead * batch
    return BatchPrice(
        batch=largest,
        critical=critical.tokens,
        extra=Range(
            value=extra / critical.tokens.value,
            low=extra / critical.tokens.high,
            high=extra / critical.tokens.low,
        ),
        extrapolated=critical.extrapolated,
    )


@cache
def load_laws() -> tuple[LossLaw, BatchLaw]:
    data = shipped_toml("planner.compare", "laws.toml")
    return LossLaw.model_validate(data["loss"]), BatchLaw.model_validate(data["critical_batch"])
