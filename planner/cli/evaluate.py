"""`planner evaluate`: what one given configuration costs."""

from __future__ import annotations

import re
from typing import Any

import click

from planner.cli.errors import FAILURE
from planner.cli.options import build_request, job_options, output_format, output_options
from planner.cli.output import check_output, print_csv, print_json, print_report, write_result
from planner.cli.progress import notice_if_first_run
from planner.errors import UsageError
from planner.job import Job
from planner.plan import Degrees, Plan
from planner.request import Request
from planner.result import Counts, SearchResult

_DEGREE = click.IntRange(min=1)
_LENGTHS = re.compile(r"^(\d+)(?:[x×*](\d+))?$")


def _layers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Callback: numbers of layers in pipeline order, as 19,20,20,21 or 4,5x14,4."""
    if value is None:
        return None
    numbers: list[int] = []
    for item in value.split(","):
        match = _LENGTHS.match(item.strip())
        if match is None:
            hint = f"{item!r}: write numbers of layers, as 19,20,20,21 or 4,5x14,4"
            raise click.BadParameter(hint, ctx, param)
        numbers += [int(match[1])] * int(match[2] or 1)
    return tuple(numbers)


@click.command(
    "evaluate",
    epilog=(
        "Example: planner evaluate --model 70b --gpus 64xH100 --gbs-tokens 4M --tp 4 --pp 4 "
        "--vpp 5 --cp 2 --mbs 1"
    ),
)
@job_options
@click.option("--tp", type=_DEGREE, default=1, show_default=True, help="Tensor parallelism.")
@click.option("--pp", type=_DEGREE, default=1, show_default=True, help="Pipeline stages.")
@click.option("--vpp", type=_DEGREE, default=1, show_default=True, help="Chunks per stage.")
@click.option("--cp", type=_DEGREE, default=1, show_default=True, help="Context parallelism.")
@click.option("--ep", type=_DEGREE, default=1, show_default=True, help="Expert parallelism.")
@click.option("--etp", type=_DEGREE, default=1, show_default=True, help="TP inside experts.")
@click.option("--dp", type=_DEGREE, help="Data parallelism. [default: from the GPUs]")
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    help="ZeRO stage. [default: the framework's usual one]",
)
@click.option("--mbs", type=_DEGREE, default=1, show_default=True, help="Micro-batch, sequences.")
@click.option(
    "--grad-acc",
    type=_DEGREE,
    help="Micro-batches per step; without --gbs and --gbs-tokens it sets the batch.",
)
@click.option(
    "--layers-per-stage",
    metavar="LAYERS",
    callback=_layers,
    help="Uneven layers, one number for each of the pp·vpp blocks: 19,20,20,21 or 4,5x14,4.",
)
@click.option(
    "--shard-size",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Ranks that share a parameter under ZeRO (HSDP). 0: all of dp·cp.",
)
@click.option(
    "--recompute",
    default="none",
    show_default=True,
    metavar="MODE",
    help="none, full, selective, modules (layernorm,moe_act), full/2 (every 2nd layer), "
    "full:uniform=4, full:block=4, budget=0.5: as the framework has them.",
)
@click.option(
    "--recompute-layers",
    metavar="LAYERS",
    callback=_layers,
    help="Layers of each stage that recompute. [default: all]",
)
@output_options
def command(**options: Any) -> None:
    """Cost one given configuration, without searching.

    Exit status 1 if it does not fit.
    """
    style = output_format(options["as_json"], options["as_csv"])
    output = check_output(options["output"], options["force"])
    request, degrees = given_configuration(options)
    notice_if_first_run(options["quiet"])

    from planner.evaluate import evaluate

    plan = evaluate(
        request,
        degrees,
        options["recompute"],
        options["layers_per_stage"],
        options["recompute_layers"],
    )
    result = as_result(request, plan)
    write_result(result, output)
    match style:
        case "json":
            print_json(result)
        case "csv":
            print_csv(result)
        case "text":
            from planner.explain import explain
            from planner.report.explain import explanation_report

            print_report(explanation_report(explain(result, 1, request.resolve())))
    click.get_current_context().exit(0 if plan.fits else FAILURE)


def given_configuration(options: dict[str, Any]) -> tuple[Request, Degrees]:
    """The request and the degrees, with dp and grad_acc (or the batch) derived."""
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")
    given = {name: options[name] for name in names}
    by_accumulation = options["gbs"] is None and options["gbs_tokens"] is None
    if by_accumulation and options["grad_acc"] is None:
        raise UsageError("give the global batch: --gbs-tokens 4M, --gbs 512 or --grad-acc 32")
    job = build_request(options | ({"gbs": 1} if by_accumulation else {})).resolve()
    dp = _data_parallel(options, job)
    step = given["mbs"] * dp
    grad_acc = options["grad_acc"] or _accumulation(job, step)
    batch = {"gbs": step * grad_acc} if by_accumulation else {}
    zero = options["zero"]
    if zero is None:
        zero = _usual_zero(job, dp * given["cp"])
    degrees = Degrees(
        **given, dp=dp, zero=zero, grad_acc=grad_acc, shard=options.get("shard_size", 0)
    )
    return build_request(options | batch), degrees


def _data_parallel(options: dict[str, Any], job: Job) -> int:
    """dp as given, else what the GPUs leave."""
    if options["dp"] is not None:
        return int(options["dp"])
    replica = options["tp"] * options["pp"] * options["cp"]
    gpus = job.cluster.num_gpus
    if gpus % replica:
        nearest = " or ".join(
            str(n) for n in (gpus // replica * replica, _above(gpus, replica)) if n
        )
        raise UsageError(
            f"tp·pp·cp = {options['tp']}·{options['pp']}·{options['cp']} = {replica} does not "
            f"divide {gpus:,} GPUs; give {nearest} GPUs or other degrees"
        )
    return int(gpus // replica)


def _above(number: int, divisor: int) -> int:
    return -(-number // divisor) * divisor


def _accumulation(job: Job, step: int) -> int:
    """Micro-batches per step nearest to the batch that is wanted."""
    return max(1, round(job.batch.sequences / step))


def _usual_zero(job: Job, replicas: int) -> int:
    """The framework's first ZeRO stage, or 0 where there is nothing to shard over."""
    stages = job.framework.parallelism.zero_stages
    if replicas == 1 and 0 in stages and not job.least_zero:
        return 0
    return max(stages[0], job.least_zero)


def as_result(request: Request, plan: Plan) -> SearchResult:
    """A plan file's content with one evaluated plan."""
    from planner._version import __version__
    from planner.search.search import job_summary

    return SearchResult(
        planner_version=__version__,
        request=request,
        job=job_summary(request.resolve(), request),
        counts=Counts(
            considered=1,
            legal=1,
            fitting=int(plan.fits),
            solved=0,
            skipped=0,
            seconds=0.0,
            costing_seconds=0.0,
        ),
        plans=(plan,),
        proven=False,
    )
