"""Advice on memory as data: what `memory`, `check` and `fit` write as JSON."""

from __future__ import annotations

from typing import Any

from planner.job.written import picked
from planner.predict.memory.advice import Advice, Move


def advice_record(advice: Advice) -> dict[str, Any]:
    """Advice as data; bytes and seconds."""
    largest = advice.largest
    return {
        "largest_term": picked(largest, "name label bytes=size_bytes total_bytes")
        | {"shrunk_by": largest.move and _move(largest.move)},
        "base": picked(advice.base, "total_bytes=peak_bytes fit_probability step_time_s step_time"),
        **{
            name: [_move(move) for move in getattr(advice, name)]
            for name in ("sufficient", "partial", "pairs")
        },
        "closest": advice.closest and _move(advice.closest),
        "tried": advice.tried,
    }


def _move(move: Move) -> dict[str, Any]:
    return picked(
        move,
        "options=flags learns more_gpus follows degrees=proposal.degrees"
        " recompute=proposal.recompute recomputed=proposal.recomputed"
        " optimizer=proposal.request.optimizer dtype=proposal.request.dtype"
        " attention=proposal.request.attention gpus=proposal.request.gpus"
        " total_bytes=plan.peak_bytes"
        " interval=plan.peak_interval fit_probability=plan.fit_probability saved_bytes"
        " step_time_s=plan.step_time_s step_time=plan.step_time extra_s",
    )
