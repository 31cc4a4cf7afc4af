"""The cost model of one job: shapes and layouts in, seconds and bytes out.

Built once per job. Keys, shapes and layouts are costed by the compiled core; this class only
moves numbers between named columns and its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from constraints.context_exchange import IMPOSSIBLE, inner_ranks
from constraints.context_kinds import ContextKind
from planner import cost_tables
from planner.cost import fields as f
from planner.cost import kernel
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable
from planner.device import gpu_inputs
from planner.job import Job
from planner.links import link_inputs
from planner.ops import Piece
from planner.space import model_numbers

# A kind of exchange is preferred to those before it if it is faster by more than this share.
_TIE = 1e-3
# What a layer keeps for backward on the GPU.
_LIGHT = [f.PIECE_SAVED, f.PIECE_SAVED_RECOMPUTED]

Columns = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class CostedShapes:
    """Costs of shapes in their even layouts.

    `steps[row, STEP_*]` per shape; `costs[key, piece, PIECE_*]` per distinct key, and
    `keys`, `shapes` the tables they were computed from (`shapes[:, SHAPE_KEY]` links them).
    """

    steps: Array
    shapes: Array
    keys: Array
    costs: Array

    def piece_costs(self, row: int) -> Array:
        """Piece costs [pieces, PIECE_COLUMNS] of one shape: what CP-SAT reads."""
        key = int(self.shapes[row, f.SHAPE_KEY])
        own: Array = self.costs[key]
        return own

    def exchange(self, row: int) -> int:
        """Ranks of a shape that exchange heads in context parallelism (`KEY_EXCHANGE`)."""
        return int(self.keys[int(self.shapes[row, f.SHAPE_KEY]), f.KEY_EXCHANGE])


@dataclass(frozen=True)
class Layout:
    """Where layers live: `counts[piece, stage]`, and how many of them recompute.

    `mtp_apart`: multi-token prediction is in the block before that of head and loss.
    """

    counts: Array
    recomputed: Array
    mtp_apart: bool = False


def laid_out(shape: Array, mtp_apart: bool) -> Array:
    """A row of the shape table for layouts that have multi-token prediction apart, or have not."""
    own = shape.copy()
    own[f.SHAPE_MTP_APART] = float(mtp_apart)
    return own


class CostModel:
    """Costs shapes and layouts of one job; see the module docstring."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Layer kinds, then embedding, head and perhaps an MTP module and its loss."""
        return cost_tables.job_pieces(self.job)

    @cached_property
    def op_table(self) -> OpTable:
        """The op table as arrays."""
        return cost_tables.flatten(self.pieces, self.job)

    @cached_property
    def job_inputs(self) -> JobInputs:
        """Numbers of model and batch."""
        return cost_tables.job_inputs(self.job, self.pieces)

    @cached_property
    def framework_inputs(self) -> FrameworkInputs:
        """Numbers of framework and optimizer; of a share those of a bound (`is_bound`)."""
        own = cost_tables.framework_inputs(self.job)
        return own._replace(resident_layers=0.0) if self.is_bound else own

    @property
    def is_bound(self) -> bool:
        """Whether shapes are costed as no layout of theirs is: a share of their activations leaves
        the GPU, and which layers' is up to the layout. They keep as if all left, and take as long
        as if none did; `planner.search.offload_share` costs layouts."""
        return self.job.offload_fraction != 1.0

    @cached_property
    def share_inputs(self) -> FrameworkInputs:
        """Numbers of framework and optimizer where some layers' activations stay."""
        return cost_tables.framework_inputs(self.job)._replace(reloads_ahead=1.0)

    @cached_property
    def _on_gpu(self) -> OpTable:
        """The op table with nothing offloaded."""
        plain = replace(self.job, activation_offload=(), offload_fraction=1.0)
        return cost_tables.flatten(cost_tables.job_pieces(plain), plain)

    @cached_property
    def gpu_inputs(self) -> GpuInputs:
        """Numbers of the GPU at the job's precision."""
        return gpu_inputs(self.job.cluster.gpu, self.job.precision, self.job.fused_attention)

    @cached_property
    def link_inputs(self) -> LinkInputs:
        """Numbers of the two link levels."""
        return link_inputs(self.job.cluster)

    @cached_property
    def prefix(self) -> Array:
        """prefix[kind, n]: layers of a kind among the first n."""
        return cost_tables.kind_prefix(self.job.model)

    @cached_property
    def totals(self) -> Array:
        """How many of each piece the model has."""
        return cost_tables.piece_totals(self.job.model, len(self.pieces))

    def cost_shapes(self, columns: Columns) -> CostedShapes:
        """Cost every shape (columns tp cp ep etp dp pp vpp zero mbs grad_acc recompute, shard).

        `recompute` indexes `job.recompute`. Layers are spread evenly, all recomputing alike.
        """
        keys, key_of_shape = self._keys(columns)
        keys, costs = self._exchanged(keys)
        shapes = np.empty((len(key_of_shape), f.SHAPE_COLUMNS))
        shapes[:, f.SHAPE_KEY] = key_of_shape
        for column, name in (
            (f.SHAPE_DP, "dp"),
            (f.SHAPE_PP, "pp"),
            (f.SHAPE_VPP, "vpp"),
            (f.SHAPE_ZERO, "zero"),
            (f.SHAPE_GRAD_ACC, "grad_acc"),
        ):
            shapes[:, column] = columns[name]
        shapes[:, f.SHAPE_SHARD] = columns.get("shard", 0)
        shapes[:, f.SHAPE_MTP_APART] = 0.0
        steps = kernel.cost_shapes(
            shapes,
            keys,
            costs,
            self.prefix,
            self.totals,
            self.job_inputs,
            self.framework_inputs,
            self.gpu_inputs,
            self.link_inputs,
        )
        return CostedShapes(steps, shapes, keys, costs)

    def _keys(self, columns: Columns) -> tuple[Array, NDArray[np.int64]]:
        """Distinct keys of the shapes, and each shape's key."""
        modes = np.array(
            [(int(mode.mask), mode.share, mode.span) for mode in self.job.recompute],
            dtype=np.float64,
        ).reshape(-1, 3)
        # Where nothing of a layer's cost depends on it, shapes of any pp share their keys.
        between = self.job.cluster.num_gpus > self.link_inputs.scale_up_domain
        slowed = between and self.framework_inputs.pipeline_exchange_s > 0.0
        table = np.column_stack(
            [
                columns["tp"],
                columns["cp"],
                columns["ep"],
                columns["etp"],
                columns["mbs"],
                modes[columns["recompute"]],
                (columns["pp"] > 1) & slowed,
                np.ones(len(columns["tp"])),
            ]
        ).astype(np.float64)
        codes = np.zeros(len(table), dtype=np.int64)
        for column in table.T:
            values, ranks = np.unique(column, return_inverse=True)
            codes = codes * len(values) + ranks
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        return np.ascontiguousarray(table[first]), inverse

    def _exchanged(self, keys: Array) -> tuple[Array, Array]:
        """(keys, their costs), each with the fastest exchange of context parallelism it may have.

        By the seconds of all pieces of the model, everything that recomputes run again; what it
        holds is not looked at, for kinds differ in a part of one layer's working set.
        """
        best, costs = keys, self.cost_keys(keys)
        if len(keys) == 0 or keys[:, f.KEY_CP].max() == 1.0:
            return best, costs
        fastest = np.where(keys[:, f.KEY_CP] > 1.0, np.inf, 0.0)
        best = keys.copy()
        for kind in self.job.context_kinds:
            inner = self._inner_ranks(kind, keys)
            rows = np.flatnonzero((inner != IMPOSSIBLE) & (keys[:, f.KEY_CP] > 1.0))
            if not len(rows):
                continue
            own = keys[rows]
            own[:, f.KEY_EXCHANGE] = inner[rows]
            priced = self.cost_keys(own)
            seconds = priced[:, :, f.PIECE_FORWARD : f.PIECE_RECOMPUTE_EP + 1].sum(axis=2)
            seconds = seconds @ self.totals
            better = seconds < fastest[rows] * (1.0 - _TIE)
            taken = rows[better]
            best[taken], costs[taken], fastest[taken] = own[better], priced[better], seconds[better]
        return best, costs

    def _inner_ranks(self, kind: ContextKind, keys: Array) -> NDArray[np.int64]:
        columns = {
            "tp": keys[:, f.KEY_TP].astype(np.int64),
            "cp": keys[:, f.KEY_CP].astype(np.int64),
        }
        model = model_numbers(self.job.model, self.job.seq)
        domain = int(self.link_inputs.scale_up_domain)
        return inner_ranks(kind, columns, model, domain, self.job.context_inner)

    def cost_keys(self, keys: Array) -> Array:
        """Piece costs [keys, pieces, PIECE_COLUMNS]; see `is_bound`."""
        leaving = self.cost_leaving(keys)
        if not self.is_bound:
            return leaving
        bound = self.cost_staying(keys)
        bound[:, :, _LIGHT] = leaving[:, :, _LIGHT]
        return bound

    def cost_leaving(self, keys: Array) -> Array:
        """Piece costs of layers whose offloaded activations leave the GPU."""
        return self._cost_keys(keys, self.op_table)

    def cost_staying(self, keys: Array) -> Array:
        """Piece costs of layers whose activations all stay."""
        return self._cost_keys(keys, self._on_gpu)

    def _cost_keys(self, keys: Array, table: OpTable) -> Array:
        return kernel.cost_keys(
            np.ascontiguousarray(keys),
            table,
            self.job_inputs,
            self.framework_inputs,
            self.gpu_inputs,
            self.link_inputs,
        )

    def cost_layout(self, costed: CostedShapes, row: int, layout: Layout) -> tuple[Array, Array]:
        """Cost one layout of one shape: (STEP_* vector, [pp, STAGE_*] matrix)."""
        shape = laid_out(costed.shapes[row], layout.mtp_apart)
        key = int(shape[f.SHAPE_KEY])
        return kernel.cost_layout(
            shape,
            costed.keys[key],
            costed.costs[key],
            layout.counts,
            layout.recomputed,
            self.job_inputs,
            self.framework_inputs,
            self.gpu_inputs,
            self.link_inputs,
        )

    def even_layout(self, costed: CostedShapes, row: int) -> Layout:
        """The layout in which `cost_shapes` costed a shape."""
        from planner.cost.layout import usual_counts

        shape = costed.shapes[row]
        pp = int(shape[f.SHAPE_PP])
        counts = np.zeros((len(self.pieces), pp))
        vpp, schedule = int(shape[f.SHAPE_VPP]), self.framework_inputs.schedule
        usual_counts(self.prefix, pp, vpp, self.job_inputs, schedule, counts)
        recomputed = np.zeros_like(counts)
        if costed.keys[int(shape[f.SHAPE_KEY]), f.KEY_MODULES] != 0:
            kinds = len(self.job.model.kinds)
            recomputed[:kinds] = counts[:kinds]
        return Layout(counts, recomputed)
