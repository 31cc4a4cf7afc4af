"""What the name of a program says of what it trains."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from planner.launch.read.command import LaunchCommand

# Parts of a program's name that say that it trains no decoder of text.
_OTHER_MODELS = re.compile(
    r"(^|[_/])(bert|t5|ict|retro|vlm|vision|esm\d?|evo|multimodal|mimo|vit|biencoder|msdp|"
    r"reward|ppo|grpo|dpo|rl|eval\w*|generate|generation|server|inference|quantize|ptq|prune|"
    r"export|analy[sz]e|convert\w*|conversion|merge|hf2\w+|\w+2hf|roundtrip|zeroshot|orqa|sora|"
    r"tasks/main)([-_./]|$)"
)


def other_model(launch: LaunchCommand) -> str:
    """Why a program's name, or MindSpeed-MM's option, says that it trains something else; empty if
    neither does."""
    if any(word.text.value == "--mm-model" for word in launch.arguments):
        return "--mm-model names a multimodal model, described in a file of its own"
    path = launch.program
    if "/" not in path and not path.endswith(".py"):  # a module: python -m package.dpo_model
        path = path.replace(".", "/")
    program = "/".join(PurePosixPath(path).parts[-2:])
    if _OTHER_MODELS.search(program):
        name = PurePosixPath(program).name
        return f"{name} trains no decoder of text alone, or not by next-token prediction"
    return ""
