"""Megatron's options for running a plan: the tables of `options.toml`, and the precisions."""

from __future__ import annotations

from planner.launch.options import run_options
from planner.launch.read.names import meanings

_TABLES = run_options("megatron")
MEGATRON, MEGATRON_LAYOUT = _TABLES["run"], _TABLES["layout"]
MEGATRON_RECOMPUTE = _TABLES["recompute"]
MEGATRON_PRECISIONS = meanings("megatron", "precisions")
