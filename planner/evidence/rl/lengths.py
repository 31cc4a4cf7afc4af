"""Lengths of prompts and answers of a measured run: stated, counted, or open within a range.

Tables seldom state the mean length of answers, but often give a figure from which tokens can be
counted: tokens per second with the seconds, or the share of the peak (MFU) that an update of known
duration reached. Without such a figure, the mean is taken from published runs with the same limit,
and their scatter widens the error bar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, exp, log2

from hardware.schema import Cluster
from planner.evidence.rl.rows import RlRow
from planner.evidence.runs.model import UnpredictableRowError
from planner.job.length_text import USUAL_SIGMA, read_lengths
from planner.job.specs import ModelSpec
from planner.predict.ops.table import parameter_count

# Published runs whose mean and limit are known (math, code and chat; limits of 256 to 20,480): the
# mean grows with the power 0.52 of the limit, 170 tokens at 300; runs differ by this much in ln.
_AT, _MEAN_AT, _POWER = 300.0, 170.0, 0.52
OPEN_DEVIATION = 0.75
# Largest mean length of answers, as a share of the limit.
_MOST = 0.8
# Mean prompt length if none is stated: questions of school and contest mathematics.
_PROMPT = 150
_PROMPT_SIGMA = 0.4
# The usual spread of answers about their mean, and two other plausible ones.
SIGMAS = (0.6, USUAL_SIGMA, 1.1)
# E(l²)/E(l) over the mean of answers of the usual spread.
_ATTENDED = exp(USUAL_SIGMA**2)
_LONGEST_PROMPT = 4
# Limits are powers of two. If a mean was counted but no limit stated, the limit is the smallest one
# that exceeds the mean by this factor, and at least the recipes' usual one.
_LEAST_OF_COUNTED, _USUAL_LIMIT = 1.2, 4096


@dataclass(frozen=True, slots=True)
class RlLengths:
    """Lengths of one run's samples, in tokens: the means and the maxima of prompts and of answers.
    `counted`: the origin of the mean of answers: `stated`, `counted` from other figures, or `open`
    (assumed)."""

    prompt: int
    longest_prompt: int
    response: int
    longest_response: int
    counted: str
    sigma: float = USUAL_SIGMA

    @property
    def text(self) -> str:
        """The lengths in the form of `--lengths`."""
        prompt = _lognormal(self.prompt, _PROMPT_SIGMA, self.longest_prompt)
        return f"prompt={prompt},response={self.response_text}"

    @property
    def response_text(self) -> str:
        """The lengths of answers in that form."""
        return _lognormal(self.response, self.sigma, self.longest_response)

    def scaled(self, scale: float, *, cut: bool) -> RlLengths:
        """The lengths with the mean of answers scaled, within the limit. If `cut` is False (a data
        set, whose samples are not cut at the limit), a smaller scale also lowers the longest
        answer."""
        longest = self.longest_response
        longest = longest if cut else min(longest, max(1, round(scale * longest)))
        response = max(1, min(round(scale * self.response), longest))
        return replace(self, response=response, longest_response=longest)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return self.longest_prompt + self.longest_response


def lengths_of(row: RlRow, samples: int | None, model: ModelSpec, cluster: Cluster) -> RlLengths:
    """The lengths of a run; `samples`: number in a step, None if unknown."""
    if row.is_trainer_alone and not _noted_limit(row):
        return _of_packs(row)
    total = _total_limit(row)
    prompt = round(row.number("prompt_len_mean") or _usual_prompt(row, total))
    most_prompt = min(row.integer("prompt_len_max") or _LONGEST_PROMPT * prompt, total // 2 or 1)
    most_prompt = max(prompt, most_prompt)
    most = row.integer("response_len_max") or max(1, total - most_prompt)
    stated = row.number("response_len_mean")
    mean, counted = (stated, "stated") if stated else _counted(row, samples, model, cluster, prompt)
    if mean is None or mean <= 0.0:
        if not (_says_limit(row) or row.is_transfer_alone):
            raise UnpredictableRowError("neither a length of answers nor their limit is stated")
        mean, counted = usual_mean(most), "open"
    if counted == "counted" and not _says_limit(row):
        most = _next_limit(mean + prompt) - most_prompt
    response = max(1, min(round(mean), most))
    return RlLengths(prompt, most_prompt, response, most, counted)


def _next_limit(mean: float) -> int:
    """The likely limit on the tokens of prompt and answer together, given their mean: a power of
    two, at least `_USUAL_LIMIT`."""
    return max(_USUAL_LIMIT, int(2 ** ceil(log2(max(2.0, _LEAST_OF_COUNTED * mean)))))


def usual_mean(limit: int) -> float:
    """Mean length of answers in published runs with this limit."""
    return float(min(_MOST * limit, _MEAN_AT * (limit / _AT) ** _POWER))


def _of_packs(row: RlRow) -> RlLengths:
    """Lengths for a trainer that is measured alone: each sample fills its pack."""
    tokens = row.integer("max_tokens_per_gpu") or 0
    stated = row.noted(r"sequence length Nk")
    tokens = round(1024 * stated) if stated else tokens
    answer = max(2, tokens * (row.integer("train_cp") or 1 if not stated else 1))
    return RlLengths(1, 1, answer - 1, answer - 1, "stated")


def _says_limit(row: RlRow) -> bool:
    return bool(row.text("response_len_max") or _noted_limit(row))


def _noted_limit(row: RlRow) -> float | None:
    return row.noted("T-max seq N") or row.noted("seq max total N") or row.noted("seq max N")


def _total_limit(row: RlRow) -> int:
    """Most tokens of prompt and answer together."""
    if noted := _noted_limit(row):
        return round(noted)
    return (row.integer("prompt_len_max") or 1024) + (row.integer("response_len_max") or 2048)


def _usual_prompt(row: RlRow, total: int) -> int:
    return max(1, min(_PROMPT, (row.integer("prompt_len_max") or total) // 4))


def _counted(
    row: RlRow, samples: int | None, model: ModelSpec, cluster: Cluster, prompt: int
) -> tuple[float | None, str]:
    """Mean of the answers, from the row's figures on all tokens of a step, and how it is known."""
    if total := row.noted(r"avg total seq len \(prompt\+response\) N"):
        return total - prompt, "stated"
    if not samples:
        return None, "open"
    for tokens in _tokens(row, model, cluster):
        return tokens / samples - prompt, "counted"
    return None, "open"


def _tokens(row: RlRow, model: ModelSpec, cluster: Cluster) -> Iterator[float]:
    """Tokens of a step: from tokens per second and its seconds, else from the FLOP of its update,
    which frameworks count as 6 per parameter and token plus 12 per layer, width and attended token
    (verl/utils/flops_counter.py)."""
    rate, step, gpus = row.number("tokens_per_s_per_gpu"), row.number("step_s"), cluster.num_gpus
    if rate and step and not row.resamples:
        yield rate * step * gpus
    share, seconds = row.noted("MFU N"), row.number("train_s")
    if share and seconds and not row.is_asynchronous:
        share = share / 100.0 if row.notes_say(r"MFU [\d.]+%") else share
        flop = share * cluster.gpu.peak_flop_per_s["bf16"] * gpus * seconds
        yield _tokens_of_flop(flop, model, row)


def _tokens_of_flop(flop: float, model: ModelSpec, row: RlRow) -> float:
    """Tokens of an update with this FLOP, found by iteration, because attention grows with the mean
    length."""
    samples = (row.integer("prompts_per_step") or 1) * (row.integer("samples_per_prompt") or 1)
    width = model.heads * model.head_dim * model.layers
    tokens = 0.0
    for _ in range(8):
        attended = _ATTENDED * tokens / samples
        tokens = flop / (6.0 * parameter_count(model).active + 12.0 * width * attended)
    return tokens


def cut_lognormal(mean: int, most: int) -> str:
    """Lengths with the usual spread that have this mean after being cut at a limit, in the form of
    `--lengths`."""
    return _lognormal(mean, USUAL_SIGMA, most)


@cache
def _lognormal(mean: int, sigma: float, most: int) -> str:
    """The lognormal with this spread that has this mean after being cut at a limit."""
    if mean >= 0.97 * most:
        return str(most)
    low, high = float(mean), 20.0 * mean
    for _ in range(18):
        middle = (low * high) ** 0.5
        if _cut_mean(round(middle), sigma, most) < mean:
            low = middle
        else:
            high = middle
    return _text(round(low), sigma, most)


def _text(mean: int, sigma: float, most: int) -> str:
    median = max(1, round(mean / exp(sigma**2 / 2.0)))
    return f"lognormal:median={min(median, most)},sigma={sigma},max={most}"


@cache
def _cut_mean(mean: int, sigma: float, most: int) -> float:
    return read_lengths(_text(mean, sigma, most)).mean
