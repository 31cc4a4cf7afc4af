"""What JAX's policies by name keep of a dense layer, by hand.

Source: MaxText 0.2.5, layers/nnx_decoders.py (get_remat_policy).
"""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.recompute import Module
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import pieces

# Llama 3 8B in 16 bits, a token: the layer's input, query, key and value, attention's context, and
# what the second norm reads (the output projection's sum); gate and up besides.
_HIDDEN, _KV, _FFN = 4096, 1024, 14336
_PROJECTIONS = 2 * (_HIDDEN + _HIDDEN + 2 * _KV + _HIDDEN + _HIDDEN)
POLICIES = [
    (Module.LAYERNORM | Module.MLP_UP, _PROJECTIONS, ("mlp/up", "mlp/activation")),
    (Module.LAYERNORM | Module.MLP_ACT, _PROJECTIONS + 2 * 2 * _FFN, ("mlp/activation",)),
]


@pytest.mark.parametrize(("policy", "kept", "again"), POLICIES)
def test_a_policy_keeps_products_and_runs_the_rest_again(
    policy: Module, kept: int, again: tuple[str, ...]
) -> None:
    context = OpContext(load_model("llama-3-8b").spec, load_framework("jax-xla"), 4096)
    layer = [op for piece in pieces(context) for op in piece.ops if "/" in op.name]
    layer = [op for op in layer if op.name.partition("/")[0] in ("attention", "ffn", "mlp")]
    rows = [row for op in layer for row in op.saved if row.kept_under(policy)]
    # Statistics of norms and softmax aside.
    assert sum(row.bytes_per_token for row in rows if row.bytes_per_token > 200) == kept
    runs = {op.name for op in layer if op.rerun_with & policy}
    assert runs == {"attention/norm", "ffn/norm", *again}


def test_the_last_product_never_runs_again() -> None:
    context = OpContext(load_model("llama-3-8b").spec, load_framework("jax-xla"), 4096)
    down = [op for piece in pieces(context) for op in piece.ops if op.name == "mlp/down"]
    assert all(not op.rerun_with & (Module.MLP_UP | Module.MLP_ACT) for op in down)
    assert all(op.rerun_with & Module.MLP for op in down)
