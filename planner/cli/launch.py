"""`planner launch`: writes a folder that starts a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.cli.output import compile_if_first_run, show
from planner.job.written import picked
from planner.job.written_folder import refuse_folder
from planner.launch.contract import checkpoints_of
from planner.launch.folder import launch_folder, write_launch
from planner.launch.plans import launch_of, usual_target
from planner.launch.registry import target_named
from planner.report.launch import launch_report
from planner.report.tables import Report
from planner.search.explanation import pick_plan
from planner.search.plan_file import is_rl_file, read_plan


def run(plan_file: str, number: int | None, **options: Any) -> None:
    if is_rl_file(Path(plan_file)):
        from planner.cli.rl_launch import run_launch

        run_launch(Path(plan_file), number, options)
        return
    path, force = Path(options["output"]), options["force"]
    named = options["framework"] and target_named(options["framework"])
    result, number = read_plan(Path(plan_file), number)

    refuse_folder(path, force)
    plan, request, gpus = pick_plan(result, number), result.request, result.job.used_gpus
    target = named or usual_target(plan, request)
    compile_if_first_run(options["quiet"])
    nodes_as, ramp = options["nodes_as"].replace("kubernetes", "k8s"), options["batch_ramp"]
    launch = launch_of(plan, request, target, nodes_as, gpus, ramp)
    folder = launch_folder(launch)
    replaced = write_launch(path, folder, force)
    document = {
        "folder": str(path),
        **picked(launch, "framework=target nodes_as"),
        "checkpoints": checkpoints_of(launch),
        "files": sorted(folder.files),
        **picked(replaced, "kept removed"),
        **picked(folder, "departures expectations=expected"),
    }

    which = f"{number} of {len(result.plans)}"

    def report() -> Report:
        return launch_report(path, launch, folder, replaced, which)

    show(options["as_json"], lambda: document, report)
