"""Traces of known sizes in the format of torch.profiler's Chrome export (torch 2.13)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

STEP_US = 10_000.0


def span(
    category: str, name: str, start: float, duration: float, **arguments: Any
) -> dict[str, Any]:
    """A complete event; microseconds."""
    thread = 7 if category == "kernel" else 1234
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread,
        "ts": start, "dur": duration, "args": {"stream": 7, "correlation": 1} | arguments,
    }  # fmt: skip


def step(start: float, *, slow: float = 0.0, reads: bool = False) -> list[dict[str, Any]]:
    """10 ms: products 4 ms, attention 1 ms, elementwise 0.5 ms, 1 ms of the reduction hidden and
    2 ms exposed, the optimizer 0.5 ms, idle 1 ms in four gaps (and what is left after `slow`)."""
    events = [
        span("kernel", "nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", start, 4000.0 + slow),
        span("kernel", "flash_fwd_kernel<...>", start + 4000 + slow, 1000.0),
        span("kernel", "vectorized_elementwise_kernel<4>", start + 5250 + slow, 500.0),
        span(
            "kernel", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", start + 4000 + slow, 1000.0,
            **{"Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP"},
        ),
        span(
            "kernel", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", start + 6000 + slow, 2000.0,
            **{"Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP"},
        ),
        span("kernel", "multi_tensor_apply_kernel<AdamFunctor>", start + 8250 + slow, 500.0),
        span("user_annotation", f"ProfilerStep#{round(start / STEP_US)}", start, STEP_US),
    ]  # fmt: skip
    if reads:
        events.append(span("cpu_op", "aten::item", start + 5750, 250.0))
        events.append(span("cuda_runtime", "cudaStreamSynchronize", start + 5760, 235.0))
    return events


def trace(steps: int = 3, rank: int = 0, **options: Any) -> dict[str, Any]:
    """A whole trace of one rank."""
    events = [
        event for number in range(1, steps + 1) for event in step(number * STEP_US, **options)
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8},
        "traceEvents": [
            {"name": "process_name", "ph": "M", "ts": 0, "pid": 0, "args": {"name": "python"}},
            *events,
        ],
        "traceName": "rank.pt.trace.json",
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    """The trace on disk, compressed where the name ends so."""
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
