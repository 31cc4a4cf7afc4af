"""A model's linear layers under the names used for adapters, with their widths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from planner.job.specs import ModelSpec

EXPERTS, ALL_LINEAR = "experts", "all-linear"
# Layers that a group name stands for. peft's `all-linear` leaves the head out
# (src/peft/tuners/tuners_utils.py, _maybe_include_all_linear_layers). Since version 5, routers are
# not linear layers in transformers.
_ATTENTION = ("q", "k", "v", "q-down", "q-up", "kv-down", "kv-up", "o")
_MLP = ("gate", "up", "down", "shared-gate", "shared-up", "shared-down")
GROUPS: Mapping[str, tuple[str, ...]] = {
    ALL_LINEAR: (*_ATTENTION, *_MLP, EXPERTS, "state-in", "state-out"),
    "attention": _ATTENTION,
    "mlp": _MLP,
}


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """Input and output width of a linear layer; for experts, those of their gate and up
    projections."""

    inputs: int
    outputs: int

    @property
    def narrowest(self) -> int:
        """The highest rank that its weight can have."""
        return min(self.inputs, self.outputs)


def in_groups(names: Iterable[str]) -> Iterator[str]:
    """Names of layers, with each group expanded into its layers."""
    for name in names:
        yield from GROUPS.get(name, (name,))


def linear_layers(model: ModelSpec) -> dict[str, LinearLayer]:
    """The linear layers of a model by the planner's names, in the order of a layer."""
    layers = _attention(model) | _states(model) | _feed_forward(model)
    return layers | {"head": LinearLayer(model.hidden, model.vocab)}


def _attention(model: ModelSpec) -> dict[str, LinearLayer]:
    if not model.has_attention:
        return {}
    hidden, out = model.hidden, LinearLayer(model.attention_out_width, model.hidden)
    if model.mla is None:
        gated = 2 if model.attention_gate else 1
        kv = LinearLayer(hidden, model.kv_width)
        return {"q": LinearLayer(hidden, gated * model.query_width), "k": kv, "v": kv, "o": out}
    mla, rank = model.mla, model.mla.q_lora_rank
    query = {"q": LinearLayer(hidden, model.query_width)}
    if rank is not None:
        query = {"q-down": LinearLayer(hidden, rank), "q-up": LinearLayer(rank, model.query_width)}
    up_width = model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query | {
        "kv-down": LinearLayer(hidden, mla.kv_lora_rank + mla.qk_rope_head_dim),
        "kv-up": LinearLayer(mla.kv_lora_rank, up_width),
        "o": out,
    }


def _states(model: ModelSpec) -> dict[str, LinearLayer]:
    space = model.state_space
    if not model.has_states or space is None:
        return {}
    width = LinearLayer(model.hidden, space.inner)
    return {"state-in": width, "state-out": LinearLayer(space.inner, model.hidden)}


def _feed_forward(model: ModelSpec) -> dict[str, LinearLayer]:
    hidden, moe = model.hidden, model.moe
    layers: dict[str, LinearLayer] = {}
    if any(kind.ffn == "dense" for kind in model.kinds):
        layers |= _block("", model, model.ffn)
    if moe is not None and any(kind.ffn == "moe" for kind in model.kinds):
        layers["router"] = LinearLayer(hidden, moe.experts)
        layers[EXPERTS] = LinearLayer(moe.latent or hidden, moe.ffn)
        if moe.shared_ffn:
            layers |= _block("shared-", model, moe.shared_ffn)
    return layers


def _block(before: str, model: ModelSpec, width: int) -> dict[str, LinearLayer]:
    """A gated or plain feed-forward block."""
    inner = LinearLayer(model.hidden, width)
    gate = {f"{before}gate": inner} if model.gated else {}
    down = LinearLayer(width, model.hidden)
    return gate | {f"{before}up": inner, f"{before}down": down}
