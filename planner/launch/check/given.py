"""What `planner check` is given, files or a whole launch folder, read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.launch.check.differences import plan_differences
from planner.launch.read.folder import FolderFiles, folder_files
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch
from planner.search.plan_file import read_plan_file

Contents = Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """A launch as read: `paths` are the files it was read from.

    `gpus`, `cluster`: the machine, of the caller or of the folder's plan file. `read`: the same
    launch with other texts for some of its files.
    """

    found: Found
    paths: tuple[str, ...]
    gpus: str | None
    cluster: str | None
    read: Callable[[Contents], Found]


def read_given(
    paths: Sequence[str],
    hints: Hints,
    plan: int,
    gpus: str | None,
    cluster: str | None,
    contents: Contents | None = None,
) -> Given:
    """Read files, or the launch in a folder.

    What a folder's files do not hold comes from its plan file, and is named among the
    assumptions: the machine, the model, the imbalance of experts. `contents`: texts that
    stand for those of some files. UsageError as `read_launch`.
    """
    folders = [Path(path).expanduser() for path in paths if Path(path).expanduser().is_dir()]
    if len(paths) > 1 and folders:
        raise UsageError(f"{folders[0]} is a folder: give it alone, or the files in it")
    files = folder_files(folders[0]) if folders else FolderFiles(tuple(Path(p) for p in paths))
    names = tuple(str(path) for path in files.paths)
    taken: tuple[str, ...] = ()
    if files.plan is not None and gpus is None and cluster is None:
        request = read_plan_file(files.plan).request
        gpus, cluster = request.gpus, request.cluster
        taken = (f"GPUs {gpus or cluster}",)
    hints = replace(hints, gpus=_world(gpus, cluster))

    def read(contents: Contents) -> Found:
        if files.plan is None:
            return read_launch(names, hints, plan, contents)
        return _with_plan(names, files.plan, hints, contents, taken)

    return Given(read(contents or {}), names, gpus, cluster, read)


def _with_plan(
    names: tuple[str, ...], plan: Path, hints: Hints, contents: Contents, taken: tuple[str, ...]
) -> Found:
    """The launch of a folder, completed by the plan file in it where the files say nothing."""
    request = read_plan_file(plan).request
    found = read_launch(names, hints, contents=contents)
    if found.model is None and found.shape is None:
        # What is wrong with the files stays so, whatever the plan says of the model.
        wrong = tuple(item for item in found.problems if item.severity == "error")
        found = read_launch(names, replace(hints, model=request.model), contents=contents)
        found = replace(found, problems=tuple(dict.fromkeys((*wrong, *found.problems))))
        taken = (*taken, f"model {request.model}")
    found, more = _imbalance(found, request)
    differing = plan_differences(found, read_launch([plan]), plan.name)
    notes = tuple(f"{name} (from {plan.name})" for name in (*taken, *more))
    return replace(found, assumed=(*found.assumed, *notes), problems=(*found.problems, *differing))


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
