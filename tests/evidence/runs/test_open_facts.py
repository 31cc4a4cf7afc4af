"""Which facts a row leaves open, and when each of them matters."""

from __future__ import annotations

import pytest

from planner.evidence.runs.open_facts import facts, open_facts
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.frameworks.profile import load_framework
from tests.evidence.runs.rows_for_tests import KORTHIKANTI_175B, predicted, row

# A row of one GPU in which everything that matters is stated.
ALONE = {
    "layers": "12", "hidden": "1024", "ffn": "4096", "heads": "16", "kv_heads": "16",
    "num_gpus": "1", "tp": "1", "pp": "1", "vpp": "1", "framework": "nanoGPT", "mbs": "4",
    "gbs": "8", "flash": "y", "recompute": "none", "compile": "y", "loss": "plain",
    "dropout": "none", "precision": "bf16", "state_precision": "fp32", "zero": "none",
    "seq_parallel": "",
}  # fmt: skip


def opened(**cells: str) -> tuple[str, ...] | None:
    """Open facts of the row on one GPU with some cells changed."""
    return open_facts(predict_rows([row(**ALONE | cells)])[0])


def test_a_row_that_states_everything_leaves_nothing_open() -> None:
    assert opened() == ()
    assert opened(fabric="", gpus_per_node="", overlap="", ep_dispatch="", cp_comm="") == ()


@pytest.mark.parametrize(
    "column",
    ["vocab", "act", "precision", "flash", "recompute", "compile", "loss", "dropout", "mbs", "gbs",
     "state_precision", "ffn", "kv_heads"],
)  # fmt: skip
def test_an_empty_cell_that_matters_is_open(column: str) -> None:
    assert opened(**{column: ""}) == (column,)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("flash", {"kernel": "flash_attention2"}),
        ("compile", {"variant": "eager"}),
        ("state_precision", {"precision": "bf16 autocast"}),
        ("recompute", {"recompute_share": "0.5"}),
        ("mbs", {"gbs": "1"}),
        ("dropout", {"act": "swiglu"}),
        ("compile", {"framework": "Megatron-LM", "grad_precision": "fp32"}),
    ],
)
def test_a_fact_that_other_words_state_or_that_does_not_matter_is_not(
    column: str, cells: dict[str, str]
) -> None:
    assert column not in (opened(**{column: ""} | cells) or ())


def test_the_network_matters_beyond_a_node_alone() -> None:
    many = {"num_gpus": "16", "zero": "none", "gbs": "64", "tp": "1"}
    assert opened(**many) == ("fabric",)
    assert opened(**many | {"num_gpus": "8"}) == ()


def test_memory_of_an_unknown_kind_is_open_where_memory_was_measured() -> None:
    (measured,) = predict_rows([row(**ALONE | {"peak_mem_gib": "20"})])
    assert open_facts(measured) == open_facts(measured, "memory") == ("mem_kind",)
    assert open_facts(measured, "time") == ()


def test_graphs_matter_where_the_gpu_waits_for_the_cpu() -> None:
    small = {"framework": "Megatron-Core", "gpu": "H100-80GB", "cuda_graphs": "", "mbs": "1"}
    assert "cuda_graphs" in (opened(**small) or ())
    large = KORTHIKANTI_175B | {"framework": "Megatron-Core", "gpu": "H100-80GB"}
    assert "cuda_graphs" not in (open_facts(predict_rows([row(**large)])[0]) or ())


def test_a_plan_leaves_nothing_open_and_a_refused_row_says_nothing() -> None:
    planned = predicted(1.0, vocab="")
    assert open_facts(planned) != ()
    cells = planned.row.cells | {PLAN_COLUMN: "plan.json"}
    named = type(planned.row)(planned.row.file, planned.row.line, cells)
    assert open_facts(type(planned)(named, planned.mapped, step=planned.step)) == ()
    assert opened(tuning="peft:adalora") is None


def test_the_table_names_profiles_that_exist() -> None:
    named = {name for fact in facts() for name in fact.profiles}
    assert named and {load_framework(name).name for name in named} == named
