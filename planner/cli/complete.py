"""Values that a shell completes: models, GPUs, frameworks, clusters. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def known_models(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """Names and short names of the catalogue; else files: a config.json, a .toml."""
    from planner.job.models.catalog import model_names, short_names

    return _matching((*model_names(), *short_names()), start) or [
        CompletionItem(start, type="file")
    ]


def known_gpus(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """GPUs and node shapes, behind a number as `64x` where there is one."""
    from hardware.load import cluster_names, gpu_names

    head, cross, _ = start.rpartition("x")
    count = f"{head}{cross}" if head[-1:].isdigit() else ""
    return _matching([f"{count}{name}" for name in (*gpu_names(), *cluster_names())], start)


def known_frameworks(
    _ctx: click.Context, _param: click.Parameter, start: str
) -> list[CompletionItem]:
    """Every name of a framework."""
    from planner.job.frameworks.names import known_names

    return _matching(known_names(), start)


def budget_tokens(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """The word among numbers."""
    return _matching(("chinchilla",), start)


def _matching(names: Iterable[str], start: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.lower().startswith(start.lower())]
