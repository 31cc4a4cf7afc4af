"""`preflight.py` of a launch folder: are nodes, GPUs and versions those of the plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.launch.contract import Launch

_SCRIPT = '''"""Checks the machine before the job, on every rank: bash {script} --preflight.

Written by planner launch. Ends with status 1 and a sentence where something is not as planned.
"""

import importlib.metadata
import os
import re
import sys
import time

import torch
import torch.distributed as dist

RANKS, GPUS_PER_NODE = {ranks}, {local}
GPU = "{gpu}"
MEMORY_GIB = {memory:.1f}  # what the plan takes on the heaviest GPU
VERSIONS = {versions}


def numbers(version):
    return [int(part) for part in re.findall(r"\\d+", version)[:3]]


def problems():
    """Sentences on what is not as planned."""
    ranks, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if (ranks, local) != (RANKS, GPUS_PER_NODE):
        yield f"{{ranks}} ranks, {{local}} a node; the plan has {{RANKS}}, {{GPUS_PER_NODE}} a node"
    if torch.cuda.device_count() < GPUS_PER_NODE:
        yield f"{{torch.cuda.device_count()}} GPUs are visible, not {{GPUS_PER_NODE}}"
        return
    found = torch.cuda.get_device_properties(0)
    if GPU.lower() not in found.name.lower():
        yield f"the GPU is {{found.name}}; the plan is for {{GPU}}"
    if found.total_memory < MEMORY_GIB * 2**30:
        yield f"{{found.total_memory / 2**30:.1f}} GiB a GPU; the plan takes {{MEMORY_GIB}}"
    for package, wanted in VERSIONS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield f"{{package}} is not installed; wanted: {{wanted}}"
            continue
        if numbers(version) < numbers(wanted):
            yield f"{{package}} is {{version}}; wanted: {{wanted}}"


def all_reduce():
    """Seconds of a sum over all ranks of 256 MiB, after one that warms up."""
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    values = torch.ones(2**27, dtype=torch.bfloat16, device=device)
    for _ in range(2):
        values.fill_(1)
        torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_reduce(values)
        torch.cuda.synchronize()
    if values[0].item() != dist.get_world_size():
        sys.exit(f"all-reduce gives {{values[0].item()}}, not {{dist.get_world_size()}}")
    return time.perf_counter() - start


def main():
    found = list(problems())
    if found:
        sys.exit(f"{{os.uname().nodename}}: " + "; ".join(found))
    seconds, ranks = all_reduce(), dist.get_world_size()
    if dist.get_rank() == 0:
        bus = 2**28 * 2 * (ranks - 1) / ranks / seconds / 1e9
        print(f"{{ranks}} ranks as planned; all-reduce of 256 MiB: {{bus:.0f}} GB/s a GPU (bus)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def preflight_script(launch: Launch, script: str, requirements: Sequence[str]) -> str:
    """The script. `script`: the launcher's file; `requirements`: the README's."""
    gpu = launch.job.cluster.gpu.name
    return _SCRIPT.format(
        script=script,
        ranks=launch.plan.degrees.gpus,
        local=launch.gpus_per_node,
        gpu=re.split(r"[-_ ]", gpu)[0],
        memory=launch.plan.peak_bytes / 2**30,
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
