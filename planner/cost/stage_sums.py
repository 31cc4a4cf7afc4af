"""The least seconds of all pipeline stages together, if each takes one of its options.

An option of a stage is a choice of layers. Its place is a number for these layers, chosen so that
the places of all stages add up to the place of all layers (`planner.search.block_bound`).
"""

from __future__ import annotations

import numpy as np

from planner.cost._jit import jit
from planner.cost.tables import Array


@jit
def least_together(
    options: Array, places: Array, seconds: Array, largest: bool, totals: Array, chosen: Array
) -> None:
    """Fill totals[n, place]: the least seconds of the first n stages whose options have places that
    add up to `place`; infinite if none do. Fill chosen[stage]: the option of each stage in the
    cheapest choice for the last place, the first one if several are equal; left alone if there is
    no such choice.

    `options[stage]`: number of its first option, and of its last one + 1; `places` and `seconds`
    are of each option. `largest`: the longest of the stages' seconds is counted instead of their
    sum, and nothing is chosen.

        totals[n + 1, p] = min over options o of totals[n, p - place_o] + seconds_o
    """
    for at in range(1, totals.shape[1]):
        totals[0, at] = np.inf
    totals[0, 0] = 0.0
    for stage in range(options.shape[0]):
        before, after = totals[stage], totals[stage + 1]
        for at in range(after.shape[0]):
            after[at] = np.inf
        for option in range(options[stage, 0], options[stage, 1]):
            place, taken = places[option], seconds[option]
            if taken == np.inf:
                continue
            for at in range(place, after.shape[0]):
                rest = before[at - place]
                total = max(rest, taken) if largest else rest + taken
                after[at] = min(after[at], total)
    at = totals.shape[1] - 1
    if largest or totals[-1, at] == np.inf:
        return
    for stage in range(options.shape[0] - 1, -1, -1):
        least = np.inf
        for option in range(options[stage, 0], options[stage, 1]):
            if places[option] <= at:
                total = totals[stage, at - places[option]] + seconds[option]
                if total < least:
                    least, chosen[stage] = total, option
        at -= places[chosen[stage]]
