"""`planner memory` as data: the JSON document."""

from __future__ import annotations

import json
from typing import Any

from planner.job.request import Request
from planner.job.written import picked
from planner.predict.assumptions import framework_assumptions
from planner.predict.memory.account import StageAccount
from planner.predict.memory.advice import Advice, Move
from planner.predict.memory.footprint import Footprint
from planner.predict.memory.solve import Border, Point, Solution
from planner.predict.memory.terms import PhaseRow, peak_parts, peak_row, peak_tensors, phase_rows

DOCUMENT_VERSION = 1


def memory_json(
    request: Request,
    footprint: Footprint,
    worst: Footprint | None,
    solution: Solution | None,
    advice: Advice | None,
) -> str:
    """Everything that the report shows and what it leaves out; bytes and seconds."""
    configuration = footprint.configuration
    job = configuration.job
    document = {
        "version": DOCUMENT_VERSION,
        "request": request.model_dump(mode="json"),
        "model": job.model.name,
        "framework": job.framework.name,
        "framework_version": job.framework.version,
        "dtype": job.dtype,
        "gpu": job.cluster.gpu.name,
        "seq": job.seq,
        "degrees": configuration.degrees.model_dump(),
        "recompute": configuration.recompute,
        "layout": {
            "block_layers": list(configuration.layout.block_layers),
            "recomputed": configuration.layout.recomputed,
            "mtp_standalone": configuration.layout.mtp_standalone,
        },
        **_verdict(footprint),
        "heaviest_stage": footprint.heaviest.stage,
        "dropless_worst_case": worst
        and {"expert_imbalance": worst.configuration.job.expert_imbalance, **_verdict(worst)},
        "stages": [_stage(footprint, account) for account in footprint.stages],
        "solution": solution and _solution(solution),
        "advice": advice and _advice(advice),
        "assumptions": list(framework_assumptions(job, footprint.configuration.degrees)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _verdict(footprint: Footprint) -> dict[str, Any]:
    return {
        "total_bytes": footprint.total_bytes,
        "interval": footprint.interval.model_dump(),
        **picked(footprint, "limit_bytes usable_bytes fits fit_probability"),
    }


def _stage(footprint: Footprint, account: StageAccount) -> dict[str, Any]:
    peak = peak_row(account)
    return {
        **picked(account, "stage layers in_flight allocated_bytes reserved_bytes total_bytes"),
        "peak": {"step": peak.step, "phase": peak.phase.name, "at": peak.phase.at},
        "peak_parts": [
            {"name": part.name, "bytes": part.size_bytes, "where": part.where}
            for part in peak_parts(footprint, account)
        ],
        "peak_kept_tensors": [
            {"name": tensor.name, "copies": tensor.copies, "bytes": tensor.size_bytes}
            for tensor in peak_tensors(footprint, account)
        ],
        "outside": dict(account.outside),
        "phases": [_phase(row) for row in phase_rows(account)],
    }


def _phase(row: PhaseRow) -> dict[str, Any]:
    return {
        "step": row.step,
        "phase": row.phase.name,
        "at": row.phase.at,
        "in_flight": row.phase.in_flight,
        "bytes": row.phase.total_bytes,
        "terms": dict(row.phase.terms),
    }


def _solution(solution: Solution) -> dict[str, Any]:
    return {
        **picked(solution, "unknown step held"),
        "safe": _border(solution.safe),
        "even": _border(solution.even),
    }


def _border(border: Border) -> dict[str, Any]:
    return {
        "probability": border.probability,
        "largest": border.largest and _point(border.largest),
        "beyond": border.beyond and _point(border.beyond),
    }


def _point(point: Point) -> dict[str, Any]:
    return {"value": point.value, **_verdict(point.footprint)}


def _advice(advice: Advice) -> dict[str, Any]:
    base = advice.base
    return {
        "base": {
            "total_bytes": base.peak_bytes,
            **picked(base, "fit_probability step_time_s"),
            "step_time": base.step_time.model_dump(),
        },
        **{
            name: [_move(move) for move in getattr(advice, name)]
            for name in ("sufficient", "partial", "pairs")
        },
        "closest": advice.closest and _move(advice.closest),
        "tried": advice.tried,
    }


def _move(move: Move) -> dict[str, Any]:
    plan, setup = move.plan, move.setup
    return {
        "options": move.flags,
        "follows": move.follows,
        "degrees": setup.degrees.model_dump(),
        **picked(setup, "recompute recomputed"),
        **picked(setup.request, "optimizer dtype attention gpus"),
        "total_bytes": plan.peak_bytes,
        "interval": plan.peak_interval.model_dump(),
        "fit_probability": plan.fit_probability,
        "saved_bytes": move.saved_bytes,
        "step_time_s": plan.step_time_s,
        "step_time": plan.step_time.model_dump(),
        "extra_s": move.extra_s,
    }
