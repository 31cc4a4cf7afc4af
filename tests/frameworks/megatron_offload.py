"""Runs Megatron-Core's own manager of offloaded activations on a CPU, in a process of its own.

    python megatron_offload.py FOLDER < cases.json > held.json

FOLDER holds the unpacked megatron-core wheel. A case is {"layers", "modules", "rank", "vpp",
"fraction", "delta", "order"}: a chunk's layers and modules of a layer, and the forwards and
backwards of a stage as ["F" or "B", micro-batch, chunk]. Every group has one tensor of one byte.
The answer: {"peak": most bytes that stay on the GPU in a step after the first, copies on their way
not counted} or {"error": text}. Streams, events and copies are stood in for.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
import typing
from typing import Any

STEPS = 4


class Nothing:
    """A stream or an event that does nothing."""

    def __init__(self, *_given: object, **_named: object) -> None: ...

    def __getattr__(self, _name: str) -> Any:
        return lambda *_given: None


class Tensor:
    """One byte on the GPU."""

    shape = (1,)
    device = types.SimpleNamespace(type="cuda")

    def numel(self) -> int:
        """Elements."""
        return 1

    def element_size(self) -> int:
        """Bytes of each."""
        return 1

    def record_stream(self, _stream: object) -> None:
        """Nothing waits."""


def main(folder: str) -> None:
    """Read cases, print what each holds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]
    sys.path.insert(0, folder)
    import torch

    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = lambda *_given: Nothing()
    cuda.stream = lambda _stream: contextlib.nullcontext()
    from megatron.core.pipeline_parallel import (  # type: ignore[import-not-found]
        fine_grained_activation_offload as offload,
    )

    _stand_in(offload)
    json.dump([_answer(offload, case) for case in json.load(sys.stdin)], answers)


def _stand_in(offload: Any) -> None:
    """No copies, no tables: only which tensors are where."""
    offload.print_offload_summary_table = lambda _sizes: None
    offload.is_graph_capturing = lambda: False
    offload.nvtx_range_push = offload.nvtx_range_pop = lambda *_given: None
    handler = offload.ChunkOffloadHandler
    handler._can_manage_tensor_for_offload = staticmethod(lambda _tensor: True)
    handler.offload = lambda _self, tensor, **_named: ("on the host", tensor)
    handler.reload = lambda _self, state, **_named: state[1]


def _answer(offload: Any, case: dict[str, Any]) -> dict[str, Any]:
    offload.PipelineOffloadManager.reset_instance()
    manager = offload.PipelineOffloadManager.get_instance()
    peaks = []
    try:
        for _ in range(STEPS):
            peaks.append(_step(manager, case))
            manager.reset()
    except AssertionError as error:
        return {"error": str(error)}
    return {"peak": max(peaks[1:])}


def _step(manager: Any, case: dict[str, Any]) -> int:
    saved: dict[tuple[int, int], list[tuple[Any, str, Any]]] = {}
    peak = 0
    for what, batch, chunk in case["order"]:
        if what == "F":
            saved[batch, chunk] = _forward(manager, case, chunk)
            continue
        peak = max(peak, _held(manager))
        for handler, name, tag in reversed(saved.pop((batch, chunk))):
            handler.on_group_commit_backward(name)
            handler.tensor_pop(tag)
            handler.on_group_start_backward()
            peak = max(peak, _held(manager))
    return peak


def _forward(manager: Any, case: dict[str, Any], chunk: int) -> list[tuple[Any, str, Any]]:
    manager.init_model_chunk_offload_handler(
        case["rank"],
        case["vpp"],
        chunk,
        min_offloaded_tensor_size=1,
        delta_offload_bytes_across_pp_ranks=case["delta"],
        activation_offload_fraction=case["fraction"],
        max_inflight_offloads=1,
    )
    saved = []
    for _ in range(case["layers"]):
        for name in case["modules"]:
            handler = manager.pop_forward_chunk(name=name)
            assert handler is not None, "no chunk left"
            handler.on_group_start_forward(name)
            tag = handler.tensor_push(Tensor())
            handler.on_group_commit_forward(name, [])
            saved.append((handler, name, tag))
    return saved


def _held(manager: Any) -> int:
    return sum(
        not isinstance(tensor, tuple)
        for chunk in manager._cached_chunks_forward
        for group in chunk.offload_groups
        for tensor in group._tensors.values()
    )


if __name__ == "__main__":
    main(sys.argv[1])
