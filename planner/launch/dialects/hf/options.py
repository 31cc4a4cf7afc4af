"""How DeepSpeed and accelerate say how a plan runs: the tables of `options.toml`."""

from __future__ import annotations

from planner.launch.options import run_options

DEEPSPEED, ACCELERATE = run_options("hf")["deepspeed"], run_options("hf")["accelerate"]
