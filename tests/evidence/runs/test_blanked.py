"""No prediction depends on who measured a run: the facts of its columns alone decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows

# Where a row is from.
ORIGIN = ("source", "source_ref", "model", "notes")


def _blanked(row: MeasuredRow) -> MeasuredRow:
    return replace(row, cells={**row.cells, **dict.fromkeys(ORIGIN, "")})


def _figures(prediction: Prediction) -> Sequence[object]:
    kind, scope = (prediction.row.text(name) for name in ("mem_kind", "mem_scope"))
    return (
        prediction.error,
        prediction.step_time_s,
        prediction.memory_bytes(kind, scope),
        prediction.memory_bytes(),
        prediction.mapped and prediction.mapped.assumed,
        prediction.completed,
    )


def test_predictions_are_equal_without_the_columns_of_origin() -> None:
    rows = list(read_rows(PUBLISHED))[::5]
    pairs = zip(predict_rows(rows), predict_rows(map(_blanked, rows)), strict=True)
    changed = [pair.row.line for pair, blank in pairs if _figures(pair) != _figures(blank)]
    assert changed == []


@pytest.mark.parametrize("column", ORIGIN)
def test_nothing_of_a_row_is_read_from_a_column_of_origin(column: str) -> None:
    """Words that chose something as long as sources were read."""
    words = (
        "torchao", "BERT-large", "Mamba LoRA", "jean-zay a100", "use memory only", "ETP==TP",
        "arXiv 2104.04473", "arXiv 2407.21783", "cumulative flags table: baseline; eager",
        "deterministic-mode=True; no tp comm overlap", "hf-ultrascale omni-path 400Gbps/node",
    )  # fmt: skip
    cells = {"layers": "12", "hidden": "2048", "heads": "16", "seq": "2048", "gpu": "H100-80GB"}
    cells |= {"num_gpus": "8", "tp": "1", "pp": "2", "mbs": "1", "gbs": "64"}
    for framework in ("torchtitan", "Megatron-Core", "torchtune", "Megatron-LM"):
        plain = MeasuredRow("made_up.csv", 2, cells | {"framework": framework})
        said = [replace(plain, cells=plain.cells | {column: text}) for text in words]
        (first, *others) = predict_rows([plain, *said])
        assert all(_figures(other) == _figures(first) for other in others)
