"""`planner memory`: what holds the memory of a GPU over a step, phase by phase."""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from planner.cli.errors import FAILURE
from planner.cli.evaluate import given_configuration
from planner.cli.memory_inference import SOLVE_CHOICES, inference_options
from planner.cli.options import configuration_options, job_options, output_format
from planner.errors import UsageError
from planner.plan import LARGEST_DEGREE

if TYPE_CHECKING:
    from planner.memory.account import StageAccount
    from planner.memory.advice import Advice
    from planner.memory.footprint import Configuration, Footprint
    from planner.memory.solve import Solution, Unknown
    from planner.plan import Degrees
    from planner.report.tables import Block
    from planner.request import Request

DEFAULT_GPU = "H100"
SOLVE_TRAINING = ("mbs", "seq", "layers")
_PLOTS = (".html", ".svg", ".png")
# Options that training and serving share.
_SHARED = (
    "model", "gpus", "tp", "pp", "dp", "ep", "solve", "as_json", "as_csv", "quiet",
)  # fmt: skip


def _stage(ctx: click.Context, param: click.Parameter, value: str) -> str | int:
    """Callback: `heaviest`, `all`, or the number of a stage."""
    if value in ("heaviest", "all"):
        return value
    if value.isdecimal():
        return int(value)
    raise click.BadParameter(f"{value!r}: heaviest, all, or a stage from 0 on", ctx, param)


def _plot(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Callback: a file of a kind that can be drawn."""
    if value is None:
        return None
    path = Path(value).expanduser()
    if path.suffix.lower() not in _PLOTS:
        raise click.BadParameter(f"{value!r}: the name must end in {', '.join(_PLOTS)}", ctx, param)
    return path


@click.command(
    "memory",
    epilog="Example: planner memory --model gpt2 --mbs 12 --seq 1024 --framework nanogpt",
)
@job_options
@configuration_options
@click.option(
    "--stage",
    default="heaviest",
    show_default=True,
    callback=_stage,
    help="Pipeline stage to show: heaviest, all, or a number from 0 on.",
)
@click.option("--tensors", is_flag=True, help="List the tensors kept for backward at the peak.")
@click.option(
    "--solve",
    type=click.Choice([*SOLVE_TRAINING, *SOLVE_CHOICES]),
    help="Find the largest that fits; batch and context with --inference.",
)
@click.option(
    "--advise", is_flag=True, help="Evaluate every change that saves memory, and what it costs."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, nothing else.")
@click.option("--csv", "as_csv", is_flag=True, help="Print stage, step, phase, term, bytes.")
@click.option("-o", "--output", help="Write the JSON document to a file.")
@click.option(
    "--plot", metavar="FILE", callback=_plot, help="Draw the step: FILE.html, FILE.svg or FILE.png."
)
@click.option("--force", is_flag=True, help="Overwrite files.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@inference_options
def command(**options: Any) -> None:
    """Show what holds the memory of a GPU, phase by phase of a training step.

    Any configuration, legal on its GPUs. Without --gpus it has as many H100s as the degrees
    multiply to. Exit status 1 if it does not fit.
    """
    ctx = click.get_current_context()
    if options["inference"]:
        from planner.cli.memory_inference import run

        ctx.exit(run(_serving_options(ctx, options)))
    _refuse_serving_options(ctx, options)
    style = output_format(options["as_json"], options["as_csv"])
    ctx.exit(_train(options, style))


def _train(options: dict[str, Any], style: str) -> int:
    """Account, solve and advise as asked; write and print; the exit status."""
    output, plot = _checked_files(options)
    given_gpus = options["gpus"] is not None or options["cluster"] is not None
    notes = _complete(options)
    request, degrees = given_configuration(options)
    configuration = _configuration(options, request, degrees)
    solution = _solution(options, configuration)
    footprint = _shown(configuration, solution)
    stages = _stages(options["stage"], footprint)
    advice = _advice(options, request, degrees, may_add_gpus=not given_gpus)
    _write(options, output, plot, request, footprint, stages, solution, advice)
    _print(options, style, request, footprint, stages, solution, advice, notes)
    return 0 if footprint.fits and (solution is None or solution.safe.largest) else FAILURE


# --- input ---------------------------------------------------------------------------------------


def _serving_options(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Options of serving as given, None where they were not. UsageError for those of training."""
    own = _own_of_serving()
    given = {name for name in options if _is_given(ctx, name)}
    strange = sorted(given - own - set(_SHARED))
    if strange:
        raise UsageError(f"--inference does not go with {_spelled(strange)}: these are of training")
    if options["solve"] in SOLVE_TRAINING:
        raise UsageError(
            f"--solve {options['solve']} is of training; with --inference: "
            + ", ".join(SOLVE_CHOICES)
        )
    return {name: value if name in given | own else None for name, value in options.items()}


def _refuse_serving_options(ctx: click.Context, options: dict[str, Any]) -> None:
    """UsageError for options of serving without --inference."""
    strange = sorted(name for name in _own_of_serving() if _is_given(ctx, name))
    if strange:
        raise UsageError(f"{_spelled(strange)}: only with --inference")
    if options["solve"] in SOLVE_CHOICES:
        raise UsageError(
            f"--solve {options['solve']} needs --inference; of training: "
            + ", ".join(SOLVE_TRAINING)
        )


def _own_of_serving() -> set[str]:
    """Names of the options that only serving has."""
    decorated = inference_options(lambda: None)
    params = getattr(decorated, "__click_params__", [])
    return {param.name for param in params}


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


def _spelled(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _complete(options: dict[str, Any]) -> list[str]:
    """Fill in GPUs, dp and the batch where they were not given; says what was taken."""
    notes = []
    if options["gpus"] is None and options["cluster"] is None:
        options["dp"] = options["dp"] or _least_data_parallel(options)
        world = options["tp"] * options["pp"] * options["cp"] * options["dp"]
        if world > LARGEST_DEGREE:
            raise UsageError(
                f"tp·pp·cp·dp = {world:,} GPUs: a job has 1 to {LARGEST_DEGREE:,} GPUs"
            )
        options["gpus"] = f"{world}x{DEFAULT_GPU}"
        notes.append(f"{world:,} {DEFAULT_GPU}, as many as the degrees multiply to (--gpus)")
    if options["gbs"] is None and options["gbs_tokens"] is None and options["grad_acc"] is None:
        pp = options["pp"]
        # Enough for the pipeline to hold as many as it ever does.
        options["grad_acc"] = 1 if pp == 1 else 2 * pp
        acc = "1 micro-batch" if pp == 1 else f"{2 * pp} micro-batches"
        notes.append(f"{acc} a step (--grad-acc, --gbs or --gbs-tokens say otherwise)")
    return notes


def _least_data_parallel(options: dict[str, Any]) -> int:
    """Fewest replicas over which the experts spread: ep·etp divides dp·cp·tp."""
    group, inner = options["ep"] * options["etp"], options["tp"] * options["cp"]
    return int(group // gcd(group, inner))


def _configuration(options: dict[str, Any], request: Request, degrees: Degrees) -> Configuration:
    from planner.memory.footprint import configure

    return configure(
        request.resolve(),
        degrees,
        options["recompute"],
        options["layers_per_stage"],
        options["recompute_layers"],
    )


def _stages(wanted: str | int, footprint: Footprint) -> list[StageAccount]:
    if wanted == "all":
        return list(footprint.stages)
    if wanted == "heaviest":
        return [footprint.heaviest]
    count = len(footprint.stages)
    if not 0 <= int(wanted) < count:
        has = "the only stage is 0" if count == 1 else f"stages are 0 to {count - 1}"
        raise UsageError(f"--stage {wanted}: {has}")
    return [footprint.stages[int(wanted)]]


def _checked_files(options: dict[str, Any]) -> tuple[Path | None, Path | None]:
    """Files to write, known to be writable and drawable; before any work is done."""
    from planner.cli.output import check_output
    from planner.plan_file import refuse_to_overwrite

    output, plot = check_output(options["output"], options["force"]), options["plot"]
    if plot is not None:
        refuse_to_overwrite(plot, options["force"])
        if plot == output:
            raise UsageError(f"{plot}: give -o and --plot different files")
    if plot is not None and plot.suffix.lower() == ".png":
        from planner.report.memory_png import demand_matplotlib

        demand_matplotlib()
    return output, plot


# --- work ----------------------------------------------------------------------------------------


def _solution(options: dict[str, Any], configuration: Configuration) -> Solution | None:
    if options["solve"] is None:
        return None
    from planner.memory.solve import solve

    unknown: Unknown = options["solve"]
    fixed = options["gbs"] is not None or options["gbs_tokens"] is not None
    return solve(configuration, unknown, batch_is_fixed=fixed)


def _shown(configuration: Configuration, solution: Solution | None) -> Footprint:
    """The footprint to show: with the largest value that fits, if one was looked for."""
    from planner.memory.footprint import footprint_of

    if solution is None:
        return footprint_of(configuration)
    best = solution.safe.largest or solution.safe.beyond
    return footprint_of(configuration) if best is None else best.footprint


def _advice(
    options: dict[str, Any], request: Request, degrees: Degrees, *, may_add_gpus: bool
) -> Advice | None:
    if not options["advise"]:
        return None
    if options["solve"] is not None:
        raise UsageError("give --solve or --advise, not both")
    from planner.cli.progress import notice_if_first_run, watched
    from planner.memory.advice import advise

    notice_if_first_run(options["quiet"])
    with watched(options["quiet"]) as watch:
        return advise(
            request,
            degrees,
            options["recompute"],
            options["layers_per_stage"],
            options["recompute_layers"],
            may_add_gpus=may_add_gpus,
            watch=watch,
        )


# --- output --------------------------------------------------------------------------------------


def _document(
    request: Request,
    footprint: Footprint,
    solution: Solution | None,
    advice: Advice | None,
) -> str:
    from planner.memory.footprint import dropless_worst_case
    from planner.report.memory_data import memory_document, to_json

    worst = dropless_worst_case(footprint.configuration)
    return to_json(
        memory_document(request, footprint, worst=worst, solution=solution, advice=advice)
    )


def _write(
    options: dict[str, Any],
    output: Path | None,
    plot: Path | None,
    request: Request,
    footprint: Footprint,
    stages: list[StageAccount],
    solution: Solution | None,
    advice: Advice | None,
) -> None:
    from planner.plan_file import write_bytes, write_text

    if output is not None:
        write_text(output, _document(request, footprint, solution, advice))
    if plot is not None:
        write_bytes(plot, _picture(plot, footprint, stages))


def _picture(plot: Path, footprint: Footprint, stages: list[StageAccount]) -> bytes:
    from planner.report.memory_figure import memory_figure
    from planner.report.memory_svg import memory_html, memory_svg

    figure = memory_figure(footprint, stages)
    match plot.suffix.lower():
        case ".png":
            from planner.report.memory_png import memory_png

            return memory_png(figure)
        case ".html":
            return memory_html(figure).encode()
        case _:
            return memory_svg(figure).encode()


def _print(
    options: dict[str, Any],
    style: str,
    request: Request,
    footprint: Footprint,
    stages: list[StageAccount],
    solution: Solution | None,
    advice: Advice | None,
    notes: list[str],
) -> None:
    match style:
        case "json":
            click.echo(_document(request, footprint, solution, advice), nl=False)
        case "csv":
            from planner.report.memory_data import memory_csv

            click.echo(memory_csv(footprint), nl=False)
        case _:
            from planner.cli.output import print_report
            from planner.memory.footprint import dropless_worst_case
            from planner.memory.terms import peak_tensors
            from planner.report.memory import memory_report

            report = memory_report(
                footprint,
                stages,
                tensors=peak_tensors(footprint, stages[0]) if options["tensors"] else (),
                worst=dropless_worst_case(footprint.configuration),
                notes=notes,
                more=_more(solution, advice),
            )
            print_report(report)


def _more(solution: Solution | None, advice: Advice | None) -> list[Block]:
    from planner.report.memory_changes import advice_blocks, solution_blocks

    blocks: list[Block] = []
    if solution is not None:
        blocks += solution_blocks(solution)
    if advice is not None:
        blocks += advice_blocks(advice)
    return blocks
