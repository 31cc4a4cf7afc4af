"""`planner frameworks`: what each training framework can express."""

from __future__ import annotations

import json

import click

from planner.cli import complete
from planner.cli.output import print_report
from planner.job.errors import UsageError


@click.command("frameworks", epilog="Example: planner frameworks megatron-core")
@click.argument("name", required=False, shell_complete=complete.frameworks)
@click.option("--json", "as_json", is_flag=True, help="Print NAME's settings as JSON.")
@click.option("--all", "whole", is_flag=True, help="Also those of older runs and of texts.")
def command(name: str | None, as_json: bool, whole: bool) -> None:
    """List the training frameworks, or show NAME: degrees, settings, assumptions."""
    from planner.job.frameworks import framework_names, load_framework
    from planner.job.frameworks.targets import targets_by_profile
    from planner.report.frameworks import framework_report, frameworks_report, settings_document

    if as_json:
        if name is None:
            raise UsageError("--json prints the settings of one framework: give its NAME")
        click.echo(json.dumps(settings_document(load_framework(name)), indent=2))
        return
    if name is None:
        profiles = [load_framework(known) for known in framework_names()]
        shown = [profile for profile in profiles if whole or profile.listed]
        print_report(frameworks_report(shown, targets_by_profile()))
        return
    print_report(framework_report(load_framework(name)))
