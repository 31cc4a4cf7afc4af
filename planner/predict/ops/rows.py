"""Row types of the op table: what one operation of a transformer layer computes, holds and sends.

Every quantity is *per token of the micro-batch* and unsharded; a `Shard` says what divides it on
a rank. Parameters, FLOP, saved bytes, GEMM shapes and traffic of a model are all sums over
these rows, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.parameter_classes import parameter_classes
from planner.job.recompute import Module

# CPU time of one of torch's operators over that of a module's kernel, of which profiles have the
# time: a product takes 13.5 us on the host of a DGX H100, 19 us on a DGX A100's, 1.4 times as slow
# (NVIDIA/TransformerEngine issue 2053), where a module's kernel takes 110 to 225.
OPERATOR_SHARE = 1.0 / 6.0

# Bytes of a 16-bit value.
_HALF = 2.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor kept from forward to backward: bytes per token, and when a mode drops it.

    `freed_by` names the modules whose recomputation makes it unnecessary; a row with
    `only_with` set exists only under those modes (the checkpoint they keep instead).
    `fixed_bytes`: further bytes per micro-batch, however many sequences it holds (masks, rotary
    tables, random seeds), which nothing shards. `exchanged`: it exists only where attention
    exchanges heads over context parallelism.
    """

    name: str
    bytes_per_token: float
    shard: Shard
    freed_by: Module = Module.FULL
    only_with: Module = Module.NOTHING
    fixed_bytes: float = 0.0
    exchanged: bool = False
    # Offloaded to the host: copies each way, and 1 where the tensor leaves the GPU for them.
    copies: float = 0.0
    leaves: float = 0.0

    @property
    def pads_vocabulary(self) -> bool:
        """Whether it holds the loss's logits, of the padded vocabulary."""
        return self.name in ("head/loss", "head/softcap")

    def kept_under(self, modules: Module) -> bool:
        """Whether the tensor lives from forward to backward under a recompute mode."""
        return not self.freed_by & modules and (
            not self.only_with or bool(self.only_with & modules)
        )


@dataclass(frozen=True, slots=True)
class Collective:
    """Traffic of one op per micro-batch: full (ungathered) bytes per token, forward and backward.

    `group`: the axis whose ranks it is among (`constraints.axes.GROUPS`).
    `forward`, `backward`: how many times it happens there; recompute modes in `rerun_with` run
    the forward ones once more.
    """

    name: str
    kind: CollectiveKind
    group: str
    bytes_per_token: float
    forward: float
    backward: float
    shard: Shard = Shard.NONE
    hidden_forward: Hidden = Hidden.EXPOSED
    hidden_backward: Hidden = Hidden.EXPOSED
    rerun_with: Module = Module.FULL
    sequence_parallel_only: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """One row. Widths in elements per token, bytes per token, kernels per micro-batch.

    GEMM rows multiply (tokens × in_width) by (in_width × out_width). ATTENTION rows use
    `heads`, `kv_heads`, `qk_head_dim`, `v_head_dim`, `window` (0: none). MEMORY rows move
    `forward_bytes` and `backward_bytes`; SCAN rows do so besides products of `in_width` multiplied
    by `out_width`, and hold `work_bytes` at their backward.
    """

    name: str
    kind: OpKind
    tokens: Shard = Shard.NONE
    tokens_factor: float = 1.0
    # Equal operations that it stands for, one after the other; what it has is that of all of them
    # together, but for tokens, widths, bytes moved and kernels.
    repeats: float = 1.0
    out_width: float = 0.0
    out_shard: Shard = Shard.NONE
    # Further outputs of the same product that divide as key/value heads do (fused qkv).
    kv_out_width: float = 0.0
    in_width: float = 0.0
    in_shard: Shard = Shard.NONE
    groups: float = 1.0
    heads: float = 0.0
    kv_heads: float = 0.0
    qk_head_dim: float = 0.0
    v_head_dim: float = 0.0
    window: float = 0.0
    # Tokens of an image that each of its tokens attends to, before and behind it; 0: those before
    # it in the row.
    span: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    work_bytes: float = 0.0
    forward_kernels: float = 1.0
    backward_kernels: float = 2.0
    # Launches for each expert of the rank, where one loop issues what all of them compute.
    forward_launches: float = 0.0
    backward_launches: float = 0.0
    # Values per token that atomics add to others (torch's scatter_add).
    forward_adds: float = 0.0
    backward_adds: float = 0.0
    host_waits: float = 0.0  # times that the CPU reads a result in forward before it issues more
    apart: bool = False  # of a vision tower beside the embedding
    local: bool = False  # runs only where a rank holds all experts (ep 1)
    captured: bool = True  # CUDA graphs may hold it: its shapes are known before the step
    torch_operators: bool = False  # its kernels are torch's, not modules' (`issue_factor`)
    autocasts: bool = True  # autocast multiplies 16-bit copies of the weights
    low_precision: bool = True  # linear layers that run in fp8/fp4 when the job does
    pads_vocabulary: bool = False
    parameters: tuple[tuple[float, ParamShard], ...] = ()
    # Of the parameters (`planner/job/parameter_classes.toml`), or of weights that another row has.
    parameter_class: str = "dense"
    saved: tuple[Saved, ...] = ()
    collectives: tuple[Collective, ...] = ()
    rerun_with: Module = Module.FULL
    # False where nothing is trained that a gradient of its input would reach.
    returns: bool = True
    # Whether one does only under recomputation, where a library hooks its input for checkpoints.
    hooked: bool = False
    # Whether nobody reads what it makes, so that it has no backward.
    unread: bool = False
    # HBM bytes for each weight, and bytes alive, of what is made of the weights before each use
    # beside a 16-bit copy of packed ones (DoRA's norms).
    weight_traffic: float = 0.0
    weight_copies: float = 0.0
    # Whether backward makes a gradient of its weights though nothing trains them: adapters that are
    # merged with them take theirs from it.
    merged: bool = False

    @property
    def parameter_count(self) -> float:
        """Parameters of the row, unsharded."""
        return sum(count for count, _ in self.parameters)

    @property
    def is_product(self) -> bool:
        """Whether the row multiplies by weights."""
        return self.kind in (OpKind.GEMM, OpKind.GROUPED_GEMM)

    @property
    def only_read(self) -> bool:
        """Whether its weights are those of a model that is only read."""
        return parameter_classes()[self.parameter_class].only_read

    @property
    def packed(self) -> bool:
        """Whether products cannot read its weights, but a copy that is made before each use."""
        return self.is_product and parameter_classes()[self.parameter_class].packed

    @property
    def unpacked(self) -> float:
        """HBM bytes for each weight of making that copy: the packed form read, 16 bits written."""
        if not self.packed:
            return self.weight_traffic
        held = parameter_classes()[self.parameter_class].bytes_per_parameter or 0.0
        return held + _HALF + self.weight_traffic

    @property
    def transient(self) -> float:
        """Bytes for each weight of the copies."""
        return (_HALF if self.packed else 0.0) + self.weight_copies

    @property
    def trains(self) -> bool:
        """Whether its weights are trained."""
        return parameter_classes()[self.parameter_class].trained

    @property
    def derives(self) -> bool:
        """Whether backward computes a gradient of its weights."""
        return (self.trains or self.merged) and not self.unread


def times(op: Op, factor: float) -> Op:
    """A row of so many tokens for each that it is written for."""
    return replace(
        op,
        tokens_factor=factor * op.tokens_factor,
        saved=tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in op.saved),
        collectives=tuple(
            replace(one, bytes_per_token=factor * one.bytes_per_token) for one in op.collectives
        ),
    )


def only_held(op: Op) -> Op:
    """The weights of a row that a batch does not use."""
    return Op(
        name=op.name,
        kind=OpKind.MEMORY,
        forward_kernels=0.0,
        backward_kernels=0.0,
        parameters=op.parameters,
        parameter_class=op.parameter_class,
        rerun_with=Module.NOTHING,
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit that a pipeline stage can hold: a layer of one kind, the embedding, the head, MTP."""

    name: str
    ops: tuple[Op, ...] = field(default_factory=tuple)

    @property
    def parameters(self) -> float:
        """Parameters of one such piece, unsharded and without vocabulary padding."""
        return sum(op.parameter_count for op in self.ops)


def never_recomputed(op: Op) -> Op:
    """The row with tensors that no recompute mode frees: what no checkpoint covers."""
    return replace(op, saved=never_freed(op.saved), rerun_with=Module.NOTHING)


def never_freed(saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Tensors that no recompute mode frees."""
    return tuple(replace(row, freed_by=Module.NOTHING) for row in saved)
