"""A JobSet, and the same as a Kubeflow TrainJob: one pod a node, the configuration beside it."""

from __future__ import annotations

from planner.launch.contract import Files, Launch, RunCommand
from planner.launch.launchers.shell import (
    ALONE,
    PORT,
    UNSET,
    Rendezvous,
    headline,
    job_name,
    looking_lines,
    program_lines,
    start_notes,
    variable_lines,
)
from planner.launch.quoting import kubernetes_script, yaml_value
from planner.launch.settings_text import comment, filled

SCRIPT, TRAIN_JOB, SUBMIT = "jobset.yaml", "trainjob.yaml", "submit"
_MOUNT = "/launch"
_WORK = "/tmp/launch"
# Name of the replicated job and of its container: Kubeflow's runtimes have the same. What its
# plugin sets in each pod: pkg/constants/constants.go. Patches of pods: Trainer 2.2 and newer.
_GROUP = "node"
_IMAGE, _CLAIM = "registry.example.com/train:latest", "set-me-claim"
# A disk of all nodes, for what outlives a pod: data and checkpoints.
_SHARED = "/shared"
# What pods on several nodes want beside GPUs, by a name that only the cluster knows.
_NETWORK = "# Add your cluster's RDMA devices (such as rdma/ib: 8): the step time counts on them."
_MEMORY_MOUNT = ("- name: shared-memory", "  mountPath: /dev/shm")
_SHARED_MOUNT = ("- name: shared-disk", f"  mountPath: {_SHARED}")
_CONFIGURATION_MOUNT = ("- name: configuration", f"  mountPath: {_MOUNT}")
_KUBEFLOW = Rendezvous('"${PET_NODE_RANK}"', '"${PET_MASTER_ADDR}"', '"${PET_MASTER_PORT}"')


def kubernetes_files(
    launch: Launch, command: RunCommand, configuration: Files, start: str
) -> Files:
    """`jobset.yaml` and `trainjob.yaml`, each with the framework's files inside; `start`: how a
    person starts the first."""
    name = job_name(launch)
    first = f"{name}-{_GROUP}-0-0.{name}"
    kubeflow = f"Run: bash {SUBMIT} {TRAIN_JOB} (needs Kubeflow Trainer 2.2 or newer)"
    jobs = {
        SCRIPT: (start, Rendezvous('"${JOB_COMPLETION_INDEX}"', first)),
        TRAIN_JOB: (kubeflow, _KUBEFLOW),
    }
    files: dict[str, str] = {}
    for file, (run, meeting) in jobs.items():
        lines = [
            f"# {headline(launch)}.",
            f"# Written by planner launch; README.md says what to expect. {run}",
            "# PLACEHOLDERS: the image, the claim of the shared disk, and the values of env.",
            *(_config_map(name, configuration) if configuration else []),
        ]
        job = _job(f"{file}.txt", launch, command, meeting, configuration)
        files[file] = "\n".join(lines) + "\n" + job
    return files | {SUBMIT: filled(f"{SUBMIT}.txt", image=_IMAGE, claim=_CLAIM)}


def _job(
    template: str, launch: Launch, command: RunCommand, meeting: Rendezvous, configuration: Files
) -> str:
    """A pod a node, with all its GPUs, shared memory and the script."""
    meeting = meeting if launch.nodes > 1 else ALONE
    return filled(
        template,
        job=job_name(launch),
        group=_GROUP,
        image=_IMAGE,
        port=PORT,
        nodes=launch.nodes,
        local=launch.gpus_per_node,
        resource="amd.com/gpu" if launch.job.cluster.gpu.vendor == "amd" else "nvidia.com/gpu",
        environment=_environment(command),
        bash=_bash(launch, command, meeting, bool(configuration)),
        network=_NETWORK if launch.nodes > 1 else "",
        mounts=[*_MEMORY_MOUNT, *_SHARED_MOUNT, *(_CONFIGURATION_MOUNT if configuration else [])],
        volumes=_volumes(launch, configuration),
    )


def _key(file: str) -> str:
    """A file's key in the ConfigMap: letters, digits, dots, dashes and underscores."""
    return file.replace("/", ".")


def _config_map(name: str, configuration: Files) -> list[str]:
    lines = ["apiVersion: v1", "kind: ConfigMap", "metadata:", f"  name: {name}", "data:"]
    for file, text in configuration.items():
        # Indentation and last lines as they are.
        content = _block(text.removesuffix("\n").split("\n"), 4)
        lines += [f"  {yaml_value(_key(file))}: |2+", *content]
    return [*lines, "---"]


def _block(lines: list[str], indent: int) -> list[str]:
    return [" " * indent + line if line else "" for line in lines]


def _bash(launch: Launch, command: RunCommand, meeting: Rendezvous, mounted: bool) -> list[str]:
    """`command` and `args` of the container."""
    script = ["set -euo pipefail"]
    if mounted:
        # A ConfigMap cannot be written to; frameworks write beside their configuration.
        script.append(f"mkdir -p {_WORK} && cp -rL {_MOUNT}/* {_WORK} && cd {_WORK}")
    script += ["", *variable_lines(command)]
    script += [*looking_lines(command), *start_notes(command)]
    script += program_lines(launch, command, meeting)
    lines = [kubernetes_script(line) for line in script]
    return ['command: ["bash", "-c"]', "args:", "  - |", *_block(lines, 4)]


def _volumes(launch: Launch, configuration: Files) -> list[str]:
    """Shared memory for NCCL and data loaders; the configuration, with its folders."""
    volumes = ["- name: shared-memory", "  emptyDir:", "    medium: Memory"]
    volumes += ["- name: shared-disk", "  persistentVolumeClaim:", f"    claimName: {_CLAIM}"]
    if not configuration:
        return volumes
    volumes += ["- name: configuration", "  configMap:", f"    name: {job_name(launch)}"]
    if any("/" in file for file in configuration):
        volumes.append("    items:")
        for file in configuration:
            volumes += [f"      - key: {_key(file)}", f"        path: {file}"]
    return volumes


def _environment(command: RunCommand) -> list[str]:
    """Variables that the user must set."""
    lines = ["env:"] if command.needed else []
    for entry in command.needed:
        lines += [*comment(entry.meaning, 2), f"  - name: {entry.name}"]
        lines.append(f"    value: {yaml_value(f'{UNSET}{entry.name}')}")
    return lines
