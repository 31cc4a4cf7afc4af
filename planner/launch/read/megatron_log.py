"""The arguments that a Megatron log says its run had, as the options that set them.

Megatron prints every argument between two lines, `  tensor_model_parallel_size ...... 2`, and the
vocabulary later on (megatron/training/arguments.py, _print_args; tokenizer/tokenizer.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from planner.launch.read.found import Setting
from planner.launch.read.megatron_arguments import options
from planner.launch.read.megatron_yaml import flags_of, words_of
from planner.launch.read.text import Files, digits

_BEGIN, _END = "- arguments -", "- end of arguments -"
_ARGUMENT = re.compile(r"\s(\w+) \.{2,} ?(.*)$")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d+)\)")
# Values that Python prints as it has them.
_PRINTED = {
    "True": True, "False": False, "[]": None, "torch.float32": "fp32", "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}  # fmt: skip
_ENUM = re.compile(r"^[A-Z]\w+\.(?=\w+$)")
# Arguments that repeat others under an old name.
_REPEATED = ("encoder_num_layers", "encoder_seq_length")


def logged_arguments(lines: Iterable[str]) -> tuple[str, int] | None:
    """A list of options that differ from the parser's defaults, and the number of GPUs; None where
    the log has none."""
    found: dict[str, str] = {}
    inside = False
    for line in lines:
        if inside and (match := _ARGUMENT.search(line)):
            found[match[1]] = match[2].strip()
        elif match := _VOCABULARY.search(line):
            found["vocab_size"] = match[1]
            break
        inside = (inside or _BEGIN in line) and _END not in line
    world = digits(found.get("world_size", ""))
    if world is None:
        return None
    settings = {
        name: Setting(name, _PRINTED.get(text, _ENUM.sub("", text)))
        for name, text in found.items()
        if name not in _REPEATED
    }
    chosen = {name: one for name, one in flags_of(settings) if not _is_default(name, one)}
    words = [word.text.value for word in words_of(chosen, Files())]
    return shlex.join(words), world


def _is_default(name: str, setting: Setting) -> bool:
    option = options().get(name)
    return option is not None and option.default == str(setting.value)
