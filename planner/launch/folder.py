"""A launch folder: the texts of all its files, with what its machine needs and a check of nodes and
versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hardware.files import shipped_toml
from planner.job.frameworks.workspaces import CUBLAS_WORKSPACE_CONFIG
from planner.job.written_folder import Replaced, write_folder
from planner.launch.architecture import departures
from planner.launch.contract import Files, Launch, RunCommand, on_disk, run_variable
from planner.launch.launchers import launcher_files, start_script
from planner.launch.launchers.shell import PREFLIGHT
from planner.launch.plans import one_plan, starts_from_weights, writer_of
from planner.launch.quoting import Code, python_value
from planner.launch.readme import (
    MEASURED_FILE,
    PLAN_FILE,
    Expectations,
    expectations,
    measured_csv,
    readme,
)
from planner.launch.registry import table_of, targets
from planner.launch.sentences import holds, names_of
from planner.launch.settings_text import filled
from planner.search.plan_file import to_json

README = "README.md"


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """A launch folder to be written. `files`: texts by file name; `expected`: step time and memory
    that the run should show; `departures`: sentences on what the framework does differently from
    the model."""

    files: Files
    expected: Expectations
    departures: tuple[str, ...] = ()


def launch_folder(launch: Launch) -> LaunchFolder:
    """The texts of a folder for a launch, which nothing may refuse."""
    writer = writer_of(targets()[launch.target])
    command = _on_machine(writer.command(launch), launch)
    requirements = writer.requirements(launch)
    written = writer.files(launch)
    usual = preflight_script(launch, start_script(launch), starts_from_weights(launch))
    configuration = {**written, PREFLIGHT: written.get(PREFLIGHT, usual)}
    expected, job = expectations(launch), launch.job.on_gpus(launch.plan.degrees.gpus)
    files = {
        **configuration,
        **launcher_files(launch, command, configuration),
        PLAN_FILE: to_json(one_plan(launch.plan, launch.request, job)),
        MEASURED_FILE: measured_csv(launch),
    }
    departing = departures(table_of(launch.target, launch.job.model), launch.job.model)
    files[README] = readme(
        launch,
        expected,
        departing,
        tuple(writer.choices(launch)),
        requirements,
        {**files, README: ""},
        command.variables,
    )
    return LaunchFolder(files, expected, departing)


def _on_machine(command: RunCommand, launch: Launch) -> RunCommand:
    """The command with variables added: the run's name among the user's, and in the environment
    those that the machine and the request need. The writer's own environment takes priority over
    the machine's."""
    found = {**machine_environment(launch), **command.environment}
    if launch.job.cluster.gpu.vendor != "nvidia":
        # torch's allocator has no expandable segments on ROCm.
        found.pop(ALLOCATOR, None)
    if launch.name:
        found["PYTHONUNBUFFERED"] = "1", "lines reach the log as they are printed: it is followed"
    config = launch.request.cublas_workspace_config
    if config is not None:
        found[CUBLAS_WORKSPACE_CONFIG] = config, "workspaces of cuBLAS, pairs of KiB and count"
    found_variables = (run_variable(launch), *command.variables)
    defaults = (on_disk(entry, launch) for entry in found_variables)
    variables = tuple(replace(entry, given=launch.given.get(entry.name)) for entry in defaults)
    return replace(command, environment=found, variables=variables)


def write_launch(path: Path, folder: LaunchFolder, force: bool) -> Replaced:
    """Write the files into the folder `path`, all or none. `force`: the folder may already hold
    files. A file in it that the user has edited is kept under another name, and so is the plan file
    that belongs to it. UsageError or OSError if the folder cannot be written."""
    return write_folder(path, folder.files, force, together=PLAN_FILE)


Environment = Mapping[str, tuple[str, str]]
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def machine_environment(launch: Launch) -> Environment:
    """Environment variables to set: name -> (value, reason). They configure NCCL for the network
    between the nodes, and torch's memory allocator."""
    cluster = launch.job.cluster
    fabric = cluster.fabric.partition("-")[0] if launch.nodes > 1 else ""
    names = names_of(launch) | {"cluster": cluster, "fabric": fabric}
    rows = shipped_toml("planner.launch", "templates/environment.toml")["environment"]
    return {row["name"]: (row["value"], row["why"]) for row in rows if holds(row["when"], names)}


def preflight_script(launch: Launch, script: str, from_weights: bool = False) -> str:
    """The script that checks nodes, GPUs and versions before a run. `script`: name of the
    launcher's file; `from_weights`: the script also checks the published weights."""
    gpu, model = launch.job.cluster.gpu.name, launch.job.model
    shape = Code(f"({model.hidden}, {model.layers})")
    checks = filled("checkpoint.py.txt", shape=shape).split("\n") if from_weights else []
    return filled(
        "preflight.py.txt",
        script=script,
        checks=[*checks, ""] if checks else [],
        checked=Code(", *checkpoint_problems()" if from_weights else ""),
        ranks=launch.plan.degrees.gpus,
        local=launch.gpus_per_node,
        gpu=re.split(r"[-_ ]", gpu)[0],
        memory=round(launch.plan.peak_bytes / 2**30, 1),
        versions=[
            f"{python_value(name)}: ({python_value(wanted)}, {python_value(path)}),"
            for name, (wanted, path) in _versions(launch).items()
        ],
    )


def _versions(launch: Launch) -> dict[str, tuple[str, str]]:
    """Modules that the files are written for: name -> (version, variable). The variable holds the
    module's folder; it is empty for an installed package."""
    stated = targets()[launch.target].versions
    found = dict(stated)
    job, tuning = launch.job, launch.job.tuning
    kinds = {"adapters": tuning.has_adapters, "quantised": tuning.base is not None}
    trained = (name for name, holding in kinds.items() if holding)
    for name in (job.framework.name, job.precision, job.optimizer.family, *trained):
        found |= stated.get(f"with-{name}", {})
    return {
        name: (value, "") if isinstance(value, str) else (value[0], value[1])
        for name, value in found.items()
        if value and not isinstance(value, dict)
    }
