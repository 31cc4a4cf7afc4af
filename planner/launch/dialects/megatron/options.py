"""How Megatron says how a plan runs: the tables of `options.toml`, and its precisions."""

from __future__ import annotations

from collections.abc import Mapping

from planner.launch.options import run_options

_TABLES = run_options("megatron")
MEGATRON, MEGATRON_LAYOUT = _TABLES["run"], _TABLES["layout"]
MEGATRON_RECOMPUTE = _TABLES["recompute"]
# Precision -> its flags. fp8 scales a tensor at a time, from its own values.
MEGATRON_PRECISIONS: Mapping[str, str] = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
    "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4",
}
