"""What the CPU issues for the rows of a layer."""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework
from planner.job.specs import LayerKind
from planner.predict.ops.attention import attention_rows
from planner.predict.ops.context import OpContext
from tests.predict.ops.test_korthikanti import SEQ, gpt3


@pytest.mark.parametrize(("framework", "calls"), [("megatron-core", 1.0), ("torchtitan", 2.0)])
def test_one_call_makes_both_gradients_of_a_norm_of_queries(framework: str, calls: float) -> None:
    model = gpt3().model_copy(update={"qk_norm": "head"})
    context = OpContext(model=model, profile=load_framework(framework), seq=SEQ)
    rows = {row.name: row for row in attention_rows(context, LayerKind())}
    for name in ("attention/q_norm", "attention/k_norm"):
        assert (rows[name].forward_kernels, rows[name].backward_kernels) == (1.0, calls)
