"""In which words a probability to fit is told, the same in every command."""

from __future__ import annotations

from typing import Literal

from planner.job.job import SURE_TO_FIT

FitVerdict = Literal[
    "fits", "probably fits", "cannot tell", "probably does not fit", "does not fit"
]
# From this probability on it probably fits; below one less this it probably does not.
PROBABLE = 0.6


def fit_verdict(probability: float) -> FitVerdict:
    """The word for a probability that the memory suffices.

    From 80 % on it fits, which is what a search asks for; below 20 % it does not. Around an even
    chance nobody can tell.
    """
    if probability >= SURE_TO_FIT:
        return "fits"
    if probability >= PROBABLE:
        return "probably fits"
    if probability > 1.0 - PROBABLE:
        return "cannot tell"
    return "probably does not fit" if probability > 1.0 - SURE_TO_FIT else "does not fit"
