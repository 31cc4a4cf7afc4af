"""`planner budget`: size, tokens and loss that a compute budget gives, with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli import complete
from planner.cli import option_types as types
from planner.cli.comparing import (
    begin_study,
    build_settings,
    how,
    money_options,
    search_options,
    show_study,
)
from planner.cli.help import GroupedCommand
from planner.cli.options import (
    build_request,
    condition_options,
    limit_options,
    training_options,
)
from planner.cli.output import check_output, plot_option
from planner.cli.progress import compile_if_first_run, watched
from planner.job.errors import UsageError
from planner.job.written import write_text

# Stands for the model of the request until its size is known.
_ANY = "llama-3-8b"


@click.command(
    "budget",
    cls=GroupedCommand,
    epilog="Example: planner budget --days 30 --gpus 512xH100",
)
@click.option("--flops", type=types.FLOP, metavar="FLOP", help="Compute, 6·N·D: 1e25.")
@click.option("--days", type=types.DAYS, metavar="DAYS", help="Instead: time on --gpus.")
@click.option(
    "--gpus",
    metavar="512xH100",
    shell_complete=complete.gpus,
    help="The GPUs: adds a plan, found by searching, with days and cost.",
)
@click.option(
    "--tokens",
    type=types.BUDGET_TOKENS,
    metavar="15T|chinchilla",
    shell_complete=complete.budget_tokens,
    help="Tokens to train on; chinchilla: the best number for the model's size.",
)
@click.option("--model", shell_complete=complete.models, help="The model, if it is given.")
@click.option(
    "--params",
    "parameters",
    type=types.PARAMETERS,
    metavar="70B",
    help="Instead: its size, of a dense model shaped like Llama 3.",
)
@click.option(
    "--save-model", type=types.FILE, metavar="FILE.toml", help="Write that shape as a model file."
)
@plot_option("loss against size for the same FLOP")
@money_options
@training_options
@condition_options
@limit_options
@search_options
def command(**options: Any) -> None:
    """Find the least loss, the most tokens or the largest model that a compute budget gives.

    Loss by the scaling law of Hoffmann et al. 2022 as corrected by Besiroglu et al. 2024; on --gpus
    with the best plan of a search. Exit status 1 if nothing fits the GPUs.
    """
    style, output = begin_study(options)
    model_file = _model_file(options)
    settings = build_settings(options)
    base = options | {"model": options["model"] or _ANY, "gpus": None, "cluster": None}
    request = build_request(base, recompute=options["recompute"])

    from planner.compare.budget import Ask, budget
    from planner.report.budget import budget_report

    if options["gpus"] is not None:
        compile_if_first_run(options["quiet"])
    names = ("flops", "days", "gpus", "parameters", "model", "tokens")
    with watched(options["quiet"]) as progress:
        found = budget(
            request,
            Ask(**{name: options[name] for name in names}),
            settings,
            how=how(options, progress),
        )
    if model_file is not None and found.shape is not None:
        from planner.compare.shapes import shape_toml

        write_text(model_file, shape_toml(found.shape))
    show_study(found, options, style, output, budget_report)


def _model_file(options: dict[str, Any]) -> Path | None:
    if options["save_model"] is None:
        return None
    if options["model"] is not None:
        raise UsageError("--save-model: --model names a model already; give --params, or neither")
    if not options["save_model"].endswith(".toml"):
        raise UsageError(f"--save-model {options['save_model']!r}: the name must end in .toml")
    return check_output(options["save_model"], options["force"])
