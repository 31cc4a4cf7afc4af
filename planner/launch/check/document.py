"""`planner check` as JSON and CSV: SI units, every setting with its place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.job.errors import CannotTellError
from planner.job.request import Request
from planner.job.request_fields import Launched
from planner.job.written import csv_text, picked
from planner.launch.check.assess import Assessment
from planner.launch.check.changes import LaunchChange
from planner.launch.check.network import NetworkCost
from planner.launch.check.opened import opened_sentences
from planner.launch.check.rl import figures
from planner.launch.read.found import Setting
from planner.predict.diagnosis.findings import Findings
from planner.predict.evaluate import Proposal
from planner.predict.memory.advice import Advice, advice_record
from planner.predict.plan import Plan
from planner.predict.plan_text import fit_verdict
from planner.predict.uncertainty.open_mixture import facts_record

Record = dict[str, Any]


def as_json(
    assessment: Assessment,
    changes: Sequence[LaunchChange],
    findings: Findings | None,
    advice: Advice | None = None,
) -> str:
    """Everything that was found and predicted."""
    found, proposal = assessment.found, assessment.proposal
    document = {
        "files": list(found.files),
        "format": found.format,
        "framework": found.framework,
        "runs": not assessment.errors,
        "fits": _fits(assessment),
        "verdict": assessment.verdict,
        "passes": assessment.verdict == "runs and fits",
        "problems": [
            picked(problem, "rule severity text places fix")
            | {"found_at_run_time_only": problem.late}
            for problem in assessment.problems
        ],
        "configuration": None if proposal is None else _configuration(proposal),
        "variations": list(found.variations),
        "assumed": list(found.assumed),
        **_opened(assessment),
        "rl": _rl(assessment),
        "network": None if assessment.network is None else _network(assessment.network),
        "plan": None if assessment.plan is None else assessment.plan.model_dump(mode="json"),
        "fit_verdict": assessment.plan and fit_verdict(assessment.plan.fit_probability),
        "advice": advice and advice_record(advice),
        "changes": [_change(change) for change in changes],
        "measured": None if findings is None else asdict(findings),
        "settings": [_setting(setting) for setting in found.settings],
        "unknown": [_setting(item) for item in found.unknown],
        "unmodelled": [_setting(item) | {"effect": why} for item, why in found.unmodelled],
        "without_effect": [_setting(item) for item in found.unused],
    }
    return json.dumps(document, indent=1, allow_nan=False, default=str) + "\n"


def refusal_json(paths: Sequence[str], error: Exception) -> str:
    """The document for files that cannot be read or options that are wrong: the error in place of a
    prediction."""
    cannot_tell = isinstance(error, CannotTellError)
    document = {
        "files": list(paths),
        "runs": None,
        "fits": None,
        "verdict": "cannot tell" if cannot_tell else "wrong input",
        "passes": False,
        "problems": [],
        "plan": None,
        "error": str(error),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _fits(assessment: Assessment) -> bool | None:
    step = assessment.rl.step if assessment.rl else None
    if step is not None:
        return step.fits
    return None if assessment.plan is None else assessment.plan.fits


def _rl(assessment: Assessment) -> Record | None:
    """Settings and prediction of reinforcement learning; None for other launches."""
    found, check = assessment.found.rl, assessment.rl
    if found is None:
        return None
    return asdict(found) | {"prediction": figures(check) if check else {}}


def _opened(assessment: Assessment) -> Record:
    """The open facts, with the plan for each of their values; and, for step time and memory, a
    sentence on the fact that matters most."""
    plan, opened = assessment.plan, assessment.opened
    said = opened_sentences(plan, opened) if plan else {}
    return {
        "open_facts": list(assessment.found.left_open),
        "open_values": [
            facts_record(fact, plan.step_time_s, plan.peak_bytes) for fact in opened if plan
        ],
        "narrowing_time": said.get("time"),
        "narrowing_memory": said.get("memory"),
    }


def as_csv(assessment: Assessment, changes: Sequence[LaunchChange]) -> str:
    """One row for the launch as it is, then one row per change."""
    rules = ";".join(error.rule for error in assessment.errors)
    rows = [{"change": "as it is", "broken_rules": rules} | _plan_record(assessment.plan)]
    rows[0] |= _degrees(assessment.proposal)
    for change in changes:
        record = {"change": change.change, "broken_rules": ""} | _plan_record(change.plan)
        rows.append(record | _degrees(change.proposal))
    return csv_text(rows[0], rows)


_PLAN_COLUMNS = (
    "step_time_s", "tokens_per_s", "mfu", "peak_bytes", "limit_bytes", "fits", "fit_probability",
)  # fmt: skip
_INTERVALS = ("step_time_low_s", "step_time_high_s", "peak_low_bytes", "peak_high_bytes")


def _plan_record(plan: Plan | None) -> Record:
    if plan is None:
        return dict.fromkeys((*_PLAN_COLUMNS, *_INTERVALS), "")
    step, peak = plan.step_time, plan.peak_interval
    bounds = (step.low, step.high, peak.low, peak.high)
    columns = {name: getattr(plan, name) for name in _PLAN_COLUMNS}
    return columns | dict(zip(_INTERVALS, bounds, strict=True))


def _degrees(proposal: Proposal | None) -> Record:
    if proposal is None:
        return {}
    return proposal.degrees.model_dump() | {
        "recompute": proposal.recompute,
        "gbs": proposal.request.gbs,
    }


def _configuration(proposal: Proposal) -> Record:
    return {
        "request": proposal.request.model_dump(mode="json") | _overridden(proposal.request),
        "degrees": proposal.degrees.model_dump(),
        **picked(proposal, "recompute block_layers mtp_standalone recomputed"),
    }


def _overridden(request: Request) -> Record:
    """Facts from the files that change the request although they are no fields of it."""
    shape, launched = request.overrides.model, request.overrides.launched or Launched()
    return {
        "shape": shape and shape.model_dump(mode="json"),
        "variations": list(launched.variations),
        "transport": launched.transport.model_dump(mode="json"),
        "started": launched.started and asdict(launched.started),
    }


def _network(cost: NetworkCost) -> Record:
    return {
        **picked(cost, "variables step_time_s without_s ratio"),
        "changes": [change.words for change in cost.changes],
    }


def _setting(setting: Setting) -> Record:
    return picked(setting, "key value file line")


def _change(change: LaunchChange) -> Record:
    return {
        "change": change.change,
        "configuration": _configuration(change.proposal),
        **picked(change, "faster saved_bytes sufficient"),
        # Tokens/s over those of the launch, minus one, corrected for having picked the best of many
        # changes.
        "expected_faster": change.expected
        and {name: end - 1.0 for name, end in change.expected.model_dump().items()},
        "plan": change.plan.model_dump(mode="json"),
    }
