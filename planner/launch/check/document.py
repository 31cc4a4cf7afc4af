"""`planner check` as JSON and CSV: SI units, every setting with its place."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from planner.launch.check.assess import Assessment
from planner.launch.check.changes import Change
from planner.launch.check.measured import Findings
from planner.launch.read.found import Problem, Setting
from planner.predict.memory.advice import Setup
from planner.predict.plan import Plan

Record = dict[str, Any]


def as_json(assessment: Assessment, changes: Sequence[Change], findings: Findings | None) -> str:
    """Everything that was found and predicted."""
    found, setup = assessment.found, assessment.setup
    document = {
        "files": list(found.files),
        "format": found.format,
        "framework": found.framework,
        "runs": not assessment.errors,
        "fits": None if assessment.plan is None else assessment.plan.fits,
        "verdict": assessment.verdict,
        "passes": assessment.verdict == "runs and fits",
        "problems": [_problem(own) for own in assessment.problems],
        "configuration": None if setup is None else _configuration(setup),
        "variations": list(found.variations),
        "assumed": list(found.assumed),
        "plan": None if assessment.plan is None else assessment.plan.model_dump(mode="json"),
        "changes": [_change(own) for own in changes],
        "measured": None if findings is None else asdict(findings),
        "settings": [_setting(own) for own in found.settings],
        "unknown": [_setting(own) for own in found.unknown],
        "unmodelled": [_setting(own) | {"effect": why} for own, why in found.unmodelled],
        "without_effect": [_setting(own) for own in found.unused],
    }
    return json.dumps(document, indent=1, allow_nan=False, default=str) + "\n"


def as_csv(assessment: Assessment, changes: Sequence[Change]) -> str:
    """A row for the launch as it is, then one a change."""
    rules = ";".join(own.rule for own in assessment.errors)
    rows = [{"change": "as it is", "broken_rules": rules} | _plan_record(assessment.plan)]
    rows[0] |= _degrees(assessment.setup)
    for own in changes:
        record = {"change": own.change, "broken_rules": ""} | _plan_record(own.plan)
        rows.append(record | _degrees(own.candidate.setup))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_PLAN_COLUMNS = (
    "step_time_s", "tokens_per_s", "mfu", "peak_bytes", "limit_bytes", "fits", "fit_probability",
)  # fmt: skip


def _plan_record(plan: Plan | None) -> Record:
    if plan is None:
        names = (*_PLAN_COLUMNS, *_INTERVALS)
        return dict.fromkeys(names, "")
    ends: Mapping[str, float] = {
        "step_time_low_s": plan.step_time.low,
        "step_time_high_s": plan.step_time.high,
        "peak_low_bytes": plan.peak_interval.low,
        "peak_high_bytes": plan.peak_interval.high,
    }
    return {name: getattr(plan, name) for name in _PLAN_COLUMNS} | dict(ends)


_INTERVALS = ("step_time_low_s", "step_time_high_s", "peak_low_bytes", "peak_high_bytes")


def _degrees(setup: Setup | None) -> Record:
    if setup is None:
        return {}
    return setup.degrees.model_dump() | {"recompute": setup.recompute, "gbs": setup.request.gbs}


def _configuration(setup: Setup) -> Record:
    return {
        "request": setup.request.model_dump(mode="json"),
        "degrees": setup.degrees.model_dump(),
        "recompute": setup.recompute,
        "block_layers": setup.block_layers,
        "mtp_apart": setup.mtp_apart,
        "recomputed": setup.recomputed,
    }


def _problem(own: Problem) -> Record:
    return {
        "rule": own.rule,
        "severity": own.severity,
        "text": own.text,
        "places": list(own.places),
        "fix": own.fix,
        "found_at_run_time_only": own.late,
    }


def _setting(own: Setting) -> Record:
    return {"key": own.key, "value": own.value, "file": own.file, "line": own.line}


def _change(own: Change) -> Record:
    return {
        "change": own.change,
        "configuration": _configuration(own.candidate.setup),
        "faster": own.faster,
        "saved_bytes": own.saved_bytes,
        "sufficient": own.sufficient,
        "plan": own.plan.model_dump(mode="json"),
    }
