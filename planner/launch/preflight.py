"""`preflight.py` of a launch folder: are nodes, GPUs and versions those of the plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.launch.contract import Launch
from planner.launch.template import filled


def preflight_script(launch: Launch, script: str, requirements: Sequence[str]) -> str:
    """The script. `script`: the launcher's file; `requirements`: the README's."""
    gpu = launch.job.cluster.gpu.name
    return filled(
        "preflight.py.txt",
        script=script,
        ranks=launch.plan.degrees.gpus,
        local=launch.gpus_per_node,
        gpu=re.split(r"[-_ ]", gpu)[0],
        memory=f"{launch.plan.peak_bytes / 2**30:.1f}",
        versions=dict(_packages(requirements)),
    )


def _packages(requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Package and least version of `name>=1.2`, `name==1.2`; what else is asked is for people."""
    found = []
    for need in requirements:
        match = re.match(r"([A-Za-z0-9_.-]+) ?[>=]= ?(\d[\w.]*)", need)
        if match:
            found.append((match[1], match[2]))
    return found
