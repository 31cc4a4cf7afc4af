"""What a row leaves unsaid, and what was taken instead: the `assumed` column."""

from __future__ import annotations

from collections.abc import Iterator

from planner.evidence.runs.mapping import MappedRow
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.rows import MeasuredRow


def assumed(prediction: Prediction) -> tuple[str, ...]:
    """Defaults that a row took, in words, as `vocab 50,304`; empty for a refused row."""
    mapped = prediction.mapped
    if mapped is None:
        return ()
    texts = (*mapped.assumed, *prediction.completed, *_unstated(prediction.row, mapped))
    return tuple(dict.fromkeys(texts))


def _unstated(row: MeasuredRow, mapped: MappedRow) -> Iterator[str]:
    for column, text in (*_model(mapped), *_run(mapped)):
        if row.text(column) is None:
            yield text
    if row.text("flash") is None and row.text("kernel") is None:
        yield f"attention {mapped.job.attention_kernel}"


def _model(mapped: MappedRow) -> tuple[tuple[str, str], ...]:
    model = mapped.job.model
    return (
        ("seq", f"seq {mapped.job.seq}"),
        ("ffn", f"ffn {model.ffn:,}"),
        ("vocab", f"vocab {model.vocab:,}"),
        ("kv_heads", f"kv_heads {model.kv_heads}"),
        ("act", f"act {model.activation}"),
    )


def _run(mapped: MappedRow) -> tuple[tuple[str, str], ...]:
    degrees, job = mapped.degrees, mapped.job
    return (
        ("gpus_per_node", f"gpus_per_node {job.cluster.gpus_per_node}"),
        ("tp", f"tp {degrees.tp}"),
        ("pp", f"pp {degrees.pp}"),
        ("zero", f"zero stage {degrees.zero}"),
        ("mbs", f"mbs {degrees.mbs}"),
        ("gbs", f"gbs {degrees.gbs}"),
        ("precision", f"precision {job.precision}"),
        ("recompute", f"recompute {mapped.mode.name}"),
    )
