"""The op table as the arrays that the compiled core reads: nothing is counted here.

A column of a record (`planner.cost.fields`) is the field of that name of a row of the op table, but
for what depends on the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from constraints.axes import GROUPS
from planner.cost import fields as f
from planner.cost.codes import HOOKED, OpKind, ParamShard
from planner.cost.tables import Array, OpTable
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.frameworks.tables import Kernels
from planner.job.job import Job
from planner.predict.cost_tables import class_names, quantised_copy_bytes
from planner.predict.ops.rows import OPERATOR_SHARE, Op, Piece
from planner.predict.optimizer_terms import parameter_update

# Rows by the beginning of their names -> whether a graph holds them.
_CAPTURED = {
    "attention/": "attention_captured",
    "state/": "state_captured",
    "moe/": "router_captured",
    "shared_experts/": "router_captured",
}


def flatten(all_pieces: Sequence[Piece], job: Job) -> OpTable:
    """Op table of the pieces as arrays."""
    numbers = {name: number for number, name in enumerate(class_names(all_pieces))}
    rows = [(index, *row) for index, piece in enumerate(all_pieces) for row in _ordered(piece)]
    return OpTable(
        ops=_table(f.OP_ROW, ((op, {"piece": i} | _op_columns(op, job)) for i, op, _ in rows)),
        parameters=_table(
            f.PARAM_ROW,
            (
                (
                    _update(op, count, job),
                    {"piece": index, "parameter_class": numbers[op.parameter_class]}
                    | _parameters(op, count, shard, behind),
                )
                for index, op, behind in rows
                for count, shard in op.parameters
                if count
            ),
        ),
        saved=_table(
            f.SAVED_ROW,
            (
                (saved, {"piece": index, "after_core": behind})
                for index, op, behind in rows
                for saved in op.saved
            ),
        ),
        collectives=_table(
            f.COMM_ROW,
            (
                (comm, {"piece": index, "group": GROUPS.index(comm.group)})
                for index, op, _ in rows
                for comm in op.collectives
            ),
        ),
    )


def _table(record: np.dtype[Any], rows: Iterable[tuple[object, Mapping[str, float]]]) -> Array:
    """One line a row: of each column what is given, else the row's field of that name."""
    names = record.names or ()
    lines = [
        [more[name] if name in more else getattr(row, name) for name in names] for row, more in rows
    ]
    return np.array(lines, dtype=np.float64).reshape(len(lines), len(names))


def _ordered(piece: Piece) -> Iterator[tuple[Op, bool]]:
    """(row, whether it is behind the core of attention in forward)."""
    behind = False
    for op in piece.ops:
        yield op, behind
        behind = behind or op.kind is OpKind.ATTENTION


def _op_columns(op: Op, job: Job) -> dict[str, float]:
    copies = quantised_copy_bytes(job, job.framework.in_precision(job.precision))
    low = op.low_precision and _quantises(op, job.framework)
    return {
        "tokens_shard": op.tokens,
        "low_precision": low,
        "autocasts": low if copies != 0.0 else op.autocasts,
        "issued": issue_factor(op, job),
        "trained": op.derives,
        "returns": HOOKED if op.hooked else op.returns,
        "partial": op.hooked or not op.returns or op.unpacked > 0.0 or op.transient > 0.0,
        "backward_kernels": _backward_kernels(op),
    }


def _backward_kernels(op: Op) -> float:
    """Kernels of a row's backward: of a product with frozen weights one less, of a row below which
    nothing is trained none."""
    untrained = op.is_product and not op.derives
    return (op.backward_kernels - untrained) if op.returns else 0.0


def _parameters(op: Op, count: float, shard: ParamShard, behind: bool) -> dict[str, float]:
    """Columns of some parameters of a row that do not depend on the optimizer. Vocabulary-parallel
    tables are padded; a position table in the same row is not."""
    pads = op.pads_vocabulary and shard is ParamShard.TP
    return {
        "count": count,
        "shard": shard,
        "pads_vocabulary": pads,
        "after_core": behind,
        "apart": op.apart,
    }


def _update(op: Op, count: float, job: Job) -> object:
    """What the optimizer adds for some parameters of a row."""
    hidden = float(job.model.hidden)
    return parameter_update(op, count, job.optimizer_setting, job.framework, hidden)


def issue_factor(op: Op, job: Job) -> float:
    """CPU time of a row over that of as many kernels of modules: nothing where a CUDA graph holds
    it; torch's operators run at the host's speed of bare launches."""
    if op.captured and _captured(op, job.framework.kernels):
        return 0.0
    if not op.torch_operators:
        return 1.0
    return OPERATOR_SHARE * job.cluster.host_speed / job.cluster.host_launch_speed


def _captured(op: Op, kernels: Kernels) -> bool:
    """Whether CUDA graphs hold the module that a row is of."""
    held = (name for start, name in _CAPTURED.items() if op.name.startswith(start))
    return kernels.captured and all(getattr(kernels, name) for name in held)


def _quantises(op: Op, profile: FrameworkProfile) -> bool:
    """Whether a framework runs products of the row's kind in the job's 8 or 4 bits."""
    experts = op.kind is OpKind.GROUPED_GEMM
    return profile.kernels.quantises_experts if experts else profile.kernels.quantises_linears
