"""Seconds of single layers against a published breakdown."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost import fields as f
from planner.cost.tables import Array
from planner.evidence.runs.mapping import map_row
from planner.predict.cost_model import CostModel
from tests.evidence.runs.rows_for_tests import row

# 22B of Korthikanti et al. 2022 on one node: tp 8, micro-batches of four sequences.
GPT_22B = {
    "model": "GPT-22B", "layers": "48", "hidden": "6144", "ffn": "24576", "heads": "64",
    "kv_heads": "64", "num_gpus": "8", "pp": "1", "vpp": "1", "mbs": "4", "gbs": "4",
}  # fmt: skip


def layer(**cells: str) -> Array:
    """PIECE_* costs of a layer."""
    mapped = map_row(row(**(GPT_22B | cells)))
    names = ("tp", "cp", "ep", "etp", "dp", "pp", "vpp", "zero", "mbs", "grad_acc")
    columns = {name: np.array([getattr(mapped.degrees, name)]) for name in names}
    columns["recompute"] = np.zeros(1, dtype=np.int64)
    return CostModel(mapped.job).cost_shapes(columns).piece_costs(0)[0]


@pytest.mark.parametrize(
    ("cells", "forward_ms", "backward_ms"),
    [
        ({"recompute": "none"}, 7.7, 11.9),
        ({"recompute": "none", "seq_parallel": "y"}, 7.2, 11.8),
        ({"recompute": "full"}, 7.7, 19.5),
        ({"recompute": "selective"}, 7.7, 13.2),
        ({"recompute": "selective", "seq_parallel": "y"}, 7.2, 13.1),
    ],
)
def test_a_layer_takes_as_long_as_was_measured(
    cells: dict[str, str], forward_ms: float, backward_ms: float
) -> None:
    """Korthikanti et al. 2022 (arXiv 2205.05198), Table 4, on A100 to a tenth of a millisecond."""
    cost = layer(**cells)
    forward = cost[f.PIECE_FORWARD] + cost[f.PIECE_FORWARD_TP]
    backward = cost[f.PIECE_BACKWARD] + cost[f.PIECE_BACKWARD_TP]
    backward += cost[f.PIECE_RECOMPUTE] + cost[f.PIECE_RECOMPUTE_TP]
    assert 1e3 * forward == pytest.approx(forward_ms, rel=0.033)
    assert 1e3 * backward == pytest.approx(backward_ms, rel=0.03)
