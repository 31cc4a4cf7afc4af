"""A calibrated cluster as a TOML file that people read, edit and compare line by line."""

from __future__ import annotations

from pathlib import Path

from hardware.calibration import Calibration
from hardware.files import read_text
from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.job.errors import UsageError
from planner.job.written import picked, toml_text

_HEADER = """\
# A cluster calibrated from its runs by `planner calibrate`. Every command takes it:
#     planner search --cluster {name} ...
# Each factor multiplies a figure of the model; 1 means no change. Delete a table to go back to the
# catalogue's figure. `determined = false`: the runs say hardly anything about this factor.
# `pull`: how much a run corrects the predictions of similar configurations beyond the factors.
"""


def cluster_text(name: str, cluster: Cluster, calibration: Calibration, base: Path | None) -> str:
    """The file's text: the machine (as the file `base` describes it, if given), then the
    calibration. UsageError if the [calibration] of `base` is not at its end."""
    machine = machine_text(name, cluster, base)
    return f"{_HEADER.format(name=name)}\n{machine.strip()}\n\n{calibration_text(calibration)}"


def machine_text(name: str, cluster: Cluster, base: Path | None) -> str:
    """The machine alone, as `cluster_text` writes it."""
    return _machine(cluster, name) if base is None else _described(base)


def _described(path: Path) -> str:
    """The text of a cluster file without its earlier calibration, whose tables come last."""
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
    """The catalogue's machine, written out in full."""
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
        **picked(cluster, "fabric rail_optimised oversubscription leaf_nodes"),
        "host_memory": f"{cluster.host_memory_bytes_per_node / 2**30:g} GiB",
        **picked(cluster, "gpus_per_host_link host_speed host_launch_speed"),
    }
    if cluster.sharp:
        values["sharp"] = cluster.sharp
    return toml_text(values, 6)


def calibration_text(calibration: Calibration) -> str:
    """The [calibration] tables of a cluster file."""
    content = calibration.model_dump()
    content["factors"] = {factor.pop("name"): factor for factor in content["factors"]}
    if not content["phases"]:
        del content["phases"]
    for figure in ("time", "memory"):
        if content[figure] is not None:
            learnt = content[figure]["measured"]
            content[figure]["measured"] = {axis: [low, high] for axis, low, high in learnt}
    return toml_text({"calibration": content}, 6)
