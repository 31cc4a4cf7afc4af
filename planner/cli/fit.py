"""`planner fit`: whether a job fits its GPUs, how, and the largest job that does."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from planner.cli.epochs import check_epochs, training_of, trainings_of
from planner.cli.errors import ExitStatus
from planner.cli.options import build_request, with_limits
from planner.cli.output import compile_if_first_run, limited, print_report, watched
from planner.cli.usual_framework import take_usual_framework
from planner.job.request import Request
from planner.launch.plans import LAUNCH_NOTES
from planner.predict.command_line import search_command
from planner.predict.evaluate import Proposal
from planner.predict.memory.advice import Advice, Over, Watch, advice_record, advise
from planner.report.fit import fit_report
from planner.search.fit import SEQUENCES_PER_GPU, FitAnswer, does_it_fit


def run(**options: Any) -> None:
    check_epochs(options)
    request, assumed = fit_request(options)
    compile_if_first_run(options["quiet"])

    with limited(options["time_limit"]) as until, watched(options["quiet"]) as progress:
        answer = does_it_fit(request, until=until, progress=progress, launch=LAUNCH_NOTES)
        advice = _advice(answer, progress, until.over)
    training = training_of(options, request, request.resolve(), answer.best)
    other = answer.other
    beside = () if other is None else ((f"--train {other.request.train}", other.plan),)
    trainings = trainings_of(options, request, answer.why, *beside)
    if options["as_json"]:
        record: dict[str, Any] = {
            "verdict": answer.verdict, "advice": advice and advice_record(advice),
            **({"training": training} if training else {}),
            **({"trainings": dict(trainings[1])} if trainings[1] else {}),
        }  # fmt: skip
        click.echo(json.dumps(answer.model_dump(mode="json") | record, indent=1))
    else:
        report = fit_report(answer, assumed, search_command(request), advice, training, trainings)
        print_report(report, sys.stdout)
    click.get_current_context().exit(_status(answer))


def _status(answer: FitAnswer) -> ExitStatus:
    if answer.fits:
        return ExitStatus.DONE
    unknown = answer.verdict == "cannot tell"
    return ExitStatus.CANNOT_TELL if unknown else ExitStatus.NOTHING_FITS


def _advice(answer: FitAnswer, watch: Watch, over: Over) -> Advice | None:
    """Memory of the lightest configuration, and changes that would make it fit. None if a plan
    fits, or if there is no lightest configuration."""
    lightest = answer.why and answer.why.lightest
    if not lightest:
        return None
    return advise(Proposal.of_plan(answer.request, lightest), watch=watch, over=over)


def fit_request(options: dict[str, Any]) -> tuple[Request, tuple[str, ...]]:
    """The request, and notes on the framework and the batch if they were not given and defaults are
    used."""
    assumed = take_usual_framework(options)
    if options["gbs"] is None and options["gbs_tokens"] is None:
        gpus = build_request({**options, "gbs": 1}, recompute=None).resolve().cluster.num_gpus
        options["gbs"] = SEQUENCES_PER_GPU * gpus
        assumed += (
            f"Batch: {options['gbs']:,} sequences, {SEQUENCES_PER_GPU} a GPU, as none was given "
            "(--gbs, --gbs-tokens).",
        )
    request = build_request(options, recompute=options.get("recompute"))
    return with_limits(request, options, request.resolve()), assumed
