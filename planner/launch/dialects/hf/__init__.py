"""Hugging Face: programs around its Trainer, and what shards them, accelerate and DeepSpeed.

`options.toml` says how a plan runs.
"""

from __future__ import annotations

from functools import partial

from planner.launch.options import run_options
from planner.launch.sentences import problems_at

DEEPSPEED, ACCELERATE = run_options("hf")["deepspeed"], run_options("hf")["accelerate"]
# The problems of a table of `rules.toml`, at the places of settings.
said = partial(problems_at, "hf")
