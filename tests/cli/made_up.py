"""Hand-made plans and results: reports are tested without running a search."""

from __future__ import annotations

from typing import Any

from constraints.rule import Layout
from planner.job.request import Request
from planner.predict.plan import Degrees, Interval, Plan, StageMemory, TimeTerms
from planner.search.result import Counts, JobSummary, SearchResult

GIB = 2**30


def stage(index: int, layers: int = 20, **changes: Any) -> StageMemory:
    """Memory of one stage: 40 GiB in terms that add up."""
    terms = {
        "weights": 8.0 * GIB,
        "gradients": 16.0 * GIB,
        "optimizer": 4.0 * GIB,
        "activations": 7.0 * GIB,
        "working": 1.0 * GIB,
        "logits": 0.0,
        "gather_buffers": 0.0,
        "optimizer_temporary": 0.0,
        "fragmentation": 2.0 * GIB,
        "context": 0.5 * GIB,
        "communication": 1.5 * GIB,
    }
    terms |= {name: changes.pop(name) for name in tuple(changes) if name in terms}
    fields: dict[str, Any] = {
        "stage": index,
        "layers": layers,
        "in_flight": 4.0,
        "allocated": 36.0 * GIB,
        "peak": sum(terms.values()),
        "phase": "backward",
        "forward_s": 0.01,
        "backward_s": 0.02,
    }
    return StageMemory(**terms, **(fields | changes))


def plan(**changes: Any) -> Plan:
    """A plan of llama-3-70b on 64 GPUs; keywords replace fields."""
    degrees = changes.pop("degrees", Degrees(tp=4, pp=4, vpp=5, cp=2, dp=2, zero=1, grad_acc=256))
    layers = 80 // (degrees.pp * degrees.vpp)
    fields: dict[str, Any] = {
        "degrees": degrees,
        "layout": Layout(degrees.pp, degrees.vpp, (layers,) * degrees.pp * degrees.vpp),
        "recompute": "none",
        "gbs": 512,
        "gbs_tokens": 512 * 8192,
        "seq": 8192,
        "step_time_s": 59.0,
        "step_time": Interval(low=53.1, high=64.9, family="62 measured runs on H100"),
        "tokens_per_s": 71_000.0,
        "tokens_per_s_per_gpu": 1_109.4,
        "mfu": 0.512,
        "mfu_causal": 0.49,
        "mfu_precision": 0.512,
        "hfu": 0.512,
        "peak_bytes": 40.0 * GIB,
        "peak_interval": Interval(low=38 * GIB, high=43 * GIB, family="18 measured runs"),
        "allocated_bytes": 36.0 * GIB,
        "usable_bytes": 79.1 * GIB,
        "limit_bytes": 79.1 * GIB,
        "heaviest_stage": 0,
        "fits": True,
        "fit_probability": 0.99,
        "time": TimeTerms(
            compute_s=45.0,
            recompute_s=0.0,
            tp_s=6.0,
            cp_s=1.0,
            ep_s=0.0,
            fsdp_s=0.0,
            pp_s=0.5,
            bubble_s=5.0,
            dp_s=1.0,
            optimizer_s=0.4,
            host_s=0.1,
        ),
        "stages": tuple(stage(index) for index in range(degrees.pp)),
        "status": "optimal",
        "assumptions": ("no activation offloading",),
    }
    return Plan(**(fields | changes))


def result(*plans: Plan, **changes: Any) -> SearchResult:
    """A result of the main job with the given plans (one unless told)."""
    fields: dict[str, Any] = {
        "planner_version": "0.1.0",
        "request": Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000),
        "job": JobSummary(
            model="llama-3-70b",
            model_alias="70b",
            parameters=70_553_706_496,
            active_parameters=70_553_706_496,
            cluster="8 nodes of 8×H100-SXM5-80GB, NVLink 450 GB/s, 8×400 Gb/s InfiniBand",
            gpu="H100-SXM5-80GB",
            num_gpus=64,
            used_gpus=64,
            usable_bytes=79.1 * GIB,
            limit_bytes=79.1 * GIB,
            peak_flop_per_s=989e12,
            precision_peak_flop_per_s=989e12,
            framework="megatron-core",
            framework_version="0.19",
            precision="bf16",
            optimizer="adamw",
            seq=8192,
            batch_target_sequences=4_000_000 / 8192,
        ),
        "counts": Counts(
            considered=123_456,
            legal=23_456,
            fitting=3_456,
            solved=12,
            skipped=3_444,
            seconds=1.23,
            costing_seconds=0.02,
        ),
        "plans": plans or (plan(),),
        "proven": True,
    }
    return SearchResult(**(fields | changes))
