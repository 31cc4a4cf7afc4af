"""The arguments that a Megatron log says its run had, as the options that set them.

Megatron prints every argument between two lines, `  tensor_model_parallel_size ...... 2`, and the
padded vocabulary later on (megatron/training/arguments.py, _print_args; tokenizer/tokenizer.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from planner.launch.read.megatron_arguments import options, other_options

_BEGIN, _END = "- arguments -", "- end of arguments -"
_ARGUMENT = re.compile(r"\s(\w+) \.{2,} ?(.*)$")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d+)\)")
# Names of switches whose argument has another; and arguments that repeat others.
_SWITCHES = {
    "add_bias_linear": "disable-bias-linear",
    "apply_rope_fusion": "no-rope-fusion",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
}
# Values that Python prints as it has them.
_TYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_ENUM = re.compile(r"^[A-Z]\w+\.(?=\w+$)")
_ITEM = re.compile(r"[^\[\]',\s]+")
_REPEATED = frozenset({"encoder_num_layers", "encoder_seq_length", "vocab_size"})
# Lines behind the arguments in which the vocabulary may stand.
_SOON = 2_000


def logged_arguments(lines: Iterable[str]) -> tuple[str, int] | None:
    """A list of options, one a line, and the number of GPUs; None where the log has none."""
    found: dict[str, str] = {}
    inside, left = False, _SOON
    for line in lines:
        if inside and (match := _ARGUMENT.search(line)):
            found[match[1]] = match[2].strip()
        elif match := _VOCABULARY.search(line):
            found["vocabulary"] = match[1]
        inside = (inside or _BEGIN in line) and _END not in line
        left -= bool(found) and not inside
        if not left or (found and "vocabulary" in found and not inside):
            break
    if not found.get("world_size", "").isdigit():
        return None
    words = [*_options(found), f"--vocab-size {found['vocabulary']}" * ("vocabulary" in found)]
    return "\n".join(filter(None, words)) + "\n", int(found["world_size"])


def _options(arguments: dict[str, str]) -> Iterator[str]:
    """Those that differ from the parser's defaults; of reinforcement learning where it is done."""
    unused = "\0" if arguments.get("perform_rl_step") == "True" else ("rl-", "grpo-", "langrl-")
    for argument, value in arguments.items():
        name = argument.replace("_", "-")
        if value in ("None", "[]", "") or argument in _REPEATED or name.startswith(unused):
            continue
        if value == "False":
            switch = _SWITCHES.get(argument, f"no-{name}")
            if switch in options() or switch in other_options():
                yield f"--{switch}"
            continue
        option = options().get(name) or other_options().get(name, (None,))[0]
        if option is not None and option.values == "switch":
            yield f"--{name}"
        elif option is not None:
            text = _TYPES.get(value, _ENUM.sub("", value))
            several = text.startswith("[") and option.values != "one"
            if text != option.default:
                yield f"--{name} {shlex.join(_ITEM.findall(text) if several else [text])}"
