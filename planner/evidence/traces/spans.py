"""Sets of time as arrays of disjoint spans [n, 2] in seconds, sorted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.float64]


def union(*sets: Spans) -> Spans:
    """What any of the spans of any set covers. A gap lies before the i-th start where the i-th end
    is earlier: as many have ended as began."""
    starts, ends = (np.sort(np.concatenate([one[:, side] for one in sets])) for side in (0, 1))
    edges = np.concatenate([[True], starts[1:] > ends[:-1], [True]])
    count = len(starts)
    return np.column_stack([starts[edges[:count]], ends[edges[1 : count + 1]]])


def length(spans: Spans) -> float:
    """Seconds of disjoint spans."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def complement(spans: Spans, start: float, end: float) -> Spans:
    """What of [start, end] disjoint spans leave."""
    inside = clipped(spans, start, end)
    edges = np.concatenate([[start], inside.ravel(), [end]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def clipped(spans: Spans, start: float, end: float) -> Spans:
    """The parts of spans within [start, end]."""
    cut = np.clip(spans, start, end)
    return cut[cut[:, 1] > cut[:, 0]]
