"""`planner budget`: size, tokens and loss that a compute budget gives, with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.cli.comparing import begin_study, build_settings, how, show_study
from planner.cli.options import build_request
from planner.cli.output import check_output
from planner.cli.progress import compile_if_first_run, watched
from planner.compare.budget import Ask, budget, shape_toml
from planner.job.errors import UsageError
from planner.job.written import write_text
from planner.report.studies import budget_report

# Stands for the model of the request until its size is known.
_ANY = "llama-3-8b"


def run(**options: Any) -> None:
    shown = begin_study(options)
    model_file = _model_file(options)
    settings = build_settings(options)
    base = options | {"model": options["model"] or _ANY, "gpus": None, "cluster": None}
    request = build_request(base, recompute=options["recompute"])
    names = ("flops", "days", "gpus", "parameters", "model", "tokens")
    ask = Ask(**{name: options[name] for name in names})
    if options["gpus"] is not None:
        compile_if_first_run(options["quiet"])
    with watched(options["quiet"]) as progress:
        found = budget(request, ask, settings, how=how(options, progress))
    if model_file is not None and found.shape is not None:
        write_text(model_file, shape_toml(found.shape), force=options["force"])
    show_study(found, options, shown, budget_report)


def _model_file(options: dict[str, Any]) -> Path | None:
    if options["save_model"] is None:
        return None
    if options["model"] is not None:
        raise UsageError("--save-model: --model names a model already; give --params, or neither")
    if not options["save_model"].endswith(".toml"):
        raise UsageError(f"--save-model {options['save_model']!r}: the name must end in .toml")
    return check_output(options["save_model"], options["force"])
