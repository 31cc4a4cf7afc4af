"""A script that is started on every node by hand, or by anything that can run one."""

from __future__ import annotations

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers.shell import PORT, Rendezvous, script_text

SCRIPT = "launch.sh"
_MEETING = Rendezvous('"${NODE_RANK}"', '"${MASTER_ADDR}"', f'"${{MASTER_PORT:-{PORT}}}"')


def launcher_files(launch: Launch, command: Command, _configuration: Files) -> Files:
    """`launch.sh`."""
    several = [
        f': "${{NODE_RANK:?number of this node, 0 to {launch.nodes - 1}}}"',
        ': "${MASTER_ADDR:?address of node 0, the same on all nodes}"',
    ]
    return {SCRIPT: script_text(launch, command, SCRIPT, _MEETING, how_to_start(launch), several)}


def how_to_start(launch: Launch) -> str:
    """The command, in a sentence."""
    if launch.nodes == 1:
        return f"Run: bash {SCRIPT}"
    return f"On each of {launch.nodes} nodes: NODE_RANK=n MASTER_ADDR=node0 bash {SCRIPT}"
