"""Small contexts and one-row columns for tests of rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from constraints.condition import Verb, user_condition
from constraints.context import RuleContext
from constraints.numbers import BatchGoal, Capabilities, ClusterNumbers, IntArray, ModelNumbers
from constraints.user import parse_degree_limit

ANYTHING = Capabilities(
    zero_stages=(0, 1, 2, 3),
    interleaved=True,
    context=True,
    expert=True,
    expert_tensor=True,
    zero2_with_pipeline=True,
    zero3_with_pipeline=True,
)
# A toy with distinct prime factors in its widths, so that each rule has a shape of its own.
DENSE = ModelNumbers(
    layers=8, hidden=96, heads=12, kv_heads=4, query_width=96, ffn=384, vocab=1000, seq=48
)
MOE = replace(DENSE, ffn=0, experts=6, moe_ffn=40, shared_ffn=80)
ONE_GPU = {
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "cp": 1,
    "dp": 1,
    "ep": 1,
    "etp": 1,
    "zero": 0,
    "shard": 0,
    "mbs": 1,
    "grad_acc": 4,
    "gbs": 4,
    "recompute": 0,
}


def context(
    *,
    model: ModelNumbers = DENSE,
    gpus: int = 8,
    per_node: int = 8,
    domain: int = 8,
    batch: BatchGoal | None = None,
    limits: dict[str, str] | None = None,
    precision: str = "bf16",
    allow_tp_across_nodes: bool = False,
    least_zero: int = 0,
    schedule: str | None = None,
    conditions: Sequence[tuple[Verb, str]] = (),
    filled_pipelines: frozenset[int] = frozenset(),
    **capabilities: Any,
) -> RuleContext:
    """A context in which everything is allowed but what the arguments take away."""
    return RuleContext(
        model=model,
        cluster=ClusterNumbers(gpus, per_node, domain),
        batch=batch or BatchGoal(4),
        framework=ANYTHING.model_copy(update=capabilities),
        framework_name="anything",
        precision=precision,
        limits={name: parse_degree_limit(text, name) for name, text in (limits or {}).items()},
        allow_tp_across_nodes=allow_tp_across_nodes,
        least_zero=least_zero,
        schedule=schedule,
        conditions=tuple(user_condition(verb, text) for verb, text in conditions),
        filled_pipelines=filled_pipelines,
    )


def one_shape(**degrees: int) -> dict[str, IntArray]:
    """Columns of one row: a single GPU but for the degrees given."""
    return {name: np.array([degrees.get(name, one)]) for name, one in ONE_GPU.items()}
