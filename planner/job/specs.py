"""The shape of a model, and of its parts.

The classes are immutable pydantic models: they validate what a person wrote, and are plain facts
from then on. They know no framework, GPU or cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hardware.frozen import Named
from planner.job.bounds import LONGEST_SEQ, MOST_LAYERS, WIDEST
from planner.job.rope import RopeSpec
from planner.job.vision import NO_IMAGES, ImageLoad, TowerSpec, VisionSpec

Positive = Annotated[int, Field(gt=0, strict=True, le=WIDEST)]
NonNegative = Annotated[int, Field(ge=0, strict=True, le=WIDEST)]
PositiveNumber = Annotated[float, Field(gt=0.0, strict=True, allow_inf_nan=False)]
NonNegativeNumber = Annotated[float, Field(ge=0.0, strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Constant = bool | int | Finite | tuple[Finite, ...]

# `state`: a fixed-size state instead of keys and values; `both`: that beside full attention on the
# same input (Falcon-H1); `none`: the layer is just a feed-forward block (Nemotron-H).
AttentionKind = Literal["full", "sliding", "cross", "state", "both", "none"]
FfnKind = Literal["dense", "moe", "none"]


# Fields that say which parts have biases.
BIASES = ("qkv_bias", "attention_out_bias", "mlp_bias", "head_bias", "norm_bias")


class _Frozen(Named):
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy that computes its cached properties again; pydantic would copy their old
        values."""
        copied = super().model_copy(update=update, deep=deep)
        for name, var in vars(type(self)).items():
            if isinstance(var, cached_property):
                copied.__dict__.pop(name, None)
        return copied


class MlaSpec(_Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Widths are per head except the two ranks. `q_lora_rank` None: queries are projected in one
    step from the hidden state.
    """

    q_lora_rank: Positive | None = None
    kv_lora_rank: Positive
    qk_nope_head_dim: Positive
    qk_rope_head_dim: Positive
    v_head_dim: Positive


class StateSpaceSpec(_Frozen):
    """Mixer of `state` layers: a recurrence over a state of head_dim x state for each head.

    `mamba2`: SSD (arXiv 2405.21060, section 7). `mamba1`: selective scan (arXiv 2312.00752), whose
    heads are single channels, with time steps from a projection of rank `step_rank`; `inner_norms`:
    Jamba's norms of time steps, B and C. `gated_delta`: gated delta net (arXiv 2412.06464) as in
    Qwen3-Next. `lightning`: linear attention of MiniMax-01 (arXiv 2501.08313).

    `groups`: heads of B and C (of keys and queries), shared by `heads`. `conv`: width of the causal
    convolution before the recurrence; 0 for none. `chunk`: tokens computed as one product.
    `gated_norm`: a norm before the output projection.
    """

    kind: Literal["mamba2", "mamba1", "gated_delta", "lightning"] = "mamba2"
    heads: Positive
    head_dim: Positive
    groups: Positive = 1
    state: Positive = 128
    conv: NonNegative = 4
    conv_bias: bool = True
    projection_bias: bool = False
    chunk: Positive = 128
    gated_norm: bool = True
    step_rank: Positive = 1
    inner_norms: bool = False

    @model_validator(mode="after")
    def _heads_in_groups(self) -> StateSpaceSpec:
        if self.heads % self.groups:
            raise ValueError(f"heads={self.heads} is not a multiple of groups={self.groups}")
        return self

    @property
    def inner(self) -> int:
        """Total width of the heads."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Total width of B (of the keys); C (queries) has the same width."""
        return self.groups * self.state


class MoeSpec(_Frozen):
    """The experts of a mixture-of-experts layer.

    `ffn`: width of one routed expert. `shared_ffn`: total width of the shared experts; 0 for none.
    `shared_gate`: a learned scalar gate on them (Qwen2-MoE). `router_bias`: a trained bias per
    expert. `score_correction_bias`: an untrained one (DeepSeek-V3; a buffer, not a parameter).
    `expert_bias`: biases inside the experts (gpt-oss). `clamp`: limit of the experts' shifted
    SwiGLU (gpt-oss). `latent`: width to which tokens are projected before they go to experts, and
    from which they are projected back (Nemotron-3-Super's LatentMoE); None for hidden.

    Experts are chosen from the best `top_groups` of `groups` groups (DeepSeek-V3, arXiv 2412.19437,
    section 2.1.2), by the sum of the best two or the `max` of a group (`group_score`; DeepSeek-V2:
    max). Their weights are divided by their sum if `normalised`, then multiplied by `weight_scale`.
    With `weights_on_input` they multiply the experts' inputs (Llama 4).

    Load balancing: `bias_update_rate` moves the correction bias each step. `aux_loss` weighs the
    load loss over a `batch` or a `sequence`; `z_loss` weighs that of large logits.
    `capacity_factor` None drops no tokens. `router_fp32`: the router's product must be in fp32;
    otherwise the framework chooses.
    """

    experts: Positive
    top_k: Positive
    ffn: Positive
    latent: Positive | None = None
    shared_ffn: NonNegative = 0
    shared_gate: bool = False
    router_bias: bool = False
    score_correction_bias: bool = False
    expert_bias: bool = False
    groups: Positive = 1
    top_groups: Positive = 1
    group_score: Literal["top2", "max"] = "top2"
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    weight_scale: PositiveNumber = 1.0
    weights_on_input: bool = False
    clamp: PositiveNumber | None = None
    router_fp32: bool = False
    bias_update_rate: Share = 0.0
    aux_loss: Share = 0.0
    aux_loss_over: Literal["batch", "sequence"] = "batch"
    z_loss: Share = 0.0
    capacity_factor: PositiveNumber | None = None

    @model_validator(mode="after")
    def _top_k_within_experts(self) -> MoeSpec:
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} exceeds experts={self.experts}")
        return self


class LayerKind(_Frozen):
    """One kind of transformer layer. All layers of a kind cost the same."""

    attention: AttentionKind = "full"
    ffn: FfnKind = "dense"
    # The layer is frozen, as one of the first layers of a model whose lower part is frozen.
    frozen: bool = False
    # `vision`: a layer of the tower, whose tokens are patches of images.
    module: Literal["language", "vision"] = "language"
    # A learned number scales each block's output, as in all layers that cross-attend to images.
    gated: bool = False
    # It runs, but its output is unused.
    unread: bool = False

    @property
    def parts(self) -> str:
        """Its parts in words: `full/dense`, `state`."""
        marks = (name if getattr(self, name) else "none" for name in ("gated", "unread", "frozen"))
        parts = (self.attention, self.ffn, *marks)
        words = "/".join(part for part in parts if part != "none")
        return words if self.module == "language" else f"{self.module} {words}"


def tower_kinds(tower: TowerSpec, *, frozen: bool = False) -> tuple[LayerKind, ...]:
    """Kind of each layer of a vision tower. `frozen`: the tower is not trained."""
    last, read = tower.layers - tower.gated_layers, tower.layers - tower.unread
    return tuple(
        LayerKind(
            attention="full" if tower.is_full(layer) else "sliding",
            module="vision",
            frozen=frozen,
            gated=layer >= last,
            unread=layer >= read,
        )
        for layer in range(tower.layers)
    )


class ModelSpec(_Frozen):
    """Shape of a decoder-only transformer. Widths in elements, lengths in tokens.

    Symbols used in docstrings: h = hidden, L = layers, a = heads, d = head_dim, f = ffn,
    V = vocab, s = sequence length, b = micro-batch, t = tokens.
    """

    name: str
    family: str = "custom"
    layers: Annotated[int, Field(gt=0, strict=True, le=MOST_LAYERS)]
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    ffn: NonNegative
    vocab: Positive
    max_positions: Positive
    # Sequence length of the main pretraining stage; --seq overrides it.
    pretraining_seq: Positive
    gated: bool = True
    activation: str = "silu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    # Norms around the blocks: `pre` = before attention and before the FFN; `sandwich` = before
    # and after both (Gemma 2/3); `post` = after both only (OLMo 2); `single` = one norm feeds
    # attention and FFN in parallel (Falcon-7B, Phi); `parallel` = two norms, parallel branches
    # (GPT-NeoX, Falcon-40B).
    block: Literal["pre", "sandwich", "post", "single", "parallel"] = "pre"
    tied_embeddings: bool = False
    position: Literal["rope", "learned", "alibi", "none"] = "rope"
    rope: RopeSpec = RopeSpec()
    # Share of each head that is rotated.
    rotary_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_bias: bool = False
    norm_eps: NonNegativeNumber = 1e-5
    # Standard deviation of initial weights.
    init_std: NonNegativeNumber = 0.02
    # False: the norms have no learned scale (OLMo 1, arXiv 2402.00838, section 2.1).
    norm_weight: bool = True
    # `head` = a norm over each head's width, shared by heads (Qwen3, Gemma 3); `full` = over the
    # whole projected width (OLMo 2).
    qk_norm: Literal["none", "head", "full"] = "none"
    # Queries and keys of layers with windows are normalised to unit length (Llama 4: in its
    # chunks).
    qk_l2_norm: bool = False
    # A learned logit per head that takes part in the softmax (gpt-oss).
    attention_sinks: bool = False
    # Scores and logits are capped: cap * tanh(x / cap) (Gemma 2, arXiv 2408.00118, section 2).
    attention_softcap: PositiveNumber | None = None
    logits_softcap: PositiveNumber | None = None
    # Factor of the scores; None for one over the root of the head's width (Gemma 2 and 3 state it).
    attention_scale: PositiveNumber | None = None
    # Queries, keys and values are clipped at this value (OLMo 1, DBRX).
    qkv_clip: PositiveNumber | None = None
    sliding_window: Positive | None = None
    # A sigmoid gate as wide as the queries on attention's output (Qwen3-Next).
    attention_gate: bool = False
    mla: MlaSpec | None = None
    state_space: StateSpaceSpec | None = None
    moe: MoeSpec | None = None
    # Kind of every layer, first to last; empty means all layers are full attention and, with
    # experts, all MoE.
    layer_kinds: tuple[LayerKind, ...] = ()
    # Extra multi-token-prediction layers (DeepSeek-V3), not part of `layers`.
    mtp_layers: NonNegative = 0
    # One score per row instead of logits: the head of a reward model has no vocabulary.
    scores: bool = False
    # The part that reads images, and the images of a batch; the shape above is the language
    # model's.
    vision: VisionSpec | None = None
    images: ImageLoad = NO_IMAGES
    # Settings that change training but neither shape nor cost: transformers keys with values other
    # than the class default (Granite's multipliers, router noise, dropout).
    constants: tuple[tuple[str, Constant], ...] = ()
    source: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        if self.heads % self.kv_heads and self.mla is None:
            raise ValueError(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; "
                "every key/value head serves the same number of query heads"
            )
        if self.layer_kinds and len(self.layer_kinds) != self.layers:
            raise ValueError(
                f"layer_kinds names {len(self.layer_kinds)} layers, but layers={self.layers}"
            )
        kinds = self.kind_sequence
        if any(kind.ffn == "moe" for kind in kinds) and self.moe is None:
            raise ValueError("layer_kinds has MoE layers but no [moe] table describes them")
        if any(kind.ffn == "dense" for kind in kinds) and self.ffn == 0:
            raise ValueError("ffn must be positive: the model has dense layers")
        if any(kind.attention == "sliding" for kind in kinds) and self.sliding_window is None:
            raise ValueError("layer_kinds has sliding layers but sliding_window is not given")
        if self.has_states and self.state_space is None:
            raise ValueError("layer_kinds has state layers but no [state_space] describes them")
        if any(kind.attention == kind.ffn == "none" for kind in kinds):
            raise ValueError("a layer has neither attention nor a feed-forward block")
        return self

    def without_biases(self) -> ModelSpec:
        """The model with no biases in linear layers and norms (nanoGPT's `bias=False`)."""
        moe = self.moe and self.moe.model_copy(update={"expert_bias": False})
        return self.model_copy(update=dict.fromkeys(BIASES, False) | {"moe": moe})

    def with_mtp(self, layers: int) -> ModelSpec:
        """The model trained with this many layers of multi-token prediction."""
        return self if layers == self.mtp_layers else self.model_copy(update={"mtp_layers": layers})

    @property
    def language(self) -> ModelSpec:
        """The language model alone."""
        return self.model_copy(update={"vision": None, "images": NO_IMAGES})

    def with_scores(self) -> ModelSpec:
        """The model as a reward model, whose head is one linear layer of width 1."""
        changed = {"scores": True, "tied_embeddings": False, "head_bias": False, "mtp_layers": 0}
        return self.model_copy(update=changed)

    def with_scan_chunks(self, tokens: int) -> ModelSpec:
        """The model whose Mamba-2 scans use chunks of this many tokens, which changes no result; 0
        keeps the model's chunks."""
        space = self.state_space
        if not tokens or space is None or space.kind != "mamba2" or space.chunk == tokens:
            return self
        return self.model_copy(update={"state_space": space.model_copy(update={"chunk": tokens})})

    def with_frozen(self, layers: int) -> ModelSpec:
        """The model with its first layers frozen."""
        if not layers:
            return self
        kinds = (
            kind.model_copy(update={"frozen": index < layers})
            for index, kind in enumerate(self.kind_sequence)
        )
        return self.model_copy(update={"layer_kinds": tuple(kinds)})

    def without_frozen(self) -> ModelSpec:
        """The model without any layer marked as frozen."""
        if self.vision is not None and (self.vision.frozen or self.vision.place != "layers"):
            whole = self.vision.model_copy(update={"frozen": False, "place": "layers"})
            return self.model_copy(update={"vision": whole}).without_frozen()
        if not any(kind.frozen for kind in self.layer_kinds):
            return self
        kinds = tuple(kind.model_copy(update={"frozen": False}) for kind in self.layer_kinds)
        usual = self.model_copy(update={"layer_kinds": ()})
        if usual.kind_sequence == kinds:
            return usual
        return self.model_copy(update={"layer_kinds": kinds})

    @cached_property
    def kind_sequence(self) -> tuple[LayerKind, ...]:
        """Kind of each of the `layers` layers."""
        if self.layer_kinds:
            return self.layer_kinds
        kind = LayerKind(ffn="moe" if self.moe else "dense")
        return (kind,) * self.layers

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct kinds, in order of first appearance."""
        return tuple(dict.fromkeys(self.kind_sequence))

    @property
    def longest_seq(self) -> int:
        """Longest possible sequence in tokens: the size of a table of learned positions; other
        positions have no end."""
        return self.max_positions if self.position == "learned" else LONGEST_SEQ

    @property
    def has_states(self) -> bool:
        """Whether some layers are state spaces or linear attention."""
        return any(kind.attention in ("state", "both") for kind in self.kinds)

    @property
    def special_attention(self) -> bool:
        """Whether queries are wider than values, or attention has windows or sinks."""
        windows = self.sliding_window is not None or self.attention_sinks
        return self.mla is not None or windows

    @property
    def has_attention(self) -> bool:
        """Whether any layer has attention."""
        return any(kind.attention not in ("state", "none") for kind in self.kinds)

    @property
    def mtp_kind(self) -> LayerKind:
        """Kind of a multi-token-prediction layer: that of the last layer, or one of each if
        attention and feed-forward are separate layers (Nemotron-3: `*E`)."""
        last = self.kind_sequence[-1]
        if "none" not in (last.attention, last.ffn):
            return last
        return LayerKind(ffn="moe" if self.moe else "dense")

    @cached_property
    def kind_indices(self) -> tuple[int, ...]:
        """For each layer, the index of its kind in `kinds`."""
        return tuple(self.kinds.index(kind) for kind in self.kind_sequence)

    @cached_property
    def piece_sequence(self) -> tuple[LayerKind, ...]:
        """Kind of every layer that a pipeline is split into, in order: the vision tower's, unless
        it is placed with the embeddings, then the language model's."""
        if self.vision is None or self.vision.place != "layers":
            return self.kind_sequence
        tower = tower_kinds(self.vision.tower, frozen=self.vision.frozen)
        return (*tower, *self.kind_sequence)

    @cached_property
    def piece_kinds(self) -> tuple[LayerKind, ...]:
        """The distinct kinds in `piece_sequence`."""
        return tuple(dict.fromkeys(self.piece_sequence))

    @cached_property
    def piece_indices(self) -> tuple[int, ...]:
        """For each layer of `piece_sequence`, the index of its kind in `piece_kinds`."""
        return tuple(self.piece_kinds.index(kind) for kind in self.piece_sequence)

    @property
    def query_width(self) -> int:
        """Total width of the query heads."""
        if self.mla:
            return self.heads * (self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim)
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Total width of the key heads (MHA/GQA/MQA)."""
        return self.kv_heads * self.head_dim

    @property
    def rotary_width(self) -> int:
        """Elements of a query head that rotary positions rotate."""
        if self.mla:
            return self.mla.qk_rope_head_dim
        return int(self.head_dim * self.rotary_share)

    @property
    def attention_out_width(self) -> int:
        """Width of the attention output before its projection."""
        return self.heads * (self.mla.v_head_dim if self.mla else self.head_dim)
