"""What the name of a program says of what it trains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from planner.launch.languages.text import Text
from planner.launch.read.command import LaunchCommand
from planner.launch.registry import Dialect, dialects, function, programs

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


# A program's first arguments that are its configuration: Trainer scripts take YAML and JSON.
CONFIG_NAME = r"[^-=].*\.(ya?ml|json)"


def names_config(launch: LaunchCommand) -> bool:
    """Whether what it trains stands in a file that it or its launcher names."""
    return any(True for _ in named_configs(launch)) or launch.launcher in (
        "accelerate", "deepspeed",
    )  # fmt: skip


def named_configs(launch: LaunchCommand) -> Iterator[Text]:
    """Files that arguments and environment name as configuration."""
    words = launch.command.words
    options = {option for one in dialects().values() for option in one.config_options}
    for at, word in enumerate(words):
        name, equals, _ = word.text.value.partition("=")
        value = word.text[len(name) + 1 :]
        if not equals and at + 1 < len(words):
            value = words[at + 1].text
        if name in options and value.value:
            yield value
    by_name = launch.name in programs()
    for word in launch.arguments[:2]:
        is_hidden = by_name and bool(word.text.unknown) and not word.text.value.startswith("-")
        if is_hidden or re.fullmatch(CONFIG_NAME, word.text.value):
            yield word.text
    for one in dialects().values():
        yield from _named_by(one, launch)


def _named_by(dialect: Dialect, launch: LaunchCommand) -> Iterator[Text]:
    """Files that a command names in a way of the dialect's own."""
    if dialect.names_files:
        yield from function(dialect.name, dialect.names_files)(launch)
