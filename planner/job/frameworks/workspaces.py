"""cuBLAS workspaces as torch allocates them, one for each thread that calls the library."""

from __future__ import annotations

import re

from hardware.facts import architecture_named
from planner.job.errors import UsageError

# The environment variable that cuBLAS and torch read.
CUBLAS_WORKSPACE_CONFIG = "CUBLAS_WORKSPACE_CONFIG"
_KIB = 1024
# One thread runs forward, another one backward.
_THREADS = 2
_FORM = re.compile(r"(:\d{1,9}:\d{1,9})+")


def torch_workspaces(architecture: str, config: str | None = None) -> float:
    """Bytes of torch's workspaces on a GPU: 2 x 8,519,680 on Ampere, 2 x 33,554,432 on Hopper.

    `config`: value of CUBLAS_WORKSPACE_CONFIG, if set. UsageError if it is malformed.
    """
    return _THREADS * workspace_bytes(config or architecture_named(architecture).cublas_workspace)


def workspace_bytes(config: str) -> float:
    """Bytes of one workspace: pairs `:KiB:count` (cuBLAS, "Results reproducibility")."""
    if not _FORM.fullmatch(config):
        raise UsageError(
            f"--cublas-workspace-config {config!r}: give pairs of KiB and count, for example "
            ":4096:8 or :4096:2:16:8"
        )
    numbers = [int(number) for number in config.split(":")[1:]]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return float(_KIB * sum(size * count for size, count in pairs))
