"""Reads the input of `planner check`, files or a whole launch folder. If a folder's files differ
from its plan file, the files count and the differences are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardware.errors import HardwareError
from hardware.files import read_text
from hardware.schema import Cluster
from planner.job.errors import CannotTellError, UsageError
from planner.job.frameworks.switches import with_techniques
from planner.job.lookups import trained_model
from planner.job.optimizers import load_optimizer
from planner.job.pool import parse_one_type
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.launch.architecture import departing_fields
from planner.launch.check.request import as_request
from planner.launch.check.world import started
from planner.launch.languages.text import SourceFile
from planner.launch.read.beside import MOST_BYTES
from planner.launch.read.document import leaves
from planner.launch.read.found import USUAL, Found, Hints, Problem
from planner.launch.read.launch import is_one_launch, read_launch
from planner.launch.read.opened import ARGUMENTS, JOB, PLAN, SHELL, file_kind, readable
from planner.launch.read.scripts import starting_scripts
from planner.launch.read.yaml_text import embedded_texts
from planner.launch.registry import formats, kinds, table_of, targets
from planner.launch.rl import CRITIC_PATH, POLICY_PATH
from planner.predict.evaluate import Proposal
from planner.search.plan_file import is_rl_file, read_plan_file
from planner.search.rl.plan_file import read_rl_plan

# Files of a launch folder that start nothing.
_ENDINGS = (".sh", ".sbatch", ".slurm", ".bash", ".args", ".toml", ".json", ".yaml", ".yml", ".py")
_SCRIPTS = (SHELL, ARGUMENTS, JOB)
_MOST_NAMED = 6


@dataclass(frozen=True)
class FolderFiles:
    """Files of a launch folder. `paths`: those to read together; `plan`: the folder's plan file;
    None if there is none, or several."""

    paths: tuple[Path, ...]
    plan: Path | None = None


def folder_files(folder: Path) -> FolderFiles:
    """The files to read in a folder: configuration, script and plan file. A folder with only a plan
    file gives that. UsageError if there is no launch in it, or more than one script or
    configuration that do not belong together."""
    kind_of = {
        path: kind
        for path in sorted(folder.iterdir())
        if path.is_file() and (kind := _kind(path)) is not None
    }
    configurations = [path for path, kind in kind_of.items() if kind in kinds()]
    scripts = [path for path, kind in kind_of.items() if kind in _SCRIPTS]
    plans = [path for path, kind in kind_of.items() if kind == PLAN]
    if len(configurations) > 1 and not is_one_launch([kind_of[path] for path in configurations]):
        raise UsageError(
            f"{folder} contains several configurations "
            f"({_names(configurations)}): name the files to check"
        )
    if len(scripts) > 1 and not _are_one_job(scripts, kind_of):
        scripts = starting_scripts(scripts)
        if len(scripts) > 1:
            raise UsageError(
                f"{folder} contains several scripts ({_names(scripts)}): name the files to check"
            )
    if not configurations and not scripts:
        if len(plans) == 1:
            return FolderFiles((plans[0],))
        raise UsageError(f"{folder} contains no launch file; readable are {readable()}")
    plan = plans[0] if len(plans) == 1 else None
    # A configuration embedded in a job is the one that runs; the file of that name in the folder is
    # ignored.
    inside = [name for path in scripts[:1] if kind_of[path] == JOB for name in _names_inside(path)]
    beside = [path for path in configurations if path.name not in inside]
    return FolderFiles((*scripts[:1], *beside), plan)


def _names_inside(job: Path) -> list[str]:
    """Names of the files that a job creates on its nodes."""
    text = SourceFile(str(job), read_text(job, MOST_BYTES)).as_text()
    return [embedded_text.name for embedded_text in embedded_texts(text) if embedded_text.name]


def _are_one_job(scripts: Sequence[Path], kind_of: dict[Path, str]) -> bool:
    """Whether the scripts are a JobSet and a TrainJob of the same run."""
    return {path.name for path in scripts} <= {"jobset.yaml", "trainjob.yaml"} and all(
        kind_of[path] == JOB for path in scripts
    )


def _kind(path: Path) -> str | None:
    """The kind of a launch file, as `file_kind` gives it. None if it is a Python program, no launch
    file, or unreadable."""
    if path.suffix not in _ENDINGS:
        return None
    try:
        text = read_text(path, MOST_BYTES)
        kind = file_kind(path.name, text) if text.strip() else None
    except (UsageError, CannotTellError, HardwareError, OSError):
        return None
    # Python programs in the folder say what is trained, not how.
    return None if kind and kind in kinds() and kinds()[kind].is_program else kind


def _names(paths: Sequence[Path]) -> str:
    """Names of the first six files, and how many others there are."""
    shown = ", ".join(path.name for path in paths[:_MOST_NAMED])
    more = len(paths) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


Contents = Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """A launch as read from the files `paths`.

    `gpus`, `cluster`: the machine, from the caller or from the folder's plan file. `read`: reads
    the launch again with other texts for some of its files.
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

    Facts that a folder's files lack (the machine, the model, sample lengths, the imbalance of
    experts) come from its plan file and are listed as assumptions. `contents`: texts that replace
    those of some files. UsageError as in `read_launch`.
    """
    folders = [Path(path).expanduser() for path in paths if Path(path).expanduser().is_dir()]
    if len(paths) > 1 and folders:
        raise UsageError(f"{folders[0]} is a folder: give only the folder, or the files in it")
    files = folder_files(folders[0]) if folders else FolderFiles(tuple(Path(p) for p in paths))
    names = tuple(str(path) for path in files.paths)
    taken: tuple[str, ...] = ()
    if files.plan is not None and gpus is None and cluster is None:
        request = _request_of(files.plan)
        gpus, cluster = request.gpus, request.cluster
        taken = (f"GPUs {gpus or cluster}",)
    machine = _machine(gpus, cluster)
    nodes, per_node = (machine.num_nodes, machine.gpus_per_node) if machine else (None, None)

    def read_for(world: int | None, contents: Contents) -> Found:
        known = replace(hints, gpus=world, nodes=nodes, gpus_per_node=per_node)
        if files.plan is None:
            return _shown(read_launch(names, known, plan, contents), hints)
        return _shown(_with_plan(names, files.plan, known, contents, taken), hints)

    def read(contents: Contents) -> Found:
        """The launch. If the files start fewer processes than the machine has GPUs, the degrees are
        worked out for the processes."""
        found = read_for(machine.num_gpus if machine else None, contents)
        use = started(found, machine) if machine else None
        return read_for(use.processes, contents) if use else found

    return Given(read(contents or {}), names, gpus, cluster, read)


def _shown(found: Found, hints: Hints) -> Found:
    """The launch with the images or image tokens that the caller states, if the files state
    none."""
    if found.images or found.image_tokens:
        return found
    if hints.image_tokens is not None:
        return replace(found, image_tokens=hints.image_tokens)
    return found if hints.images in (None, USUAL) else replace(found, images=hints.images)


def _with_plan(
    names: tuple[str, ...], plan: Path, hints: Hints, contents: Contents, taken: tuple[str, ...]
) -> Found:
    """The launch in a folder, with its plan file supplying what the files do not state."""
    request, is_rl, said = _request_of(plan), is_rl_file(plan), list(taken)
    known: dict[str, Any] = {}
    if is_rl:
        known["environment"] = {**_models_of(plan), **hints.environment}
    if hints.lengths is None and request.lengths is not None:
        known["lengths"] = request.lengths
        said.append(f"lengths {request.lengths}")
    # The images of the plan's samples; the files contain only limits.
    stated, tokens = hints.images or hints.image_tokens, request.image_tokens
    if stated is None and tokens is not None:
        known["image_tokens"] = tokens
        said.append(f"image tokens {tokens:,}")
    elif stated is None:
        known["images"] = request.images or USUAL
        said += [f"images {request.images}"] if request.images else []
    hints = replace(hints, **known)
    found = read_launch(names, hints, contents=contents)
    if found.model is None and found.shape is None:
        # Errors in the files stay errors, even where the plan names the model.
        wrong = [item for item in found.problems if item.severity == "error"]
        found = read_launch(names, replace(hints, model=request.model), contents=contents)
        found = replace(found, problems=tuple(dict.fromkeys((*wrong, *found.problems))))
        said.append(f"model {request.model}")
    if request.expert_imbalance != found.expert_imbalance:
        # No framework has a setting for the distribution of tokens over experts.
        said.append(f"expert imbalance {request.expert_imbalance:g}")
        found = replace(found, expert_imbalance=request.expert_imbalance)
    differing = () if is_rl else plan_differences(found, read_launch([plan]), plan.name)
    notes = tuple(f"{name} (from {plan.name})" for name in said)
    assumed, problems = (*found.assumed, *notes), (*found.problems, *differing)
    # The planner's folder contains the program that it starts.
    return replace(found, assumed=assumed, problems=problems, left_open=())


def _request_of(plan: Path) -> Request:
    """The request in a plan file; for reinforcement learning, the trainer's part of it."""
    if is_rl_file(plan):
        return read_rl_plan(plan)[0].request.trainer
    return read_plan_file(plan).request


def _models_of(plan: Path) -> Mapping[str, str]:
    """The policy and the critic of a reinforcement-learning plan, by the variables that name them
    in its scripts."""
    request = read_rl_plan(plan)[0].request
    policy = request.trainer.model
    return {POLICY_PATH: policy, CRITIC_PATH: request.critic or policy}


def _machine(gpus: str | None, cluster: str | None) -> Cluster | None:
    """The machine that is given; None if none is."""
    from hardware.load import load_cluster_file

    if cluster:
        return load_cluster_file(Path(cluster))
    return parse_one_type(gpus) if gpus else None


RULE = "differs-from-plan"
# Fields of a model's description that do not change what is trained.
_DESCRIPTIVE = {
    "family", "name", "source", "hf_name", "pretraining_seq", "max_positions", "pretraining_tokens",
}  # fmt: skip
# Megatron has one GELU; the folder's README mentions the difference.
_SAME_VALUES = {"gelu_new": "gelu"}
_REQUEST_FIELDS = (
    "batch_ramp",
    "seq", "precision", "dtype", "optimizer", "optimizer_offload", "activation_offload",
    "attention", "schedule", "dropout",
)  # fmt: skip


def plan_differences(found: Found, planned: Found, name: str) -> tuple[Problem, ...]:
    """A warning for each setting whose value in the files differs from the plan's. Empty if either
    cannot be made into a configuration. `name`: the plan file, for the text."""
    try:
        here = as_request(found, planned.plan_gpus)
        there = as_request(planned)
    except (CannotTellError, UsageError, HardwareError):
        return ()  # what is missing or wrong is said where the launch is looked at
    return tuple(
        Problem(
            RULE,
            f"{setting} is {_text(value)} in the files, {_text(other)} in {name}: the files count",
            "warning",
            (found.where[setting].place,) if setting in found.where else (),
        )
        for setting, value, other in _differences(here, there, found.format)
    )


def _differences(
    here: Proposal, there: Proposal, written_as: str
) -> Iterator[tuple[str, Any, Any]]:
    """Each differing setting: (name, value in the files, value in the plan). `written_as`: the
    format of the files."""
    mine, planned = here.degrees.model_dump(), there.degrees.model_dump()
    yield from ((key, mine[key], planned[key]) for key in mine if mine[key] != planned[key])
    if here.request.gbs != there.request.gbs:
        yield "gbs", here.request.gbs, there.request.gbs
    if _mode(here) != _mode(there):
        yield "recompute", here.recompute, there.recompute
    if _profile(here) != _profile(there):
        yield "framework", _profile(here), _profile(there)
    for key in _REQUEST_FIELDS:
        # No file says whether paged states have room on the GPU: it follows from the rest.
        if key == "optimizer_offload" and load_optimizer(here.request.optimizer).paged:
            continue
        one, other = getattr(here.request, key), getattr(there.request, key)
        if one != other and None not in (one, other):
            yield key, one, other
    if (shape := here.request.overrides.model) is not None:
        spec, profile = there.request.find_model().spec, there.request.find_framework()
        trained = trained_model(there.request, spec, profile)
        departing = _departing(trained, profile.name, written_as)
        yield from _model_differences(shape, trained, departing)


def _departing(model: ModelSpec, profile: str, written_as: str) -> frozenset[str]:
    """Fields of the model that files of this format cannot state exactly, so that a difference in
    them is expected. The folder's README says what the framework does instead."""
    written = formats().get(written_as)
    able = (
        name for name, target in targets().items()
        if written is not None and target.dialect == written.dialect and target.runs(profile)
    )  # fmt: skip
    return frozenset().union(*(departing_fields(table_of(name, model), model) for name in able))


def _profile(proposal: Proposal) -> str:
    """Name of the profile in use, which may be that of a technique instead of the framework's."""
    request = proposal.request
    launched = request.overrides.launched
    used = tuple(launched.variations) if launched else request.use
    return with_techniques(request.find_framework(), used).name


def _mode(proposal: Proposal) -> object:
    try:
        return proposal.request.find_framework().recompute_mode(proposal.recompute).mask
    except UsageError:
        return proposal.recompute


def _model_differences(
    here: ModelSpec, there: ModelSpec, departing: frozenset[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Each differing field of the model, by its dotted name, but for those in `departing`."""
    one, other = (dict(leaves(model.model_dump(mode="json"))) for model in (here, there))
    for key in one.keys() | other.keys():
        values = [_SAME_VALUES.get(str(side.get(key)), side.get(key)) for side in (one, other)]
        told = key.split(".")[0] in _DESCRIPTIVE or key in departing
        if not told and values[0] != values[1]:
            yield f"model's {key}", one.get(key), other.get(key)


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
