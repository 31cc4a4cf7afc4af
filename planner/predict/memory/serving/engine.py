"""Memory of a serving engine besides weights and KV cache, and the part of it that its budget
covers.

vLLM fills `gpu_memory_utilization` of the HBM: it loads the weights, runs one forward pass of
`max_num_batched_tokens` tokens and a sampling step of `max_num_seqs` sequences, measures their
peak, and gives the rest to the KV cache. Memory that the process allocated before that measurement
(CUDA context, NCCL) is outside the budget; before 0.21, CUDA graphs are as well.

Constants that are not counted from tensors were read from the start-up logs in
`planner/predict/memory/serving/serving_logs.csv` (all on H100); each one, here and in
`serving.toml`, names the rows that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardware.schema import Gpu
from planner.job.errors import unknown_name
from planner.job.quantities import GIB
from planner.predict.links import channels_at
from planner.predict.memory.serving.formats import TABLES


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """One generation of the engine.

    `logit_bytes`: bytes alive for each sampled logit. `moe_workspace_stays`: the expert kernels'
    buffers stay allocated while sampling. `non_torch_*`: GiB outside torch's allocator that appear
    while profiling: on one GPU, in a pipeline without TP, under TP. `pad_hidden`, `pad_width`:
    multiples to which its mxfp4 kernels pad an expert's matrices. `logs`: the engine that wrote the
    start-up logs behind these constants.
    """

    name: str
    title: str
    logs: str
    logit_bytes: float
    moe_workspace_stays: bool
    graphs_in_budget: bool
    non_torch_alone_gib: float
    non_torch_pipeline_gib: float
    non_torch_tensor_gib: float
    pad_hidden: int
    pad_width: int

    def non_torch_bytes(self, tp: int, gpus: int) -> float:
        """Bytes outside torch's allocator on a rank that count within the engine's budget, for a
        deployment on `gpus` GPUs."""
        alone, pipeline = self.non_torch_alone_gib, self.non_torch_pipeline_gib
        return GIB * (self.non_torch_tensor_gib if tp > 1 else alone if gpus == 1 else pipeline)


ENGINES: Mapping[str, ServingEngine] = {
    name: ServingEngine(name, **row) for name, row in TABLES["engines"].items()
}

# NCCL's memory before the budget's first measurement of the device: 1.53 - 0.51 GiB under TP 2 and
# 4 (free memory at start in the rows vllm-0.19), 0.9 GiB in pipelines, 1.5 GiB with experts.
NCCL_START_BYTES = 1.0 * GIB
# Link rate of NVLink on H100, inside the nodes of the logs.
_LOGGED_LINK_BYTES_PER_S = 450e9

# CUDA graphs of 51 batch sizes, piecewise and full: least squares over the 28 rows vllm-0.19 of
# dense models, 8 to 80 layers on the rank; residuals within 0.21 GiB. The four rows of models
# with experts took 0.05 to 1.1 GiB more.
_GRAPH_FIXED_BYTES = 0.33 * GIB
_GRAPH_LAYER_BYTES = 0.0171 * GIB

# vLLM's defaults by GPU (EngineArgs.get_batch_defaults, serving context): tokens of a chunk, and
# sequences; larger on GPUs of 70 GiB or more except A100s.
_LARGE_GPU_BYTES = 70 * GIB
_LARGE_DEFAULTS = (8192, 1024)
_SMALL_DEFAULTS = (2048, 256)


def find_engine(name: str) -> ServingEngine:
    """The engine with the name given to --engine; UsageError lists the names."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES, f"one of {', '.join(ENGINES)}")
    return ENGINES[name]


def nccl_start_bytes(gpu: Gpu) -> float:
    """Bytes of NCCL after start-up: buffers of as many channels as the links inside a node can use,
    which are few on PCIe."""
    linked, pcie = gpu.scale_up_domain_gpus > 1, gpu.host_link_bytes_per_s_per_direction
    rate = gpu.scale_up_bytes_per_s_per_gpu_per_direction if linked else pcie
    share = channels_at(rate) / channels_at(_LOGGED_LINK_BYTES_PER_S)
    return NCCL_START_BYTES * min(1.0, share)


def graph_bytes(layers: int) -> float:
    """Bytes of captured CUDA graphs on a rank with `layers` layers."""
    return _GRAPH_FIXED_BYTES + _GRAPH_LAYER_BYTES * layers


def batch_defaults(gpu: Gpu) -> tuple[int, int]:
    """vLLM's default (max_num_batched_tokens, max_num_seqs) on this GPU."""
    large = gpu.hbm_usable_bytes >= _LARGE_GPU_BYTES and not gpu.name.startswith("A100")
    return _LARGE_DEFAULTS if large else _SMALL_DEFAULTS
