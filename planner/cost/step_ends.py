"""Gradients and weights that travel beside the last backward and the first forward pass of a step:
what they slow of the compute there, and of tensor, context or expert traffic on the same links.

Once a step and micro-batch, so linear in the layers: what the layout solver reads too. Left out:
traffic of layers that run again, and transfers between stages, which are small beside a pass.
"""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.data_parallel import Grid, gather_stream, reduce_stream
from planner.cost.inputs import LinkInputs
from planner.cost.keys import Key
from planner.cost.passes import pass_window
from planner.cost.sharing import Stream, Window, shared_seconds, times
from planner.cost.tables import Array, FrameworkInputs, JobInputs

# Seconds of a pass that hidden traffic of one piece takes from parameters' or gradients', and by
# which both of these together delay the piece's compute and exposed traffic.
END_TAKEN_FORWARD = 0
END_TAKEN_BACKWARD = 1
END_SHARED = 2
END_COLUMNS = 3


@jit
def taken_seconds(window: Window, stream: Stream) -> float:
    """Seconds beyond a stream's own that its links are busy with hidden traffic: the stream ends
    no sooner than max(T, B + H) over the classes of links."""
    inside = stream.inside + window.hidden_inside
    between = stream.between + window.hidden_between
    return max(0.0, max(inside, between) - stream.seconds)


@jit
def end_traffic(
    cost: Array, key: Key, grid: Grid, job: JobInputs, framework: FrameworkInputs,
    links: LinkInputs, out: Array,
) -> None:  # fmt: skip
    """Fill the END_* columns of one piece."""
    dense, expert = cost[f.PIECE_DENSE_PARAMETERS], cost[f.PIECE_EXPERT_PARAMETERS]
    if dense + expert == 0.0:
        return
    if grid.zero < 2:
        size = framework.gradient_communication_bytes
        stream = reduce_stream(dense, expert, size, key, grid, job, links)
        stream = times(stream, framework.hide_gradient_reduction)
        if stream.seconds > 0.0:
            window = pass_window(cost, 1)
            out[END_TAKEN_BACKWARD] = taken_seconds(window, stream)
            out[END_SHARED] += shared_seconds(window, stream)
            out[END_SHARED] += framework.contention * min(stream.seconds, window.compute)
    if grid.zero in (1, 2):
        size = framework.parameter_communication_bytes
        stream = gather_stream(dense, expert, size, key, grid, job, links)
        stream = times(stream, framework.hide_parameter_gather)
        if stream.seconds > 0.0:
            window = pass_window(cost, 0)
            out[END_TAKEN_FORWARD] = taken_seconds(window, stream)
            out[END_SHARED] += shared_seconds(window, stream)
            out[END_SHARED] += framework.contention * min(stream.seconds, window.compute)
