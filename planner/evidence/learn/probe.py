"""Benchmark this machine with torch: only the kernels and collectives that a job's plan needs.

Only this module imports torch, and only when needed. Each figure is the median of repeated runs
between CUDA events, after a warm-up; a probe takes a few minutes. Collectives need a process for
each GPU (torchrun); the rest runs on the first GPU.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from hardware.errors import HardwareError
from hardware.files import shipped_toml
from hardware.load import load_gpu
from planner.cost.codes import OpKind, Shard
from planner.evidence.learn.benches import COLLECTIVES, Bench
from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.rows import MeasuredRow
from planner.job.errors import CannotTellError, UsageError
from planner.job.written import csv_text
from planner.predict.cost_tables import half_precision, job_pieces

Progress = Callable[[str, int, int], None]
_WARM, _TIMED = 5, 20
# Bytes of the copies. Each takes longer than its launch from Python, which is 16 us on an H200's
# host.
_COPIES = (2**26, 2**28, 2**31)
# Weights that one update changes, for the same reason (85 us). fp32: AdamW reads weight, gradient
# and two moments and writes all but the gradient.
_UPDATES, _UPDATE_BYTES = (2**25, 2**28), 28
# Bytes of collectives, from latency-bound to bandwidth-bound.
_EXCHANGES = (2**16, 2**20, 2**24, 2**28)
COLUMNS = (
    "kind", "m", "n", "k", "batch", "seq", "heads", "head_dim", "causal", "backward", "bytes",
    "gpus", "nodes", "time_s",
)  # fmt: skip


def wanted(mapped: MappedRow, world: int, nodes: int) -> list[Bench]:
    """The benchmarks that a configuration needs, without times: matrix products and attention of
    its layers, copies, updates, and collectives among `world` GPUs."""
    job, degrees = mapped.job, mapped.degrees
    tokens = float(degrees.mbs * job.seq // degrees.cp)
    shapes = {
        shape
        for piece in job_pieces(job)
        for op in piece.ops
        if op.kind is OpKind.GEMM
        for shape in _products(op, tokens, degrees.tp)
    }
    found = [Bench("gemm", {"m": m, "n": n, "k": k}, 0.0) for m, n, k in sorted(shapes)]
    width = float(job.model.head_dim)
    heads = float(max(1, job.model.heads // degrees.tp))
    sizes = {"batch": float(degrees.mbs), "seq": float(job.seq // degrees.cp), "heads": heads}
    found += [
        Bench("attention", {**sizes, "head_dim": width, "causal": 1.0, "backward": backward}, 0.0)
        for backward in (0.0, 1.0)
    ]
    found += [Bench("copy", {"bytes": 2.0 * size}, 0.0) for size in _COPIES]
    found += [
        Bench("optimizer", {"bytes": float(_UPDATE_BYTES * count)}, 0.0) for count in _UPDATES
    ]
    if world > 1:
        found += [
            Bench(kind, {"bytes": float(size), "gpus": float(world), "nodes": float(nodes)}, 0.0)
            for kind in COLLECTIVES
            for size in _EXCHANGES
        ]
    return found


def usual_configuration(torch: Any, world: int) -> MappedRow:
    """The configuration measured if no plan is given: Llama 3 8B, unsplit on each of `world` GPUs.
    UsageError for a GPU that the catalogue lacks."""
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    try:
        gpu = load_gpu(name)
    except HardwareError:
        raise UsageError(
            f"the catalogue has no {name}: give --plan-file with a plan on a cluster file's GPUs"
        ) from None
    cells = {"gpu": gpu.name, "num_gpus": str(world), "gbs": str(world)}
    return map_row(MeasuredRow("usual", 1, usual_cells("llama", half_precision(gpu)) | cells))


def usual_cells(name: str, half: str) -> dict[str, str]:
    """The cells of a run from `usual.toml`, in the 16-bit type of its GPU."""
    cells = dict(shipped_toml("planner.evidence.learn", "usual.toml")[name])
    return cells | {"precision": cells["precision"].replace("bf16", half)}


def _products(op: Any, tokens: float, tp: int) -> Iterator[tuple[float, float, float]]:
    """Forward, input gradient and weight gradient of one linear layer on a rank."""
    width = op.out_width / (tp if op.out_shard != Shard.NONE else 1)
    depth = op.in_width / (tp if op.in_shard != Shard.NONE else 1)
    if width >= 1.0 and depth >= 1.0:
        yield tokens, width, depth
        yield tokens, depth, width
        yield width, depth, tokens


def load_torch() -> Any:
    """torch with a GPU. CannotTellError if either is missing."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise CannotTellError(
            "no torch here, so no GPU can be measured: pip install 'trainplan[probe]' on "
            "a node of the cluster, or run planner probe in the environment that trains"
        ) from None
    if not torch.cuda.is_available():
        raise CannotTellError(
            "no GPU that torch sees: planner probe measures the machine it runs on; run it on a "
            "node of the cluster (torchrun --nproc-per-node 8 for its links too)"
        )
    return torch


def run_benches(torch: Any, benches: Sequence[Bench], progress: Progress) -> list[Bench]:
    """The benchmarks with their times, without those that do not fit in memory."""
    found = []
    for number, bench in enumerate(benches):
        progress(f"measuring {bench.kind}", number, len(benches))
        try:
            seconds = _timed(torch, _work(torch, bench))
        except torch.cuda.OutOfMemoryError:
            continue
        found.append(Bench(bench.kind, bench.sizes, seconds))
    return found


def start_group(torch: Any) -> tuple[int, int, bool]:
    """Join the process group that torchrun set up. Returns the number of processes, the number of
    nodes, and whether this process is the one that writes the result."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return 1, 1, True
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl")
    nodes = max(1, world // int(os.environ.get("LOCAL_WORLD_SIZE", str(world))))
    return world, nodes, torch.distributed.get_rank() == 0


def _timed(torch: Any, work: Callable[[], Any]) -> float:
    """Median seconds of a call, by CUDA events."""
    for _ in range(_WARM):
        work()
    pairs = []
    for _ in range(_TIMED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return 1e-3 * median(float(start.elapsed_time(end)) for start, end in pairs)


def _work(torch: Any, bench: Bench) -> Callable[[], Any]:
    """The function that a benchmark times, with its tensors allocated."""
    one = {name: int(value) for name, value in bench.sizes.items()}
    match bench.kind:
        case "gemm":
            left, right = _random(torch, one["m"], one["k"]), _random(torch, one["k"], one["n"])
            return lambda: left @ right
        case "attention":
            return _attention(torch, one)
        case "copy":
            source = torch.empty(one["bytes"] // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            return lambda: target.copy_(source)
        case "optimizer":
            weights = torch.zeros(one["bytes"] // _UPDATE_BYTES, device="cuda", requires_grad=True)
            weights.grad = torch.zeros_like(weights)
            return torch.optim.AdamW([weights], fused=True).step  # type: ignore[no-any-return]
        case _:
            return _collective(torch, bench.kind, one)


def _random(torch: Any, *shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def _attention(torch: Any, one: dict[str, int]) -> Callable[[], Any]:
    attend = torch.nn.functional.scaled_dot_product_attention
    shape = (one["batch"], one["heads"], one["seq"], one["head_dim"])
    operands = [_random(torch, *shape).requires_grad_() for _ in range(3)]
    if not one["backward"]:
        return lambda: attend(*operands, is_causal=True)
    output = attend(*operands, is_causal=True)
    gradient = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, operands, gradient, retain_graph=True)


def _collective(torch: Any, kind: str, one: dict[str, int]) -> Callable[[], Any]:
    elements = one["bytes"] // 2 // one["gpus"] * one["gpus"]
    whole = torch.ones(elements, dtype=torch.bfloat16, device="cuda")
    part = torch.ones(elements // one["gpus"], dtype=torch.bfloat16, device="cuda")
    group = torch.distributed
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.all_reduce(whole),
        "all_gather": lambda: group.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: group.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: group.all_to_all_single(torch.empty_like(whole), whole),
    }
    return calls[kind]


def raw_csv(benches: Sequence[Bench]) -> str:
    """The measurements as a table for `planner calibrate --from`."""
    return csv_text(
        COLUMNS, ({"kind": one.kind, "time_s": repr(one.time_s), **one.sizes} for one in benches)
    )
