"""Recorded sweeps: groups of runs of one source among which a search would have chosen."""

from __future__ import annotations

from typing import NamedTuple

from planner.evidence.runs.rows import MeasuredRow

# A search chooses on one cluster, so all runs of a group have the same nodes and fabric.
COLUMNS = (
    "model", "gpu", "num_gpus", "seq", "gbs", "precision", "framework", "gpus_per_node", "fabric",
)  # fmt: skip


class Group(NamedTuple):
    """The cells that all runs of a group share, as their rows have them; `?` if not stated."""

    source: str
    model: str
    gpu: str
    num_gpus: str
    seq: str
    gbs: str
    precision: str
    framework: str
    gpus_per_node: str
    fabric: str

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.model}, {self.num_gpus}x{self.gpu}, seq {self.seq}, batch "
            f"{self.gbs}, {self.precision}, {self.framework}"
        )


def group_of(row: MeasuredRow) -> Group:
    """The group of a row."""
    return Group(row.source, *(row.text(name) or "?" for name in COLUMNS))
