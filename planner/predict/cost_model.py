"""The cost model of one job: shapes and layouts in, seconds and bytes out.

A shape is a set of parallel degrees and batch sizes with one recompute mode. Its key consists of
the parts on which the cost of one layer depends; shapes that differ only in other parts share a
key. A piece is a unit of which pipeline stages consist: a layer of one kind, the embedding, the
head, or multi-token prediction (MTP). A layout says how many pieces of each kind are on each stage.
A place, in a pool of several machines, says on which machine each stage runs.

Built once per job. The compiled core does the arithmetic; this class moves numbers between named
columns and the core's arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.axes import AXES, OF_LAYER, OF_STEP
from constraints.context_exchange import IMPOSSIBLE
from planner.cost import compiled, linear, linear_memory
from planner.cost import fields as f
from planner.cost._entry import Entry
from planner.cost._jit import as_records
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.linear_memory import MemoryPhases
from planner.cost.piece_traffic import TRAFFIC_ROW as PIECE_TRAFFIC_ROW
from planner.cost.piece_traffic import TRAFFICS
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable
from planner.job.job import Job
from planner.predict import cost_tables, op_columns
from planner.predict.calibrated import Factors, calibrated, learnt_factors, learnt_logs
from planner.predict.cost_tables import gpu_inputs
from planner.predict.kernel_rows import (
    exchange_ranks,
    fill_frames,
    fill_groups,
    laid_out,
    numbered,
    place_table,
    with_ranks,
    work_arrays,
)
from planner.predict.links import link_inputs, network
from planner.predict.ops.rows import Piece
from planner.predict.pictures import with_pictures
from planner.predict.sample_costs import cost_samples, with_computed
from planner.predict.threads import in_threads
from planner.predict.unequal import unequal_seconds

# A kind of exchange replaces an earlier one only if it is faster by more than this share.
_TIE = 1e-3

Columns = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class CostedShapes:
    """Costs of shapes in their even layouts.

    `steps[row, STEP_*]`: one row per shape; `costs[key, machine, piece, PIECE_*]`: one per distinct
    key; `keys` and `shapes`: the tables that they were computed from (column `key` links them).
    """

    steps: Array
    shapes: Array
    keys: Array
    costs: Array

    def piece_costs(self, row: int, machine: int = 0) -> Array:
        """Piece costs [pieces, PIECE_COLUMNS] of one shape on a machine, as CP-SAT reads them."""
        values: Array = self.costs[int(self.shapes[row, f.SHAPE["key"]]), machine]
        return values

    def only(self, row: int) -> CostedShapes:
        """One shape."""
        one = slice(row, row + 1)
        return replace(self, steps=self.steps[one], shapes=self.shapes[one])

    def exchange(self, row: int) -> int:
        """Number of context-parallel ranks of a shape that exchange attention heads by all-to-all,
        while groups of them form rings; 0: keys and values are gathered instead (`exchange` in the
        key table)."""
        return int(self.keys[int(self.shapes[row, f.SHAPE["key"]]), f.KEY["exchange"]])


@dataclass(frozen=True)
class KernelLayout:
    """Layers per stage: `counts[piece, stage]`, and how many of them recompute.

    `mtp_standalone`: multi-token prediction has a block to itself, before the block of head and
    loss.
    """

    counts: Array
    recomputed: Array
    mtp_standalone: bool = False


@dataclass(frozen=True)
class LayoutInputs:
    """Inputs for costing a layout on one machine: rows of the shape and key tables, piece costs,
    pieces per stage, and the numbers of job and framework."""

    shape: Array
    key: Array
    costs: Array
    layout: KernelLayout
    job: JobInputs
    framework: FrameworkInputs


class CostModel:
    """Costs shapes and layouts of one job; see the module docstring.

    `compiled` False: run the core in plain Python, with the same results, so that costing a few
    configurations needs no compiler. `altered`: factors on inputs of GPU, links and framework, by
    their names in the core, for changes that no catalogue entry describes.
    """

    def __init__(self, job: Job, altered: Factors | None = None, *, compiled: bool = True) -> None:
        self.job, self.altered, self.compiled = job, altered or {}, compiled
        # Cache of the tables that `pictured_table` returns.
        self._pictured: dict[tuple[float, bool], OpTable] = {}

    @cached_property
    def machines(self) -> tuple[CostModel, ...]:
        """One cost model for each machine that runs pipeline stages of the job."""
        return (self,) if self.job.pool is None else tuple(map(self.of, self.job.machines))

    def of(self, job: Job) -> CostModel:
        """The cost model of another job on the same hardware."""
        return CostModel(job, self.altered, compiled=self.compiled)

    def run(self, entry: Entry, *arguments: Any) -> Any:
        """Call an entry of the core, compiled or in plain Python."""
        return entry(*arguments) if self.compiled else entry.plain(*arguments)

    @property
    def factors(self) -> Factors:
        """Calibration factors of the cluster, by name (`hardware.calibration`)."""
        return learnt_factors(self.job)

    def learnt_logs(self, columns: Columns) -> Array:
        """ln of the correction that similar runs of the cluster make to each shape's step."""
        return learnt_logs(self.job, columns)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Layer kinds, embedding, head, and any MTP module with its loss."""
        return cost_tables.job_pieces(self.job)

    @cached_property
    def op_table(self) -> OpTable:
        """The op table as arrays."""
        return op_columns.flatten(self.pieces, self.job)

    def pictured_table(self, pictures: float, table: OpTable | None = None) -> OpTable:
        """The op table (or `_on_gpu`'s) with `pictures` times as many image patches."""
        plain = self.op_table if table is None else table
        if pictures == 1.0:
            return plain
        resident = plain is not self.op_table
        if (pictures, resident) not in self._pictured:
            job = self._resident_job if resident else self.job
            pieces = cost_tables.job_pieces(job) if resident else self.pieces
            found = op_columns.flatten(with_pictures(pieces, pictures), job)
            self._pictured[pictures, resident] = found
        return self._pictured[pictures, resident]

    @cached_property
    def job_inputs(self) -> JobInputs:
        """Inputs of the core for model and batch."""
        return cost_tables.job_inputs(self.job)

    @cached_property
    def framework_inputs(self) -> FrameworkInputs:
        """Inputs of the core for framework and optimizer."""
        plain = cost_tables.framework_inputs(self.job, self.pieces)
        return calibrated(plain, "framework", self.factors, self.altered)

    @cached_property
    def _resident_job(self) -> Job:
        """The job with all activations on the GPU: without their offload."""
        return replace(self.job, activation_offload=(), offload_fraction=1.0)

    @cached_property
    def _on_gpu(self) -> OpTable:
        """The op table of the job with all activations on the GPU: without their offload."""
        return op_columns.flatten(cost_tables.job_pieces(self._resident_job), self._resident_job)

    @cached_property
    def gpu_inputs(self) -> GpuInputs:
        """Inputs of the core for the GPU at the job's precision."""
        job = self.job
        plain = gpu_inputs(job.cluster.gpu, job.precision, job.fused_attention)
        return calibrated(plain, "gpu", self.factors, self.altered)

    @cached_property
    def link_inputs(self) -> LinkInputs:
        """Inputs of the core for both link levels."""
        neighbours = float(self.job.framework.parallelism.pipeline_before_data)
        stores = cost_tables.dispatcher(self.job) == "deepep"
        links = link_inputs(self.job.cluster, stores=stores)
        links = links._replace(pipeline_before_data=neighbours)
        return calibrated(links, "links", self.factors, self.altered)

    @cached_property
    def network(self) -> NDArray[Any]:
        """The links in the form that the core reads (`planner.predict.links.network`)."""
        return network(self.link_inputs)

    @property
    def inputs(self) -> tuple[JobInputs, FrameworkInputs, GpuInputs, NDArray[Any]]:
        """Inputs of the core on one machine: job, framework, GPU, links."""
        return self.job_inputs, self.framework_inputs, self.gpu_inputs, self.network

    @cached_property
    def machine_inputs(self) -> tuple[NDArray[Any], ...]:
        """Inputs of the core for all machines: frameworks, GPUs, networks, places of stages."""
        machines = self.machines
        gpus = [
            machine.gpu_inputs._replace(memory_scale=scale)
            for machine, scale in zip(machines, self.memory_scales, strict=True)
        ]
        return (
            as_records([machine.framework_inputs for machine in machines]),
            as_records(gpus),
            np.stack([machine.network for machine in machines]),
            self.places,
        )

    @cached_property
    def memory_scales(self) -> tuple[float, ...]:
        """Factors of `planner.predict.uncertainty.likely.memory_scales`."""
        if self.job.pool is None:
            return (1.0,)
        from planner.predict.uncertainty.likely import memory_scales

        return memory_scales(self.job)

    @cached_property
    def places(self) -> Array:
        """The machine of each stage, one row per place of the pool."""
        return place_table(self.job)

    def peaks(self, costed: CostedShapes) -> Array:
        """Peak bytes of shapes in their even layouts. In a pool of several GPU types the bytes of
        each machine are scaled up as if all had the usable memory of the largest, so that one limit
        serves all."""
        stage = costed.steps[:, f.STEP_PEAK_STAGE].astype(np.int64)
        place = costed.shapes[:, f.SHAPE["place"]].astype(np.int64)
        machine = self.places[place, stage].astype(np.int64)
        peaks: Array = costed.steps[:, f.STEP_PEAK_BYTES] * np.array(self.memory_scales)[machine]
        return peaks

    def weighed_peak(self, step: Array, place: Sequence[int]) -> float:
        """Peak bytes of one step, scaled like those of `peaks`. `step`: its STEP_* vector; `place`:
        the machine of each stage."""
        scale = self.memory_scales[place[int(step[f.STEP_PEAK_STAGE])]]
        return float(step[f.STEP_PEAK_BYTES]) * scale

    def place(self, costed: CostedShapes, row: int) -> list[int]:
        """The machine of each stage of a shape."""
        stages = self.places[int(costed.shapes[row, f.SHAPE["place"]])]
        return [int(at) for at in stages[: int(costed.shapes[row, f.SHAPE["pp"]])]]

    @cached_property
    def prefix(self) -> Array:
        """prefix[kind, n]: layers of a kind among the first n."""
        return cost_tables.kind_prefix(self.job.model)

    @cached_property
    def totals(self) -> Array:
        """Array: for each kind of piece (layer kind, embedding, head, MTP module), the number of
        such pieces in the model."""
        return cost_tables.piece_totals(self.job.model, len(self.pieces))

    def cost_shapes(self, columns: Columns) -> CostedShapes:
        """Cost every shape (a column for each axis, and `recompute`).

        `recompute` indexes `job.recompute`. Layers are spread evenly and recompute alike. Columns
        `kept` and `computed` override the tokens of a micro-batch (`KEY_ROW`).
        """
        price_shapes = self.price_shapes(columns)
        frames = price_shapes.shapes[:, f.SHAPE["frame"]]
        order = np.argsort(frames, kind="stable").astype(np.float64)
        most = int(price_shapes.shapes[:, f.SHAPE["pp"]].max(initial=1.0))

        def cost(part: slice) -> None:
            *space, stages = work_arrays(len(self.pieces), most, len(self.machines))
            self.run(
                compiled.cost_shapes, price_shapes.shapes, order[part], price_shapes.keys,
                price_shapes.costs, self.prefix, self.totals, self.job_inputs,
                *self.machine_inputs, False, *space, price_shapes.steps, stages,
            )  # fmt: skip

        in_threads(cost, len(order))
        return price_shapes

    def price_shapes(self, columns: Columns) -> CostedShapes:
        """Fill the shape and key tables and cost the pieces of each key, but not the steps, which
        are all zeros."""
        keys, key_of_shape = self._keys(columns)
        keys, costs = self._exchanged(keys)
        shapes = np.zeros((len(key_of_shape), len(f.SHAPE)))
        shapes[:, f.SHAPE["key"]] = key_of_shape
        for axis in OF_STEP:
            shapes[:, f.SHAPE[axis]] = columns.get(axis, AXES[axis].least)
        shapes[:, f.SHAPE["learnt"]] = self.learnt_logs(columns)
        shapes[:, f.SHAPE["place"]] = columns.get("place", 0)
        fill_groups(shapes, keys)
        fill_frames(shapes, keys)
        if self.job.samples.differ:
            shapes[:, f.SHAPE["unequal_s"]] = self.waits(columns, shapes, keys, costs)
        steps = np.zeros((len(shapes), f.STEP_COLUMNS))
        return CostedShapes(steps, shapes, keys, costs)

    def waits(self, columns: Columns, shapes: Array, keys: Array, costs: Array) -> Array:
        """Seconds of each shape's step in which ranks wait for those whose samples need more work
        (`planner.predict.unequal`)."""
        del columns  # A subclass reads them; here the job describes its samples.
        return unequal_seconds(self.job, self.on_machines, self.totals, shapes, keys, costs)

    def _keys(self, columns: Columns) -> tuple[Array, NDArray[np.int64]]:
        """(table of the distinct keys of the shapes, for each shape the row of its key in this
        table)."""
        modes = np.array(
            [(int(mode.mask), mode.share, mode.span) for mode in self.job.recompute],
            dtype=np.float64,
        ).reshape(-1, 3)
        # Shapes with different pp share a key unless a layer's cost depends on pp.
        between = self.job.cluster.num_gpus > self.link_inputs.scale_up_domain
        slowed = between and self.framework_inputs.pipeline_exchange_s > 0.0
        # A sample of the job may have several rows, so micro-batches are counted in rows.
        in_rows = {**columns, "mbs": columns["mbs"] * self.job.rows}
        table = np.column_stack(
            [
                *(in_rows[axis] for axis in OF_LAYER),
                modes[columns["recompute"]],
                (columns["pp"] > 1) & slowed,
                np.ones(len(columns["tp"])),
                np.where(columns["tp"] > 1, self.job_inputs.sequence_parallel, 0.0),
                (columns["zero"] == 3) & (self.framework_inputs.fetch_s > 0.0),
                *(columns[name] for name in ("kept", "computed") if name in columns),
            ]
        ).astype(np.float64)
        _, first, inverse = np.unique(numbered(table), return_index=True, return_inverse=True)
        keys = with_ranks(table[first])
        return keys if "kept" in columns else with_computed(keys, self.job), inverse

    def _exchanged(self, keys: Array) -> tuple[Array, Array]:
        """(keys, their costs), each key with its fastest exchange of context parallelism.

        Exchanges are compared by the seconds of all pieces, including recomputation. Their memory
        is not compared, because exchanges differ only in part of one layer's working set.
        """
        passes = [*f.FORWARD_COLUMNS, *f.BACKWARD_COLUMNS, *f.RECOMPUTE_COLUMNS]
        machines, best = len(self.machines), keys.copy()
        costs = np.zeros((len(keys), machines, len(self.pieces), f.PIECE_COLUMNS))
        fastest = np.full(len(keys), np.inf)
        for kind in self.job.context_kinds:
            inner = exchange_ranks(kind, keys, self.job, self.link_inputs.scale_up_domain)
            rows = np.flatnonzero((inner != IMPOSSIBLE) & (keys[:, f.KEY["cp"]] > 1.0))
            if not len(rows):
                continue
            key = keys[rows]
            key[:, f.KEY["exchange"]] = inner[rows]
            priced = self.on_machines(key)
            seconds = (priced[..., passes].sum(axis=3) @ self.totals).max(axis=1)
            better = seconds < fastest[rows] * (1.0 - _TIE)
            taken = rows[better]
            best[taken], costs[taken], fastest[taken] = key[better], priced[better], seconds[better]
        plain = np.flatnonzero(fastest == np.inf)
        costs[plain] = self.on_machines(keys[plain])
        return best, costs

    def on_machines(self, keys: Array, **changed: float) -> Array:
        """Piece costs [keys, machines, pieces, PIECE_COLUMNS]; `changed`: as in `cost_samples`."""
        return np.stack([machine.cost_keys(keys, **changed) for machine in self.machines], axis=1)

    def cost_keys(self, keys: Array, **changed: float) -> Array:
        """Piece costs [keys, pieces, PIECE_COLUMNS] with the job's activations offloaded."""
        return self._cost_keys(keys, self.op_table, **changed)

    def cost_resident(self, keys: Array) -> Array:
        """Piece costs of layers that offload no activations."""
        return self._cost_keys(keys, self._on_gpu)

    def _cost_keys(self, keys: Array, table: OpTable, **changed: float) -> Array:
        def cost(keys: Array, inputs: JobInputs, pictures: float) -> Array:
            keys, rows = np.ascontiguousarray(keys), self.pictured_table(pictures, table)
            costs = np.zeros((len(keys), len(self.pieces), f.PIECE_COLUMNS))
            in_threads(
                lambda part: self.run(
                    compiled.cost_keys, keys[part], *rows, inputs, *self.inputs[1:],
                    np.zeros(TRAFFICS, PIECE_TRAFFIC_ROW), costs[part],
                ),
                len(keys),
            )  # fmt: skip
            return costs

        return cost_samples(self.job, self.job_inputs, keys, cost, **changed)

    def cost_layout(
        self, costed: CostedShapes, row: int, layout: KernelLayout
    ) -> tuple[Array, Array]:
        """Cost one layout of one shape: (STEP_* vector, [pp, STAGE_*] matrix)."""
        machines = enumerate(self.machines)
        return self.cost_inputs(
            [machine.layout_inputs(costed, row, layout, at) for at, machine in machines]
        )

    def layout_inputs(
        self, costed: CostedShapes, row: int, layout: KernelLayout, machine: int = 0
    ) -> LayoutInputs:
        """Inputs for costing a layout of one shape (row `row` of `costed`) on one machine."""
        shape = laid_out(costed.shapes[row], layout.mtp_standalone)
        key = costed.keys[int(shape[f.SHAPE["key"]])]
        costs = costed.piece_costs(row, machine)
        return LayoutInputs(shape, key, costs, layout, self.job_inputs, self.framework_inputs)

    def cost_inputs(self, inputs: Sequence[LayoutInputs]) -> tuple[Array, Array]:
        """Cost a layout from its inputs on each machine: (STEP_* vector, [pp, STAGE_*] matrix)."""
        first, costs = inputs[0], np.stack([one.costs for one in inputs])
        pp = int(first.shape[f.SHAPE["pp"]])
        steps, counts = np.zeros((1, f.STEP_COLUMNS)), first.layout.counts
        layouts, groups, traffic, stages = work_arrays(len(counts), pp, len(inputs))
        layouts[0], layouts[1] = counts, first.layout.recomputed
        self.run(
            compiled.cost_shapes, first.shape[None], np.zeros(1), first.key[None], costs[None],
            self.prefix, counts.sum(axis=1), first.job,
            as_records([one.framework for one in inputs]), *self.machine_inputs[1:], True, layouts,
            groups, traffic, steps, stages,
        )  # fmt: skip
        return steps[0], stages

    def layout_terms(
        self, shape: Array, key: Array, costs: Array, job: JobInputs, machine: int = 0
    ) -> tuple[Array, Array]:
        """(terms[piece, TERM_*], scalars[SCALAR_*]): coefficients of a shape's step time on a
        machine, as a function of the number of each piece on a stage (`planner.cost.linear`)."""
        terms = np.zeros((job.pieces, linear.TERM_COLUMNS))
        scalars = np.zeros(linear.SCALAR_COLUMNS)
        model, networks = self.machines[machine], self.machine_inputs[2]
        self.run(
            compiled.layout_terms, shape, key, costs, job, model.framework_inputs,
            model.gpu_inputs, networks, machine, terms, scalars,
        )  # fmt: skip
        return terms, scalars

    def memory_phases(self, shape: Array, key: Array, costs: Array, job: JobInputs) -> MemoryPhases:
        """Bytes of a shape in every phase of every stage, as linear functions of the number of
        layers of each kind on the stage."""
        pp, rows = int(shape[f.SHAPE["pp"]]), linear_memory.ROWS
        phases = MemoryPhases(
            np.zeros((rows, pp)),
            *np.zeros((2, rows, pp, job.kinds)),
            *np.zeros((5, rows, job.kinds)),
        )
        self.run(compiled.memory_phases, shape, key, costs, job, self.framework_inputs, *phases)
        return phases
