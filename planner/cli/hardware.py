"""`planner hardware`: GPUs and node shapes, with sources."""

from __future__ import annotations

import click

from hardware import (
    HardwareError,
    cluster_facts,
    cluster_names,
    gpu_facts,
    gpu_names,
    load_cluster_shape,
    load_gpu,
    load_prices,
    load_sources,
)
from planner.cli import complete
from planner.cli.output import print_report
from planner.report.hardware import facts_report, hardware_report, shape_sharp
from planner.report.tables import Report


@click.command("hardware", epilog="Example: planner hardware H100")
@click.argument("name", required=False, shell_complete=complete.gpus)
def command(name: str | None) -> None:
    """List GPUs and node shapes, or show NAME: every number with its source."""
    if name is None:
        gpus = [load_gpu(known) for known in gpu_names()]
        print_report(
            hardware_report(gpus, [load_cluster_shape(known) for known in cluster_names()])
        )
        return
    print_report(_one(name))


def _one(name: str) -> Report:
    """The GPU of that name, else the node shape."""
    try:
        return _gpu_report(name)
    except HardwareError as unknown_gpu:
        try:
            return _shape_report(name)
        except HardwareError:
            raise unknown_gpu from None


def _gpu_report(name: str) -> Report:
    gpu = load_gpu(name)
    title = [
        ("GPU", gpu.name),
        ("also", ", ".join(gpu.aliases) or "-"),
        ("kind", f"{gpu.vendor}, {gpu.architecture}"),
        ("nodes", f"{gpu.default_cluster or '-'} unless told"),
    ]
    prices = [price for price in load_prices() if price.gpu == gpu.name]
    return facts_report(title, gpu_facts(name), load_sources(), prices)


def _shape_report(name: str) -> Report:
    shape = load_cluster_shape(name)
    title = [
        ("node shape", f"{shape.name} {shape.title}".rstrip()),
        ("also", ", ".join(shape.aliases) or "-"),
        ("GPU", shape.gpu),
        ("fabric", shape.fabric + (", rail-optimised" if shape.rail_optimised else "")),
    ]
    title.append(("SHARP", shape_sharp(shape)))
    if shape.note:
        title.append(("note", shape.note))
    return facts_report(title, cluster_facts(name), load_sources())
