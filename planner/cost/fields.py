"""Columns of the tables that the compiled core reads and writes.

Outside the core a table is a float64 array and its columns are these numbers. Inside it is an array
of records whose fields have the same names in lower case (`PIECE_SAVED`: `cost.saved`). Tables that
only the core reads have no numbers for their columns. `planner.predict.cost_tables` fills the input
tables from the op table.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from constraints.axes import GROUPS, OF_LAYER, OF_STEP
from planner.cost.codes import Sharers
from planner.cost.tables import CLASSES
from planner.cost.terms import MEMORY_TERMS, TIME_TERMS, TRAFFIC_TERMS, StageTerm, TimeTerm


def record_of(*columns: str, **wide: int) -> np.dtype[Any]:
    """The numpy type of a table's row: one float64 field for each of `columns`, then one field of n
    float64 numbers for each keyword `name=n`."""
    single = [(name, "f8") for name in columns]
    return np.dtype((np.record, [*single, *((name, "f8", (n,)) for name, n in wide.items())]))


def places(row: np.dtype[Any]) -> dict[str, int]:
    """The number of each column of a row, by the column's name, for use outside the core. A wide
    column has the number of its first value."""
    return {name: place[1] // 8 for name, place in (row.fields or {}).items()}


# --- OpTable: fields of `planner.predict.ops.rows`, and what `planner.predict.cost_tables` adds ---
# `span`: number of tokens of an image that each of its tokens attends to, 0 for the causal row;
# `autocasts`: 0 if autocast does not apply to the product; `issued`: 0 if a CUDA graph contains the
# row; `host_waits`: times that the CPU waits for the GPU in forward; `_launches`: launches for each
# expert in a loop over the experts of a rank; `_adds`: values per token that atomics add up;
# `trained`: 0 for a product whose weights have no gradient; `partial`: 1 if one of the following
# differs from pretraining: `returns`, 0 for a row whose input needs no gradient, 2 for one whose
# input gradient only checkpoints need; `unpacked`, bytes of HBM traffic for each weight of which a
# copy is made before each use, and `transient`, bytes of that copy.
OP_ROW = record_of(
    "piece", "kind", "tokens_shard", "tokens_factor", "out_width", "out_shard", "kv_out_width",
    "in_width", "in_shard", "groups", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "window",
    "span", "forward_bytes", "backward_bytes", "forward_kernels", "backward_kernels",
    "low_precision", "pads_vocabulary", "rerun_with", "autocasts", "work_bytes", "issued",
    "host_waits", "forward_launches", "backward_launches", "forward_adds", "backward_adds", "local",
    "trained", "partial", "returns", "unpacked", "transient", "repeats",
)  # fmt: skip
# For the optimizer: bytes of state beyond those that every parameter has; temporaries of the update
# of one matrix, and FLOP for all matrices. `apart`: 1 for a vision tower, which is next to the
# embedding; `after_core`: 1 if the row is after the core of attention in forward: its gradient is
# made, and its tensor freed, before the core's backward.
PARAM_ROW = record_of(
    "piece", "count", "shard", "parameter_class", "pads_vocabulary", "state_bytes",
    "temporary_bytes", "flop", "after_core", "apart",
)  # fmt: skip
# `pads_vocabulary`: 1 for the loss's logits; `fixed_bytes`: per micro-batch, for any number of
# sequences; `exchanged`: 1 if the tensor exists only when attention exchanges heads; `copies`:
# times that it crosses the host link in each direction; `leaves`: 1 if it then leaves the GPU.
SAVED_ROW = record_of(
    "piece", "bytes_per_token", "shard", "freed_by", "only_with", "pads_vocabulary", "fixed_bytes",
    "exchanged", "copies", "leaves", "after_core",
)  # fmt: skip
COMM_ROW = record_of(
    "piece", "kind", "group", "bytes_per_token", "forward", "backward", "shard", "hidden_forward",
    "hidden_backward", "rerun_with", "sequence_parallel_only",
)  # fmt: skip

# --- keys: what the cost of one layer depends on ---------------------------------------------
# `modules`: recompute mode as a bit mask of modules; `share`: of layers that recompute; `span`:
# layers of one checkpoint. `pipelined`: 1 in a pipeline between domains if that changes a layer's
# cost. `exchange`: number of context-parallel ranks that exchange heads by all-to-all, while these
# groups form rings; 0: keys and values are gathered instead. `sequence_parallel`: 1 if the key
# splits the sequence over tp outside its products; `fetches`: 1 if hooks of modules gather weights
# before each use (ZeRO-3); `kept`: tokens of the longest micro-batch as a share of mbs·seq;
# `computed`: tokens of an average micro-batch as a share of these. The rest follows from the
# degrees: number of ranks that hold a stage once, number of ranks that hold its experts once, and
# for each group (`planner.cost.codes`) the number of its ranks and the distance between them.
KEY_ROW = record_of(
    *OF_LAYER, "modules", "share", "span", "pipelined", "exchange", "sequence_parallel", "fetches",
    "kept", "computed", "inner_ranks", "expert_ranks", ranks=len(GROUPS), stride=len(GROUPS),
)  # fmt: skip

# The value of `planner.job.recompute.Module.FULL`.
MODULE_FULL = 128

# --- shapes ----------------------------------------------------------------------------------
# `key`: row of the key table; `mtp_standalone`: 1 if multi-token prediction is in the block before
# the one with head and loss; `shards`, `expert_shards`: number of ranks that share a dense
# parameter and an expert's parameter, `replicas`: number of such groups with the same parameters;
# `frame`: shapes with the same number differ only in micro-batch and recompute mode; `learnt`: ln
# of the factor on the step from similar runs of the cluster; `place`: row of the table with the
# machine of each pipeline stage; `unequal_s`: seconds that ranks wait for those with more work in
# their samples. Degrees: `shard` 0 stands for all of dp·cp.
SHAPE_ROW = record_of(
    "key", *OF_STEP, "mtp_standalone", "shards", "expert_shards", "replicas", "frame", "learnt",
    "place", "unequal_s",
)  # fmt: skip

# --- cost of one piece for one key and one micro-batch ------------------------------------------
# Seconds of one micro-batch, with exposed communication separate from compute.
PIECE_FORWARD = 0
PIECE_FORWARD_TP = 1
PIECE_FORWARD_CP = 2
PIECE_FORWARD_EP = 3
PIECE_BACKWARD = 4
PIECE_BACKWARD_TP = 5
PIECE_BACKWARD_CP = 6
PIECE_BACKWARD_EP = 7
PIECE_RECOMPUTE = 8
PIECE_RECOMPUTE_TP = 9
PIECE_RECOMPUTE_CP = 10
PIECE_RECOMPUTE_EP = 11
# Bytes on one rank: kept from forward to backward without and with recomputation, and the gradients
# of the largest operation in flight.
PIECE_SAVED = 12
PIECE_SAVED_RECOMPUTED = 13
PIECE_WORKING = 14
# Parameters on one rank before ZeRO whose gradients are made, and whose weights ZeRO-3 gathers:
# PIECE_PARAMETERS weighted by class (`planner.cost.tables.ClassInputs`).
PIECE_TRAINED = 15
PIECE_GATHERED = 16
# Bytes that recomputing a layer (all layers of its checkpoint) brings back at once.
PIECE_AGAIN = 17
# The largest temporary of an optimizer's update.
PIECE_UPDATE_BYTES = 18
# Bytes: gradients of its weights made in backward before they are accumulated, low-precision copies
# of its weights, kept logits. Parameters of the vocabulary table, and their class.
PIECE_WEIGHT_GRADIENT = 19
PIECE_CASTS = 20
PIECE_LOGITS = 21
PIECE_TABLE = 22
PIECE_TABLE_CLASS = 23
# The part of PIECE_BACKWARD for gradients of weights; bytes kept from the gradient of the input to
# the gradient of the weights.
PIECE_WEIGHT = 24
PIECE_WEIGHT_SAVED = 25
# Number of tensors that the optimizer updates.
PIECE_TENSORS = 26
# Activations on the host: bytes that leave the GPU, without and with recomputation (already
# subtracted from the columns of saved bytes), and bytes of which a layer has two copies once they
# are back; seconds of copies that are not hidden.
PIECE_OFFLOADED = 27
PIECE_OFFLOADED_RECOMPUTED = 28
PIECE_DUPLICATED = 29
PIECE_FORWARD_OFFLOAD = 30
PIECE_BACKWARD_OFFLOAD = 31
# Link time of a layer's collectives by pass (forward, backward, recompute: LINK_PASS columns
# apart): exposed and hidden behind compute, inside scale-up domains and between them.
PIECE_LINKS = 32
LINK_EXPOSED_INSIDE = 0
LINK_EXPOSED_BETWEEN = 1
LINK_HIDDEN_INSIDE = 2
LINK_HIDDEN_BETWEEN = 3
LINK_PASS = 4
# The part of PIECE_FORWARD and PIECE_BACKWARD together, and of PIECE_RECOMPUTE, in which the GPU
# waits for the CPU to issue kernels.
PIECE_ISSUE = PIECE_LINKS + 3 * LINK_PASS
PIECE_ISSUE_AGAIN = PIECE_ISSUE + 1
# During the backward of unfused attention's softmax: bytes besides those that a layer keeps (0 if
# the softmax is fused), and parameters whose gradients a rank has made by then.
PIECE_SOFTMAX = PIECE_ISSUE_AGAIN + 1
PIECE_AFTER_CORE = PIECE_SOFTMAX + 1
# Trained parameters of which tp ranks have copies and average the gradients, and trained parameters
# of a vision tower, which is next to the embedding.
PIECE_AVERAGED = PIECE_AFTER_CORE + 1
PIECE_APART = PIECE_AVERAGED + 1
# By class: number of a rank's parameters before ZeRO. For the optimizer, by the ranks that share
# the parameters (`Sharers`): bytes of state beyond those that every parameter has, and FLOP.
PIECE_PARAMETERS = PIECE_APART + 1
PIECE_STATE = PIECE_PARAMETERS + CLASSES
PIECE_UPDATE_FLOP = PIECE_STATE + len(Sharers)
PIECE_COLUMNS = PIECE_UPDATE_FLOP + len(Sharers)

# --- result of one step ----------------------------------------------------------------------
# Seconds of the step, in all and by term (`planner.cost.terms`): STEP_COMPUTE and so on; the
# constant terms share one field.
STEP_TIME = 0
STEP_CONSTANT = 1 + sum(term.of != "constant" for term in TIME_TERMS)
STEP_PEAK_BYTES = 1 + len(TIME_TERMS)  # reserved by the allocator plus context: as nvidia-smi shows
STEP_PEAK_STAGE = STEP_PEAK_BYTES + 1
STEP_ALLOCATED_BYTES = STEP_PEAK_BYTES + 2  # live tensors at the peak of the heaviest stage
STEP_TIME_BOUND = STEP_PEAK_BYTES + 3  # no layout of this shape is faster
STEP_PEAK_BOUND = STEP_PEAK_BYTES + 4  # no layout of this shape has a lighter heaviest stage
# The part of the slowest stage's terms above in which the GPU waits for the CPU to issue kernels.
STEP_ISSUE = STEP_PEAK_BYTES + 5
STEP_COLUMNS = STEP_PEAK_BYTES + 6

# --- memory of one stage ---------------------------------------------------------------------
# Terms of the stage: STAGE_WEIGHTS and so on; first those of live tensors.
STAGE_TERMS = 0
STAGE_ALLOCATED = len(MEMORY_TERMS)
STAGE_PEAK = STAGE_ALLOCATED + 1
STAGE_IN_FLIGHT = STAGE_ALLOCATED + 2
STAGE_FORWARD_S = STAGE_ALLOCATED + 3
STAGE_BACKWARD_S = STAGE_ALLOCATED + 4
STAGE_PHASE = STAGE_ALLOCATED + 5  # phase of the peak: 0 backward, 1 optimizer, 2 forward
STAGE_OFFLOADED = STAGE_ALLOCATED + 6  # activations on the host, beside the bytes above
# Bytes that the allocator keeps besides the peak if there is room, and otherwise gives back.
STAGE_CACHED = STAGE_ALLOCATED + 7
STAGE_COLUMNS = STAGE_ALLOCATED + 8


def _row(prefix: str, *wide: str) -> np.dtype[Any]:
    """The record type of one row of a table, from this module's constants whose names start with
    `prefix`: one float64 field for each column. A field has several numbers if the next constant
    leaves room for them, or if its name is in `wide`."""
    columns = {
        name.removeprefix(prefix).lower(): number
        for name, number in globals().items()
        if name.startswith(prefix)
    }
    names = sorted(columns, key=lambda name: columns[name])
    widths = [columns[after] - columns[name] for name, after in pairwise(names)]
    fields = [
        (name, "f8") if width == 1 and name not in wide else (name, "f8", (width,))
        for name, width in zip(names, widths, strict=False)
    ]
    return np.dtype((np.record, fields))


def _number(prefix: str, names: Iterable[str], first: int) -> None:
    """Define constants in this module: `prefix` + each name in upper case is a column's number,
    counted from `first`."""
    globals().update({prefix + name.upper(): first + at for at, name in enumerate(names)})


_number("STEP_", (term.name for term in TIME_TERMS if term.of != "constant"), STEP_TIME + 1)
PIECE_ROW = _row("PIECE_")
STEP_ROW = _row("STEP_", "constant")
STAGE_ROW = _row("STAGE_", "terms")
_number("STEP_", (term.name for term in TIME_TERMS if term.of == "constant"), STEP_CONSTANT)
_number("STAGE_", (term.name for term in MEMORY_TERMS), STAGE_TERMS)


KEY = places(KEY_ROW)
SHAPE = places(SHAPE_ROW)
KEY_COLUMNS = KEY_ROW.itemsize // 8


def _columns(terms: Iterable[StageTerm | TimeTerm], first: int) -> dict[str, int]:
    return {term.field: first + at for at, term in enumerate(terms)}


# Columns of a step's terms and of a stage's terms, by their fields in plans.
TIME_COLUMNS = _columns(TIME_TERMS, STEP_TIME + 1)
MEMORY_COLUMNS = _columns(MEMORY_TERMS, STAGE_TERMS)


def traced_columns(line: str) -> list[int]:
    """Numbers of the step's time columns that make up one `line` of a traced step
    (`TimeTerm.traced`)."""
    return [TIME_COLUMNS[term.field] for term in TIME_TERMS if term.traced == line]


def _pass_columns(name: str) -> list[int]:
    """Columns of one pass of a piece (`name`: FORWARD, for example): its compute, then the exposed
    traffic of each term, without copies to the host."""
    columns = {f"PIECE_{name}_{term.name.upper()}" for term in TRAFFIC_TERMS}
    return [globals()[f"PIECE_{name}"], *(globals()[one] for one in globals() if one in columns)]


FORWARD_COLUMNS, BACKWARD_COLUMNS, RECOMPUTE_COLUMNS = map(
    _pass_columns, ("FORWARD", "BACKWARD", "RECOMPUTE")
)
# Columns of a step's exposed communication, and of the passes of its slowest stage.
STEP_EXPOSED = [TIME_COLUMNS[term.field] for term in TRAFFIC_TERMS]
STEP_PASSES = [TIME_COLUMNS[term.field] for term in TIME_TERMS if term.of == "passes"]


if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """The STEP_* and STAGE_* columns of the terms."""
