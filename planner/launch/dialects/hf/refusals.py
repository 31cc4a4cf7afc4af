"""What Hugging Face programs train otherwise than by full fine-tuning: refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from planner.launch.dialects.hf.arguments import OPTIMIZERS, optim_of
from planner.launch.dialects.hf.values import (
    Named,
    Program,
    is_on,
    is_switched,
    place_of,
    program_of,
    value_of,
)
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Problem, Setting
from planner.launch.read.names import left_out

# What says whether adapters are trained, in programs that train them unless told otherwise.
_TUNERS: Mapping[Program, tuple[str, ...]] = {
    "llamafactory": ("finetuning_type",), "swift": ("tuner_type", "train_type", "sft_type"),
}  # fmt: skip
_OTHER_PROGRAMS = re.compile(
    r"(^|[_.-])(reward\w*|rm|dpo|ppo|grpo|rlhf|kto|orpo|lora|qlora|vision|mim|glue|mlm|"
    r"squad|qa|asr|tts|ctc|speech|audio|whisper|diffusion|clip|esm\w*|bert|summarization|translation)([_.-]|$)"
)
_FULL = ("full", "none", "", "false")
# Objectives whose step is a forward and a backward of one model.
_STAGES = ("sft", "pt", "none", "")
_HARMLESS = ("use_cache", "use_fast_tokenizer", "use_swanlab", "use_v1_kernels", "use_reentrant_gc",
             "use_liger_kernel")  # fmt: skip
# Settings of adapters that mean nothing where none is asked for.
_LEFT_OVER = ("lora_r", "lora_rank", "lora_dim")
# Switches of a Trainer's own scripts that say whether adapters are asked for.
_ASKS = ("use_lora", "use_peft", "lora_enable", "train_mode")
# Plug-ins of axolotl that change neither what is trained nor its cost, or that are counted.
_PLUGINS = re.compile(r"\.(liger|cut_cross_entropy|lm_eval|swanlab|llm_compressor)\.")


def refusals_of(
    named: Named, launch: LaunchCommand | None, program: Program = "trainer"
) -> tuple[Problem, ...]:
    """What is trained otherwise than by full fine-tuning, as settings and program say."""
    program = program_of(program, named, launch)
    refusals = (*_refusals(named, program), *_plugins(named))
    refusals += tuple(_unknown_switches(named)) if program == "llamafactory" else ()
    if launch is not None and (why := _other_program(launch)):
        refusals += (Problem("not-predictable", why, "warning"),)
    return refusals


def _other_program(launch: LaunchCommand) -> str:
    """Why a program's name says that it does not train by next-token prediction."""
    name = launch.name.lower()
    match = _OTHER_PROGRAMS.search(name)
    return f"{name} is a program for {match[2]}, which is not modelled" if match else ""


def _refusals(named: Named, program: Program) -> Iterator[Problem]:
    """What is trained otherwise than by full fine-tuning, by name."""
    tuners = _TUNERS.get(program, ())
    if tuners and not any(name in named for name in tuners):
        where = next(iter(named.values()), Setting("", ""))
        whose = {"llamafactory": "LLaMA-Factory", "swift": "ms-swift"}[program]
        yield _refusal(where, f"{tuners[0]}: lora ({whose}'s own, none is stated)")
    kinds = {
        "finetuning_type": _FULL, "adapter": _FULL, "stage": _STAGES, "rl": _STAGES,
        "train_type": ("full", ""), "tuner_type": ("full", ""), "sft_type": ("full", ""),
        "rlhf_type": ("",), "task_type": ("causal_lm", "pretrain", "sft", ""),
    }  # fmt: skip
    for name, allowed in kinds.items():
        value = value_of(named, name)
        if value and value not in allowed:
            yield _refusal(place_of(named, name), f"{name}: {value}")
    if (mode := value_of(named, "train_mode")) in ("lora", "qlora"):
        yield _refusal(place_of(named, "train_mode"), f"train_mode: {mode}")
    optimizer = optim_of(named)
    if optimizer not in ("", "none", *OPTIMIZERS) and (program == "axolotl" or "optim" in named):
        yield _refusal(named.get("optim") or named["optimizer"], f"optimizer {optimizer}")
    for name in ("load_in_4bit", "load_in_8bit", "quantization_bit"):
        if is_switched(named, name):
            yield _refusal(named[name], f"{name}: quantised weights")
    named_so = {name: "LoRA" for name in named if name.startswith("lora_path")}
    for name, why in (named_so | {**left_out("trainer", "refused")}).items():
        if name in _LEFT_OVER and (program != "trainer" or any(key in named for key in _ASKS)):
            continue  # what these programs pass over where nothing asks for adapters
        sizes = name.endswith(("_size", "_degree"))
        if is_on(named, name) if sizes else is_switched(named, name):
            yield _refusal(place_of(named, name), f"{name}: {why}")


def _plugins(named: Named) -> Iterator[Problem]:
    """Plug-ins of axolotl that may train something else."""
    value = named["plugins"].value if "plugins" in named else None
    for plugin in value if isinstance(value, list) else ():
        if not _PLUGINS.search(str(plugin)):
            yield _refusal(named["plugins"], f"plugins: {plugin}")


def _unknown_switches(named: Named) -> Iterator[Problem]:
    """LLaMA-Factory's `use_...` switches that change the loss or the optimizer."""
    for name, setting in named.items():
        is_new = name.startswith("use_") and name not in (
            *left_out("trainer", "refused"),
            *_HARMLESS,
        )
        if is_new and setting.value is True:
            yield _refusal(setting, f"{name}: true")


def _refusal(setting: Setting, what: str) -> Problem:
    text = f"{what} is not modelled; full fine-tuning and pretraining are"
    return Problem("not-predictable", text, "warning", (setting.place,))
