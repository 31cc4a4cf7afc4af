"""What the recipes of Megatron-Core's own tests set beyond what their rows state.

NVIDIA/Megatron-LM, tests/functional_tests/test_cases (model_config.yaml, golden values): models of
12 layers of width 512, whose steps are the CPU's time to issue kernels. Nothing here depends on a
model's size or on a measured figure.
"""

from __future__ import annotations

import re

from planner.evidence.runs.rows import MeasuredRow

# Deterministic mode filled every tensor that was allocated until Megatron-LM's pull request 7093
# (2026-09; torch.utils.deterministic.fill_uninitialized_memory): a further kernel for each, and
# about 15 % of a step of a large model (pull request 7093, issue 6253). The CPU's time is fitted
# on 18 tests on A100, which take 1.4 times as long (median; 1.04 to 1.6, two of them 2.9) as in the
# long-term container, whose libraries do not fill. Not fitted on: pull request 7217 ran five tests
# on H100 again after 7093, in 36 to 63 % less time. The traffic: elementwise kernels that read and
# write as much have it written once more.
FILLED_MEMORY = {"issue_s": 2.4e-4, "memory_traffic": 2.25}

# The tests on one node of GB200 wait for storage: steps of one run differ by a factor of 8 (0.15 to
# 1.25 s; two nodes take 0.067 s, every step within 1 %), and the first after a checkpoint, during
# which the loaders read ahead, are short. Fitted on the 12 pipelines of one data-parallel rank
# without experts; not fitted on, the other 22 err by 20 %.
SLOW_STORAGE = {"sample_load_s": 0.055}


def layers_of(row: MeasuredRow) -> str:
    """`transformer_engine` or `local` (`--transformer-impl`) for a row of these tests, else "".

    It is local where the name does not say `te` before the degrees.
    """
    if "megatron-core ci" not in (row.text("framework") or "").lower():
        return ""
    local = re.search(r"/(gpt3_(moe_)?|bert_)mcore_(?!te_)", row.text("model") or "")
    return "local" if local else "transformer_engine"


def fills_memory(row: MeasuredRow) -> bool:
    """Deterministic mode on Transformer Engine's layers, while it filled memory.

    Tests that no recipe runs any longer kept the times of older containers. Those on GB200 were
    recorded again: one of 2025 took 0.131 s where its row has 0.108 s.
    """
    notes = (row.text("notes") or "").lower()
    return (
        layers_of(row) == "transformer_engine"
        and "deterministic-mode=true" in notes
        and "no recipe entry at head" not in notes
        and "(dev)" in (row.text("framework") or "")
        and row.text("gpu") != "GB200"
    )


def reads_slowly(row: MeasuredRow) -> bool:
    """Tests on one node of GB200 (tests/test_utils/recipes/gb200/*-1node.yaml)."""
    return layers_of(row) != "" and (row.text("model") or "").endswith("_1node")
