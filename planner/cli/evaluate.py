"""`planner evaluate`: the cost of one configuration. Also reads `--measured-…` for other
commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from constraints.axes import AXES
from planner.cli.errors import ExitStatus
from planner.cli.options import build_request, output_format
from planner.cli.output import check_files, show_result, write_result, write_result_plot
from planner.cli.rl_options import asks_for_rl
from planner.cli.usual_framework import take_usual_framework
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.request import Request
from planner.launch.plans import one_plan
from planner.predict.diagnosis.findings import Findings, findings_of
from planner.predict.diagnosis.measured import Measured
from planner.predict.evaluate import Proposal, evaluated, usual_zero
from planner.predict.plan import Degrees, Plan
from planner.predict.plan_text import plan_name
from planner.report.explain import explanation_report
from planner.report.verdict import PlanCard
from planner.search.explanation import explain
from planner.search.result import SearchResult

_SEARCH = "planner search with the same options, without the degrees, finds the best plan"


def measured_of(options: Mapping[str, Any]) -> Measured | None:
    """The measurements in the options; None if there are none."""
    measured = Measured(
        step_time_s=options["measured_step_time"],
        mfu=options["measured_mfu"],
        memory_gib=options["measured_memory"],
        tokens_per_s=options["measured_tokens_per_s"],
    )
    return measured if measured.is_given else None


def with_measured(document: Mapping[str, Any], findings: Findings) -> str:
    """A JSON document with the findings about a measured run added under the key `measured`."""
    found = json.loads(json.dumps(asdict(findings), default=dict))
    return json.dumps({**document, "measured": found}, indent=1, allow_nan=False)


def run(**options: Any) -> None:
    if asks_for_rl(options):
        from planner.cli.rl import run_evaluate

        run_evaluate(options)
        return
    style = output_format(options["as_json"], options["as_csv"])
    output = check_files(options)
    measured = measured_of(options)
    assumed = take_usual_framework(options)
    proposal = given_configuration(options)
    request = proposal.request
    job = request.resolve()
    plan = evaluated(proposal.of(job))
    result = one_plan(plan, request, job).noted(*assumed)
    write_result(result, output)
    write_result_plot(options["plot"], result, output, 1)
    findings = None
    if measured is not None:
        findings = findings_of(proposal, job, plan, measured)
    if findings is not None and style == "json":
        click.echo(with_measured(result.model_dump(mode="json"), findings))
    else:
        card = PlanCard(plan, plan_name(plan), _SEARCH)
        show_result(
            result, style,
            lambda: explanation_report(explain(result, 1, job), findings, assumed, card),
        )  # fmt: skip
    click.get_current_context().exit(0 if plan.fits else ExitStatus.NOTHING_FITS)


def given_configuration(options: dict[str, Any]) -> Proposal:
    """The configuration that the options describe. dp is worked out if it is not given, and so is
    grad_acc or the batch from the other. UsageError if both are missing."""
    if options.get("optimizer_offload") == "search":
        raise UsageError(
            "--optimizer-offload search: only planner search, compare and scale choose the share; "
            "give a number from 0 to 1 to cost one configuration"
        )
    if options.get("activation_offload") == "search":
        raise UsageError(
            "--activation-offload search: only planner search, compare and scale choose the "
            "modules; name them to cost one configuration, as core_attn,attn_proj"
        )
    given = {name: options[name] for name in AXES}
    by_accumulation = not any(options.get(name) for name in ("gbs", "gbs_tokens", "batch_ramp"))
    if by_accumulation and options["grad_acc"] is None:
        raise UsageError("give the global batch: --gbs-tokens 4M, --gbs 512 or --grad-acc 32")
    job = build_request(options | ({"gbs": 1} if by_accumulation else {})).resolve()
    dp = _data_parallel(options, job)
    given["etp"] = given["etp"] or job.framework.usual_etp(
        experts=job.model.moe is not None, tp=given["tp"], ep=given["ep"]
    )
    step = given["mbs"] * dp
    grad_acc = options["grad_acc"] or max(1, round(job.batch.sequences / step))
    batch = {"gbs": step * grad_acc} if by_accumulation else {}
    if given["zero"] is None:
        given["zero"] = usual_zero(job, dp * given["cp"], given["tp"])
    degrees = Degrees(**given | {"dp": dp, "grad_acc": grad_acc})
    names = ("recompute", "layers_per_stage", "recompute_layers", "mtp_standalone")
    layers = (options[name] for name in names)
    return Proposal(build_request(options | batch), degrees, *layers)


def _data_parallel(options: dict[str, Any], job: Job) -> int:
    """dp as given, otherwise the number of replicas that fill the GPUs. UsageError if tp·pp·cp does
    not divide their number."""
    if options["dp"] is not None:
        return int(options["dp"])
    replica = options["tp"] * options["pp"] * options["cp"]
    gpus = job.cluster.num_gpus
    if gpus % replica:
        multiples = (gpus // replica * replica, -(-gpus // replica) * replica)
        nearest = " or ".join(str(multiple) for multiple in multiples if multiple)
        raise UsageError(
            f"tp·pp·cp = {options['tp']}·{options['pp']}·{options['cp']} = {replica} does not "
            f"divide {gpus:,} GPUs; give {nearest} GPUs or other degrees"
        )
    return int(gpus // replica)


def as_result(request: Request, plan: Plan) -> SearchResult:
    """A search result with only this plan, as a plan file stores it."""
    return one_plan(plan, request, request.resolve())
