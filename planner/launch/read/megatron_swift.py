"""Reader of `megatron sft` and `megatron pt`: ms-swift's command over Megatron-Core.

Its options are Megatron's attributes, `--tensor_model_parallel_size 2`, switches with `true` or
`false`; the model is a checkpoint's. Defaults: ms-swift 3.9, swift/megatron/argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Found, Hints, Setting
from planner.launch.read.hf_arguments import HfArguments, given_arguments, hf_arguments
from planner.launch.read.hf_training import refusals_of
from planner.launch.read.megatron_dialects import CORE, Dialect
from planner.launch.read.megatron_yaml import SettingsReader, flags_of, words_of
from planner.launch.read.text import Files

_DEFAULTS: Mapping[str, object] = {
    "micro_batch_size": 1, "global_batch_size": 16, "recompute_granularity": "selective",
    "use_distributed_optimizer": True, "moe_grouped_gemm": True, "bf16": True,
    "attention_backend": "flash", "hidden_dropout": 0, "attention_dropout": 0,
    "expert_tensor_parallel_size": 1,
}  # fmt: skip
# Where the model may be named, the likeliest first.
_CHECKPOINTS = ("model", "mcore_model", "load")
# Degrees of Megatron mean something else to Trainer scripts.
_DEGREES = re.compile(r"_parallel_size$")


def is_swift_megatron(launch: LaunchCommand) -> bool:
    """Whether a command is ms-swift's own, or torchrun's with its program."""
    return launch.program.rpartition("/")[2] == "megatron" or "/_megatron/" in launch.program


def read_swift_megatron(launch: LaunchCommand, files: Files, hints: Hints) -> Found:
    """The launch as its arguments describe it."""
    given = given_arguments(launch.arguments, files)
    named = {"model": next((given[name] for name in _CHECKPOINTS if name in given), None)}
    length = given.get("seq_length") or given.get("max_length")
    if length is not None:
        given["seq_length"] = length
    stated = {name: item for name, item in {**given, **named}.items() if item is not None}
    script = hf_arguments(stated, Path(launch.command.file).parent, hints)
    found = _Reader(launch, given, script, files).found()
    others = {name: item for name, item in given.items() if not _DEGREES.search(name)}
    refusals = refusals_of({"tuner_type": Setting("", "full"), **others}, None)
    packed = str(given["packing"].value).lower() == "true" if "packing" in given else False
    assumed = () if packed else ("every sequence as long as the longest allowed",)
    return replace(
        found,
        format="settings",
        problems=(*refusals, *found.problems),
        assumed=(*found.assumed, *script.assumed, *assumed),
    )


class _Reader(SettingsReader):
    """Megatron's reader with ms-swift's defaults and a checkpoint's model."""

    def __init__(
        self,
        launch: LaunchCommand,
        given: Mapping[str, Setting],
        script: HfArguments,
        files: Files,
    ) -> None:
        self.script = script
        settings = {name: Setting(name, value) for name, value in _DEFAULTS.items()}
        settings |= {name: replace(item, value=_typed(item.value)) for name, item in given.items()}
        words = tuple(words_of(dict(flags_of(settings)), files))
        super().__init__(replace(launch, arguments=words), files, script.hints)

    def _dialect(self) -> Dialect:
        return replace(CORE, name="program", words="ms-swift", core=False)

    def _shape(self) -> Any:
        if self.hints.model:
            return super()._shape()
        self.problems.append(self.script.model_unknown("the file does not name the model"))
        return None


def _typed(value: object) -> object:
    """`true` and `false` as what they mean."""
    return {"true": True, "false": False}.get(str(value).lower(), value)
