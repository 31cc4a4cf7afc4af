"""`planner memory` as data: the JSON document."""

from __future__ import annotations

import json
from typing import Any

from planner.job.request import Request
from planner.job.written import picked
from planner.predict.assumptions import framework_assumptions
from planner.predict.memory.account import Footprint, StageAccount, backward_by_layer
from planner.predict.memory.advice import Advice, advice_record
from planner.predict.memory.solve import Border, Solution, SolvedPoint
from planner.predict.memory.terms import peak_parts, peak_row, peak_tensors, phase_rows

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
        **picked(
            configuration,
            "model=job.model.name framework=job.framework.name"
            " framework_version=job.framework.version dtype=job.dtype gpu=job.cluster.gpu.name"
            " seq=job.seq degrees recompute",
        ),
        "layout": picked(configuration.layout, "block_layers recomputed mtp_standalone"),
        **_verdict(footprint),
        "heaviest_stage": footprint.heaviest.stage,
        "dropless_worst_case": worst
        and picked(worst.configuration.job, "expert_imbalance") | _verdict(worst),
        "stages": [_stage(footprint, account) for account in footprint.stages],
        "solution": solution
        and {
            **picked(solution, "unknown step held"),
            "safe": _border(solution.safe),
            "even": _border(solution.even),
        },
        "advice": advice and advice_record(advice),
        "assumptions": list(framework_assumptions(job, footprint.configuration.degrees)),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _verdict(footprint: Footprint) -> dict[str, Any]:
    return picked(footprint, "total_bytes interval limit_bytes usable_bytes fits fit_probability")


def _stage(footprint: Footprint, account: StageAccount) -> dict[str, Any]:
    return {
        **picked(account, "stage layers in_flight allocated_bytes reserved_bytes total_bytes"),
        "peak": picked(peak_row(account), "step phase=phase.name at=phase.at"),
        "peak_parts": [
            picked(part, "name bytes=size_bytes where") for part in peak_parts(footprint, account)
        ],
        "peak_kept_tensors": [
            picked(tensor, "name copies bytes=size_bytes rounding_bytes")
            for tensor in peak_tensors(footprint, account)
        ],
        "outside": dict(account.outside),
        "backward_by_layer": [
            picked(layer, "layer done bytes=total_bytes") for layer in backward_by_layer(account)
        ],
        "phases": [
            picked(
                row,
                "step phase=phase.name at=phase.at in_flight=phase.in_flight"
                " bytes=phase.total_bytes terms=phase.terms",
            )
            for row in phase_rows(account)
        ],
    }


def _border(border: Border) -> dict[str, Any]:
    return {
        "probability": border.probability,
        "largest": border.largest and _point(border.largest),
        "beyond": border.beyond and _point(border.beyond),
    }


def _point(point: SolvedPoint) -> dict[str, Any]:
    return {"value": point.value, **_verdict(point.footprint)}
