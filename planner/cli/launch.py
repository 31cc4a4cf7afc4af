"""`planner launch`: a folder that starts a plan under a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli import complete
from planner.cli import option_types as types
from planner.cli.options import ramp_option
from planner.cli.output import show
from planner.cli.progress import compile_if_first_run

_EPILOG = """\b
Frameworks: megatron-core, megatron-bridge, torchtitan, deepspeed, accelerate,
nanotron; other names for them: planner frameworks.
With another than the plan's, the plan is costed anew for it; what it cannot
express is refused, with the search for plans that it can.

\b
Example: planner launch plans.json 1 --nodes-as slurm -o run/"""


@click.command("launch", epilog=_EPILOG)
@click.argument("plan_file", type=types.FILE, metavar="PLANFILE")
@click.argument("number", type=types.PLAN_NUMBER, required=False)
@click.option(
    "--framework",
    shell_complete=complete.frameworks,
    help="Framework to launch with: see planner frameworks. [default: the plan's]",
)
@click.option(
    "--nodes-as",
    type=click.Choice(["slurm", "torchrun", "k8s", "skypilot"]),
    default="torchrun",
    help="What starts the processes on the nodes.",
)
@click.option(
    "-o", "--output", type=types.FILE, required=True, metavar="FOLDER", help="The folder to write."
)
@ramp_option
@click.option("--force", is_flag=True, help="Replace a launch folder that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print files and expectations as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No notices on stderr.")
def command(plan_file: str, number: int | None, **options: Any) -> None:
    """Write a folder that launches plan NUMBER of PLANFILE, or the recommended one.

    Configuration of the framework, a script that starts it, the plan, and a README.
    """
    from planner.job.frameworks.names import target_named
    from planner.search.plan_file import read_plan

    path, force = Path(options["output"]), options["force"]
    named = options["framework"] and target_named(options["framework"])
    result, number = read_plan(Path(plan_file), number)

    from planner.launch.folder import launch_folder, refuse_folder, write_folder
    from planner.launch.plans import launch_of
    from planner.search.explanation import pick_plan

    refuse_folder(path, force)
    plan, request, gpus = pick_plan(result, number), result.request, result.job.used_gpus
    target = named or target_named(request.framework)
    compile_if_first_run(options["quiet"])
    nodes_as, ramp = options["nodes_as"], options["batch_ramp"]
    launch = launch_of(plan, request, target, nodes_as, gpus, ramp)
    folder = launch_folder(launch)
    write_folder(path, folder.files, force)
    document = {
        "folder": str(path),
        "framework": launch.target,
        "nodes_as": launch.nodes_as,
        "files": sorted(folder.files),
        "departures": folder.departures,
        "expectations": folder.expected.model_dump(),
    }
    from planner.report.launch import launch_report

    show(options["as_json"], lambda: document, lambda: launch_report(path, launch, folder))
