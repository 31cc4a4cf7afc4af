"""Values of `--lengths`: one number, a mean, a named form, a histogram, or a file."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp, fsum, isfinite, log, sqrt
from pathlib import Path
from statistics import NormalDist

from planner.job.bounds import LONGEST_SEQ
from planner.job.errors import UsageError
from planner.job.quantities import parse_length
from planner.job.samples import Lengths, demand_length, lengths_of

HINT = (
    "write 450 (every sample), 256..512 (evenly between), mean=450 (only the mean is known), "
    "lognormal:median=600,p95=2500,max=8192, a histogram such as 256:0.5,1024:0.3,4096:0.2 "
    "(length:share), or a file: data.csv, data.jsonl, data.parquet, followed by :COLUMN if the "
    "column is not called length"
)
PROMPT_HINT = (
    "write prompt=LENGTHS,response=LENGTHS, for example "
    "prompt=512..1024,response=lognormal:median=2500,p95=9000,max=16384"
)
# Number of classes of prompts and of answers, all pairs of which are added up.
_CLASSES_OF_PAIRS = 256
# Standard deviation of ln(length) if only a mean is given, and alternatives. Instruction data sets
# have 0.6 (one task) to 1.1 (conversations of all kinds); 0.85 is in between.
USUAL_SIGMA = 0.85
OTHER_SIGMAS = (0.6, 1.1)
_USUAL = "an instruction set's usual spread (lognormal, sigma 0.85)"
# Upper quantiles of the classes of a lognormal: even ones, then a tail of ever rarer samples down
# to one in 100,000, as in a data set.
_EVEN = 400
_TAIL = 200
_RAREST = 1e-5
_HISTOGRAM_MOST = 10_000


def read_lengths(text: str) -> Lengths:
    """The lengths that a text describes. UsageError says what is wrong and what to write."""
    words = text.strip()
    if (formula := _formula(text, words)) is not None:
        return formula
    separator = ":" in words
    if is_file(words):
        from planner.job.length_files import lengths_of_file

        return lengths_of_file(words)
    if separator:
        return _histogram(text, words)
    number = _length(text, words)
    return Lengths((float(number),), (1.0,), f"{number:,} tokens each")


def _formula(text: str, words: str) -> Lengths | None:
    """The lengths of a named form, of prompts with answers, or of a range; None for other texts."""
    name, _, rest = words.partition(":")
    if words.lower().startswith("prompt="):
        return whole_samples(*read_prompts(words))
    if name.lower() == "lognormal":
        return _lognormal_text(text, rest)
    if words.lower().startswith("mean="):
        return lengths_of_mean(_length(text, words[5:]))
    return _even_between(text, words) if ".." in words and not is_file(words) else None


def read_prompts(text: str) -> tuple[Lengths, Lengths]:
    """Lengths of prompts and of answers: `prompt=512..1024,response=mean=2500`, each in any form
    but this one. Raises UsageError."""
    words = text.strip()
    match = re.fullmatch(r"prompt=(.+?),\s*response=(.+)", words, re.IGNORECASE | re.DOTALL)
    if match is None or "prompt=" in match[2].lower():
        raise UsageError(f"--lengths {text!r}: {PROMPT_HINT}")
    prompt, response = (read_lengths(part) for part in match.groups())
    return prompt, response


def whole_samples(prompt: Lengths, response: Lengths) -> Lengths:
    """Lengths of prompts plus answers, assuming the two are independent."""
    parts = [_coarse(one) for one in (prompt, response)]
    both = ((a + b, x * y) for a, x in parts[0] for b, y in parts[1])
    unstated = tuple(whole_samples(prompt, other) for other in response.unstated)
    made = lengths_of(both, f"prompts of {prompt.origin}, answers of {response.origin}", unstated)
    return replace(made, open_ended=response.open_ended)


def _coarse(lengths: Lengths) -> list[tuple[float, float]]:
    """(tokens, share) of at most a few hundred classes. Neighbours are merged at their mean and the
    longest is kept, so that every pair of two distributions can be added up."""
    *pairs, longest = zip(lengths.tokens, lengths.shares, strict=True)
    each = -(-len(pairs) // _CLASSES_OF_PAIRS) or 1
    groups = [pairs[at : at + each] for at in range(0, len(pairs), each)]
    return [*map(_mean_class, groups), longest]


def _mean_class(group: list[tuple[float, float]]) -> tuple[float, float]:
    total = fsum(share for _, share in group)
    return fsum(tokens * share for tokens, share in group) / total, total


def _even_between(text: str, words: str) -> Lengths:
    """`512..1024`: every length between the two is equally frequent."""
    low, _, high = words.partition("..")
    first, last = _length(text, low), _length(text, high)
    if first > last:
        raise UsageError(f"--lengths {text!r}: {last:,} is below {first:,}; give {last}..{first}")
    number = min(last - first + 1, _EVEN)
    step = (last - first) / max(1, number - 1)
    counted = ((float(round(first + index * step)), 1.0) for index in range(number))
    return lengths_of(counted, f"{first:,} to {last:,} tokens, evenly")


def demand_lengths(text: str) -> None:
    """Raise UsageError for a text that describes no lengths. The name of a file is accepted without
    opening it."""
    if not is_file(text.strip()):
        read_lengths(text)


def is_file(words: str) -> bool:
    """Whether a text names a file: by its ending, by a slash, or because the file exists. Prompts
    with answers are two texts, and each of them may name one."""
    from planner.job.length_files import ENDINGS

    if words.lower().startswith("prompt="):
        return False
    head = words.rpartition(":")[0]
    if any(name.lower().endswith(ENDINGS) for name in (words, head) if name):
        return True
    try:
        return "/" in words or Path(words).is_file()
    except (OSError, ValueError):
        return False


def _length(text: str, part: str) -> int:
    try:
        number = parse_length(part)
    except UsageError:
        raise UsageError(f"--lengths {text!r}: {part!r} is not a length; {HINT}") from None
    return demand_length(number, f"--lengths {text!r}")


def lengths_of_mean(mean: int) -> Lengths:
    """Lengths with this mean and the usual spread, with a narrower and a wider distribution as
    alternatives."""
    origin = f"mean {mean:,} tokens, {_USUAL}"
    others = tuple(_lognormal(_median(mean, sigma), sigma, None, origin) for sigma in OTHER_SIGMAS)
    median = _median(mean, USUAL_SIGMA)
    return _lognormal(median, USUAL_SIGMA, None, origin, others)


def _median(mean: float, sigma: float) -> float:
    """Median of a lognormal: mean = median·exp(sigma²/2)."""
    return mean / exp(sigma**2 / 2.0)


def _lognormal_text(text: str, rest: str) -> Lengths:
    """Parse `median=600,p95=2500,max=8192`; `mean` may replace the median, and `sigma` `p95`."""
    given: dict[str, float] = {}
    for item in filter(None, rest.split(",")):
        name, _, value = (part.strip().lower() for part in item.partition("="))
        if name not in ("median", "mean", "p95", "sigma", "max") or name in given:
            raise UsageError(
                f"--lengths {text!r}: {item!r} is not one of median=, mean=, p95=, sigma=, max=, "
                "or is given twice; write lognormal:median=600,p95=2500,max=8192"
            )
        given[name] = _sigma(text, value) if name == "sigma" else _length(text, value)
    if ("median" in given) == ("mean" in given) or ("p95" in given) == ("sigma" in given):
        raise UsageError(
            f"--lengths {text!r}: give median or mean, and p95 or sigma: "
            "lognormal:median=600,p95=2500,max=8192"
        )
    median, sigma = _shape(text, given)
    if given.get("max", median) < median:
        raise UsageError(
            f"--lengths {text!r}: max {given['max']:,.0f} is below the median {median:,.0f}; "
            "give a larger max"
        )
    return _lognormal(median, sigma, given.get("max"), text.strip())


def _shape(text: str, given: dict[str, float]) -> tuple[float, float]:
    """(median, sigma) from the given values: ln p95 = ln median + z·s, ln mean = ln median +
    s²/2."""
    at95 = NormalDist().inv_cdf(0.95)
    if "sigma" in given:
        sigma = given["sigma"]
    elif "median" in given:
        sigma = log(given["p95"] / given["median"]) / at95
    else:
        inside = at95**2 - 2.0 * log(given["p95"] / given["mean"])
        if inside < 0.0:
            most = given["mean"] * exp(at95**2 / 2.0)
            raise UsageError(
                f"--lengths {text!r}: no lognormal of this mean has a p95 above {most:,.0f}; give "
                "the median instead of the mean"
            )
        sigma = at95 - sqrt(inside)
    if sigma < 0.0:
        raise UsageError(f"--lengths {text!r}: p95 is below the median or mean; give a larger p95")
    return given.get("median") or _median(given["mean"], sigma), sigma


def _sigma(text: str, value: str) -> float:
    try:
        sigma = float(value)
    except ValueError:
        sigma = -1.0
    if not 0.0 <= sigma <= 3.0:
        raise UsageError(f"--lengths {text!r}: sigma={value}: give 0 to 3, for example sigma=0.85")
    return sigma


def _lognormal(
    median: float,
    sigma: float,
    most: float | None,
    origin: str,
    unstated: tuple[Lengths, ...] = (),
) -> Lengths:
    """Classes of a lognormal. Each class stands for the samples between two quantiles, at their
    mean.

    Mean of a class between z-scores a and b: median·exp(s²/2)·(Phi(b-s) - Phi(a-s)) / (share).
    """
    normal = NormalDist()
    even = [index / _EVEN for index in range(_EVEN)]
    ratio = (_RAREST * _EVEN) ** (1.0 / _TAIL)
    shares = [*even, *(1.0 - ratio**index / _EVEN for index in range(1, _TAIL + 1))]
    counted = []
    longest = min(most or LONGEST_SEQ, LONGEST_SEQ)
    for low, high in zip(shares, [*shares[1:], 1.0], strict=True):
        below = normal.cdf(normal.inv_cdf(low) - sigma) if low > 0.0 else 0.0
        above = normal.cdf(normal.inv_cdf(high) - sigma) if high < 1.0 else 1.0
        mean = median * exp(sigma**2 / 2.0) * (above - below) / (high - low)
        counted.append((float(min(max(1, round(mean)), longest)), high - low))
    made = lengths_of(counted, origin, unstated)
    return replace(made, open_ended=most is None)


def _histogram(text: str, words: str) -> Lengths:
    """Parse `256:0.5,1024:0.3`: shares, or numbers of samples."""
    items = [item for item in words.replace(" ", "").split(",") if item]
    if len(items) > _HISTOGRAM_MOST:
        raise UsageError(
            f"--lengths: a histogram of {len(items):,} lengths; put it into a CSV file with the "
            "columns length and samples"
        )
    counted = []
    for item in items:
        length, _, share = item.partition(":")
        counted.append((float(_length(text, length)), _share(text, share)))
    if not any(share > 0.0 for _, share in counted):
        raise UsageError(f"--lengths {text!r}: no length has a share above 0; {HINT}")
    return lengths_of(counted, "the histogram given")


def _share(text: str, share: str) -> float:
    try:
        value = float(share.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not (isfinite(value) and 0.0 <= value <= 1e15):
        raise UsageError(f"--lengths {text!r}: {share!r} is not a share of samples; {HINT}")
    return value
