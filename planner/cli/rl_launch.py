"""`planner launch` for a plan of reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.cli.output import show
from planner.job.errors import UsageError
from planner.job.rl.frameworks import find_rl_framework
from planner.job.written_folder import refuse_folder, write_folder
from planner.launch.rl import PLAN_FILE, RlLaunch, rl_files
from planner.report.rl_launch import rl_launch_report
from planner.report.tables import Report
from planner.search.rl.plan_file import read_rl_plan, to_json
from planner.search.rl.plans import layout_of


def run_launch(plan_file: Path, number: int | None, options: dict[str, Any]) -> None:
    """Write the folder of a plan."""
    path, force = Path(options["output"]), options["force"]
    result, number = read_rl_plan(plan_file, number)
    _demand_framework(options["framework"], result.request.framework)
    _demand_script(options)
    refuse_folder(path, force)
    plan = result.plans[number - 1]
    job, layout = layout_of(result.request, plan)
    launch = RlLaunch(result.request, job, layout)
    alone = result.model_copy(update={"plans": (plan,), "recommended": 1})
    files = {**rl_files(launch), PLAN_FILE: to_json(alone)}
    replaced = write_folder(path, files, force, together=PLAN_FILE)
    document = {
        "folder": str(path),
        "framework": job.framework.name,
        "files": sorted(files),
        "step_time_s": plan.step_s,
        "fits": plan.fits,
    }
    which = f"{number} of {len(result.plans)}"

    def report() -> Report:
        return rl_launch_report(path, launch, plan, files, which, replaced)

    show(options["as_json"], lambda: document, report)


def _demand_framework(given: str | None, planned: str) -> None:
    """Raise UsageError if --framework differs from the plan's framework, because the plan's costs
    would not apply."""
    own = find_rl_framework(planned).name
    if given and find_rl_framework(given).name != own:
        other = find_rl_framework(given).name
        raise UsageError(
            f"--framework {given}: the plan is one of {own}, whose steps cost otherwise; search "
            f"with --rl-framework {other}, or give --framework {own}"
        )


def _demand_script(options: dict[str, Any]) -> None:
    """Raise UsageError for options that apply only to the launch of a single trainer."""
    if options["nodes_as"] not in ("torchrun", None):
        raise UsageError(
            f"--nodes-as {options['nodes_as']}: reinforcement learning is started by one script, "
            "on nodes that Ray or accelerate has joined; leave --nodes-as out"
        )
    if options["batch_ramp"]:
        raise UsageError("--batch-ramp: reinforcement learning has one batch; leave it out")
