"""A launch folder: all its files as texts, with what its machine wants and a check of nodes and
versions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.job.frameworks.targets import TARGETS
from planner.job.frameworks.workspaces import CUBLAS_WORKSPACE_CONFIG
from planner.job.written_folder import Replaced, write_folder
from planner.launch.architecture import departures
from planner.launch.contract import Files, Launch, RunCommand, run_variable
from planner.launch.dialects import DIALECTS
from planner.launch.launchers import launcher_files, start_script
from planner.launch.launchers.shell import PREFLIGHT
from planner.launch.plans import one_plan, writer_of
from planner.launch.readme import (
    MEASURED_FILE,
    PLAN_FILE,
    Expectations,
    expectations,
    measured_csv,
    readme,
)
from planner.launch.settings_text import filled
from planner.search.plan_file import to_json

README = "README.md"


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """Relative names and texts of all files, and what the run is expected to show.

    `departures`: what the framework does in place of what the model says.
    """

    files: Files
    expected: Expectations
    departures: tuple[str, ...] = ()


def launch_folder(launch: Launch) -> LaunchFolder:
    """Everything that goes into the folder of a launch without refusals."""
    writer = writer_of(TARGETS[launch.target])
    command = _on_machine(writer.command(launch), launch)
    requirements = writer.requirements(launch)
    preflight = preflight_script(launch, start_script(launch), requirements)
    configuration = {**writer.files(launch), PREFLIGHT: preflight}
    expected, job = expectations(launch), launch.job.on_gpus(launch.plan.degrees.gpus)
    files = {
        **configuration,
        **launcher_files(launch, command, configuration),
        PLAN_FILE: to_json(one_plan(launch.plan, launch.request, job)),
        MEASURED_FILE: measured_csv(launch),
    }
    departing = departures(DIALECTS[launch.target](launch.job.model), launch.job.model)
    files[README] = readme(
        launch,
        expected,
        departing,
        tuple(writer.choices(launch)),
        requirements,
        {**files, README: ""},
    )
    return LaunchFolder(files, expected, departing)


def _on_machine(command: RunCommand, launch: Launch) -> RunCommand:
    """The command with what the machine wants, where the writer says nothing else, cuBLAS's
    workspaces as the request has them, and the name of the run."""
    found = {**machine_environment(launch), **command.environment}
    if launch.job.cluster.gpu.vendor != "nvidia":
        # torch's allocator has no segments that grow on ROCm.
        found.pop(ALLOCATOR, None)
    config = launch.request.cublas_workspace_config
    if config is not None:
        found[CUBLAS_WORKSPACE_CONFIG] = config, "workspaces of cuBLAS, pairs of KiB and count"
    variables = (run_variable(launch), *command.variables)
    return replace(command, environment=found, variables=variables)


def write_launch(path: Path, folder: LaunchFolder, force: bool) -> Replaced:
    """Write the folder. Where an edited file is kept, so is the plan that it was made for."""
    return write_folder(path, folder.files, force, together=PLAN_FILE)


Environment = Mapping[str, tuple[str, str]]
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# Fabrics that NCCL needs a plugin for -> what sends it there, and not to sockets without a word.
# InfiniBand and RoCE are NCCL's own; a TCPX cloud's image brings a profile to source.
_FABRICS: Mapping[str, Environment] = {
    "efa": {
        "FI_PROVIDER": ("efa", "NCCL's OFI plugin takes EFA, not sockets"),
        "FI_EFA_USE_DEVICE_RDMA": ("1", "GPUs send without a copy on the host"),
    },
    "slingshot": {
        "FI_PROVIDER": ("cxi", "NCCL's OFI plugin takes Slingshot, not sockets"),
        "NCCL_CROSS_NIC": ("1", "rings may change cards between nodes, all of one network"),
    },
}


def machine_environment(launch: Launch) -> Environment:
    """Variables of NCCL by the network between the nodes, and of torch's allocator."""
    cluster = launch.job.cluster
    found: dict[str, tuple[str, str]] = {}
    if launch.nodes > 1:
        found |= _FABRICS.get(cluster.fabric.partition("-")[0], {})
    if cluster.scale_up_domain_gpus > cluster.gpus_per_node and cluster.gpu.vendor == "nvidia":
        found["NCCL_MNNVL_ENABLE"] = ("1", "NVLink joins several nodes: NCCL must use it there too")
    if launch.plan.full_memory is not None and cluster.gpu.vendor == "nvidia":
        found[ALLOCATOR] = (
            "expandable_segments:True",
            "memory is nearly full: segments that grow leave no holes",
        )
        if "cuda-graphs" in launch.plan.techniques:
            found["NCCL_GRAPH_REGISTER"] = (
                "0",
                "buffers in segments that grow must not be registered in graphs (Megatron demands "
                "it)",
            )
    return found


def preflight_script(launch: Launch, script: str, requirements: Sequence[str]) -> str:
    """The script. `script`: the launcher's file; `requirements`: the README's."""
    gpu = launch.job.cluster.gpu.name
    # `name>=1.2`, `name==1.2`; what else is asked is for people.
    versions = (re.match(r"([A-Za-z0-9_.-]+) ?[>=]= ?(\d[\w.]*)", need) for need in requirements)
    return filled(
        "preflight.py.txt",
        script=script,
        ranks=launch.plan.degrees.gpus,
        local=launch.gpus_per_node,
        gpu=re.split(r"[-_ ]", gpu)[0],
        memory=f"{launch.plan.peak_bytes / 2**30:.1f}",
        versions={version[1]: version[2] for version in versions if version},
    )
