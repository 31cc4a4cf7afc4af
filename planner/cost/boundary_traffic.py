"""Slowdown by traffic at the ends of a step: gradients that are reduced during the last backward
pass, and weights that are gathered during the first forward pass. It slows compute, and the tensor,
context and expert traffic on the same links.

The slowdown is linear in the layers, so the layout solver uses it too. Ignores traffic of layers
that run again, and transfers between stages, which are small compared with a pass.

Compute is slowed for as long as the traffic lasts, not only while its kernels occupy much of the
GPU (`Stream.engaged`), although a ring over one NIC occupies few SMs here too. With `engaged`,
Megatron's runs that reduce over one NIC per rank (tp 8 on H100), all predicted too fast, err by 4
points more.
"""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.passes import pass_window
from planner.cost.schedule import boundary_hideable, boundary_passes
from planner.cost.sharing import (
    Stream,
    Window,
    passes,
    piece_gather,
    piece_reduction,
    shared_seconds,
    times,
)
from planner.cost.tables import FrameworkInputs


@jit
def taken_seconds(window: Window, stream: Stream) -> float:
    """Seconds by which the pass `window` prolongs a `stream` of collectives, because the pass's
    hidden traffic uses the same links; at least 0.

    The stream ends no sooner than max(T, B + H) over the classes of links: T is its seconds by
    itself, B the time for which it keeps a class busy, and H that of the pass's hidden traffic.
    """
    inside = stream.inside + window.hidden_inside
    between = stream.between + window.hidden_between
    return max(0.0, max(inside, between) - stream.seconds)


@jit
def end_traffic(cost: Row, traffic: Row, grid: Row, framework: FrameworkInputs) -> None:
    """Fill, for one piece, the seconds by which its own hidden traffic prolongs the traffic at the
    ends of a step (`taken_forward_s`, `taken_backward_s`), and the seconds by which that traffic
    delays the piece (`shared_s`, which includes `average_s`); all are columns of
    `planner.cost.frame.TRAFFIC_ROW`."""
    traffic.taken_forward_s = traffic.taken_backward_s = 0.0
    traffic.shared_s = traffic.average_s
    if cost.trained + cost.gathered == 0.0:
        return
    hideable = boundary_hideable(framework.schedule, grid.vpp)
    count = boundary_passes(framework.schedule, grid.pp, grid.vpp, grid.grad_acc)
    if grid.zero < 2:
        stream = times(piece_reduction(traffic), hideable * framework.hide_gradient_reduction)
        if stream.seconds > 0.0:
            window = passes(pass_window(cost, 1), count)
            traffic.taken_backward_s = taken_seconds(window, stream)
            traffic.shared_s += shared_seconds(window, stream)
            traffic.shared_s += framework.data_contention * min(stream.seconds, window.compute)
    if 1 <= grid.zero <= 2:
        stream = times(piece_gather(traffic), hideable * framework.hide_parameter_gather)
        if stream.seconds > 0.0:
            window = passes(pass_window(cost, 0), count)
            traffic.taken_forward_s = taken_seconds(window, stream)
            traffic.shared_s += shared_seconds(window, stream)
            traffic.shared_s += framework.data_contention * min(stream.seconds, window.compute)
