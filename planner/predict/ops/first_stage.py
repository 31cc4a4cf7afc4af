"""Rows of a vision tower that runs with the embeddings on the first pipeline stage.

Megatron builds the tower and the projector whole on a stage with the embedding; their layers are
not among those that a pipeline divides (Megatron-Core 0.19.2, models/multimodal/llava_model.py,
`add_encoder`; Megatron-Bridge 0.6.2, models/qwen_vl/modeling_qwen25_vl.py,
gemma_vl/modeling_gemma3_vl.py and qwen_vl/modelling_qwen3_vl/model.py, `pre_process`).

Every context-parallel rank runs all patches: Qwen3-VL's `vision_dp_when_cp` is off by default, and
`context_parallel_size` of a vision configuration is 1 (examples/multimodal/model.py,
modelling_qwen3_vl/transformer_config.py). Sequence parallelism is off in the tower as well. Tensor
parallelism splits a tower of Megatron's own layers like any layer and copies one from transformers:
each rank runs the same patches through all of it, and the copies' gradients are averaged once a
step (utils/common_utils.py, hook_hf_module_setattr_for_tp_grad_sync).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.frameworks.profile import FrameworkProfile, load_framework, with_tables
from planner.job.recompute import Module
from planner.predict.ops.context import OpContext
from planner.predict.ops.linear import tp_entry, tp_exit
from planner.predict.ops.rows import Collective, Op, Saved

# Sharding of a tower's tensors if tensor parallelism splits them, and if it copies the tower.
_SPLIT: Mapping[Shard, Shard] = {
    Shard.NONE: Shard.WHOLE,
    Shard.SEQUENCE: Shard.WHOLE,
    Shard.TP: Shard.WHOLE_TP,
    Shard.KV: Shard.WHOLE_TP,
}
_COPIES: Mapping[Shard, Shard] = dict.fromkeys(_SPLIT, Shard.WHOLE)
# The framework whose modules make up copied towers.
_LIBRARY = "hf-transformers"


def is_copied(context: OpContext) -> bool:
    """Whether every tensor-parallel rank has the whole tower."""
    vision = context.model.vision
    return vision is not None and vision.place == "copied"


def is_placed(context: OpContext) -> bool:
    """Whether the tower runs on the first stage with the embeddings."""
    vision = context.model.vision
    return vision is not None and vision.place != "layers"


def tower_profile(context: OpContext) -> FrameworkProfile:
    """The framework profile for the tower's rows. A copied tower consists of transformers' modules;
    products of Megatron's towers stay in 16 bits, the default of a vision configuration."""
    if is_copied(context):
        return load_framework(_LIBRARY)
    if not is_placed(context):
        return context.profile
    plain = {"linear_input_bytes": context.profile.saved.activation_bytes}
    return with_tables(context.profile, {"saved": plain})


def placed(op: Op, context: OpContext, repeats: int = 1) -> Op:
    """A row of a tower on the first stage as one rank runs it; it stands for `repeats` equal
    layers. Unchanged if the tower's layers are among those that the pipeline divides."""
    if not is_placed(context):
        return op
    copied = is_copied(context)
    width = Shard.NONE if copied else Shard.TP
    heads = op.kind is OpKind.ATTENTION
    kept = (_kept(row, context, repeats) for row in op.saved)
    row = replace(
        op,
        tokens=_tokens(op.tokens, context),
        out_width=op.out_width + op.kv_out_width,
        out_shard=width if heads or op.out_shard is Shard.TP else Shard.NONE,
        kv_out_width=0.0,
        in_shard=width if op.in_shard is Shard.TP else Shard.NONE,
        parameters=tuple((repeats * n, _parameter_shard(one, context)) for n, one in op.parameters),
        saved=tuple(one for one in kept if one is not None),
        collectives=_exchanges(op, context, repeats),
        rerun_with=_follows(op.rerun_with, context),
        low_precision=False,
        captured=False,
        # transformers' modules issue torch's operators without the extra work of Transformer
        # Engine.
        torch_operators=op.torch_operators or copied,
    )
    return replace(row, repeats=float(repeats), apart=True)


def split_pair(op: Op, context: OpContext, index: int) -> Op:
    """One of the two products of a projector that Megatron builds: the first is split by its
    outputs, the second by its inputs (Megatron-Core, transformer/mlp.py)."""
    into, out = op.in_width, op.out_width
    bias = op.parameter_count - into * out
    if index == 0:
        exchanges = tp_entry(context, op.name, into, Module.NOTHING)
        parameters = ((op.parameter_count, ParamShard.TP),)
        return replace(op, out_shard=Shard.TP, parameters=parameters, collectives=exchanges)
    return replace(
        op,
        in_shard=Shard.TP,
        parameters=((into * out, ParamShard.TP), (bias, ParamShard.NONE)),
        saved=tuple(replace(row, shard=Shard.TP) for row in op.saved),
        collectives=tp_exit(op.name, out, Module.NOTHING),
    )


def _tokens(shard: Shard, context: OpContext) -> Shard:
    return (_COPIES if is_copied(context) else _SPLIT)[shard]


def _parameter_shard(shard: ParamShard, context: OpContext) -> ParamShard:
    if is_copied(context):
        return ParamShard.COPIED
    return ParamShard.TP if shard is ParamShard.KV else shard


def _follows(modules: Module, context: OpContext) -> Module:
    """Those of the recompute modes `modules` that apply to the tower as well; NOTHING if the tower
    never recomputes. Megatron passes granularity and method on to Qwen3-VL's tower, and to others
    only with --recompute-vision."""
    vision = context.model.vision
    families = context.profile.towers.recomputed
    return modules & Module.FULL if vision and vision.rule in families else Module.NOTHING


def _kept(row: Saved, context: OpContext, repeats: int) -> Saved | None:
    """A kept tensor, multiplied to stand for `repeats` equal layers; None if it is a checkpoint and
    the tower does not recompute."""
    only_with = _follows(row.only_with, context)
    if row.only_with and not only_with:
        return None
    return replace(
        row,
        bytes_per_token=repeats * row.bytes_per_token,
        fixed_bytes=repeats * row.fixed_bytes,
        shard=_tokens(row.shard, context),
        freed_by=_follows(row.freed_by, context),
        only_with=only_with,
        copies=0.0,
        leaves=0.0,
    )


def _exchanges(op: Op, context: OpContext, repeats: int) -> tuple[Collective, ...]:
    """Tensor-parallel traffic of a split tower, for all its layers."""
    if is_copied(context):
        return ()
    return tuple(
        replace(
            collective,
            forward=repeats * collective.forward,
            backward=repeats * collective.backward,
            shard=_tokens(collective.shard, context),
            rerun_with=_follows(collective.rerun_with, context),
        )
        for collective in op.collectives
        if collective.group == "tp" and not collective.sequence_parallel_only
    )
