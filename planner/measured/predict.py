"""Predicting measured rows: those that share a job are costed together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import fields as f
from planner.cost.layout import mirror
from planner.cost.schedule import SCHEDULE_DUALPIPE, block_stage
from planner.cost.tables import Array
from planner.cost_model import CostModel, Layout
from planner.job import Job
from planner.measured.mapping import MappedRow, map_row
from planner.measured.model import UnpredictableRowError
from planner.measured.rows import MeasuredRow


@dataclass(frozen=True)
class Prediction:
    """What the cost model says of one row; `error` says why it could not, with the rest empty."""

    row: MeasuredRow
    mapped: MappedRow | None = None
    step: Array | None = None
    stages: Array | None = None
    error: str | None = None

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a step."""
        return None if self.step is None else float(self.step[f.STEP_TIME])

    def memory_bytes(self, kind: str | None = None, scope: str | None = None) -> float | None:
        """Predicted memory of the kind (`allocated`, `reserved`, else all) and stage measured."""
        if self.stages is None:
            return None
        columns = {
            "allocated": [f.STAGE_ALLOCATED],
            "reserved": [f.STAGE_ALLOCATED, f.STAGE_FRAGMENTATION],
        }.get(kind or "", [f.STAGE_PEAK])
        per_stage = self.stages[:, columns].sum(axis=1)
        stage = {"first_stage": 0, "last_stage": -1}.get(scope or "")
        return float(per_stage.max() if stage is None else per_stage[stage])

    @property
    def limit_bytes(self) -> float | None:
        """Usable HBM of the row's GPU."""
        return None if self.mapped is None else self.mapped.job.hbm_limit_bytes


def predict_rows(rows: Iterable[MeasuredRow]) -> list[Prediction]:
    """A prediction per row, in order; rows beyond the model carry their error."""
    results: list[Prediction] = []
    groups: dict[object, list[tuple[int, MappedRow]]] = defaultdict(list)
    for index, row in enumerate(rows):
        try:
            mapped = map_row(row)
        except (UnpredictableRowError, ValueError) as error:
            results.append(Prediction(row, error=str(error)))
            continue
        results.append(Prediction(row, mapped))
        groups[_group_key(mapped.job)].append((index, mapped))
    for members in groups.values():
        for (index, mapped), (step, stages) in zip(
            members, _cost_members([mapped for _, mapped in members]), strict=True
        ):
            results[index] = Prediction(mapped.row, mapped, step, stages)
    return results


def _group_key(job: Job) -> object:
    """What makes two rows share a cost model: all of the job but its batch."""
    return (
        job.model,
        # One object per variant: `planner.measured.mapping` caches them.
        id(job.cluster),
        id(job.framework),
        job.seq,
        job.precision,
        job.attention,
        job.attention_kernel,
        job.recompute,
        job.schedule,
    )


def _cost_members(members: Sequence[MappedRow]) -> list[tuple[Array, Array]]:
    """(STEP_* vector, STAGE_* matrix) of rows that share a job."""
    model = CostModel(members[0].job)
    names = ("tp", "cp", "ep", "etp", "dp", "pp", "vpp", "zero", "mbs", "grad_acc")
    columns = {
        name: np.array([getattr(member.degrees, name) for member in members], dtype=np.int64)
        for name in names
    }
    columns["recompute"] = np.zeros(len(members), dtype=np.int64)
    costed = model.cost_shapes(columns)
    return [
        model.cost_layout(costed, index, _layout(model, member, costed, index))
        for index, member in enumerate(members)
    ]


def _layout(model: CostModel, member: MappedRow, costed: object, index: int) -> Layout:
    even = model.even_layout(costed, index)  # type: ignore[arg-type]
    if member.block_layers is None:
        return even
    counts = np.zeros_like(even.counts)
    pp, kinds = member.degrees.pp, len(member.job.model.kinds)
    start = 0
    for block, layers in enumerate(member.block_layers):
        end = min(start + layers, member.job.model.layers)
        stage = block_stage(block, pp, model.framework_inputs.schedule)
        counts[:kinds, stage] += model.prefix[:, end] - model.prefix[:, start]
        start = end
    if model.framework_inputs.schedule == SCHEDULE_DUALPIPE:
        mirror(counts, pp)
    counts[kinds:] = even.counts[kinds:]
    _place_head(counts, member, kinds)
    recomputed = np.zeros_like(counts)
    if member.mode.modules:
        recomputed[:kinds] = counts[:kinds]
    return Layout(counts, recomputed)


def _place_head(counts: Array, member: MappedRow, kinds: int) -> None:
    """A source may say on which stage the LM head lives (nanotron packs it greedily)."""
    stated = member.row.integer("head_stage")
    if stated is not None and 0 <= stated < counts.shape[1]:
        counts[kinds + 1] = 0.0
        counts[kinds + 1, stated] = 1.0
