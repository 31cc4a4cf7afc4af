"""`--measured-…`: what was measured of a run, in the commands that compare it with a prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from planner.predict.diagnosis.findings import Findings
from planner.predict.diagnosis.measured import Measured


def measured_of(options: Mapping[str, Any]) -> Measured | None:
    """What the options say was measured; None without any."""
    measured = Measured(
        step_time_s=options["measured_step_time"],
        mfu=options["measured_mfu"],
        memory_gib=options["measured_memory"],
        tokens_per_s=options["measured_tokens_per_s"],
    )
    return measured if measured.is_given else None


def with_measured(document: Mapping[str, Any], findings: Findings) -> str:
    """A JSON document with what was found of a measured run, under `measured`."""
    found = json.loads(json.dumps(asdict(findings), default=dict))
    return json.dumps({**document, "measured": found}, indent=1, allow_nan=False)
