"""A calibrated cluster as a TOML file that people read, edit and compare line by line."""

from __future__ import annotations

import json
from pathlib import Path

from hardware import Cluster, load_cluster_file
from hardware.calibration import Calibration, LearntFigure
from hardware.files import read_text
from planner.job.errors import UsageError

_HEADER = """\
# A cluster and what its runs taught, by `planner calibrate`. Every command takes it:
#     planner search --cluster {name} ...
# Each factor multiplies what the model has without runs; 1 is no change. Delete a table to go back
# to the catalogue's figure; `determined = false`: the runs hardly say anything of it. What is left
# of each run counts for configurations like it: `pull` is its weight.
"""


def cluster_text(name: str, cluster: Cluster, calibration: Calibration, base: Path | None) -> str:
    """The file's text: the machine (as file `base` describes it, if one does), then the
    calibration. UsageError for a base whose [calibration] cannot be told from the rest."""
    machine = _machine(cluster, name) if base is None else _described(base)
    return f"{_HEADER.format(name=name)}\n{machine.strip()}\n\n{calibration_text(calibration)}"


def _described(path: Path) -> str:
    """A cluster file's text without an earlier calibration, its tables being the last ones."""
    load_cluster_file(path)
    lines = read_text(path).splitlines()
    headers = [index for index, line in enumerate(lines) if line.lstrip().startswith("[")]
    earlier = [index for index in headers if lines[index].lstrip(" [").startswith("calibration")]
    if earlier and any(index > earlier[0] for index in set(headers) - set(earlier)):
        raise UsageError(
            f"{path}: another table follows [calibration]; move the calibration's tables to the end"
        )
    kept = lines[: earlier[0]] if earlier else lines
    while kept and kept[0].startswith("#"):
        kept = kept[1:]
    return "\n".join(kept)


def _machine(cluster: Cluster, name: str) -> str:
    """The catalogue's machine, stated in full."""
    gigabytes = cluster.scale_up_bytes_per_s_per_gpu_per_direction / 1e9
    values: dict[str, object] = {
        "name": Path(name).stem,
        "num_gpus": cluster.num_gpus,
        "gpu": cluster.gpu.name,
        "gpus_per_node": cluster.node_gpus,
        "scale_up_domain": cluster.scale_up_domain_gpus,
        "scale_up_link": f"{gigabytes:g} GB/s",
        "nics_per_node": cluster.nics_per_node,
        "nic_rate": f"{cluster.nic_bytes_per_s * 8 / 1e9:g} Gbit/s",
        "fabric": cluster.fabric,
        "rail_optimised": cluster.rail_optimised,
        "oversubscription": cluster.oversubscription,
        "leaf_nodes": cluster.leaf_nodes,
        "host_memory": f"{cluster.host_memory_bytes_per_node / 2**30:g} GiB",
        "gpus_per_host_link": cluster.gpus_per_host_link,
        "host_speed": cluster.host_speed,
    }
    if cluster.sharp:
        values["sharp"] = cluster.sharp
    return "\n".join(f"{key} = {_toml(value)}" for key, value in values.items())


def calibration_text(calibration: Calibration) -> str:
    """The tables [calibration] of a cluster file."""
    blocks = [
        _table(
            "calibration",
            {
                "date": calibration.date,
                "planner": calibration.planner,
                "sources": list(calibration.sources),
                "frameworks": list(calibration.frameworks),
            },
        )
    ]
    for figure in ("time", "memory"):
        learnt: LearntFigure | None = getattr(calibration, figure)
        if learnt is not None:
            blocks.append(_figure_text(figure, learnt))
    for factor in calibration.factors:
        values = factor.model_dump(exclude={"name"})
        blocks.append(_table(f"calibration.factors.{factor.name}", values))
    blocks += [_table("[calibration.runs]", run.model_dump()) for run in calibration.runs]
    return "\n".join(blocks)


def _figure_text(figure: str, learnt: LearntFigure) -> str:
    values = learnt.model_dump(exclude={"measured"}, exclude_none=True)
    values["measured"] = {axis: [low, high] for axis, low, high in learnt.measured}
    return _table(f"calibration.{figure}", values)


def _table(name: str, values: dict[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: object) -> str:
    """A value as TOML writes it."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case float():
            return f"{float(f'{value:.6g}')!r}"
        case _:
            # JSON's texts, numbers and booleans are TOML's too.
            return json.dumps(value, ensure_ascii=False)
