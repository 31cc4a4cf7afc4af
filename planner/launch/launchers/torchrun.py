"""A script that is started on every node by hand, or by anything that can run one."""

from __future__ import annotations

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers.shell import PORT, Rendezvous, headline, program_lines, variable_lines

SCRIPT = "launch.sh"


def launcher_files(launch: Launch, command: Command) -> Files:
    """`launch.sh`."""
    several = launch.nodes > 1
    meeting = Rendezvous('"${NODE_RANK}"', '"${MASTER_ADDR}"', f'"${{MASTER_PORT:-{PORT}}}"')
    if not several:
        meeting = Rendezvous("0", "127.0.0.1")
    lines = [
        "#!/usr/bin/env bash",
        f"# {headline(launch)}.",
        f"# Written by planner launch; README.md says what to expect. {how_to_start(launch)}",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        'MODE="${1:-${MODE:-}}"',
        "",
    ]
    if several:
        lines += [
            f': "${{NODE_RANK:?number of this node, 0 to {launch.nodes - 1}}}"',
            ': "${MASTER_ADDR:?address of node 0, the same on all nodes}"',
        ]
    lines += variable_lines(command)
    lines += program_lines(launch, command, meeting)
    return {SCRIPT: "\n".join(lines) + "\n"}


def how_to_start(launch: Launch) -> str:
    """The command, in a sentence."""
    if launch.nodes == 1:
        return f"Run: bash {SCRIPT}"
    return f"On each of {launch.nodes} nodes: NODE_RANK=n MASTER_ADDR=node0 bash {SCRIPT}"
