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
    """A record of numbers: one for each of the columns, then as many for each wide column as its
    keyword gives.
    """
    single = [(name, "f8") for name in columns]
    return np.dtype((np.record, [*single, *((name, "f8", (n,)) for name, n in wide.items())]))


def places(row: np.dtype[Any]) -> dict[str, int]:
    """The number of each column of a row, for use outside the core."""
    return {name: place[1] // 8 for name, place in (row.fields or {}).items()}


# --- OpTable: fields of `planner.predict.ops.rows`, and what `planner.predict.cost_tables` adds ---
# `span`: tokens of an image that each of its tokens attends to, 0 of the causal row;
# `autocasts`: 0 where autocast knows nothing of the product; `issued`: 0 where a CUDA graph holds
# it; `host_waits`: times that the CPU waits for the GPU in forward; `_launches`: of a loop over the
# experts of a rank, for each of them; `_adds`: values a token that atomics add up; `trained`: 0 of
# a product whose weights have no gradient; `partial`: 1 where one of these is not as in
# pretraining: `returns`, 0 of a row whose input needs no gradient, 2 of one where only checkpoints
# need it; `unpacked`, bytes of HBM traffic
# for each weight of which a copy is made before each use, and `transient`, bytes of that copy.
OP_ROW = record_of(
    "piece", "kind", "tokens_shard", "tokens_factor", "out_width", "out_shard", "kv_out_width",
    "in_width", "in_shard", "groups", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "window",
    "span", "forward_bytes", "backward_bytes", "forward_kernels", "backward_kernels",
    "low_precision", "pads_vocabulary", "rerun_with", "autocasts", "work_bytes", "issued",
    "host_waits", "forward_launches", "backward_launches", "forward_adds", "backward_adds", "local",
    "trained", "partial", "returns", "unpacked", "transient", "repeats",
)  # fmt: skip
# Of the optimizer: bytes of state beyond those of every parameter; temporaries of the update of one
# matrix, and FLOP of all of them. `apart`: 1 of a vision tower beside the embedding; `after_core`:
# 1 behind the core of attention in forward: a gradient is made, and a tensor freed, before the
# core's backward.
PARAM_ROW = record_of(
    "piece", "count", "shard", "parameter_class", "pads_vocabulary", "state_bytes",
    "temporary_bytes", "flop", "after_core", "apart",
)  # fmt: skip
# `pads_vocabulary`: the loss's logits; `fixed_bytes`: per micro-batch, however many sequences it
# holds; `exchanged`: 1 where it exists only if attention exchanges heads; `copies`: times that the
# tensor crosses the host link each way, and `leaves` 1 where it leaves the GPU for it.
SAVED_ROW = record_of(
    "piece", "bytes_per_token", "shard", "freed_by", "only_with", "pads_vocabulary", "fixed_bytes",
    "exchanged", "copies", "leaves", "after_core",
)  # fmt: skip
COMM_ROW = record_of(
    "piece", "kind", "group", "bytes_per_token", "forward", "backward", "shard", "hidden_forward",
    "hidden_backward", "rerun_with", "sequence_parallel_only",
)  # fmt: skip

# --- keys: what the cost of one layer depends on ---------------------------------------------
# `modules`: recompute mode as a mask of modules; `share`: of the layers that the mode recomputes;
# `span`: layers of one checkpoint. `pipelined`: 1 in a pipeline between domains where that changes
# a layer's cost. `exchange`: ranks of context parallelism that exchange heads by all-to-all; the
# others form rings of these groups; 0: keys and values are gathered instead. `sequence_parallel`:
# 1 where the key splits the sequence over tp outside its products; `fetches`: 1 where hooks of
# modules gather weights before each use (ZeRO-3); `kept`: of mbs·seq tokens, the share that
# the longest micro-batch has; `computed`: of these, the share that one has on average. The rest
# follows from the degrees: ranks that
# hold a stage once, ranks that hold its experts once, and of each group (`planner.cost.codes`) how
# many ranks it has and how far apart they lie.
KEY_ROW = record_of(
    *OF_LAYER, "modules", "share", "span", "pipelined", "exchange", "sequence_parallel", "fetches",
    "kept", "computed", "inner_ranks", "expert_ranks", ranks=len(GROUPS), stride=len(GROUPS),
)  # fmt: skip

# `planner.job.recompute.Module.FULL`.
MODULE_FULL = 128

# --- shapes ----------------------------------------------------------------------------------
# `key`: row of the key table; `mtp_standalone`: 1 where multi-token prediction is in the block
# before that of head and loss; `shards`, `expert_shards`: ranks that share a dense parameter and
# one of an expert, `replicas`: how many such groups hold the same; `frame`: shapes with the same
# number differ in micro-batch and recompute mode alone; `learnt`: ln of what like runs of the
# cluster add to the step; `place`: row of the table that says on which machine each pipeline stage
# is; `unequal_s`: seconds that ranks wait for those with more work in their samples. Degrees:
# `shard` 0 stands for all of dp·cp.
SHAPE_ROW = record_of(
    "key", *OF_STEP, "mtp_standalone", "shards", "expert_shards", "replicas", "frame", "learnt",
    "place", "unequal_s",
)  # fmt: skip

# --- cost of one piece for one key and one micro-batch ------------------------------------------
# Seconds of one micro-batch, exposed communication apart from compute.
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
# Bytes on one rank: kept from forward to backward without and with recomputation, and the
# gradients of the largest operation in flight.
PIECE_SAVED = 12
PIECE_SAVED_RECOMPUTED = 13
PIECE_WORKING = 14
# Parameters on one rank before ZeRO whose gradients are made, and whose weights ZeRO-3 gathers:
# PIECE_PARAMETERS by what one of each class counts as (`planner.cost.tables.ClassInputs`).
PIECE_TRAINED = 15
PIECE_GATHERED = 16
# What recomputing a layer (all layers of its checkpoint) brings back at once.
PIECE_AGAIN = 17
# The largest temporary of an optimizer's update.
PIECE_UPDATE_BYTES = 18
# Gradients of its weights made in backward before they are accumulated, low-precision copies of
# its weights, kept logits; parameters of the vocabulary table, and their class.
PIECE_WEIGHT_GRADIENT = 19
PIECE_CASTS = 20
PIECE_LOGITS = 21
PIECE_TABLE = 22
PIECE_TABLE_CLASS = 23
# Of PIECE_BACKWARD, the gradients of weights; bytes kept from the gradient of the input to those.
PIECE_WEIGHT = 24
PIECE_WEIGHT_SAVED = 25
# Tensors that the optimizer updates.
PIECE_TENSORS = 26
# Activations on the host: bytes that leave the GPU, without and with recomputation (the columns of
# saved bytes are less them), and that a layer holds twice once it is back; seconds of the copies
# that nothing hides.
PIECE_OFFLOADED = 27
PIECE_OFFLOADED_RECOMPUTED = 28
PIECE_DUPLICATED = 29
PIECE_FORWARD_OFFLOAD = 30
PIECE_BACKWARD_OFFLOAD = 31
# Link time of a layer's own collectives by pass (forward, backward, recompute: LINK_PASS apart):
# exposed and hidden behind compute, inside scale-up domains and between them.
PIECE_LINKS = 32
LINK_EXPOSED_INSIDE = 0
LINK_EXPOSED_BETWEEN = 1
LINK_HIDDEN_INSIDE = 2
LINK_HIDDEN_BETWEEN = 3
LINK_PASS = 4
# Of PIECE_FORWARD and PIECE_BACKWARD together, and of PIECE_RECOMPUTE, what the GPU waits for the
# CPU to issue kernels.
PIECE_ISSUE = PIECE_LINKS + 3 * LINK_PASS
PIECE_ISSUE_AGAIN = PIECE_ISSUE + 1
# Bytes beyond what a layer keeps as the backward of unfused attention's softmax runs, 0 where that
# is fused; parameters whose gradients a rank has made by then.
PIECE_SOFTMAX = PIECE_ISSUE_AGAIN + 1
PIECE_AFTER_CORE = PIECE_SOFTMAX + 1
# Trained parameters of which tp ranks have copies whose gradients they average, and those of a
# vision tower beside the embedding.
PIECE_AVERAGED = PIECE_AFTER_CORE + 1
PIECE_APART = PIECE_AVERAGED + 1
# By class of parameters, how many a rank has before ZeRO; by the ranks that share them (`Sharers`),
# of the optimizer bytes of state beyond that of every parameter, and FLOP.
PIECE_PARAMETERS = PIECE_APART + 1
PIECE_STATE = PIECE_PARAMETERS + CLASSES
PIECE_UPDATE_FLOP = PIECE_STATE + len(Sharers)
PIECE_COLUMNS = PIECE_UPDATE_FLOP + len(Sharers)

# --- result of one step ----------------------------------------------------------------------
# Its seconds, and these by term (`planner.cost.terms`): STEP_COMPUTE and so on, those that are
# constant together.
STEP_TIME = 0
STEP_CONSTANT = 1 + sum(term.of != "constant" for term in TIME_TERMS)
STEP_PEAK_BYTES = 1 + len(TIME_TERMS)  # reserved by the allocator plus context: as nvidia-smi shows
STEP_PEAK_STAGE = STEP_PEAK_BYTES + 1
STEP_ALLOCATED_BYTES = STEP_PEAK_BYTES + 2  # live tensors at the peak of the heaviest stage
STEP_TIME_BOUND = STEP_PEAK_BYTES + 3  # no layout of this shape is faster
STEP_PEAK_BOUND = STEP_PEAK_BYTES + 4  # no layout of this shape has a lighter heaviest stage
# Of the slowest stage's terms above, what the GPU waits for the CPU to issue kernels.
STEP_ISSUE = STEP_PEAK_BYTES + 5
STEP_COLUMNS = STEP_PEAK_BYTES + 6

# --- memory of one stage ---------------------------------------------------------------------
# Its terms: STAGE_WEIGHTS and so on; first those of live tensors.
STAGE_TERMS = 0
STAGE_ALLOCATED = len(MEMORY_TERMS)
STAGE_PEAK = STAGE_ALLOCATED + 1
STAGE_IN_FLIGHT = STAGE_ALLOCATED + 2
STAGE_FORWARD_S = STAGE_ALLOCATED + 3
STAGE_BACKWARD_S = STAGE_ALLOCATED + 4
STAGE_PHASE = STAGE_ALLOCATED + 5  # phase of the peak: 0 backward, 1 optimizer, 2 forward
STAGE_OFFLOADED = STAGE_ALLOCATED + 6  # activations on the host, beside the bytes above
# Kept by the allocator beside the peak where there is room, and else given back.
STAGE_CACHED = STAGE_ALLOCATED + 7
STAGE_COLUMNS = STAGE_ALLOCATED + 8


def _row(prefix: str, *wide: str) -> np.dtype[Any]:
    """The record of one row of a table: a field for each column, or a field of several numbers if a
    name has several columns, or is `wide`.
    """
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
    """Number the columns from `first` on, with these names of terms."""
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


# Columns of the terms of a step and of a stage by their fields in plans.
TIME_COLUMNS = _columns(TIME_TERMS, STEP_TIME + 1)
MEMORY_COLUMNS = _columns(MEMORY_TERMS, STAGE_TERMS)


def traced_columns(line: str) -> list[int]:
    """Columns of the step's terms that one line of a trace counts."""
    return [TIME_COLUMNS[term.field] for term in TIME_TERMS if term.traced == line]


def _pass_columns(name: str) -> list[int]:
    """Columns of a pass of a piece: compute, and exposed traffic by term, without copies to the
    host.
    """
    columns = {f"PIECE_{name}_{term.name.upper()}" for term in TRAFFIC_TERMS}
    return [globals()[f"PIECE_{name}"], *(globals()[one] for one in globals() if one in columns)]


FORWARD_COLUMNS, BACKWARD_COLUMNS, RECOMPUTE_COLUMNS = map(
    _pass_columns, ("FORWARD", "BACKWARD", "RECOMPUTE")
)
# Those of a step that are exposed communication, and those of the passes of its slowest stage.
STEP_EXPOSED = [TIME_COLUMNS[term.field] for term in TRAFFIC_TERMS]
STEP_PASSES = [TIME_COLUMNS[term.field] for term in TIME_TERMS if term.of == "passes"]


if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """The STEP_* and STAGE_* columns of the terms."""
