"""Integer codes for the words in columns of the op table.

Compiled code reads a member as a plain number (`planner.cost._expressions`).
"""

from __future__ import annotations

from enum import IntEnum

from constraints.axes import GROUPS

# Communication groups with formulas of their own, as indices into `constraints.axes.GROUPS`.
GROUP_TP, GROUP_CP, GROUP_EP = map(GROUPS.index, ("tp", "cp", "ep"))

# `returns` of a row whose input needs a gradient only because a library hooks it for checkpoints.
HOOKED = 2.0


class Shard(IntEnum):
    """A rank's share of a per-token quantity (tokens are already divided by cp).

    t = tp degree, e = expert-tp degree.
    """

    NONE = 0  # all of it, on every tp rank
    TP = 1  # 1/t
    SEQUENCE = 2  # 1/t under sequence parallelism, else all of it
    KV = 3  # 1/min(t, kv heads): key/value heads are copied when t exceeds them
    ROUTED = 4  # a routed token at full width: e/t (gathered over expert-tp)
    ROUTED_TP = 5  # a routed token, width split by expert-tp: 1/t
    EXPERT_TP = 6  # a width split by expert-tp: 1/e
    WHOLE = 7  # the tokens of all context-parallel ranks, on every tp rank: cp
    WHOLE_TP = 8  # the tokens of all of them, a width split by tp: cp/t


class ParamShard(IntEnum):
    """The divisor of a row's parameters, before ZeRO divides them further."""

    NONE = 0
    TP = 1
    KV = 2
    EXPERT = 3  # 1/(ep·etp), and ZeRO shards over the expert-data group
    COPIED = 4  # all of it, and tp ranks average their gradients once a step


class OpKind(IntEnum):
    """The formula for the time of a row."""

    GEMM = 0
    GROUPED_GEMM = 1
    ATTENTION = 2
    MEMORY = 3
    SCAN = 4


class CollectiveKind(IntEnum):
    """The collective that a group runs. The docstring of each kind's cost function says how bytes
    are counted."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_TO_ALL = 3
    RING_EXCHANGE = 4
    HEAD_EXCHANGE = 5  # an all-to-all over all cp ranks, however attention exchanges


class Hidden(IntEnum):
    """The compute that may hide a collective, if the framework overlaps it."""

    EXPOSED = 0
    BEHIND_GEMM = 1  # an independent GEMM of the same linear layer (backward)
    BEHIND_ATTENTION = 2  # the attention blocks of a ring step
    TP_OVERLAP = 3  # only with the framework's TP overlap (userbuffers, async TP)
    EP_OVERLAP = 4  # only with the framework's expert overlap


class Sharers(IntEnum):
    """Ranks that have the same parameters, and share them under ZeRO."""

    DATA = 0  # dp·cp, or a replica's part of them under hybrid sharding
    EXPERT_DATA = 1  # edp = dp·cp·tp/(ep·etp)
