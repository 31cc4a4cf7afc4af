"""The table of every launch target: how it says a model, field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.job.specs import ModelSpec
from planner.launch.architecture import Table
from planner.launch.hf_files import HF
from planner.launch.megatron_table import BRIDGE, FLAGS
from planner.launch.nanotron import NANOTRON
from planner.launch.titan_table import titan_table

# Target -> the table of a model.
DIALECTS: Mapping[str, Callable[[ModelSpec], Table]] = {
    "megatron-core": lambda _: FLAGS,
    "megatron-bridge": lambda _: BRIDGE,
    "torchtitan": titan_table,
    "deepspeed": lambda _: HF,
    "accelerate": lambda _: HF,
    "nanotron": lambda _: NANOTRON,
}
