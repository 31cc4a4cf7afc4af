"""Varied jobs for searches: all frameworks, kinds of models and of GPUs, and what changes plans."""

from __future__ import annotations

from random import Random
from typing import Any

from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.request import Request

# Dense, sliding windows, mixtures, latent attention, state spaces, linear attention.
MODELS = (
    "gpt2-xl", "llama-3.2-1b", "llama-3-8b", "qwen2.5-7b", "gemma-2-2b", "gemma-3-4b", "falcon-7b",
    "llama-3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite",
    "qwen1.5-moe-a2.7b", "mamba2-2.7b", "nemotron-h-8b",
)  # fmt: skip
GPUS = ("H100", "A100", "B200", "H200", "MI300X", "RTX4090", "GB200", "L40S")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
OPTIMIZERS = ("adamw", "adamw-bf16", "adamw-8bit", "sgd", "lion", "muon", "adafactor")
# Degrees that are limited, so that a search of a mixture takes a second.
_LIMITS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"mbs": (1, 2)}, {"mbs": (1,), "cp": (1, 2)}, {"pp": (1, 2), "mbs": (1,)},
    {"pp": (4,), "vpp": (1, 2), "mbs": (1,)}, {"tp": (2, 4), "mbs": (1,)},
    {"cp": (2,), "mbs": (1,)},
    {"ep": (1, 4), "mbs": (1, 2)}, {"zero": (0, 1), "mbs": (1,)}, {"zero": (2, 3), "mbs": (1, 2)},
)  # fmt: skip


# Draws of a job before one is taken that no name or rule of its request refuses.
_DRAWS = 30


def job(seed: int, number: int, framework: str = "") -> Request:
    """Job `number` of a seed; each framework gets its turn."""
    rng, names = Random(f"{seed} {number}"), framework_names()
    name = framework or names[number % len(names)]
    for _ in range(_DRAWS):
        drawn = _drawn(rng, name)
        try:
            drawn.resolve()
        except (UsageError, HardwareError):
            continue
        break
    return drawn


def _drawn(rng: Random, name: str) -> Request:
    profile, gpus = load_framework(name), rng.choice(COUNTS)
    fields: dict[str, Any] = {
        "model": rng.choice(MODELS),
        "gpus": f"{gpus}x{rng.choice(GPUS)}",
        "framework": name,
        "seq": rng.choice((1024, 2048, 4096, 8192)),
        "gbs": gpus * rng.choice((1, 2, 4, 8)),
        "precision": rng.choice(profile.precisions[:3]),
        "limits": rng.choice(_LIMITS),
        "fit_probability": rng.choice((0.2, 0.5, 0.8)),
    }
    for chance, more in (
        (0.3, {"optimizer": rng.choice(OPTIMIZERS)}),
        (0.2, {"optimizer_offload": rng.choice(("search", 0.5, 1.0))}),
        (0.2, {"activation_offload": "search"}),
        (0.3, {"recompute": (rng.choice(profile.recompute).name,)}),
        (0.1, {"dropout": True}),
        (0.1, {"sequence_parallel": False}),
        (0.1, {"expert_imbalance": 1.5}),
        (0.1, {"mtp_layers": 1}),
        (0.1, {"schedule": rng.choice(profile.parallelism.schedules)}),
        (0.1, {"optimizer_kernel": rng.choice(profile.optimizer.kernels)}),
    ):
        if rng.random() < chance:
            fields |= more
    if profile.techniques and rng.random() < 0.4:
        fields[rng.choice(("use", "without"))] = (rng.choice(profile.techniques).name,)
    return Request(**fields)
