"""Megatron-Core's own tests: step times that what their recipes set explains.

Facts of NVIDIA/Megatron-LM, tests/functional_tests/test_cases, golden values at d98e8a64dd: the
median step of GPT with 12 layers of width 512. Those on A100 were seen by the fit.
"""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import MeasuredRow
from tests.evidence.runs.rows_for_tests import row

DETERMINISTIC = {"deterministic": "y", "dropout": "attention 0.1 hidden 0.1", "tied": "y"}
FILLED = DETERMINISTIC | {"deterministic": "y, fills memory"}
TEST = {
    "source": "megatron-ci-golden", "model": "gpt/gpt3_mcore_te_tp2_pp2", "layers": "12",
    "hidden": "512", "ffn": "2048", "heads": "8", "kv_heads": "8", "vocab": "50257",
    "seq": "1024", "num_gpus": "8", "gpus_per_node": "8", "gpu": "A100-80GB", "tp": "2", "pp": "2",
    "vpp": "1", "zero": "none", "seq_parallel": "n", "mbs": "4", "gbs": "32", "precision": "bf16",
    "recompute": "none", "flash": "y", "framework": "Megatron-Core CI (dev)",
    "transformer_impl": "transformer_engine", "step_time_s": "1",
}  # fmt: skip


def test_row(**changes: str) -> MeasuredRow:
    return row(**(TEST | changes))


test_row.__test__ = False  # type: ignore[attr-defined]


H100 = {"gpu": "H100-80GB"}
GB200 = {"gpu": "GB200", "gpus_per_node": "72"}
CP2 = {"cp": "2", "dropout": "attention 0.0 hidden 0.0", "tied": "y"}
TIMES = [
    # Seen by the fit.
    ({"step_time_s": "0.174"}, 0.1),
    (DETERMINISTIC | {"step_time_s": "0.193"}, 0.2),
    (FILLED | {"step_time_s": "0.253"}, 0.2),
    # Not seen: other hosts, deterministic mode on one of them, context parallelism.
    (H100 | {"step_time_s": "0.118"}, 0.1),
    (H100 | FILLED | {"step_time_s": "0.194"}, 0.2),
    (H100 | CP2 | {"step_time_s": "0.294"}, 0.1),
    (GB200 | {"step_time_s": "0.150"}, 0.15),
    (GB200 | CP2 | {"step_time_s": "0.410"}, 0.1),
    # Storage: one data-parallel rank of a node of four.
    (GB200 | {"num_gpus": "4", "host": "slow one-node runner", "step_time_s": "1.746"},
     0.1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "filled"),
    [(FILLED, True), (DETERMINISTIC, False), (FILLED | {"transformer_impl": "local"}, False)],
)
def test_memory_is_filled_for_layers_of_transformer_engine(
    cells: dict[str, str], filled: bool
) -> None:
    kernels = map_row(test_row(**cells)).job.framework.kernels
    assert (kernels.memory_traffic > 2.0) is filled


@pytest.mark.parametrize(("changes", "within"), TIMES)
def test_step_times(changes: dict[str, str], within: float) -> None:
    (prediction,) = predict_rows([test_row(**changes)])
    assert prediction.error is None
    error = error_of(prediction, "time")
    assert error is not None
    assert abs(error) < within
