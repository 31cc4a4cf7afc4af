"""Inputs of a job's op rows besides the model: framework, length, kernels, dropout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.frameworks.profile import DtypeModeName, FrameworkProfile
from planner.job.frameworks.tables import SavedTensors
from planner.job.reads import Read
from planner.job.recompute import Module
from planner.job.specs import ModelSpec
from planner.job.tuning import FULL, PROJECTOR, VISION_TOWER, Tuning
from planner.predict.ops.rows import Op, Saved

# Recompute modes that run the whole layer again.
WHOLE_LAYER = Module.FULL | Module.SELECTIVE_OP


@dataclass(frozen=True)
class OpContext:
    """Inputs of the row builders.

    `seq`: sequence length in tokens; `attention`: the kernel family (`flash` keeps a log-sum-exp
    per head, `eager` the scores); `mode`: the dtype mode (16-bit weights, autocast over fp32
    weights, or fp32); `one_sequence`: a micro-batch is a single sequence, so batched products need
    no contiguous copy; `memory_budget`: torch's budget of kept activations, 0..1, for recompute
    modes with `Module.BUDGET`; `offload`: modules whose activations are kept on the host; `rack`:
    the fused dispatcher is the one for racks; `exchanges_heads`: context parallelism may exchange
    heads by an all-to-all; `tuning`: how the weights are trained; `reads`: models that a step reads
    forward in addition to the one that it trains; `read_bytes`: bytes per logit that their loss
    moves.
    """

    model: ModelSpec
    profile: FrameworkProfile
    seq: int
    attention: Literal["flash", "eager"] = "flash"
    dropout: bool = False
    expert_imbalance: float = 1.0
    mode: DtypeModeName = "bf16"
    one_sequence: bool = False
    memory_budget: float | None = None
    offload: tuple[str, ...] = ()
    rack: bool = False
    exchanges_heads: bool = False
    tuning: Tuning = FULL
    reads: tuple[Read, ...] = ()
    read_bytes: float = 0.0
    # Whether a library hooks the input of frozen layers for checkpoints, so that gradients of
    # inputs pass through them.
    hooked: bool = False

    @property
    def trains_vision(self) -> bool:
        """Whether there are images, and part of the vision tower or projector below the language
        model is trained."""
        part = self.model.vision
        frozen = self.tuning.freezes(VISION_TOWER) and self.tuning.freezes(PROJECTOR)
        return part is not None and self.model.images.patches > 0.0 and not frozen

    @property
    def mapped_experts(self) -> float:
        """Number of experts in the routing map that HybridEP, the fused dispatcher for racks, sends
        for every token; 0 if the job does not use that dispatcher or the model has no experts."""
        moe = self.model.moe if self.rack and self.profile.kernels.dispatch_deduplicates else None
        return float(moe.experts) if moe else 0.0

    @cached_property
    def saved(self) -> SavedTensors:
        """The framework's rules for kept tensors, in this dtype mode and family."""
        return self.profile.in_mode(self.mode).saved_of(self.model.family)

    def applies(self, families: tuple[str, ...]) -> bool:
        """Whether the model's family is among `families` (`*`: all)."""
        return "*" in families or self.model.family in families

    def kept(
        self, name: str, width: float, shard: Shard = Shard.TP, freed_by: Module = WHOLE_LAYER
    ) -> Saved:
        """A tensor kept for backward in the type of activations, with `width` values per token."""
        return Saved(name, self.saved.activation_bytes * width, shard, freed_by)

    @property
    def quantised_input_bytes(self) -> float:
        """Bytes per element of the input that a linear layer keeps if that input is quantised to
        less than the type of activations; 0 if it is not."""
        size = self.saved.linear_input_bytes
        return size if size < self.saved.activation_bytes else 0.0

    @property
    def norm_in_linear(self) -> Module:
        """The recompute mode that drops the normalised input of a product: LAYERNORM, or NOTHING if
        the product's module computes the norm itself."""
        return Module.NOTHING if self.saved.norms_in_linears else Module.LAYERNORM

    @property
    def norm_parameters(self) -> float:
        """Parameters of one norm per unit of width: scale, and shift if there is one."""
        return float(self.model.norm_weight) + float(self.model.norm_bias)

    @property
    def norm_statistics_bytes(self) -> float:
        """fp32 statistics that a norm keeps per token: rstd, and the mean of a LayerNorm."""
        if not self.saved.norm_statistics:
            return 0.0
        return 4.0 if self.model.norm == "rmsnorm" else 8.0

    @property
    def norm_input_bytes(self) -> float:
        """Bytes per element of the input that a norm of this model keeps."""
        plain = self.saved.layernorm_input_bytes
        if self.model.norm == "layernorm" and plain is not None:
            return plain
        return self.saved.norm_input_bytes

    @property
    def norm_extra_bytes(self) -> float:
        """Bytes per element of the normalised tensor that a norm keeps in addition to its input; 0
        if it keeps none."""
        if self.model.norm == "layernorm" and self.saved.layernorm_input_bytes is not None:
            return 0.0
        return self.saved.norm_extra_bytes


def piece_counts(model: ModelSpec) -> list[int]:
    """How often the model has each of its pieces, in the order of
    `planner.predict.ops.table.pieces`: layers of each kind, one embedding, one head and, only if
    the model has MTP modules, these modules and their losses."""
    counts = [model.piece_indices.count(kind) for kind in range(len(model.piece_kinds))]
    return [*counts, 1, 1, *([model.mtp_layers] * 2 if model.mtp_layers else [])]


def present(rows: Iterable[Saved]) -> tuple[Saved, ...]:
    """The tensors that have any bytes."""
    return tuple(row for row in rows if row.bytes_per_token or row.fixed_bytes)


def norm(
    context: OpContext,
    name: str,
    width: float,
    shard: Shard = Shard.SEQUENCE,
    *,
    of_product: bool = False,
    of_stream: bool = False,
    viewed: float = 0.0,
    alone: Module = Module.NOTHING,
) -> Op:
    """The row of a norm over `width` elements per token. Forward reads and writes the tensor once;
    backward reads x and dy and writes dx.

    The norm's output is the next linear's input and is listed there. `of_product`: the norm's input
    is the output of a product, so the normalised tensor has the type of activations unless the norm
    scales in fp32. `of_stream`: the input is the residual stream, so the normalised tensor has at
    least the stream's type. `viewed`: further elements per token that the kept input keeps alive
    because it is part of a wider tensor, if norms make no copy. `alone`: the recompute mode that
    runs only the norm again.
    """
    saved = context.saved
    copies = context.norm_input_bytes != saved.activation_bytes or not context.norm_extra_bytes
    extra_bytes = context.norm_extra_bytes
    if of_product and not saved.norm_scales_in_fp32:
        extra_bytes = min(extra_bytes, saved.activation_bytes)
    if of_stream and extra_bytes:
        extra_bytes = max(extra_bytes, saved.residual_bytes)
    kept = {
        "input": context.norm_input_bytes * (width if copies else width + viewed),
        "statistics": context.norm_statistics_bytes,
        "normalised": extra_bytes * width,
    }
    rows = [Saved(f"{name}/{part}", size, shard, WHOLE_LAYER) for part, size in kept.items()]
    copy_bytes = saved.norm_weight_copy_bytes * width
    rows.append(Saved(f"{name}/weight", 0.0, shard, WHOLE_LAYER, fixed_bytes=copy_bytes))
    element = saved.residual_bytes * context.profile.kernels.norm_traffic
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        tokens=shard,
        forward_bytes=2 * element * width,
        backward_bytes=3 * element * width,
        parameters=((context.norm_parameters * width, ParamShard.NONE),),
        saved=present(rows),
        rerun_with=WHOLE_LAYER | alone,
    )


def elementwise(
    context: OpContext,
    name: str,
    width: float,
    shard: Shard,
    passes: tuple[float, float],
    rerun_with: Module = WHOLE_LAYER,
) -> Op:
    """A fused elementwise kernel. `passes`: number of tensors of `width` per token that it moves,
    forward and backward."""
    size = context.saved.activation_bytes
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        tokens=shard,
        forward_bytes=passes[0] * size * width,
        backward_bytes=passes[1] * size * width,
        backward_kernels=1,
        rerun_with=rerun_with,
    )


def residual(context: OpContext, name: str) -> Op:
    """Residual addition, with the one-byte dropout mask if dropout is on."""
    width = float(context.model.hidden)
    add = elementwise(context, name, width, Shard.SEQUENCE, (3, 1))
    if not context.dropout:
        return add
    mask = Saved(f"{name}/dropout_mask", width, Shard.SEQUENCE, WHOLE_LAYER)
    forward, backward = add.forward_bytes + width, add.backward_bytes + 2 * width
    return replace(add, forward_bytes=forward, backward_bytes=backward, saved=(mask,))
