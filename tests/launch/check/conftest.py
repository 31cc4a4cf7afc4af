"""Files written for a test, and `planner check` run on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch

Write = Callable[..., Path]
Read = Callable[..., Found]

# A small dense model as Megatron's options, one a word.
SMALL = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --position-embedding-type rope --seq-length 4096 "
    "--max-position-embeddings 4096 --vocab-size 128256 --attention-dropout 0 "
    "--hidden-dropout 0 --bf16 --micro-batch-size 1 --global-batch-size 64"
)
OVERLAPPED = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"


def script(arguments: str) -> str:
    """A launch script on one node."""
    return (
        "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {arguments}\n"
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a text to a file of a name."""

    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.fixture
def read(write: Write) -> Read:
    """Read one text as a launch file."""

    def found(text: str, name: str = "launch.sh", **hints: object) -> Found:
        return read_launch([write(name, text)], Hints(**hints))  # type: ignore[arg-type]

    return found


def rules(found: Found, severity: str | None = "error") -> set[str]:
    """Names of the rules that are broken."""
    return {problem.rule for problem in found.problems if severity in (None, problem.severity)}
