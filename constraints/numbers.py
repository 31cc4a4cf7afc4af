"""The plain numbers that rules read: frozen, and free of the planner's own types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from constraints.axes import AXES
from hardware.frozen import Frozen

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, IntArray]

# What a user may limit by a number, in the order of a plan's summary.
DEGREES = (*AXES, "gbs")
# A shape's columns: the degrees, and the index of its recompute mode among those tried.
SHAPE_COLUMNS = (*DEGREES, "recompute")


def divides(divisor: IntArray, number: int | IntArray) -> Mask:
    """Where the column divides the number."""
    mask: Mask = number % divisor == 0
    return mask


def equals(column: IntArray, number: int | IntArray) -> Mask:
    """Where the column is the number."""
    mask: Mask = column == number
    return mask


@dataclass(frozen=True)
class ModelNumbers:
    """The model's shape, in elements and tokens; 0 where the model has no such part.

    `ffn` is the width of the dense layers' FFN, `moe_ffn` that of one routed expert,
    `shared_ffn` the summed width of the shared experts, `query_width` of all query heads.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    query_width: int
    ffn: int
    vocab: int
    seq: int
    experts: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    has_mla: bool = False
    tied_embeddings: bool = False
    # Some layers attend to a window only; attention has trained sinks.
    sliding_window: bool = False
    attention_sinks: bool = False
    mtp_layers: int = 0
    # Heads of state-space layers, and those that share keys.
    state_heads: int = 0
    state_groups: int = 0


@dataclass(frozen=True)
class ClusterNumbers:
    """GPUs: how many, how many in a node, how many behind one scale-up switch (NVLink)."""

    num_gpus: int
    gpus_per_node: int = 8
    scale_up_domain: int = 8


@dataclass(frozen=True)
class BatchGoal:
    """Global batch in sequences, and how far off a plan may be, as a share of it."""

    sequences: int
    tolerance: float = 0.05
    exact: bool = False

    @property
    def largest_difference(self) -> float:
        """Sequences by which a plan's global batch may differ."""
        return 0.0 if self.exact else self.tolerance * self.sequences


class Capabilities(Frozen):
    """What a framework can express: which degrees exist, and the rules tied to them."""

    tensor: bool = True
    """Tensor parallelism."""
    pipeline: bool = True
    """Pipeline parallelism."""
    interleaved: bool = False
    """Several model chunks a stage (vpp)."""
    context: bool = False
    """Context parallelism."""
    expert: bool = False
    """Expert parallelism."""
    expert_tensor: bool = False
    """Experts have a tensor-parallel degree of their own (etp)."""
    zero_stages: tuple[int, ...]
    """Stages that the search tries; the first is the usual one."""
    zero3_with_pipeline: bool = False
    """ZeRO-3 works with pipeline parallelism."""
    zero2_with_pipeline: bool = False
    """ZeRO-2 works with pipeline parallelism: gradients sharded at every micro-batch cannot be
    accumulated by a pipeline schedule."""
    zero3_with_tensor: bool = True
    """ZeRO-3 works with tensor parallelism."""
    sequence_parallel: Literal["with-tp", "never"] = "with-tp"
    """Whether tensor parallelism splits norms and dropout along the sequence."""
    kv_heads_rule: Literal["multiple-or-divisor", "tp-divides", "none"] = "multiple-or-divisor"
    """How key/value heads and tp must divide each other."""
    vocabulary_padded: bool = True
    """The vocabulary is padded to its multiple; otherwise one that does not divide is refused."""
    interleaved_microbatches: Literal["multiple-of-pp", "whole-rounds", "any"] = "multiple-of-pp"
    """Interleaving: micro-batches per step must be a multiple of pp."""
    layouts: Literal["any", "even-or-ends", "even", "greedy"] = "any"
    """Which layer splits over stages the framework can express."""
    standalone_vocab: bool = False
    """The first block of a pipeline may hold the embedding alone, the last the head and the
    loss."""
    hybrid_least_zero: int = 4
    """Parameters sharded over part of the data-parallel ranks, replicas across them (HSDP), from
    this ZeRO stage on; 4, which no stage is: not offered."""
    needs_microbatches_at_least_pp: bool = False
    """A step has at least as many micro-batches as stages."""
    tied_pipeline: bool = True
    """A pipeline's first and last stage can share the embedding's weight."""
    mtp_split: bool = True
    """Multi-token prediction works under pipeline or context parallelism."""
    shards_over_context: bool = False
    """Parameters are always sharded over the context-parallel ranks: no ZeRO-0 beside cp."""
    experts_in_shards: bool = False
    """Expert-parallel ranks are taken out of one shard group and its tensor-parallel ranks."""
    expert_axis_shards: bool = False
    """Expert-parallel ranks shard all weights: zero 3, shard a multiple of ep·cp, and etp = tp."""
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    """Pipeline schedules (`planner.job.schedules`); the first is the usual one. Where that is 1F1B
    or interleaved, both are usual: the number of chunks decides."""
    zero_bubble_chunks: int = 1
    """Fewest chunks a stage under zb-h1."""


@dataclass(frozen=True)
class DegreeLimit:
    """The values a user allows for one degree.

    `spans` are inclusive, an upper end of None is open. `text` is what the user wrote, `named`
    the numbers in it: the search tries them even where it would not on its own.
    """

    text: str
    spans: tuple[tuple[int, int | None], ...]
    named: tuple[int, ...]

    def allows(self, column: IntArray) -> Mask:
        """Which values lie in one of the spans."""
        mask = np.zeros(column.shape, dtype=np.bool_)
        for low, high in self.spans:
            mask |= (column >= low) & (column <= (np.iinfo(np.int64).max if high is None else high))
        return mask

    def allows_value(self, value: int) -> bool:
        """`allows` of one number."""
        return any(low <= value and (high is None or value <= high) for low, high in self.spans)
