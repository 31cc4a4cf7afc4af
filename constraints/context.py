"""The inputs of rules, besides the columns of the shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from constraints.axes import ContextKind
from constraints.condition import UserCondition
from constraints.numbers import BatchGoal, Capabilities, ClusterNumbers, DegreeLimit, ModelNumbers


@dataclass(frozen=True)
class RuleContext:
    """Everything that a rule may read besides the columns of the shapes.

    `schedule`: the requested pipeline schedule; None for the usual one, which is 1F1B, or
    interleaved if vpp > 1. `precision`: name of the training precision ("bf16", "fp8", "mxfp8",
    ...). `recompute_modes`: number of recompute modes tried. `limits`: degree -> values that the
    user allows. `conditions`: what the user requires, forbids and fixes.
    """

    model: ModelNumbers
    cluster: ClusterNumbers
    batch: BatchGoal
    framework: Capabilities
    framework_name: str = ""
    precision: str = "bf16"
    recompute_modes: int = 1
    limits: Mapping[str, DegreeLimit] = field(default_factory=dict)
    allow_tp_across_nodes: bool = False
    # Lowest ZeRO stage that is compatible with the optimizer's types and offload.
    least_zero: int = 0
    # Gradients move to the host as backward produces them, from ZeRO-2 on.
    gradients_leave: bool = False
    # Weights are stored off the GPU between uses, under ZeRO-3.
    weights_leave: bool = False
    # The shape was given by a user. Rules that only save a search from equal shapes do not apply.
    given: bool = False
    schedule: str | None = None
    conditions: tuple[UserCondition, ...] = ()
    # Activations kept on the host: bytes per token of all layers, by the degrees that divide them
    # on a rank (`constraints.topology`); and the host memory for them per GPU of a node.
    offloaded: Mapping[str, float] = field(default_factory=dict)
    host_bytes_per_gpu: float = float("inf")
    # Number of activation groups of a layer that leave one after the other (`constraints.offload`).
    offload_modules: int = 0
    # Kinds of context-parallel exchange (`constraints.context_exchange`), and the requested ranks
    # of the all-to-all inside `a2a+p2p`; 0 for any.
    context_kinds: tuple[ContextKind, ...] = ("p2p",)
    context_inner: int = 0
    # Numbers of stages at which a `greedy` framework leaves no stage without layers.
    filled_pipelines: frozenset[int] = frozenset()
    # The global batches of a ramp before the last one, which is `batch`.
    ramp: tuple[BatchGoal, ...] = ()

    def named(self, degree: str) -> tuple[int, ...]:
        """Values of a degree that the user's limit and conditions name. The search tries all of
        them."""
        limit = self.limits.get(degree)
        numbers = [*(limit.named if limit else ())]
        for condition in self.conditions:
            numbers += condition.named(degree)
        return tuple(dict.fromkeys(numbers))
