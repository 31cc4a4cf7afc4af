"""Row types of the op table: the computation, memory and traffic of one operation of a transformer
layer.

Every quantity is *per token of the micro-batch* and unsharded; a `Shard` states what divides it on
a rank. Parameters, FLOP, saved bytes, GEMM shapes and traffic of a model are all sums over these
rows, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.parameter_classes import parameter_classes
from planner.job.recompute import Module

# CPU time of a torch operator over that of a module's kernel, which profiles state: a product takes
# 13.5 us on the host of a DGX H100 and 19 us on that of a DGX A100, which is 1.4 times as slow
# (NVIDIA/TransformerEngine issue 2053); a module's kernel takes 110 to 225 us there.
OPERATOR_SHARE = 1.0 / 6.0

# Bytes of a 16-bit value.
_HALF = 2.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor kept from forward to backward: its bytes per token, and the recompute modes that
    drop it.

    `freed_by`: the modes under which it is not kept, because backward computes it again.
    `only_with`: if set, the tensor is kept only under these modes: it is the checkpoint from which
    they recompute. `fixed_bytes`: further bytes per micro-batch, however many sequences it contains
    (masks, rotary tables, random seeds), never sharded. `exchanged`: it exists only if attention
    exchanges heads over context parallelism.
    """

    name: str
    bytes_per_token: float
    shard: Shard
    freed_by: Module = Module.FULL
    only_with: Module = Module.NOTHING
    fixed_bytes: float = 0.0
    exchanged: bool = False
    # Offloaded to the host: number of copies, and 1 if the tensor then leaves the GPU.
    copies: float = 0.0
    leaves: float = 0.0

    @property
    def pads_vocabulary(self) -> bool:
        """Whether it consists of logits of the padded vocabulary."""
        return self.name in ("head/loss", "head/softcap")

    def kept_under(self, modules: Module) -> bool:
        """Whether the tensor is kept from forward to backward if `modules` are recomputed."""
        exists = not self.only_with or bool(self.only_with & modules)
        return exists and not self.freed_by & modules


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication of one row: bytes per token of the whole tensor, before any division among
    ranks, forward and backward.

    `group`: the axis along which it communicates (`constraints.axes.GROUPS`). `forward`,
    `backward`: number of times per micro-batch that it occurs in that pass; recompute modes in
    `rerun_with` repeat the forward ones.
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

    GEMM rows multiply (tokens × in_width) by (in_width × out_width). ATTENTION rows use `heads`,
    `kv_heads`, `qk_head_dim`, `v_head_dim`, `window` (0: none). MEMORY rows move `forward_bytes`
    and `backward_bytes`; SCAN rows do that in addition to products of `in_width` by `out_width`,
    and need `work_bytes` during their backward.
    """

    name: str
    kind: OpKind
    tokens: Shard = Shard.NONE
    tokens_factor: float = 1.0
    # Number of equal, consecutive operations for which the row stands. Tokens, widths, bytes moved
    # and kernels are those of one operation; everything else is the sum over all of them.
    repeats: float = 1.0
    out_width: float = 0.0
    out_shard: Shard = Shard.NONE
    # Further outputs of the same product that are sharded like key/value heads (fused qkv).
    kv_out_width: float = 0.0
    in_width: float = 0.0
    in_shard: Shard = Shard.NONE
    groups: float = 1.0
    heads: float = 0.0
    kv_heads: float = 0.0
    qk_head_dim: float = 0.0
    v_head_dim: float = 0.0
    window: float = 0.0
    # Number of an image's tokens to which each of its tokens attends, in both directions; 0: each
    # token attends to those before it in the row.
    span: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    work_bytes: float = 0.0
    forward_kernels: float = 1.0
    backward_kernels: float = 2.0
    # Launches per expert on the rank, if one loop launches the work of all of them.
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
    # Class of the parameters (`planner/job/parameter_classes.toml`), or of another row's weights.
    parameter_class: str = "dense"
    saved: tuple[Saved, ...] = ()
    collectives: tuple[Collective, ...] = ()
    rerun_with: Module = Module.FULL
    # False if backward computes no gradient of the row's input, because no trained weight needs it.
    returns: bool = True
    # True if that gradient is computed only under recomputation, because a library hooks the row's
    # input for checkpoints.
    hooked: bool = False
    # True if its output is unused, so it has no backward.
    unread: bool = False
    # HBM bytes moved, and bytes alive, per weight for tensors derived from the weights before each
    # use, beyond a 16-bit copy of packed ones (DoRA's norms).
    weight_traffic: float = 0.0
    weight_copies: float = 0.0
    # True if backward computes a gradient of its weights although they are not trained: the
    # gradients of merged adapters are computed from it.
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
        """Whether its weights belong to a model that is only read."""
        return parameter_classes()[self.parameter_class].only_read

    @property
    def packed(self) -> bool:
        """Whether its weights are stored in packed form, so that products read a copy that is made
        before each use."""
        return self.is_product and parameter_classes()[self.parameter_class].packed

    @property
    def unpacked(self) -> float:
        """HBM bytes moved per weight before each use to make the tensors that the product reads
        from the stored weights. For packed weights these include reading the packed form and
        writing 16 bits."""
        if not self.packed:
            return self.weight_traffic
        held = parameter_classes()[self.parameter_class].bytes_per_parameter or 0.0
        return held + _HALF + self.weight_traffic

    @property
    def transient(self) -> float:
        """Bytes per weight of the tensors that are made from the weights before each use, while
        they exist."""
        return (_HALF if self.packed else 0.0) + self.weight_copies

    @property
    def trains(self) -> bool:
        """Whether its weights are trained."""
        return parameter_classes()[self.parameter_class].trained

    @property
    def derives(self) -> bool:
        """Whether backward computes a gradient with respect to the row's weights: they are trained
        or have merged adapters, and the row's output is used."""
        return (self.trains or self.merged) and not self.unread


def times(op: Op, factor: float) -> Op:
    """The row with the number of tokens times `factor`: work, kept bytes and traffic grow, weights
    do not."""
    return replace(
        op,
        tokens_factor=factor * op.tokens_factor,
        saved=tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in op.saved),
        collectives=tuple(
            replace(collective, bytes_per_token=factor * collective.bytes_per_token)
            for collective in op.collectives
        ),
    )


def only_held(op: Op) -> Op:
    """A row reduced to its weights, which are in memory though the batch does not use them."""
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
    """A unit of which pipeline stages consist: a layer of one kind, the embedding, the head,
    MTP."""

    name: str
    ops: tuple[Op, ...] = field(default_factory=tuple)

    @property
    def parameters(self) -> float:
        """Parameters of one such piece, unsharded and without vocabulary padding."""
        return sum(op.parameter_count for op in self.ops)


def without_backward(op: Op) -> Op:
    """The row as part of a forward pass without backward: it keeps nothing and never runs again."""
    collectives = tuple(
        replace(collective, backward=0.0, rerun_with=Module.NOTHING)
        for collective in op.collectives
    )
    return replace(op, returns=False, saved=(), collectives=collectives, rerun_with=Module.NOTHING)


def never_recomputed(op: Op) -> Op:
    """The row without recomputation, and with tensors that no recompute mode frees."""
    return replace(op, saved=never_freed(op.saved), rerun_with=Module.NOTHING)


def never_freed(saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Tensors that no recompute mode frees."""
    return tuple(replace(row, freed_by=Module.NOTHING) for row in saved)
