"""A small job of reinforcement learning, cheap enough to cost in every way."""

from __future__ import annotations

from typing import Any

from planner.job.request import Request
from planner.job.rl.request import RlRequest

LENGTHS = "prompt=64..128,response=lognormal:median=200,p95=900,max=2048"


def small(trainer: dict[str, Any] | None = None, **given: Any) -> RlRequest:
    """Qwen3 0.6B on four GPUs of a node, with few degrees."""
    said: dict[str, Any] = {
        "model": "qwen3-0.6b", "gpus": "4xH100", "framework": "megatron-core", "lengths": LENGTHS,
        "recompute": ("none",),
        "limits": {"tp": (1, 2), "pp": (1,), "cp": (1,), "zero": (1,)},
    }  # fmt: skip
    usual: dict[str, Any] = {
        "algorithm": "grpo", "prompts": 64, "samples_per_prompt": 8, "sequences": 128,
        "token_limit": 4096,
    }  # fmt: skip
    return RlRequest(trainer=Request(**(said | (trainer or {}))), **(usual | given))
