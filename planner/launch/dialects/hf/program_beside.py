"""What the source of a Trainer's program says beside its arguments, where it stands there."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.job.errors import CannotTellError, UsageError
from planner.launch.dialects.hf.arguments import Program
from planner.launch.dialects.hf.python import (
    OTHER_CLASS,
    PREPARED,
    ScriptSettings,
    hf_python_settings,
)
from planner.launch.languages.text import Text
from planner.launch.read.beside import beside, text_of
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Setting

# Programs of which the source says what their arguments do not.
_SAYS = re.compile(
    r"\b(LoraConfig|get_peft_model|FastLanguageModel|BitsAndBytesConfig|\w*Trainer)\("
)
# Settings that only the source says; others it has defaults for, which the arguments change.
_OWN = (
    "adapter", PREPARED, "prepare_kbit", "use_unsloth", OTHER_CLASS, "load_in_4bit",
    "load_in_8bit", "bnb_4bit_use_double_quant", "stage",
)  # fmt: skip
_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "modules_to_save")


def program_beside(launch: LaunchCommand | None) -> ScriptSettings | None:
    """The settings of the program that a command starts; None where its source is not there, or
    says nothing of adapters."""
    path = "" if launch is None else launch.program
    if launch is None or not path.endswith(".py"):
        return None
    # Scripts in a folder of their own are started from the one above.
    places = (launch.folder, launch.folder.absolute().parent)
    file = next((found for place in places if (found := beside(path, place))), None)
    text = None if file is None else text_of(file)
    if file is None or text is None or not _SAYS.search(text):
        return None
    try:
        return hf_python_settings(Text.made(text), str(file), launch.given, demanded=False)
    except (CannotTellError, UsageError):
        return None


def with_program(
    named: Mapping[str, Setting], script: ScriptSettings | None, program: Program
) -> tuple[dict[str, Setting], Program]:
    """A command's arguments with what the program's source says of adapters, packed weights and
    the objective; whose defaults hold."""
    if script is None:
        return dict(named), program
    kept = {
        name: setting
        for name, setting in script.settings.items()
        if name in (*_OWN, *_OF_ADAPTERS) and (not setting.unknown or name == "adapter")
    }
    if "adapter" not in kept:
        kept = {name: one for name, one in kept.items() if name not in _OF_ADAPTERS}
    if program == "trainer":
        program = script.program
    return {**kept, **named}, program
