"""NCCL variables in the environment of a launch: how they change its network, and the time that
this costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hardware.transport import TransportChange, TransportSettings, is_loopback, transport_changes
from planner.job.quantities import seconds
from planner.job.request_fields import Launched
from planner.launch.read.found import Found, Problem
from planner.predict.evaluate import Proposal
from planner.predict.plan import Plan

NETWORK_RULE = "network-fallback"
# If the variables cost less than this share of the step, they are only noted.
_LEAST_COST = 0.01


@dataclass(frozen=True)
class NetworkCost:
    """The changes to the network that environment variables make, and the step time in seconds
    without these variables."""

    changes: tuple[TransportChange, ...]
    variables: tuple[str, ...]
    step_time_s: float
    without_s: float

    @property
    def ratio(self) -> float:
        """Step time with the variables, divided by the step time without them."""
        return self.step_time_s / self.without_s

    @property
    def costs(self) -> bool:
        """Whether the variables make the step more than 1 % longer."""
        return self.ratio > 1.0 + _LEAST_COST


def network_changes(proposal: Proposal) -> tuple[TransportChange, ...]:
    """The changes that the launch's environment variables make to the network of its machine; empty
    if none."""
    request = proposal.request
    launched = request.overrides.launched
    return transport_changes(launched.transport, request.find_cluster()) if launched else ()


def set_variables(found: Found, changes: tuple[TransportChange, ...]) -> tuple[str, ...]:
    """Names of the variables that the launch sets and that cause these changes."""
    causes = {name for change in changes for name in change.variables}
    # The interface by itself changes nothing: it only selects the port for sockets.
    return tuple(
        one.key for one in found.network if one.key in causes and one.key != "NCCL_SOCKET_IFNAME"
    )


def without_variables(proposal: Proposal) -> Proposal:
    """The configuration with all network variables unset."""
    request = proposal.request
    launched = request.overrides.launched or Launched()
    unset = request.launched_as(replace(launched, transport=TransportSettings()))
    return replace(proposal, request=request.model_copy(update=unset))


def unset_network(found: Found, proposal: Proposal) -> tuple[str, Proposal] | None:
    """The change that unsets the network variables: a description and the configuration. None if
    they change nothing."""
    names = set_variables(found, network_changes(proposal))
    return (f"unset {' and '.join(names)}", without_variables(proposal)) if names else None


def network_cost(found: Found, proposal: Proposal, plan: Plan) -> NetworkCost | None:
    """The network changes and the step times with and without the variables; None if these change
    nothing on this machine."""
    changes = network_changes(proposal)
    if not changes:
        return None
    without_s = without_variables(proposal).plan().step_time_s
    names = set_variables(found, changes)
    return NetworkCost(changes, names, plan.step_time_s, without_s)


def network_sentence(cost: NetworkCost) -> str:
    """A sentence with the variables, their effect on the network, and the step time without
    them."""
    words = "; ".join(change.words for change in cost.changes)
    gain = "that costs this step less than 1 %"
    if cost.costs:
        gain = (
            f"a step takes about {seconds(cost.step_time_s)}, {seconds(cost.without_s)} "
            f"without ({cost.ratio:.2g} times as fast)"
        )
    return f"{', '.join(cost.variables)}: {words}; {gain}"


def network_problems(
    found: Found, proposal: Proposal, cost: NetworkCost | None
) -> Iterator[Problem]:
    """Problems: variables that slow the run down, and an interface that reaches no other node."""
    places = {one.key: one.place for one in found.network}
    cluster = proposal.request.find_cluster()
    if cluster.num_nodes > 1 and is_loopback(found.transport()):
        name = "NCCL_SOCKET_IFNAME"
        text = f"{name}=lo: other nodes cannot be reached over the loopback interface"
        yield Problem("network-loopback", text, places=(places[name],), fix=f"unset {name}")
    if cost is not None:
        yield Problem(
            NETWORK_RULE,
            network_sentence(cost),
            "warning" if cost.costs else "note",
            tuple(places[name] for name in cost.variables),
            fix=f"unset {' '.join(cost.variables)}",
        )
