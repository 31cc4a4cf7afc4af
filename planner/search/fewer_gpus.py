"""Check whether a job is faster on some of its GPUs, if no degrees divide all of its nodes well."""

from __future__ import annotations

from collections.abc import Callable

from planner.job.errors import CannotTellError, NothingFitsError, UsageError
from planner.job.quantities import seconds, share
from planner.job.request import Request
from planner.search.result import SearchResult

# Degrees are products of small primes, so numbers of nodes with a larger prime factor are checked.
_DIVIDES_WELL = 7
_DIVIDES_BEST = 3
# Smaller shares of the nodes are not tried.
_LEAST_SHARE = 0.75
_WORTH_SAYING = 1.01


def faster_on_fewer(
    request: Request, result: SearchResult, search: Callable[[Request], SearchResult]
) -> str:
    """A note that the job is faster on fewer nodes; empty if it is not, or was not tried. `search`:
    finds the fastest plan of a request."""
    each = request.resolve().cluster.gpus_per_node
    nodes = result.job.num_gpus // each
    whole = result.job.used_gpus == result.job.num_gpus == nodes * each
    fewer = fewer_nodes(nodes) if whole and not result.stopped else 0
    some = request.on_gpus(fewer * each) if fewer else None
    if some is None:
        return ""
    try:
        best = search(request.model_copy(update=some)).plans[0]
    except (UsageError, NothingFitsError, CannotTellError):
        return ""
    gain = best.tokens_per_s / max(plan.tokens_per_s for plan in result.plans)
    if gain < _WORTH_SAYING:
        return ""
    return (
        f"Faster on fewer GPUs: {some['gpus']} takes {seconds(best.step_time_s)} a step, "
        f"{share(gain - 1.0)} more tokens/s; few degrees divide {nodes} nodes."
    )


def fewer_nodes(nodes: int) -> int:
    """The next smaller number of nodes that divides well; 0 if this one does, or none is near."""
    if nodes < 1 or _largest_prime(nodes) <= _DIVIDES_WELL:
        return 0
    fewer = next(n for n in range(nodes - 1, 0, -1) if _largest_prime(n) <= _DIVIDES_BEST)
    return fewer if fewer >= _LEAST_SHARE * nodes else 0


def _largest_prime(number: int) -> int:
    """The largest prime factor of a number; 1 for 1."""
    factor, largest = 2, 1
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            number, largest = number // factor, factor
    return max(largest, number)
