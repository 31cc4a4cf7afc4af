"""How freezing changes the rows of a piece: classes of weights, tensors kept, backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.cost.codes import OpKind, ParamShard
from planner.job.parameter_classes import class_name
from planner.job.recompute import Module
from planner.predict.ops.adapter_parts import layer_names, parts_of
from planner.predict.ops.context import OpContext
from planner.predict.ops.merged import merges, with_sum
from planner.predict.ops.rows import OPERATOR_SHARE, Op, Saved, without_backward

_HALF, _FP32 = 2.0, 4.0
# Tensors of the adapters' type that DoRA makes of a weight in each forward: B·A written, scaled
# (read, written), added to the weight (read twice, written), its rows' norms (read); two to three
# of them are alive at once (peft, src/peft/tuners/lora/dora.py, 94-165). Counted at every use of
# the weight; forward and recomputation are two of the three uses.
_DORA_TRAFFIC, _DORA_COPIES = 7.0, 3.0
# DoRA computes B·A by passing an `in` x `in` identity through both matrices: written, read, cast
# under autocast.
_EYE, _EYE_CAST = 2.0, 6.0
_ENDS = frozenset(("embeddings", "head"))
# Suffixes of tensors that a row keeps only for the gradient of its own weights.
_OF_WEIGHTS = ("/normalised", "/places", "/scaled")
# Products whose weights are not in one of the library's linear layers: a router's, a convolution's,
# a plain matrix's.
_NEVER_PACKED = ("moe/router", "patch_embedding", "projector/matrix1")
# Products that read attention's output, or a projector's output for images.
_NEVER_WIDE = ("attention/out_proj", "attention/k", "attention/v")
# Torch operators by which AutoGPTQ unpacks a weight without a kernel of its own: shifts, casts and
# masks of weights and zeros, gathering of scales, subtraction of zeros, scaling
# (qlinear_cuda_old.py).
_UNPACKING_OPERATORS = 10.0
# Suffixes of tensors that a product keeps only for its weight gradient.
_INPUTS = ("input", "output_copied", "output_quantised", "output_exchanged")


def is_input(row: Saved, context: OpContext) -> bool:
    """Whether a tensor that a product's row keeps is the input of that product. The output of
    attention counts only if attention is unfused (`eager`), because fused attention keeps that
    tensor itself."""
    name = row.name.rpartition("/")[2]
    return name in _INPUTS or (row.name == "attention/output" and context.attention == "eager")


def modules_of(op: Op, context: OpContext) -> tuple[str, ...]:
    """The modules of `--freeze` to which a row's weights belong; the row is frozen only if all of
    them are."""
    if op.name == "embedding":
        return ("embeddings",)
    named = layer_names(op, context)
    if named:
        return named
    if op.name.startswith("state/"):
        return ("state-in", "state-out")
    if op.name == "attention/core":
        return ("q", "k", "v", "o")
    return ("router",) if op.name.startswith("shared_experts/") else ("norms",)


def is_trained(op: Op, context: OpContext, *, frozen: bool) -> bool:
    """Whether the row's own weights are trained. `frozen`: no part of its layer is trained, so the
    answer is False."""
    tuning = context.tuning
    if frozen:
        return False
    if op.name == "head/score":
        # A reward model's new head is always trained (peft, modules_to_save).
        return True
    names = set(modules_of(op, context))
    if tuning.has_adapters:
        return names <= set(tuning.whole)
    if context.model.tied_embeddings and names & _ENDS:
        names = set(_ENDS)
        return not names & set(tuning.frozen_modules)
    return not names <= set(tuning.frozen_modules)


def is_packed(op: Op, context: OpContext) -> bool:
    """Whether a frozen row's weights would be stored in quantised form if the job has a quantised
    base. The caller checks whether it has one (`tuning.base`)."""
    inside = op.is_product and not op.pads_vocabulary and op.name not in _NEVER_PACKED
    expert = op.parameter_class == "expert"
    return inside and (not expert or bool(context.profile.adapters.quantised_experts))


def is_wide(op: Op, context: OpContext) -> bool:
    """Whether a row reads an fp32 tensor, as fp32 norms output. Products that read the output of
    attention do not. Nor do those that read the output of another product, unless products are
    quantised and output the type of their input."""
    saved = context.saved
    norms = saved.residual_bytes, context.model.norm == "layernorm" and saved.layernorm_input_bytes
    if _FP32 not in norms or op.name in _NEVER_WIDE:
        return False
    handed_on = bool(context.tuning.base) and context.profile.mode == "bf16"
    return handed_on or not op.name.endswith("/down")


def keeps_input(op: Op, context: OpContext) -> bool:
    """Whether a frozen row keeps its input although no gradient needs it: bitsandbytes' 8-bit
    product does (bitsandbytes/autograd/_functions.py, MatMul8bitLt.forward)."""
    return context.tuning.base == "int8" and is_packed(op, context)


@dataclass(frozen=True)
class Frozen:
    """Builds the rows of a piece that is not trained, or only in part; `whole`: no part of it is
    trained."""

    context: OpContext
    whole: bool

    @property
    def stops(self) -> bool:
        """Whether backward ends above the piece: no weight in or below it is trained, and no hook
        requires a gradient."""
        tuning, tied = self.context.tuning, self.context.model.tied_embeddings
        if self.context.trains_vision or self.context.hooked:
            return False
        ends = {"embeddings", "head"} if tied else {"embeddings"}
        below = not tuning.has_adapters and not ends & set(tuning.frozen_modules)
        hooked = tuning.has_adapters and self.context.profile.adapters.hooks_inputs
        return self.whole and not (below or hooked or ends & set(tuning.whole))

    def rows(self, op: Op, inputs: tuple[Saved, ...], *, adapted: bool) -> Iterator[Op]:
        """The row as it runs in this job, preceded or followed by rows of further weights that are
        only held: biases of a quantised product, or the frozen original of a trained copy.
        `inputs`: the inputs that a product keeps; `adapted`: whether the row has adapters."""
        if is_trained(op, self.context, frozen=self.whole):
            yield from self._trained(op, inputs)
            return
        if self.context.tuning.base and is_packed(op, self.context):
            op, *biases = _without_biases(op)
            for bias in biases:
                # Biases stay or become fp32 like other weights.
                wide = "fp32" if self._is_upcast(bias) else None
                yield replace(bias, parameter_class=class_name("frozen", wide))
        merged = adapted and merges(op, self.context)
        row = replace(
            op,
            parameter_class=self._class(op),
            saved=(*inputs, *self._others(op)),
            backward_kernels=op.backward_kernels if merged else _of_inputs(op),
        )
        row = _by_operators(self._upcast(row), self.context)
        if merged:
            row = with_sum(row, self.context)
        elif adapted and self.context.tuning.method == "dora":
            row = _with_norms(row, self.context)
        if op.name == "embedding":
            yield replace(row, returns=False)
        else:
            yield without_backward(row) if self.stops else row

    def _trained(self, op: Op, inputs: tuple[Saved, ...]) -> Iterator[Op]:
        """A row whose weights are trained. In a job with adapters these weights are a copy, so a
        second row holds the frozen originals; for the head of a model with tied embeddings the one
        row holds both."""
        row = replace(op, saved=(*inputs, *self._others(op))) if op.is_product else op
        adapted = self.context.tuning.has_adapters
        if adapted and self.context.model.tied_embeddings and op.name == "head/logits":
            # The head gets a separate table: peft trains two copies of a tied one, which diverge
            # (src/peft/utils/other.py, ModulesToSaveWrapper; ensure_weight_tying is off).
            count = op.in_width * op.out_width + op.parameter_count
            yield replace(row, parameters=((count, ParamShard.TP),))
            return
        yield row
        if adapted and op.parameters:
            # The frozen weights of which peft's `modules_to_save` makes trained copies.
            yield _held_beside(op, "original", op.parameters, class_name("frozen", None))

    def _others(self, op: Op) -> tuple[Saved, ...]:
        """The tensors that a row keeps in addition to the inputs of products. If the row's weights
        are frozen, tensors that only the gradient of these weights needs are left out."""
        trained = is_trained(op, self.context, frozen=self.whole)
        return tuple(
            row
            for row in op.saved
            if not (op.is_product and is_input(row, self.context))
            and not (not trained and row.name.endswith(_OF_WEIGHTS))
        )

    def _class(self, op: Op) -> str:
        """The parameter class of a row's frozen weights."""
        tuning = self.context.tuning
        expert = op.parameter_class == "expert"
        if tuning.base and is_packed(op, self.context):
            return class_name("frozen", tuning.base, expert=expert)
        wide = "fp32" if self._is_upcast(op) else None
        return class_name("frozen", wide, expert=expert)

    def _is_upcast(self, op: Op) -> bool:
        """Whether the preparation of a quantised base for training converts a row's weights to
        fp32."""
        rules = self.context.profile.adapters
        if not self.context.tuning.is_prepared:
            return False
        is_norm = modules_of(op, self.context) == ("norms",)
        return bool(rules.upcasts_norms if is_norm else rules.upcasts_tables)

    def _upcast(self, op: Op) -> Op:
        """The row with one more kept tensor if it is the head or a plain matrix whose weights were
        converted to fp32, else unchanged. Such a row multiplies by a 16-bit cast of its weights,
        which the graph keeps, because autocast caches only casts of trained weights (torch,
        autocast_mode.cpp)."""
        if op.name not in ("head/logits", "projector/matrix1") or not self._is_upcast(op):
            return op
        size, block = _HALF * op.in_width * op.out_width, op.name.partition("/")[0]
        cast = Saved(f"{block}/weight_cast", 0.0, op.tokens, Module.NOTHING, fixed_bytes=size)
        return replace(op, saved=(*op.saved, cast))


def _of_inputs(op: Op) -> float:
    """Number of kernels in the backward of a frozen row, which computes no gradient of weights:
    half of a product's backward kernels, one fewer than a norm's but at least one."""
    if op.is_product:
        return op.backward_kernels / 2.0
    return max(1.0, op.backward_kernels - 1.0) if op.parameters else op.backward_kernels


def _by_operators(op: Op, context: OpContext) -> Op:
    """The row with the kernels and memory traffic of unpacking GPTQ weights by a sequence of torch
    operators before each use; unchanged if its weights are not packed so, or one kernel unpacks
    them."""
    traffic = context.profile.adapters.gptq_unpacking_bytes
    if not op.packed or context.tuning.base != "gptq4" or not traffic:
        return op
    issued = op.forward_kernels + _UNPACKING_OPERATORS * OPERATOR_SHARE
    return replace(op, weight_traffic=traffic - op.unpacked, forward_kernels=issued)


def _without_biases(op: Op) -> tuple[Op, ...]:
    """A product with only its weights, and a row for its biases if it has any."""
    biases = op.parameter_count - op.groups * op.in_width * (op.out_width + op.kv_out_width)
    if biases <= 0.0:
        return (op,)
    share = biases / op.parameter_count
    weights = tuple(((1.0 - share) * count, shard) for count, shard in op.parameters)
    others = tuple((share * count, shard) for count, shard in op.parameters)
    return replace(op, parameters=weights), _held_beside(op, "bias", others, op.parameter_class)


def _held_beside(
    op: Op, name: str, parameters: tuple[tuple[float, ParamShard], ...], parameter_class: str
) -> Op:
    """A row of weights that are in memory but used in no computation."""
    return Op(
        name=f"{op.name}/{name}",
        kind=OpKind.MEMORY,
        forward_kernels=0.0,
        backward_kernels=0.0,
        parameters=parameters,
        parameter_class=parameter_class,
        pads_vocabulary=op.pads_vocabulary,
        rerun_with=Module.NOTHING,
    )


def _with_norms(op: Op, context: OpContext) -> Op:
    """A frozen product with the traffic of DoRA, which reads the weight to compute the norms of the
    adapted weight's rows."""
    rules = context.profile.adapters
    held = context.tuning.adapter or rules.weight_type
    size = _FP32 if held == "fp32" else _HALF
    out = op.out_width + op.kv_out_width
    eyes = len(parts_of(op, context)) * op.in_width / out
    eye_bytes = _EYE * size + (_EYE_CAST if 0.0 < rules.cast_bytes < size else 0.0)
    traffic = _DORA_TRAFFIC * size + eyes * eye_bytes
    return replace(op, weight_traffic=traffic, weight_copies=_DORA_COPIES * size)
