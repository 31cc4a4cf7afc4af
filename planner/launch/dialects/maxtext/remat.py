"""What MaxText keeps of a layer for backward: its policies as recompute modes.

Source: MaxText 0.2.5, layers/nnx_decoders.py (get_remat_policy), layers/attentions.py and
layers/linears.py (the names of tensors).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.launch.dialects.maxtext.settings import Settings
from planner.launch.dialects.maxtext.writer import OPTIONS
from planner.launch.read.found import Problem, Setting

_KEY = OPTIONS["recompute"].key
_QKV, _CONTEXT, _OUT, _UP = "qkv", "context", "out", "up"
# Policy -> what it keeps beside the layer's input; mlpwo is read by nothing in backward. The first
# that keeps the same is the mode's name in the profile, where it has one.
_POLICIES = {
    "full": frozenset[str](),
    "save_dot_except_mlp": frozenset({_QKV, _OUT}),
    "save_dot_with_context_except_mlp": frozenset({_QKV, _OUT, _CONTEXT}),
    "minimal": frozenset({_QKV, _OUT, _UP}),
    "minimal_with_context": frozenset({_QKV, _OUT, _UP, _CONTEXT}),
    "save_qkv_proj": frozenset({_QKV}),
    "save_out_proj": frozenset({_OUT}),
    "save_dot_except_mlpwi": frozenset({_QKV, _OUT}),
    "minimal_with_quantization": frozenset({_QKV, _OUT, _UP}),
    "minimal_flash": frozenset({_QKV, _OUT, _UP, _CONTEXT}),
    "minimal_with_context_and_quantization": frozenset({_QKV, _OUT, _UP, _CONTEXT}),
}
_MODES = tuple(_POLICIES)[:5]
_OFFLOADED = ("qkv_proj_offloaded", "minimal_offloaded")
# Part -> groups of settings of a custom policy, of which one keeps it.
_CUSTOM = {
    _QKV: (("query_proj", "key_proj", "value_proj"), ("qkv_proj",)),
    _CONTEXT: (("context",), ("attention_out",)),
    _OUT: (("out_proj",),),
    _UP: (("mlpwi_0", "mlpwi_1"), ("mlpwi",), ("moe_mlpwi_0", "moe_mlpwi_1")),
}
_TENSORS = sorted({name for groups in _CUSTOM.values() for group in groups for name in group})
_MORE = "keeps more than the recomputation of whole layers does: more memory than predicted, faster"
_NOTHING = "XLA keeps more than other frameworks without recomputation: more memory than predicted"
_EXPERTS = "up and gate of experts run again too: less memory than predicted"


@dataclass(frozen=True, slots=True)
class Remat:
    """The recompute mode of a policy; what it does besides, and what is wrong with it."""

    mode: str
    unmodelled: tuple[tuple[Setting, str], ...] = ()
    problems: tuple[Problem, ...] = ()


def remat_of(settings: Settings) -> Remat:
    """The mode of a launch's settings."""
    policy: Any = settings.get(_KEY)
    if policy in (None, "", "none"):
        return _with(settings, "none", _NOTHING)
    if policy in _OFFLOADED or (policy == "custom" and [*_named(settings, "offload")]):
        text = "activations in host memory are not modelled"
        return Remat("full", problems=(settings.unpredictable(text, _KEY),))
    kept = _kept(settings) if policy == "custom" else _POLICIES.get(policy)
    if kept is None:
        known = ", ".join([*_POLICIES, *_OFFLOADED, "custom", "none"])
        problem = settings.wrong(f"{_KEY}: {policy!r}; MaxText has {known}", _KEY)
        return Remat("full", problems=(problem,))
    mode = next((name for name in _MODES if _POLICIES[name] == kept), None)
    if mode is None:
        return _with(settings, "full", _MORE)
    has_experts = settings.get("num_experts") > 1
    return _with(settings, mode, _EXPERTS) if has_experts and mode.endswith("mlp") else Remat(mode)


def _with(settings: Settings, mode: str, why: str) -> Remat:
    return Remat(mode, ((settings.setting(_KEY), why),))


def _named(settings: Settings, where: str) -> Iterator[str]:
    """Tensors of a custom policy that stay on the GPU (`device`), or go to the host (`offload`)."""
    return (name for name in _TENSORS if settings.get(name) == where)


def _kept(settings: Settings) -> frozenset[str]:
    stays = set(_named(settings, "device"))
    return frozenset(
        part for part, groups in _CUSTOM.items() if any(set(group) <= stays for group in groups)
    )
