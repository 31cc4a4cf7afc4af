"""A command line split into its parts: the launcher with its process counts, the program, and the
program's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from hardware.files import shipped_toml
from planner.launch.languages.shell import Command
from planner.launch.languages.text import Span, Text, Word, digits
from planner.launch.read.found import Setting
from planner.launch.registry import Program, dialects, function, program_named, programs

_WORDS = shipped_toml("planner.launch.read", "commands.toml")
_IS: Mapping[str, Sequence[str]] = _WORDS["words"]
# Variables by which commands other than Python files are told nodes and processes.
_OF_COMMANDS = ("NNODES", "NPROC_PER_NODE", "CUDA_VISIBLE_DEVICES")
_PYTHON = re.compile(r"^python[\d.]*$")
_PER_GPU_LAUNCHERS = (*_IS["launchers"], *_IS["module_launchers"])


@dataclass(frozen=True)
class LaunchCommand:
    """A command that starts a training program, split into its parts.

    `launcher`: torchrun, accelerate, deepspeed, srun and others, or empty; `options`: those before
    the program; `program`: a script or a module. Process counts, None if not stated: `nodes`,
    `per_node` and `total`.
    """

    launcher: str
    program: str
    arguments: tuple[Word, ...]
    options: tuple[Setting, ...]
    command: Command
    nodes: Setting | None = None
    per_node: Setting | None = None
    total: Setting | None = None

    @property
    def folder(self) -> Path:
        """The folder of the script that contains the command."""
        return Path(self.command.file).parent

    @property
    def place(self) -> str:
        """File and line of the command: `train.sh:12`."""
        return f"{self.command.file}:{self.command.line}"

    @property
    def name(self) -> str:
        """The program without its folders."""
        return self.program.rpartition("/")[2]

    @cached_property
    def given(self) -> dict[str, Setting]:
        """The program's options, by name without dashes: `--name value`, `--name=value`, and
        switches (value True)."""
        found = dict[str, Setting]()
        for word, following in zip_longest(self.arguments, self.arguments[1:]):
            if not word.text.value.startswith("--"):
                continue
            name, equals, _ = word.text.value[2:].replace("-", "_").partition("=")
            if equals:
                found[name] = setting_of(name, word.text[len(name) + 3 :])
            elif following is not None and not following.text.value.startswith("--"):
                found[name] = setting_of(name, following.text, following.used)
            else:
                found[name] = switch_of(name, word)
        return found

    @property
    def overrides(self) -> dict[str, Setting]:
        """Settings in the command that replace those of the program's YAML file: its options, and
        arguments of the form `name=value`, as LLaMA-Factory has them."""
        found = dict(self.given)
        for word in self.arguments:
            if given := re.match(r"([A-Za-z_]\w*)=", word.text.value):
                setting = setting_of(given[1], word.text[given.end() :])
                is_null = setting.value == "null"
                found[given[1]] = replace(setting, value=None) if is_null else setting
        return found

    @property
    def world(self) -> int | None:
        """The total number of processes; None if the command does not say."""
        total = whole_number(self.total)
        if total is not None and self.launcher != "torchrun":
            return total
        per_node, nodes = whole_number(self.per_node), whole_number(self.nodes)
        if per_node is None or (self.nodes is not None and nodes is None):
            return None
        return per_node * (nodes or 1)


def counting_variables() -> tuple[str, ...]:
    """Names of the environment variables that tell a command the number of its processes, for
    commands that are not Python files."""
    return (*_OF_COMMANDS, *(one.gpus for one in programs().values() if one.gpus))


def whole_number(setting: Setting | None) -> int | None:
    """A setting's value as a whole number; the maximum for `2:4` (elastic nodes). None if it is
    absent, unknown or no number."""
    if setting is None or setting.unknown:
        return None
    match = re.fullmatch(r"(?:\d+:)?(\d+)", str(setting.value).strip())
    return digits(match[1]) if match else None


def split_command(command: Command) -> LaunchCommand | None:
    """The parts of a command that starts a training program; None if it starts none."""
    words = command.words
    spelled = [word.text.known or word.written for word in words]
    at = _program_index(spelled)
    if at is None:
        return None
    before = words[:at]
    program, own = spelled[at], _own_command(spelled, at)
    options = tuple(_options(before))
    launcher = _launcher(before)
    found = {what: _last(options, names) for what, names in _WORDS["counting"].items()}
    if any(word.text.value.endswith("jsrun") for word in before):
        found["total"] = _of_jsrun(options)
    if not launcher:
        # A program with subcommands is one process, which has one GPU if it sees only one.
        names = _OF_COMMANDS if own and own.verbs else _OF_COMMANDS[-1:]
        found |= _of_environment(command, own, names)
    gpus = command.environment.get(own.gpus) if own else None
    if own is not None and gpus is not None:
        each = setting_of(own.gpus, gpus)
        found |= {"per_node": each, "nodes": _numbered(each, 1)}
    if launcher in _PER_GPU_LAUNCHERS:
        # Here srun's tasks are nodes.
        own_words = _WORDS["counting_of_its_own"]
        found["total"] = _last(options, own_words["total"])
        if launcher == "deepspeed":
            # `--include localhost:0,1` lists the GPUs of each host.
            named = _last(options, ("include", "i"))
            number = included_gpus(str(named.value)) if named and not named.unknown else None
            found["total"] = _numbered(named, number)
        found["per_node"] = _last(options, own_words["per_node"]) or found["per_node"]
    return LaunchCommand(launcher, program, words[at + 1 :], options, command, **found)


def _of_jsrun(options: Sequence[Setting]) -> Setting | None:
    """The total number of processes of `jsrun -n 4 -a 6`, here 24: resource sets times the
    processes in each. None if it is not stated."""
    sets, each = _last(options, ("n", "nrs")), _last(options, ("a", "tasks_per_rs"))
    number, processes = whole_number(sets), whole_number(each) if each else 1
    if number is None or processes is None:
        return None
    return _numbered(sets, number * processes)


def _numbered(setting: Setting | None, number: int | None) -> Setting | None:
    """The setting with a number that was worked out from it, so that --fix cannot replace it in the
    file. None if either is None."""
    if setting is None or number is None:
        return None
    return replace(setting, value=str(number), spans=())


def included_gpus(hosts: str) -> int | None:
    """The number of GPUs in `host:0,1@host:2`, here 3; None if a host is listed without GPUs."""
    parts = [re.fullmatch(r"[^:@]*:(\d+(?:,\d+)*)", part.strip()) for part in hosts.split("@")]
    if None in parts:
        return None
    return sum(part[1].count(",") + 1 for part in parts if part is not None)


def _of_environment(
    command: Command, own: Program | None, names: Sequence[str]
) -> dict[str, Setting | None]:
    """Numbers of nodes and of processes per node that a program without a launcher takes from its
    environment; None for those not stated. `names`: the variables that the program reads."""
    texts = {name: command.environment.get(name) for name in _OF_COMMANDS if name in names}
    texts = dict.fromkeys(_OF_COMMANDS) | texts
    nodes, per_node, visible = (
        None if text is None else setting_of(name, text) for name, text in texts.items()
    )
    if per_node is None and visible is not None and visible.value:
        count = str(visible.value).count(",") + 1
        every = count == 1 or (own is not None and own.every_gpu)
        per_node = _numbered(visible, count if every else None)
    return {"nodes": nodes, "per_node": per_node}


def hidden_program(command: Command) -> str:
    """The reason why the program that a launcher starts is unknown; empty if the command hides no
    program."""
    words = [word.text for word in command.words]
    for at, text in enumerate(words):
        before = words[at - 1].value
        is_value = re.match("--[^=]+$", before) and before not in _IS["switches"]
        is_free = text.unknown and not text.known and not is_value
        if is_free and _is_runner([word.value for word in words[:at]]):
            return text.unknown
    return ""


def made_launch(
    words: Sequence[Word],
    path: str,
    program: str = "",
    environment: Mapping[str, Text] = MappingProxyType({}),
) -> LaunchCommand:
    """A launch without a launcher, from arguments that are in the file `path`."""
    command = Command(tuple(words), environment, path, 1)
    return LaunchCommand("", program, command.words, (), command)


def _program_index(words: Sequence[str]) -> int | None:
    """Index of the word that names the training script or module; None if there is none. If a
    launcher comes after `--`, the index is that of the program which it starts."""
    if "--" in words[1:]:
        start = words.index("--", 1) + 1
        inner = _program_index(words[start:])
        if inner is not None and _is_runner(words[start : start + inner]):
            return start + inner
    for at, value in enumerate(words):
        if value in ("-m", "--module") and at + 1 < len(words):
            if words[at + 1] in _IS["tools"]:
                return None
            if words[at + 1] not in _IS["module_launchers"]:
                return at + 1
        elif re.fullmatch(r"[^-\s]\S*\.py|\.py", value):
            # A file may be the value of the preceding option.
            before = words[at - 1] if at else ""
            is_free = (
                not before.startswith("-") or "=" in before or before in _IS["before_programs"]
            )
            if is_free or _is_runner(words[:at]):
                return at
        elif _own_command(words, at) is not None:
            return at
    return None


def _own_command(words: Sequence[str], at: int) -> Program | None:
    """The registered command that the word at `at` names, such as `llamafactory-cli train x.yaml`,
    `swift sft` or `run_train.sh`. None if it is no such command, or its subcommand does not train.
    """
    program = program_named(words[at].rsplit("/", 1)[-1])
    verb = words[at + 1] if at + 1 < len(words) else ""
    return program if program and (not program.verbs or verb in program.verbs) else None


def _is_runner(before: Sequence[str]) -> bool:
    names = [word.rsplit("/", 1)[-1] for word in before]
    return any(_PYTHON.match(name) or name in _PER_GPU_LAUNCHERS for name in names)


def _launcher(before: Sequence[Word]) -> str:
    names = [word.base for word in before]
    for name in names:
        if name in _PER_GPU_LAUNCHERS:
            return "torchrun" if name.startswith("torch") else name.split(".")[0]
    return next((name for name in names if name in ("srun", "mpirun")), "")


def _options(words: Sequence[Word]) -> Iterator[Setting]:
    """Options in the words before the program: `--name value` and `--name=value`."""
    for word, following in zip_longest(words, words[1:]):
        match = re.match(r"^--?([A-Za-z][\w-]*)(=?)", word.text.value)
        if match and match[2]:
            yield setting_of(match[1], word.text[match.end() :])
        elif match and following is not None and not following.text.value.startswith("-"):
            yield setting_of(match[1], following.text, following.used)


def setting_of(
    key: str, value: Text, used: Span | None = None, whole: Span | None = None
) -> Setting:
    """A setting from a word, with the places where its value is defined and used."""
    place = value.first() or used
    spans = tuple(dict.fromkeys(item for item in (value.span(), used) if item is not None))
    return Setting(
        key,
        "" if value.unknown else value.value,
        place.file.path if place else "",
        place.line if place else 0,
        spans,
        whole,
        value.unknown,
    )


def switch_of(key: str, word: Word, whole: Span | None = None) -> Setting:
    """The setting for a switch: its value is True and cannot be replaced in the file."""
    return replace(setting_of(key, word.text, word.used, whole), value=True, spans=(), unknown="")


def _last(options: Sequence[Setting], names: Sequence[str]) -> Setting | None:
    """The last of the options with one of these names; None if there is none. The last counts
    because it belongs to the innermost launcher."""
    return next((option for option in reversed(options) if option.key in names), None)


# Parts of a program's name that mean that it does not train a text decoder.
_OTHER_MODELS = re.compile(
    r"(^|[_/])(bert|t5|ict|retro|vlm|vision|esm\d?|evo|multimodal|mimo|vit|biencoder|msdp|"
    r"reward|ppo|grpo|dpo|rl|eval\w*|generate|generation|server|inference|quantize|ptq|prune|"
    r"export|analy[sz]e|convert\w*|conversion|merge|hf2\w+|\w+2hf|roundtrip|zeroshot|orqa|sora|"
    r"tasks/main)([-_./]|$)"
)


def other_model(launch: LaunchCommand) -> str:
    """A sentence that the launch trains something other than a text decoder, judging by the
    program's name or by MindSpeed-MM's option `--mm-model`. Empty if neither says so."""
    if any(word.text.value == "--mm-model" for word in launch.arguments):
        return "--mm-model names a multimodal model, described in a file of its own"
    path = launch.program
    if "/" not in path and not path.endswith(".py"):  # a module: python -m package.dpo_model
        path = path.replace(".", "/")
    parts = PurePosixPath(path).parts[-2:]
    if not _OTHER_MODELS.search("/".join(parts)):
        return ""
    return f"{parts[-1]} trains no decoder of text alone, or not by next-token prediction"


def only_evaluates(launch: LaunchCommand) -> bool:
    """Whether a program with Hugging Face's Trainer only predicts or evaluates: `--do_predict` or
    `--do_eval` is given, `--do_train` is not."""
    given = launch.given
    return "do_train" not in given and bool({"do_predict", "do_eval"} & given.keys())


# First arguments that are a configuration: Trainer scripts take YAML and JSON.
CONFIG_NAME = r"[^-=].*\.(ya?ml|json)"
# Options for files with samples.
_OF_DATA = (
    r"data|image|video|annotation|corpus|samples|input|(train|val\w*|test)[-_](json|file|path)"
)


def names_config(launch: LaunchCommand) -> bool:
    """Whether the command may have a configuration file that says what is trained: it names one, or
    its launcher is accelerate or deepspeed."""
    return any(True for _ in named_configs(launch)) or launch.launcher in (
        "accelerate", "deepspeed",
    )  # fmt: skip


def named_configs(launch: LaunchCommand) -> Iterator[Text]:
    """Names of the configuration files that the command gives, in its options or as first
    arguments. A name may be partly unknown."""
    words = launch.command.words
    options = {option for one in dialects().values() for option in one.config_options}
    for word, following in zip_longest(words, words[1:]):
        name, equals, _ = word.text.value.partition("=")
        inside = word.text[len(name) + 1 :]
        value = inside if equals or following is None else following.text
        if name in options and value.value:
            yield value
    by_name = launch.name in programs()
    first = launch.arguments[0].text.value if launch.arguments else ""
    of_data = re.match(r"-", first) is not None and re.search(_OF_DATA, first) is not None
    for word in launch.arguments[: 1 if of_data else 2]:
        is_hidden = by_name and bool(word.text.unknown) and not word.text.value.startswith("-")
        if is_hidden or re.fullmatch(CONFIG_NAME, word.text.value):
            yield word.text
    for one in dialects().values():
        if one.names_files:
            yield from function(one.name, one.names_files)(launch)
