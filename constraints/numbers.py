"""The plain numbers that rules read: immutable, and free of the planner's own types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from constraints.axes import AXES, ContextKind
from hardware.settings import Settings, declared

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, IntArray]

# Degrees that a user may limit by a number, in the order of a plan's summary.
DEGREES = (*AXES, "gbs")
# A shape's columns: the degrees, and the index of its recompute mode among those tried.
SHAPE_COLUMNS = (*DEGREES, "recompute")


def divides(divisor: IntArray, number: int | IntArray) -> Mask:
    """True where the column divides the number."""
    mask: Mask = number % divisor == 0
    return mask


def equals(column: IntArray, number: int | IntArray) -> Mask:
    """True where the column equals the number."""
    mask: Mask = column == number
    return mask


@dataclass(frozen=True)
class ModelNumbers:
    """The model's dimensions in elements and tokens; 0 if the model has no such part.

    `ffn`: width of a dense layer's FFN. `moe_ffn`: width of one routed expert. `shared_ffn`: total
    width of the shared experts. `query_width`: width of all query heads.
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
    # Some layers only attend to a window; attention has trained sinks.
    sliding_window: bool = False
    attention_sinks: bool = False
    mtp_layers: int = 0
    # Number of heads of state-space layers, and of groups of them that share keys.
    state_heads: int = 0
    state_groups: int = 0


@dataclass(frozen=True)
class ClusterNumbers:
    """Numbers of GPUs: in total, per node, and per scale-up domain (NVLink)."""

    num_gpus: int
    gpus_per_node: int = 8
    scale_up_domain: int = 8


@dataclass(frozen=True)
class BatchGoal:
    """Global batch in sequences, and the allowed deviation as a share of it."""

    sequences: int
    tolerance: float = 0.05
    exact: bool = False

    @property
    def largest_difference(self) -> float:
        """Sequences by which a plan's global batch may differ from the goal."""
        return 0.0 if self.exact else self.tolerance * self.sequences


@declared("constraints", "capabilities.toml", "parallelism")
class Capabilities(Settings):
    """Abilities of a framework: degrees, rank order, kinds of exchange and of recomputation."""

    if TYPE_CHECKING:
        zero_stages: tuple[int, ...]
        sequence_parallel: Literal["with-tp", "never"] = "with-tp"
        kv_heads_rule: Literal["multiple-or-divisor", "tp-divides", "none"] = "multiple-or-divisor"
        interleaved_microbatches: Literal["multiple-of-pp", "whole-rounds", "any"]
        layouts: Literal["any", "even-or-ends", "even", "greedy"] = "any"
        hybrid_least_zero: int = 4
        schedules: tuple[str, ...] = ()
        zero_bubble_chunks: int = 1
        context_kinds: tuple[ContextKind, ...] = ()
        vocabulary_multiple: int = 1
        recompute_layers: Literal["same-on-every-stage", "any", "mixed", "all-or-none"]
        sharp_groups: tuple[Literal["dp", "dp_replica"], ...] = ()

        def __getattr__(self, setting: str) -> bool: ...


@dataclass(frozen=True)
class DegreeLimit:
    """The values of one degree that the user allows.

    `spans` are inclusive; an upper end of None is open. `text` is as the user wrote it. `named` are
    the numbers in it, which the search tries even if it otherwise would not.
    """

    text: str
    spans: tuple[tuple[int, int | None], ...]
    named: tuple[int, ...]

    def allows(self, column: IntArray) -> Mask:
        """True for values in one of the spans."""
        mask = np.zeros(column.shape, dtype=np.bool_)
        for low, high in self.spans:
            mask |= (column >= low) & (column <= (np.iinfo(np.int64).max if high is None else high))
        return mask

    def allows_value(self, value: int) -> bool:
        """Whether one number lies in one of the spans."""
        return any(low <= value and (high is None or value <= high) for low, high in self.spans)
