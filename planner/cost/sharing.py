"""Delays between streams of collectives that use the same links at the same time.

A GPU has two classes of links: to its scale-up domain ("inside") and its share of the node's NICs
("between"). Every rank of a node runs its group of each kind at the same time, and the rates of
`planner.cost.communication` are those left to one rank then. So within a kind nothing more is
shared. Between kinds it is:

* A second of compute hides at most a second of traffic on each class: tensor, context and expert
  traffic of one layer that use the same links share the compute that hides them
  (`planner.cost.piece_traffic.exposed_traffic`).
* Traffic of data parallelism (gathers of weights, reductions of gradients) runs during a whole
  pass. It gets the time that hidden traffic of the layers leaves free on its links. While a
  layer waits for its traffic, the two share the link, so that the layer waits longer
  (`beside_seconds`).

The links are work-conserving: with B seconds of data-parallel traffic and E seconds of exposed and
H seconds of hidden traffic of the layers on a class, a pass of W seconds by itself (E included)
takes at least B + H + E. Shared evenly, traffic that is spread over the W - H seconds in which that
class is not taken meets the layers' exposed traffic for the share B/(W - H) of it, and there each
second of link time taken delays the layer by one.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import Row, jit
from planner.cost.communication import exchange_rate_bytes_per_s, ring_rate_bytes_per_s
from planner.cost.inputs import LinkInputs


class Stream(NamedTuple):
    """Collectives one after the other: `seconds` without other traffic, and how long they keep each
    class of links busy: bytes over rate, without latencies, so at most `seconds`.

    `engaged`: how long their kernels occupy the GPU as fully as at the rate of a domain's links:
    their bytes at that rate, and latencies. NCCL opens as many channels as the slowest link can
    use, each on a separate SM (16 on a node of eight NICs, two for each: NVIDIA/nccl issues 320 and
    1424).
    """

    seconds: float
    inside: float
    between: float
    engaged: float


class Window(NamedTuple):
    """A forward or backward pass: its `seconds`, the part of them that is `compute`, and the link
    time of its collectives by class: exposed (part of `seconds`) and hidden behind compute."""

    seconds: float
    compute: float
    exposed_inside: float
    exposed_between: float
    hidden_inside: float
    hidden_between: float


@jit
def passes(window: Window, count: float) -> Window:
    """One window for `count` passes in a row: every field of `window` multiplied by `count`."""
    return Window(
        count * window.seconds, count * window.compute, count * window.exposed_inside,
        count * window.exposed_between, count * window.hidden_inside, count * window.hidden_between,
    )  # fmt: skip


@jit
def no_stream() -> Stream:
    """An empty stream."""
    return Stream(0.0, 0.0, 0.0, 0.0)


@jit
def after(first: Stream, second: Stream) -> Stream:
    """Two streams, one after the other."""
    return Stream(
        first.seconds + second.seconds,
        first.inside + second.inside,
        first.between + second.between,
        first.engaged + second.engaged,
    )


@jit
def times(stream: Stream, factor: float) -> Stream:
    """A stream, scaled by a factor."""
    return Stream(
        factor * stream.seconds,
        factor * stream.inside,
        factor * stream.between,
        factor * stream.engaged,
    )


@jit
def on_links(
    seconds: float, inside: float, between: float, wire_bytes: float, links: LinkInputs
) -> Stream:
    """A stream of `seconds` that sends `wire_bytes` on each link of its domain and keeps the links
    inside and between domains busy for `inside` and `between` seconds, each limited to `seconds`.
    """
    busy = max(inside, between)
    held = max(inside, wire_bytes / links.scale_up_bytes_per_s)
    waits = max(0.0, seconds - busy)
    return Stream(seconds, min(inside, seconds), min(between, seconds), min(held + waits, seconds))


@jit
def ring_stream(
    seconds: float, wire_bytes: float, size: float, members: float, links: LinkInputs,
    root_groups: float,
) -> Stream:  # fmt: skip
    """A ring's collective that takes `seconds` and sends `wire_bytes` over each link: x/B inside a
    domain, x/(m B) by the NICs of a group's m members there (`planner.cost.communication`)."""
    if size <= 1.0 or seconds <= 0.0:
        return no_stream()
    member = min(members, size)
    inside = between = 0.0
    if member > 1.0:
        inside = wire_bytes / ring_rate_bytes_per_s(member, links, root_groups)
    if size > member:
        between = wire_bytes / member / links.scale_out_bytes_per_s
    return on_links(seconds, inside, between, wire_bytes, links)


@jit
def exchange_stream(
    seconds: float, inner_bytes: float, outer_bytes: float, members: float, links: LinkInputs,
    root_groups: float,
) -> Stream:  # fmt: skip
    """An all-to-all that takes `seconds` and sends `inner_bytes` inside and `outer_bytes` between
    domains."""
    inside = 0.0
    if members > 1.0:
        inside = inner_bytes / exchange_rate_bytes_per_s(members, links, root_groups)
    between = outer_bytes / links.scale_out_bytes_per_s
    return on_links(seconds, inside, between, inner_bytes + outer_bytes, links)


@jit
def piece_gather(traffic: Row) -> Stream:
    """The gather of a piece's weights (`planner.cost.frame.TRAFFIC_ROW`)."""
    return Stream(
        traffic.gather_s, traffic.gather_inside, traffic.gather_between, traffic.gather_engaged
    )


@jit
def piece_near_gather(traffic: Row) -> Stream:
    """The gather of a piece's weights from a second copy of them."""
    return Stream(traffic.near_s, traffic.near_inside, traffic.near_between, traffic.near_engaged)


@jit
def piece_reduction(traffic: Row) -> Stream:
    """The reduction of a piece's gradients (`planner.cost.frame.TRAFFIC_ROW`)."""
    return Stream(
        traffic.reduce_s, traffic.reduce_inside, traffic.reduce_between, traffic.reduce_engaged
    )


@jit
def met_share(busy: float, free: float) -> float:
    """Share (0 to 1) of the layers' exposed traffic on a class of links that other traffic meets:
    `busy` / `free`, which is B/(W - H) in the module's docstring. 0 if there is no other traffic.
    """
    if busy <= 0.0:
        return 0.0
    return 1.0 if free <= busy else busy / free


@jit
def shared_seconds(window: Window, stream: Stream) -> float:
    """Seconds by which a stream that runs during a pass delays the pass's own exposed traffic.

    Sum over the classes of links of E·B/(max(W, T) - H), at most E. E, H: exposed and hidden link
    time of the pass; B: link time of the stream; W, T: seconds of the pass and of the stream. T
    counts if the stream lasts longer than the pass.
    """
    long = max(window.seconds, stream.seconds)
    inside = met_share(stream.inside, long - window.hidden_inside)
    between = met_share(stream.between, long - window.hidden_between)
    return window.exposed_inside * inside + window.exposed_between * between


@jit
def outlasting_seconds(window: Window, stream: Stream) -> float:
    """Seconds of a stream that remain after a pass that runs at the same time, because the pass has
    no room for them: max(T, B + H) - W over the classes of links, at least 0.

    T: seconds of the stream by itself; B: its time on a class of links; H: that of the pass's
    hidden traffic; W: seconds of the pass. 0 for an empty stream.
    """
    longest = max(stream.seconds, stream.inside + window.hidden_inside)
    longest = max(longest, stream.between + window.hidden_between)
    return max(0.0, longest - window.seconds) if stream.seconds > 0.0 else 0.0


@jit
def beside_seconds(window: Window, stream: Stream, share: float, contention: float) -> float:
    """Seconds that a stream adds to a pass if the share `share` of it may run during the pass.

    The sum of the part that may not, the delay of the pass's own traffic, and the longer of two:
    the part for which there is no room, and `contention` seconds for each second that the stream's
    kernels occupy the GPU during compute (`engaged`, G). Only the longer counts, because compute
    that waits for the stream loses nothing by being slowed. Without other traffic: max(W + c·min(W,
    h·G), h·T) - W + (1 - h) T. Never less with a longer stream, or with more traffic or compute in
    the pass (pass included).
    """
    run = times(stream, share)
    computing = min(1.0, window.compute / window.seconds) if window.seconds > 0.0 else 0.0
    slowed = contention * min(run.engaged, window.seconds) * computing
    return (
        stream.seconds
        - run.seconds
        + shared_seconds(window, run)
        + max(outlasting_seconds(window, run), slowed)
    )
