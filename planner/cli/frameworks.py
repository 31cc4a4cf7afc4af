"""`planner frameworks`: what each training framework can express."""

from __future__ import annotations

import click

from planner.cli.output import print_report


@click.command("frameworks", epilog="Example: planner frameworks megatron-core")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the training frameworks, or show NAME: degrees, recompute modes, assumptions."""
    from planner.frameworks import framework_names, load_framework
    from planner.report.frameworks import framework_report, frameworks_report

    if name is None:
        print_report(frameworks_report([load_framework(known) for known in framework_names()]))
        return
    print_report(framework_report(load_framework(name)))
