"""Hugging Face: the programs built around its Trainer, and accelerate and DeepSpeed, which shard.
`options.toml` says how these describe a run."""

from __future__ import annotations

from functools import partial

from planner.launch.options import run_options
from planner.launch.sentences import problems_at

DEEPSPEED, ACCELERATE = run_options("hf")["deepspeed"], run_options("hf")["accelerate"]
# The problems in a table of `rules.toml`, at the given places.
said = partial(problems_at, "hf")
