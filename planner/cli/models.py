"""`planner models`: the model catalogue."""

from __future__ import annotations

import click

from planner.cli import complete
from planner.cli.output import print_report


@click.command("models", epilog="Example: planner models llama-3-70b")
@click.argument("name", required=False, shell_complete=complete.models)
def command(name: str | None) -> None:
    """List the models, or show NAME (also an alias, or a path to config.json or .toml)."""
    from planner.job.models.catalog import load_model, model_names
    from planner.predict.ops import parameter_count
    from planner.report.models import model_report, models_report

    if name is None:
        models = [load_model(known) for known in model_names()]
        print_report(models_report([(model, parameter_count(model.spec)) for model in models]))
        return
    model = load_model(name)
    print_report(model_report(model, parameter_count(model.spec)))
