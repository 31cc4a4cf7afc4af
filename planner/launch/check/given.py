"""What `planner check` is given, files or a whole launch folder, read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.launch.check.differences import plan_differences
from planner.launch.read.folder import folder_files
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch


@dataclass(frozen=True)
class Given:
    """A launch as read: `paths` are the files it was read from, `hints` what was known beside.

    `gpus`, `cluster`: the machine, of the caller or of the folder's plan file.
    """

    found: Found
    paths: tuple[str, ...]
    hints: Hints
    gpus: str | None
    cluster: str | None


def read_given(
    paths: Sequence[str], hints: Hints, plan: int, gpus: str | None, cluster: str | None
) -> Given:
    """Read files, or the launch in a folder.

    What a folder's files do not hold comes from its plan file, and is named among the
    assumptions: the machine, the model, the imbalance of experts. UsageError as `read_launch`.
    """
    hints = replace(hints, gpus=_world(gpus, cluster))
    folders = [Path(path).expanduser() for path in paths if Path(path).expanduser().is_dir()]
    if not folders:
        return Given(read_launch(paths, hints, plan), tuple(paths), hints, gpus, cluster)
    if len(paths) > 1:
        raise UsageError(f"{folders[0]} is a folder: give it alone, or the files in it")
    files = folder_files(folders[0])
    names = tuple(str(path) for path in files.paths)
    if files.plan is None:
        return Given(read_launch(names, hints, plan), names, hints, gpus, cluster)
    return _with_plan(names, files.plan, hints, gpus, cluster)


def _with_plan(
    names: tuple[str, ...], plan: Path, hints: Hints, gpus: str | None, cluster: str | None
) -> Given:
    """The launch of a folder, completed by the plan file in it where the files say nothing."""
    from planner.search.plan_file import read_plan_file

    request = read_plan_file(plan).request
    taken: list[str] = []
    if gpus is None and cluster is None:
        gpus, cluster = request.gpus, request.cluster
        hints = replace(hints, gpus=_world(gpus, cluster))
        taken.append(f"GPUs {gpus or cluster}")
    found = read_launch(names, hints)
    if found.model is None and found.shape is None:
        # What is wrong with the files stays so, whatever the plan says of the model.
        wrong = tuple(item for item in found.problems if item.severity == "error")
        hints = replace(hints, model=request.model)
        found = read_launch(names, hints)
        found = replace(found, problems=tuple(dict.fromkeys((*wrong, *found.problems))))
        taken.append(f"model {request.model}")
    found, more = _imbalance(found, request)
    differing = plan_differences(found, read_launch([plan]), plan.name)
    notes = tuple(f"{name} (from {plan.name})" for name in (*taken, *more))
    found = replace(found, assumed=(*found.assumed, *notes), problems=(*found.problems, *differing))
    return Given(found, names, hints, gpus, cluster)


def _imbalance(found: Found, request: Request) -> tuple[Found, tuple[str, ...]]:
    """How unevenly tokens meet experts: no framework has a setting for it."""
    if request.expert_imbalance == found.expert_imbalance:
        return found, ()
    words = f"expert imbalance {request.expert_imbalance:g}"
    return replace(found, expert_imbalance=request.expert_imbalance), (words,)


def _world(gpus: str | None, cluster: str | None) -> int | None:
    """Number of GPUs, as the rules that need only that take it."""
    from hardware import load_cluster_file
    from planner.job.pool import parse_one_type

    if cluster:
        return load_cluster_file(Path(cluster)).num_gpus
    return parse_one_type(gpus).num_gpus if gpus else None
