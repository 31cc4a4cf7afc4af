"""Hugging Face: programs around its Trainer, and what shards them, accelerate and DeepSpeed.

`options.toml` says how a plan runs.
"""

from __future__ import annotations

from planner.launch.options import run_options

DEEPSPEED, ACCELERATE = run_options("hf")["deepspeed"], run_options("hf")["accelerate"]
