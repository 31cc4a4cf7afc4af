"""`--samples` and `--epochs`: the length of a training in samples of a data set."""

from __future__ import annotations

from typing import Any

import click

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.search.infeasibility import WhyNothingFits


def check_epochs(options: dict[str, Any]) -> None:
    """Raise UsageError if --epochs is given without --samples."""
    if options["epochs"] is not None and options["samples"] is None:
        raise UsageError(
            f"--epochs {options['epochs']:g}: of how many samples? Give --samples too, as 52k"
        )


def given_tokens(options: dict[str, Any], request: Request) -> tuple[Request, int]:
    """The request, and the number of tokens to train on. A request without a batch gets the usual
    one if --samples is given. UsageError unless exactly one of --tokens and --samples is given."""
    check_epochs(options)
    tokens, samples = options["tokens"], options["samples"]
    if (tokens is None) == (samples is None):
        raise UsageError(
            "say how much to train on: either --tokens 15T, or --samples 52k --epochs 3"
        )
    if tokens is not None:
        return request, int(tokens)
    from planner.compare.epochs import tokens_of, with_usual_batch

    request, notes = with_usual_batch(request)
    if not options["quiet"]:
        click.echo("".join(f"{note}\n" for note in notes), err=True, nl=False)
    return request, tokens_of(request, samples, options["epochs"] or 1.0)


def training_of(options: dict[str, Any], request: Request, job: Job, plan: Plan | None) -> str:
    """A text on hours and cost of the training with a plan; empty without --samples or without a
    plan."""
    if options["samples"] is None or plan is None:
        return ""
    from planner.compare.epochs import training_text

    return training_text(job, plan, request, options["samples"], options["epochs"] or 1.0)


def trainings_of(
    options: dict[str, Any], request: Request, why: WhyNothingFits | None, *others: tuple[str, Plan]
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A title on how much is trained, then pairs of a change and the hours and cost of training
    with it. The changes are those that make the job fit, and the plans in `others`. Both are empty
    without --samples."""
    plans = [(one.change, one.plan) for one in why.relaxations] if why else []
    if options["samples"] is None or not (plans or others):
        return "", ()
    from planner.compare.epochs import training_title, trainings

    how_much = options["samples"], options["epochs"] or 1.0
    found = trainings(request, (*others, *plans), *how_much)
    return f"{training_title(request, *how_much)} would take", found
