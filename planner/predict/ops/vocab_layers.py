"""Rows outside the layers: embedding, final norm, LM head with its loss, multi-token prediction."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.predict.ops.context import OpContext, norm, present
from planner.predict.ops.layer import layer_rows
from planner.predict.ops.linear import column_parallel, linear_inputs
from planner.predict.ops.rows import Op, Saved


def embedding_rows(context: OpContext) -> tuple[Op, ...]:
    """Lookup, as a rule vocabulary-parallel (and learned positions); backward scatters into fp32
    gradients."""
    model = context.model
    hidden = float(model.hidden)
    element = context.saved.residual_bytes
    shard = ParamShard.TP if context.saved.embedding_sharded else ParamShard.NONE
    parameters = [(model.vocab * hidden, shard)]
    if model.position == "learned":
        parameters.append((model.max_positions * hidden, ParamShard.NONE))
    saved = [
        Saved("embedding/ids", context.saved.id_bytes, Shard.NONE, Module.NOTHING),
        *_shared_tables(context),
    ]
    if context.dropout:
        saved.append(Saved("embedding/dropout_mask", hidden, Shard.SEQUENCE, Module.NOTHING))
    return (
        Op(
            name="embedding",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            forward_bytes=2 * element * hidden,
            backward_bytes=(element + 8) * hidden,
            parameters=tuple(parameters),
            saved=tuple(saved),
            pads_vocabulary=True,
            rerun_with=Module.NOTHING,
        ),
    )


def _shared_tables(context: OpContext) -> tuple[Saved, ...]:
    """What all layers share: position ids, rotary tables, masks of unfused attention."""
    model, rules = context.model, context.saved
    nothing = Module.NOTHING
    rows = []
    if model.position == "learned":
        positions = rules.position_bytes * context.seq
        rows.append(Saved("embedding/positions", 0.0, Shard.NONE, nothing, fixed_bytes=positions))
    if model.position == "rope" and model.has_attention:
        windows = {kind.attention == "sliding" for kind in model.kinds}
        sets = len(windows) if rules.rotary_per_kind else 1
        tables = 2.0 * sets * rules.rotary_table_bytes * model.rotary_width
        of_token, of_all = (tables, 0.0) if rules.rotary_per_sequence else (0.0, tables)
        rows.append(
            Saved("layers/rotary", of_token, Shard.NONE, nothing, fixed_bytes=of_all * context.seq)
        )
        # Layers that make their own tables are handed fp32 angles, kept by a checkpoint.
        angles = 4.0 * model.rotary_width * context.seq if rules.rotary_layer_bytes else 0.0
        rows.append(
            Saved("layers/angles", 0.0, Shard.NONE, nothing, Module.FULL, fixed_bytes=angles)
        )
    if context.attention == "eager":
        mask = rules.shared_mask_bytes * context.seq**2
        rows.append(Saved("layers/mask", 0.0, Shard.NONE, nothing, fixed_bytes=mask))
        size = rules.checkpoint_mask_bytes * context.seq
        rows.append(Saved("layers/mask", size, Shard.NONE, nothing, only_with=Module.FULL))
    return present(rows)


def head_rows(context: OpContext) -> tuple[Op, ...]:
    """Final norm, LM head (vocabulary-parallel) and cross-entropy.

    A tied head multiplies by the embedding's weights and owns none; on a pipeline it holds a
    copy on the last stage, which the memory terms add.
    """
    model = context.model
    hidden, vocab = float(model.hidden), float(model.vocab)
    bias = vocab if model.head_bias else 0.0
    value = 0.0 if model.tied_embeddings else vocab * hidden
    final_norm = norm(context, "head/norm", hidden, of_stream=True)
    inputs = linear_inputs(context, "head/logits", hidden, Module.NOTHING, low_precision=False)
    head = Op(
        name="head/logits",
        kind=OpKind.GEMM,
        out_width=vocab,
        out_shard=Shard.TP,
        in_width=hidden,
        parameters=((value + bias, ParamShard.TP),),
        saved=_never_freed(inputs),
        low_precision=False,
        pads_vocabulary=True,
        rerun_with=Module.NOTHING,
    )
    return (_keep(final_norm), head, *_softcap(context), _loss(context))


def _keep(op: Op) -> Op:
    """The row with tensors that no recompute mode frees: heads are not checkpointed."""
    return replace(op, saved=_never_freed(op.saved), rerun_with=Module.NOTHING)


def _never_freed(saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    return tuple(replace(row, freed_by=Module.NOTHING) for row in saved)


def _softcap(context: OpContext) -> tuple[Op, ...]:
    """Capped logits, cap * tanh(x / cap), op by op: a division, a tanh that is kept, a product."""
    if context.model.logits_softcap is None:
        return ()
    size = context.saved.activation_bytes
    return (_logits_row(context, "head/softcap", size, (6.0, 7.0), size, (3, 3)),)


def _loss(context: OpContext) -> Op:
    """Cross-entropy over the vocabulary: fp32 logits read and written a few times each way."""
    kernels = context.profile.kernels
    # The kernel scales elementwise rows by `memory_traffic`; the loss has a factor of its own.
    passes = kernels.loss_traffic / kernels.memory_traffic
    kept = context.saved.logits_saved_bytes
    return _logits_row(context, "head/loss", kept, (14.0, 8.0), passes, (6, 3))


def _logits_row(
    context: OpContext,
    name: str,
    kept_bytes: float,
    moved: tuple[float, float],
    factor: float,
    kernels: tuple[int, int],
) -> Op:
    """A row over all logits: bytes of one that it keeps, and moves forward and backward, times a
    factor."""
    vocab = float(context.model.vocab)
    shard = Shard.TP if context.saved.logits_sharded else Shard.NONE
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        tokens=Shard.TP,
        forward_bytes=moved[0] * vocab * factor,
        backward_bytes=moved[1] * vocab * factor,
        forward_kernels=kernels[0],
        backward_kernels=kernels[1],
        saved=(Saved(name, kept_bytes * vocab, shard, Module.NOTHING),),
        pads_vocabulary=True,
        rerun_with=Module.NOTHING,
    )


def mtp_rows(context: OpContext) -> tuple[Op, ...]:
    """One multi-token-prediction module (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    Two norms, a projection from 2h to h, a full layer, and a norm before the
    head, which `mtp_loss_rows` has.
    """
    hidden, name = float(context.model.hidden), "mtp/projection"
    inputs = linear_inputs(context, name, 2 * hidden, Module.FULL)
    return (
        norm(context, "mtp/norm_hidden", hidden),
        norm(context, "mtp/norm_embedding", hidden),
        column_parallel(name, (2 * hidden, hidden), inputs, (), Module.FULL),
        *layer_rows(context, context.model.mtp_kind),
        head_rows(context)[0],
    )


def mtp_loss_rows(context: OpContext) -> tuple[Op, ...]:
    """LM head and loss of one module: the head's work on the head's matrix, without weights."""
    rows = head_rows(context)[1:]
    return tuple(replace(op, parameters=()) if op.kind is OpKind.GEMM else op for op in rows)
