"""Models made up at random: models of the catalogue with a few other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as some
from pydantic import ValidationError

from planner.job.models.catalog import load_model, model_names
from planner.job.rope import RopeScaling
from planner.job.specs import LayerKind, ModelSpec
from tests.launch.test_architecture import changed

MODELS = {name: load_model(name).spec for name in model_names()}

_YARN = {"kind": "yarn", "factor": 4.0, "original_positions": 4096, "beta_fast": 16.0}
# Field -> values that a model of the catalogue may get.
_CHANGES: Mapping[str, tuple[Any, ...]] = {
    "rope.theta": (1e4, 5e5, 1e6, 1.5e5),
    "rope.scaling": (
        None,
        RopeScaling(kind="linear", factor=2.0),
        RopeScaling(kind="llama3", factor=8.0, original_positions=8192),
        RopeScaling(kind="llama3", factor=32.0, original_positions=4096),
        RopeScaling.model_validate(_YARN),
        RopeScaling.model_validate(_YARN | {"beta_slow": 2.0, "truncate": False}),
        RopeScaling.model_validate(_YARN | {"beta_fast": 32.0, "mscale": 1.0, "mscale_all_dim": 1}),
    ),
    "rotary_share": (1.0, 0.5),
    "position": ("rope", "learned", "none"),
    "norm_eps": (1e-5, 1e-6, 3e-6),
    "init_std": (0.02, 0.006),
    "activation": ("silu", "gelu_new", "relu2"),
    "tied_embeddings": (False, True),
    "qkv_bias": (False, True),
    "mlp_bias": (False, True),
    "attention_out_bias": (False, True),
    "qk_norm": ("none", "head", "full"),
    "attention_sinks": (False, True),
    "attention_softcap": (None, 25.0),
    "logits_softcap": (None, 30.0),
    "attention_scale": (None, 0.1),
    # Of each three layers those with a window.
    "layer_kinds": ((), (0,), (1, 2)),
    "mtp_layers": (0, 1),
    "moe.top_k": (1, 2, 4, 8),
    "moe.score": ("softmax", "sigmoid"),
    "moe.normalised": (False, True),
    "moe.weight_scale": (1.0, 2.5),
    "moe.router_fp32": (False, True),
    "moe.score_correction_bias": (False, True),
    "moe.bias_update_rate": (0.0, 1e-3, 0.01),
    "moe.groups": (1, 4),
    "moe.top_groups": (1, 2),
    "moe.aux_loss": (0.0, 0.001, 0.02),
    "moe.aux_loss_over": ("batch", "sequence"),
    "moe.z_loss": (0.0, 0.001),
    "moe.shared_ffn": (0, 2048),
}


@some.composite
def models(draw: some.DrawFn) -> ModelSpec:
    """Models of the catalogue with other values of some fields that change training."""
    model = MODELS[draw(some.sampled_from(sorted(MODELS)))]
    for name in draw(some.lists(some.sampled_from(sorted(_CHANGES)), min_size=1, max_size=4)):
        value = draw(some.sampled_from(_CHANGES[name]))
        if name == "layer_kinds":
            value = tuple(_slides(model, value))
        model = changed(model, name, value) or model
    slides = any(kind.attention == "sliding" for kind in model.kinds)
    window = (model.sliding_window or 1024) if slides else None
    model = model.model_copy(update={"sliding_window": window})
    try:
        return ModelSpec.model_validate(model.model_dump())
    except ValidationError:
        return MODELS["llama-3-8b"]


def _slides(model: ModelSpec, which: tuple[int, ...]) -> Iterator[LayerKind]:
    """Layers with a window where their index in each three is one of `which`."""
    for index, kind in enumerate(model.kind_sequence):
        attention = "sliding" if index % 3 in which else "full"
        yield kind if kind.attention in ("state", "none") else LayerKind(
            attention=attention, ffn=kind.ffn
        )  # fmt: skip


at_random = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
