"""Scripts that start the processes on the nodes, one per way, around the same shell lines.

For Kubernetes a JobSet, and the same as a Kubeflow TrainJob, with one pod per node and the
configuration in the file.
"""

from __future__ import annotations

from collections.abc import Mapping

from hardware.files import shipped_toml
from planner.launch.contract import STOP, Files, Launch, RunCommand
from planner.launch.launchers.shell import (
    ALONE,
    PORT,
    UNSET,
    Rendezvous,
    headline,
    job_name,
    looking_lines,
    program_lines,
    setting_tests,
    start_notes,
    unset_lines,
    variable_lines,
)
from planner.launch.quoting import Code, Value, kubernetes_script, yaml_value
from planner.launch.sentences import filled_in
from planner.launch.settings_text import comment, filled
from planner.launch.time_limit import SIGNAL_S, limit_text

JOB_SET, TRAIN_JOB, SUBMIT = "jobset.yaml", "trainjob.yaml", "submit"
_LAUNCHERS = shipped_toml("planner.launch", "templates/launchers.toml")


def start_script(launch: Launch) -> str:
    """Name of the file that starts the job."""
    return str(_LAUNCHERS[launch.nodes_as]["script"])


def how_to_start(launch: Launch) -> str:
    """A sentence on how to start the job."""
    words = _LAUNCHERS[launch.nodes_as]
    text = words.get("how_on_several", words["how"]) if launch.nodes > 1 else words["how"]
    return filled_in(text, {"launch": launch, "script": start_script(launch)})


def launcher_files(launch: Launch, command: RunCommand, configuration: Files) -> Files:
    """The files that start the job in the way `launch.nodes_as`, by name. `configuration`: the
    framework's files, which Kubernetes jobs include."""
    if launch.nodes_as == "k8s":
        return _kubernetes_files(launch, command, configuration)
    script, words, several = start_script(launch), _LAUNCHERS[launch.nodes_as], launch.nodes > 1
    last = str(launch.nodes - 1)
    meeting = Rendezvous(words["rank"], words["address"], words["port"]) if several else ALONE
    more: Mapping[str, Value] = {}
    if launch.nodes_as == "slurm":
        more = _slurm(launch, command)
    elif launch.nodes_as == "skypilot":
        more = _skypilot(launch, command)
    text = filled(
        f"{script}.txt",
        headline=headline(launch),
        start=how_to_start(launch),
        several=[line.replace("LAST", last) for line in words["several"]] if several else (),
        variables=variable_lines(command),
        settings=looking_lines(command, _FIRST_NODE if several else ()),
        said=start_notes(command),
        program=program_lines(launch, command, meeting),
        **more,
    )
    return {script: text}


def _slurm(launch: Launch, command: RunCommand) -> Mapping[str, Value]:
    """Values for the template of a Slurm script: resources, time limit, and the folders that a
    container must see."""
    paths = [entry.name for entry in command.variables if entry.is_path]
    return {
        "job": job_name(launch),
        "nodes": launch.nodes,
        "local": launch.gpus_per_node,
        "unset": unset_lines(command),
        "tests": setting_tests(command, container=True),
        "time": limit_text(launch),
        "signal": SIGNAL_S,
        "again": _AGAIN if any(entry.name == STOP for entry in command.variables) else (),
        "paths": Code(" ".join(f'"${{{name}}}"' for name in paths)),
    }


# A run that ended because its time was over has steps left.
_AGAIN = (
    f'[[ "${{STATUS}}" != 0 || -n "${{MODE}}" || -z "${{{STOP}}}" ]] ||',
    f"    ((SECONDS < 60 * {STOP})) || requeue",
)
# What a dry run sets outside any node.
_FIRST_NODE = ('export NODE_RANK="${NODE_RANK:-0}" MASTER_ADDR="${MASTER_ADDR:-FIRST_NODE}"',)


def _skypilot(launch: Launch, command: RunCommand) -> Mapping[str, Value]:
    """Values for the template of a SkyPilot task: GPUs (`H100:8`), the network, and the variables
    that the user must set."""
    gpu = launch.job.cluster.gpu.name
    wants = "# The step time counts on the full network between nodes.", "network_tier: best"
    environment: list[str] = []
    for entry in command.needed:
        # A null value must be given on submission: --env NAME=VALUE.
        environment += [*comment(entry.meaning), f"{entry.name}: null"]
    return {
        "job": job_name(launch),
        "nodes": launch.nodes,
        "accelerators": f"{_LAUNCHERS['skypilot_gpus'].get(gpu, gpu)}:{launch.gpus_per_node}",
        "network": wants if launch.nodes > 1 else "",
        "environment": environment,
    }


# --- Kubernetes -----------------------------------------------------------------------------------

JOB_SET, TRAIN_JOB, SUBMIT = "jobset.yaml", "trainjob.yaml", "submit"
_MOUNT, _WORK = "/launch", "/tmp/launch"
# Name of the replicated job and its container, as in Kubeflow's runtimes. Variables that its plugin
# sets in each pod: pkg/constants/constants.go. Patches of pods: Trainer 2.2 and newer.
_GROUP = "node"
_IMAGE, _CLAIM = "registry.example.com/train:latest", "set-me-claim"
# Values that a driver may set.
IMAGE, CLAIM = "IMAGE", "CLAIM"
# How often a job restarts from its last checkpoint; a short run has none.
_RESTARTS = 3
# Devices that pods on several nodes need; only the cluster knows their name.
_NETWORK = "# Add your cluster's RDMA devices (such as rdma/ib: 8): the step time counts on them."
_KUBEFLOW = Rendezvous('"${PET_NODE_RANK}"', '"${PET_MASTER_ADDR}"', '"${PET_MASTER_PORT}"')


def _kubernetes_files(launch: Launch, command: RunCommand, configuration: Files) -> Files:
    """`jobset.yaml` and `trainjob.yaml`, each with the framework's files inside, and the script
    that submits one of them."""
    name = job_name(launch)
    first = f"{name}-{_GROUP}-0-0.{name}"
    kubeflow = f"Run: bash {SUBMIT} {TRAIN_JOB} (needs Kubeflow Trainer 2.2 or newer)"
    jobs = {
        JOB_SET: (how_to_start(launch), Rendezvous('"${JOB_COMPLETION_INDEX}"', first)),
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
    """A Kubernetes job from a template: one pod per node with all its GPUs, shared memory and the
    script."""
    several, amd = launch.nodes > 1, launch.job.cluster.gpu.vendor == "amd"
    mounts, volumes = _disks(launch, configuration)
    return filled(
        template, job=job_name(launch), group=_GROUP, port=PORT, nodes=launch.nodes,
        image=launch.given.get(IMAGE, _IMAGE),
        restarts=0 if launch.name else _RESTARTS,
        local=launch.gpus_per_node,
        resource="amd.com/gpu" if amd else "nvidia.com/gpu",
        environment=_pod_environment(command),
        bash=_bash(launch, command, meeting if several else ALONE, bool(configuration)),
        network=_NETWORK if several else "",
        mounts=mounts, volumes=volumes,
    )  # fmt: skip


def _key(file: str) -> str:
    """A file's key in the ConfigMap: letters, digits, dots, dashes and underscores."""
    return file.replace("/", ".")


def _config_map(name: str, configuration: Files) -> list[str]:
    lines = ["apiVersion: v1", "kind: ConfigMap", "metadata:", f"  name: {name}", "data:"]
    for file, text in configuration.items():
        # Keep indentation and trailing lines.
        content = _block(text.removesuffix("\n").split("\n"), 4)
        lines += [f"  {yaml_value(_key(file))}: |2+", *content]
    return [*lines, "---"]


def _block(lines: list[str], indent: int) -> list[str]:
    return [" " * indent + line if line else "" for line in lines]


def _bash(launch: Launch, command: RunCommand, meeting: Rendezvous, mounted: bool) -> list[str]:
    """YAML lines for a container's `command` and `args`: the script that it runs. `mounted`:
    whether configuration files are mounted."""
    script = ["set -euo pipefail"]
    if mounted:
        # A ConfigMap is read-only, and frameworks write beside their configuration.
        script.append(f"mkdir -p {_WORK} && cp -rL {_MOUNT}/* {_WORK} && cd {_WORK}")
    script += ["", *variable_lines(command)]
    script += [*looking_lines(command), *start_notes(command)]
    script += program_lines(launch, command, meeting)
    lines = [kubernetes_script(line) for line in script]
    return ['command: ["bash", "-c"]', "args:", "  - |", *_block(lines, 4)]


def _disks(launch: Launch, configuration: Files) -> tuple[list[str], list[str]]:
    """YAML lines for a pod's mounts, and those for its volumes: shared memory for NCCL and data
    loaders, a disk shared by all nodes for data and checkpoints, and the configuration files."""
    claim = yaml_value(launch.given.get(CLAIM, _CLAIM))
    mounts = ["- name: shared-memory", "  mountPath: /dev/shm"]
    mounts += ["- name: shared-disk", "  mountPath: /shared"]
    volumes = ["- name: shared-memory", "  emptyDir:", "    medium: Memory"]
    volumes += ["- name: shared-disk", "  persistentVolumeClaim:", f"    claimName: {claim}"]
    if configuration:
        mounts += ["- name: configuration", f"  mountPath: {_MOUNT}"]
        volumes += ["- name: configuration", "  configMap:", f"    name: {job_name(launch)}"]
    if any("/" in file for file in configuration):
        volumes.append("    items:")
        for file in configuration:
            volumes += [f"      - key: {_key(file)}", f"        path: {file}"]
    return mounts, volumes


def _pod_environment(command: RunCommand) -> list[str]:
    """YAML lines for the variables that the user must set, for a container's `env`."""
    lines = ["env:"] if command.needed else []
    for entry in command.needed:
        lines += [*comment(entry.meaning, 2), f"  - name: {entry.name}"]
        lines.append(f"    value: {yaml_value(entry.given or f'{UNSET}{entry.name}')}")
    return lines
