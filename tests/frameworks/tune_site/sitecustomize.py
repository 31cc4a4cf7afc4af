"""Python runs this first: it trains on a CPU what accelerate's folder is written for on GPUs.

Ranks meet by gloo, data-parallel: accelerate shards on accelerators alone. What keeps activations
and frees gathered parameters has too little memory, a limit on this process's data; what keeps
neither is slow. The rest trains as it is.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

words = sys.orig_argv


def data_bytes():
    """What the process holds now, as the limit counts it."""
    with Path("/proc/self/status").open() as status:
        [held] = [line.split()[1] for line in status if line.startswith("VmData")]
    return 1024 * int(held)


def train_on_cpu():
    for name in [*os.environ]:
        if name.startswith(("PARALLELISM_CONFIG", "ACCELERATE_USE_PARALLELISM")):
            del os.environ[name]
    os.environ["ACCELERATE_USE_CPU"] = "true"
    import accelerate

    # Without shards every rank makes the weights.
    accelerate.init_empty_weights = lambda **_: contextlib.nullcontext()


def limit_memory():
    import resource

    import torch

    loss = torch.nn.functional.cross_entropy

    def limited(*given, **more):
        limit = data_bytes() + 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # Logits of a larger vocabulary.
        torch.zeros(2**24)
        return loss(*given, **more)

    torch.nn.functional.cross_entropy = limited


def be_slow():
    import torch

    step = torch.optim.AdamW.step

    def slow(self, *given, **more):
        time.sleep(1.0)
        return step(self, *given, **more)

    torch.optim.AdamW.step = slow


if "RANK" in os.environ and "--micro-batch-size" in words:
    train_on_cpu()
    keeps = os.environ["FSDP_ACTIVATION_CHECKPOINTING"].lower() == "false"
    frees = os.environ["FSDP_RESHARD_AFTER_FORWARD"].lower() == "true"
    if keeps and frees:
        limit_memory()
    elif frees:
        be_slow()
