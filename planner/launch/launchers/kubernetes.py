"""A JobSet: one pod a node, found by name; the configuration in a ConfigMap beside it."""

from __future__ import annotations

import json

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers.shell import PORT, Rendezvous, headline, program_lines
from planner.launch.launchers.slurm import job_name

SCRIPT = "jobset.yaml"
_MOUNT = "/launch"
_WORK = "/tmp/launch"
_GROUP = "node"


def launcher_files(launch: Launch, command: Command, configuration: Files) -> Files:
    """`jobset.yaml`, with the framework's files inside."""
    name = job_name(launch)
    meeting = Rendezvous('"${JOB_COMPLETION_INDEX}"', f"{name}-{_GROUP}-0-0.{name}")
    if launch.nodes == 1:
        meeting = Rendezvous("0", "127.0.0.1")
    lines = [
        f"# {headline(launch)}.",
        f"# Written by planner launch; README.md says what to expect. {how_to_start(launch)}",
        "# PLACEHOLDERS: the image, and the values of env.",
        *(_config_map(name, configuration) if configuration else []),
        *_job_set(launch, command, meeting, bool(configuration)),
    ]
    return {SCRIPT: "\n".join(lines) + "\n"}


def _config_map(name: str, configuration: Files) -> list[str]:
    lines = [
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        f"  name: {name}",
        "data:",
    ]
    for file, text in configuration.items():
        # Indentation and last lines as they are.
        lines += [f"  {json.dumps(file)}: |2+", *_block(text.splitlines(), 4)]
    return [*lines, "---"]


def _block(lines: list[str], indent: int) -> list[str]:
    return [" " * indent + line if line else "" for line in lines]


def _job_set(launch: Launch, command: Command, meeting: Rendezvous, mounted: bool) -> list[str]:
    name = job_name(launch)
    return [
        "apiVersion: jobset.x-k8s.io/v1alpha2",
        "kind: JobSet",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  network:",
        "    enableDNSHostnames: true",
        "  replicatedJobs:",
        f"    - name: {_GROUP}",
        "      replicas: 1",
        "      template:",
        "        spec:",
        f"          parallelism: {launch.nodes}",
        f"          completions: {launch.nodes}",
        "          completionMode: Indexed",
        "          backoffLimit: 0",
        "          template:",
        "            spec:",
        *_block(_pod(launch, command, meeting, mounted), 14),
    ]


def _pod(launch: Launch, command: Command, meeting: Rendezvous, mounted: bool) -> list[str]:
    """The pod of a node: all its GPUs, shared memory, the script."""
    script = ["set -euo pipefail"]
    if mounted:
        # A ConfigMap cannot be written to; frameworks write beside their configuration.
        script.append(f"mkdir -p {_WORK} && cp -L {_MOUNT}/* {_WORK} && cd {_WORK}")
    script += program_lines(launch, command, meeting)
    configuration = [f"- name: configuration\n  configMap:\n    name: {job_name(launch)}"]
    mounts = ["- name: shared-memory", "  mountPath: /dev/shm"]
    if mounted:
        mounts += ["- name: configuration", f"  mountPath: {_MOUNT}"]
    volumes = ["- name: shared-memory", "  emptyDir:", "    medium: Memory"]
    if mounted:
        volumes += configuration[0].splitlines()
    return [
        "restartPolicy: Never",
        "containers:",
        "  - name: train",
        "    image: registry.example.com/train:latest",
        *_block(_environment(command), 4),
        '    command: ["bash", "-c"]',
        "    args:",
        "      - |",
        *_block(script, 8),
        "    ports:",
        f"      - containerPort: {PORT}",
        "    resources:",
        "      limits:",
        f"        {_resource(launch)}: {launch.gpus_per_node}",
        "    volumeMounts:",
        *_block(mounts, 6),
        "volumes:",
        *_block(volumes, 2),
    ]


def _environment(command: Command) -> list[str]:
    """Variables that the user must set."""
    if not command.demands:
        return []
    lines = ["env:"]
    for name, what in command.demands.items():
        lines += [f"  # {what}", f"  - name: {name}", f"    value: {json.dumps('/set/me')}"]
    return lines


def _resource(launch: Launch) -> str:
    return "amd.com/gpu" if launch.job.cluster.gpu.vendor == "amd" else "nvidia.com/gpu"


def how_to_start(launch: Launch) -> str:  # noqa: ARG001 (as the other launchers)
    """The command, in a sentence."""
    return f"Run: kubectl apply -f {SCRIPT} (needs JobSet, sigs.k8s.io/jobset)"
