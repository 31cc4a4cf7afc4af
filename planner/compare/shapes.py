"""Dense models between the sizes of a family: shapes in the proportions of Llama 3."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from math import exp, gcd, log

from planner.job.errors import UsageError
from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.job.written import toml_text
from planner.predict.ops import parameter_count

# Of one family, by size (arXiv 2407.21783, table 3; Llama 3.2 for the small ones).
FAMILY = ("llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b")
_HEAD = 128
# Wide models have widths of so many elements, eight heads, which tensor parallelism divides.
_STEP, _WIDE = 1024, 4096
# Sizes that the family's proportions still mean something for.
LEAST, MOST = 1e8, 2e13


def shaped(parameters: float) -> ModelSpec:
    """A model of about so many parameters: its width and FFN between those of the family's two
    nearest sizes (in logarithms of the size, beyond them by the nearest pair), layers to match."""
    if not LEAST <= parameters <= MOST:
        raise UsageError(
            f"{parameters:.3g} parameters: shapes are made of {LEAST:.0e} to {MOST:.0e}; give "
            "--model NAME for another"
        )
    base = load_model("llama-3-8b").spec
    hidden = _width(_between(parameters, [(size, spec.hidden) for size, spec in _family()]))
    ratio = _between(parameters, [(size, spec.ffn / spec.hidden) for size, spec in _family()])
    heads = hidden // _HEAD
    update = {
        "hidden": hidden, "heads": heads, "head_dim": _HEAD, "kv_heads": gcd(8, heads),
        "ffn": _width(hidden * ratio),
    }  # fmt: skip
    one, two = (_size(base.model_copy(update=update | {"layers": n})) for n in (1, 2))
    layers = max(2, round(1 + (parameters - one) / (two - one)))
    # Two equal stages at least, where a layer more or less is a small part of the model.
    layers = layers if layers < 24 else round(layers / 2) * 2
    spec = base.model_copy(update=update | {"layers": layers})
    size = _size(spec)
    name = f"{size / 1e12:.3g}t" if size >= 1e12 else f"{size / 1e9:.3g}b"
    return spec.model_copy(update={"name": f"dense-{name}"})


@cache
def _family() -> list[tuple[float, ModelSpec]]:
    specs = [load_model(name).spec for name in FAMILY]
    return sorted(((float(_size(spec)), spec) for spec in specs), key=lambda pair: pair[0])


def _size(spec: ModelSpec) -> int:
    return parameter_count(spec).total


def _between(parameters: float, known: list[tuple[float, float]]) -> float:
    """A figure of a size by a power law between the two nearest known ones."""
    sizes = [size for size, _ in known]
    at = min(max(1, bisect_right(sizes, parameters)), len(known) - 1)
    (low, first), (high, second) = known[at - 1], known[at]
    share = log(parameters / low) / log(high / low)
    return first * exp(share * log(second / first))


def _width(value: float) -> int:
    step = _STEP if value >= _WIDE else _STEP // 2
    return max(1, round(value / step)) * step


def shape_toml(spec: ModelSpec) -> str:
    """The shape as a model file that `--model` reads."""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_positions",
             "pretraining_seq")  # fmt: skip
    shape = {
        "family": "llama",
        **{name: getattr(spec, name) for name in names},
        "activation": "silu",
        "tied_embeddings": False,
        "rope": {"theta": spec.rope.theta},
    }
    return toml_text({"source": "planner budget: between the sizes of Llama 3", "shape": shape})
