"""The op table as the arrays that the compiled core reads.

A column of a record (`planner.cost.fields`) is the field of that name in a row of the op table,
except for columns that depend on the job. This module computes no quantities itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from constraints.axes import GROUPS
from planner.cost import fields as f
from planner.cost.codes import HOOKED, OpKind, ParamShard
from planner.cost.tables import Array, OpTable
from planner.job.job import Job
from planner.predict.cost_tables import class_names, quantised_copy_bytes
from planner.predict.ops.rows import OPERATOR_SHARE, Op, Piece
from planner.predict.optimizer_terms import parameter_update

# Start of a row's name -> setting that states whether CUDA graphs capture such rows.
_CAPTURED = {
    "attention/": "attention_captured",
    "state/": "state_captured",
    "moe/": "router_captured",
    "shared_experts/": "router_captured",
}


def flatten(all_pieces: Sequence[Piece], job: Job) -> OpTable:
    """Op table of the pieces as arrays."""
    setting, hidden = job.optimizer_setting, float(job.model.hidden)
    numbers = {name: number for number, name in enumerate(class_names(all_pieces))}
    ops: list[_Line] = []
    parameters: list[_Line] = []
    saved: list[_Line] = []
    collectives: list[_Line] = []
    for index, piece in enumerate(all_pieces):
        # Whether the row comes after the core of attention in forward.
        behind = False
        for op in piece.ops:
            ops.append((op, {"piece": index} | _op_columns(op, job)))
            shared = {"piece": index, "parameter_class": numbers.get(op.parameter_class, 0)}
            for count, shard in op.parameters:
                if count:
                    update = parameter_update(op, count, setting, job.framework, hidden)
                    columns = shared | _parameter_columns(op, count, shard, behind)
                    parameters.append((update, columns))
            saved += [(row, {"piece": index, "after_core": behind}) for row in op.saved]
            collectives += [
                (collective, {"piece": index, "group": GROUPS.index(collective.group)})
                for collective in op.collectives
            ]
            behind = behind or op.kind is OpKind.ATTENTION
    records = f.OP_ROW, f.PARAM_ROW, f.SAVED_ROW, f.COMM_ROW
    return OpTable(*map(_table, records, (ops, parameters, saved, collectives)))


# A row, and the columns computed for it that are not its fields.
_Line = tuple[object, Mapping[str, float]]


def _table(record: np.dtype[Any], rows: Iterable[_Line]) -> Array:
    names = record.names or ()
    lines = [
        [more[name] if name in more else getattr(row, name) for name in names] for row, more in rows
    ]
    return np.array(lines, dtype=np.float64).reshape(len(lines), len(names))


def _op_columns(op: Op, job: Job) -> dict[str, float]:
    copies = quantised_copy_bytes(job, job.framework.in_precision(job.precision))
    kernels, experts = job.framework.kernels, op.kind is OpKind.GROUPED_GEMM
    # Whether the framework runs such products in the job's 8 or 4 bits.
    quantises = kernels.quantises_experts if experts else kernels.quantises_linears
    low = op.low_precision and quantises
    # Backward computes no weight gradient of a frozen product; a row below which nothing is trained
    # has no backward.
    untrained = op.is_product and not op.derives
    return {
        "tokens_shard": op.tokens,
        "low_precision": low,
        "autocasts": low if copies != 0.0 else op.autocasts,
        "issued": issue_factor(op, job),
        "trained": op.derives,
        "returns": HOOKED if op.hooked else op.returns,
        "partial": op.hooked or not op.returns or op.unpacked > 0.0 or op.transient > 0.0,
        "backward_kernels": (op.backward_kernels - untrained) if op.returns else 0.0,
    }


def _parameter_columns(op: Op, count: float, shard: ParamShard, behind: bool) -> dict[str, float]:
    """Columns about the parameters of a row that do not depend on the optimizer. A
    vocabulary-parallel table is padded; a position table in the same row is not."""
    return {
        "count": count,
        "shard": shard,
        "pads_vocabulary": op.pads_vocabulary and shard is ParamShard.TP,
        "after_core": behind,
        "apart": op.apart,
    }


def issue_factor(op: Op, job: Job) -> float:
    """CPU time to launch the kernels of a row, divided by the time to launch as many kernels of
    PyTorch modules. 0: a CUDA graph captures the row. 1: the row's kernels come from modules. Rows
    of plain torch operators depend on the host's speed of bare launches."""
    kernels = job.framework.kernels
    graphs = (name for start, name in _CAPTURED.items() if op.name.startswith(start))
    if op.captured and kernels.captured and all(getattr(kernels, name) for name in graphs):
        return 0.0
    if not op.torch_operators:
        return 1.0
    return OPERATOR_SHARE * job.cluster.host_speed / job.cluster.host_launch_speed
