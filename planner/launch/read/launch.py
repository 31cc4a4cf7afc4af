"""From files to `Found`: what each file is, by its content, the commands of its scripts, in one
shell, and which reader they take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hardware.errors import HardwareError
from hardware.files import read_text
from planner.job.errors import CannotTellError, UsageError
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.megatron_table import option
from planner.launch.read.beside import beside, text_beside, text_of
from planner.launch.read.command import LaunchCommand, hidden_program, made_launch, split_command
from planner.launch.read.configured import (
    CONFIGURATIONS,
    MEGATRON_SIGNS,
    is_megatron,
    is_trainer,
    named_configs,
    names_config,
    read_configured,
    read_plan,
    read_trainer,
)
from planner.launch.read.detect import READABLE, Kind, file_kind
from planner.launch.read.document import Source
from planner.launch.read.embedded import embedded_environment, embedded_texts
from planner.launch.read.environment import as_unread_may_set, with_blocking, with_network
from planner.launch.read.found import READ_ONLY, Count, Found, Hints, Problem
from planner.launch.read.limits import MOST_BYTES
from planner.launch.read.machine import machine_variables
from planner.launch.read.megatron import MegatronReader
from planner.launch.read.megatron_attributes import is_swift_megatron, read_swift_megatron
from planner.launch.read.megatron_bridge import is_bridge, read_megatron_bridge
from planner.launch.read.megatron_dialects import other_model
from planner.launch.read.options_file import with_options_files
from planner.launch.read.saving import stated_saving
from planner.launch.read.shell import read_script
from planner.launch.read.shell_calls import script_call
from planner.launch.read.shell_state import Command, Shell, Site, Undecided
from planner.launch.read.text import HOLE, Files, Text, Word
from planner.launch.read.undecided import Reading, readable, settled
from planner.launch.read.world import accelerate_counts, stated_counts

# Frameworks whose programs train by next-token prediction, unless their names say otherwise.
_PRETRAINERS = ("torchtitan", "nanotron")


def read_launch(
    paths: Sequence[str | Path],
    hints: Hints | None = None,
    plan: int | None = None,
    contents: Mapping[str, str] | None = None,
) -> Found:
    """What launch files describe, together.

    Scripts are read one after another in one shell; a configuration file that a script names, or
    that is given beside it, completes it. `plan`: which plan of a plan file, else the recommended
    one; `contents`: texts to read in place of the files'. UsageError for files that are none of
    what can be read.
    """
    hints = hints or Hints()

    def again(chosen: Mapping[Site, int]) -> Reading:
        read = _opened(paths, contents or {})
        read.chosen, read.hopeful = chosen, first.hopeful
        read_shells(read, hints)
        return (_found_in(read, hints) if read.commands else None), read.program

    first = _opened(paths, contents or {})
    plans = first.of_kind("plan")
    if plans:
        return replace(_plan(first, plans[0], hints, plan), files=first.files.by_path)
    read_shells(first, hints)
    try:
        found = _found_in(first, hints)
    except CannotTellError as error:
        return readable(error, first.undecided, again)
    return settled(found, first.program, first.undecided, again)


def _opened(paths: Sequence[str | Path], contents: Mapping[str, str]) -> Opened:
    read = Opened(Files(), contents=contents)
    for path in paths:
        open_file(Path(path).expanduser(), read)
    return read


def _found_in(read: Opened, hints: Hints) -> Found:
    """The launch of files whose scripts have been read."""
    found = with_blocking(replace(_found(read, hints), files=read.files.by_path), read.launch)
    found = with_network(found, read.launch, hints.environment)
    if found.format in READ_ONLY:
        plain = tuple(replace(problem, edits=()) for problem in found.problems)
        return replace(found, problems=(*read.problems, *plain))
    problems = (*read.problems, *as_unread_may_set(found.problems, read.launch, read.problems))
    saving = stated_saving(_scripts(read), read.launch, found)
    return replace(found, problems=problems, counts=_counts(read, found), saving=saving)


def _scripts(read: Opened) -> list[Text]:
    """Texts of the scripts, as they are submitted."""
    submitted = {place.file.path: text for text in read.submitted if (place := text.first())}
    others = (read.texts[path] for path in read.of_kind("shell") if path not in submitted)
    return [*submitted.values(), *others]


def _counts(read: Opened, found: Found) -> tuple[Count, ...]:
    """What the files state of nodes, GPUs and processes."""
    scripts = _scripts(read)
    jobs = [read.texts[path] for path in read.of_kind("job")]
    counts = stated_counts(scripts, jobs, read.launch)
    return (*counts, *accelerate_counts(found, counts))


def _plan(read: Opened, path: str, hints: Hints, number: int | None) -> Found:
    """A plan file, which says all. UsageError where others are given beside it."""
    if len(read.kinds) > 1:
        others = ", ".join(other for other in read.kinds if other != path)
        raise UsageError(f"{path} is a plan file: give it alone, without {others}")
    return read_plan(Path(path), hints, number)


# --- the launch -----------------------------------------------------------------------------------


def _found(read: Opened, hints: Hints) -> Found:
    """The reader that the files call for."""
    launch = read.launch = _choose_command(read)
    if launch is not None and is_bridge(launch):
        return read_megatron_bridge(launch, _program_text(read, launch), hints)
    if launch is not None and is_swift_megatron(launch):
        return read_swift_megatron(launch, hints)
    config = _config_path(read, launch)
    of_megatron = launch is not None and is_megatron(launch)
    if config is not None and not (of_megatron and read.kinds[config] == "deepspeed"):
        beside_it = next((path for path in read.of_kind("deepspeed") if path != config), "")
        source = Source(read.texts[config], config, launch, read.files, hints, beside_it)
        found = read_configured(read.kinds[config], source)
        if launch is not None and found.framework in _PRETRAINERS and other_model(launch):
            why = f"{launch.name} trains nothing, by its name"
            found = replace(found, problems=(Problem("not-predictable", why, "warning"),))
        return replace(found, document=read.texts[config])
    if launch is not None and of_megatron:
        launch, unread = with_options_files(launch, read.files)
        return MegatronReader(launch, hints, unread).found()
    if launch is not None and is_trainer(launch):
        return read_trainer(launch, read.files, hints)
    raise CannotTellError(_no_launch(read, launch))


def _program_text(read: Opened, launch: LaunchCommand) -> str | None:
    """The start script, written by the files or beside them; None where it is not there."""
    name = Path(launch.program).name
    if name in read.programs:
        return read.programs[name]
    return text_beside(name, launch.folder) if name.endswith(".py") else None


def _choose_command(read: Opened) -> LaunchCommand | None:
    """The command that trains: the last of those with most arguments that say so."""
    if not read.commands:
        return None
    # What a script only shows is run where nothing else is.
    shown = [command for command in read.commands if not _is_shown(command)]
    read.commands = shown or read.commands
    others = [command for command in read.commands if not other_model(command)] or read.commands
    trains = [
        command
        for command in read.commands
        if is_megatron(command)
        or is_bridge(command)
        or (names_config(command) and command in others)
    ]
    # What a launcher starts trains rather than what runs before or after it.
    chosen = (trains or [command for command in others if command.launcher] or others)[-1]
    if len(trains) > 1:
        text = f"{len(trains)} commands that train; the last one is read"
        read.problems.append(Problem("several-commands", text, "warning", (chosen.place,)))
    return chosen


def _is_shown(launch: LaunchCommand) -> bool:
    """`echo torchrun ...`."""
    words = launch.command.words
    return bool(words) and words[0].text.value in ("echo", "printf")


# Configurations of which one launch may have one each: what accelerate starts, what is trained,
# what shards. The first that is there names the others, or is completed by them.
_PARTS: tuple[Kind, ...] = (
    "accelerate", "llamafactory", "axolotl", "trainer", "trainer-python", "deepspeed",
)  # fmt: skip


def is_one_launch(kinds: Sequence[Kind]) -> bool:
    """Whether configurations of these kinds, given together, describe one launch."""
    trained = [kind for kind in kinds if kind not in ("accelerate", "deepspeed")]
    return len(set(kinds)) == len(kinds) and len(trained) <= 1 and set(kinds) <= set(_PARTS)


def _config_path(read: Opened, launch: LaunchCommand | None) -> str | None:
    """The configuration file: given, written by the script, or named by it and there."""
    given = read.of_kind(*CONFIGURATIONS)
    named = [name.value for name in named_configs(launch)] if launch else []
    for name in named:
        match = next((item for item in given if Path(item).name == Path(name).name), None)
        if match is not None:
            return match
    if given:
        if len(given) > 1 and not is_one_launch([read.kinds[path] for path in given]):
            raise UsageError(f"several configurations ({', '.join(given)}): give one at a time")
        return min(given, key=lambda path: _PARTS.index(read.kinds[path]) if len(given) > 1 else 0)
    if launch is None or is_megatron(launch):
        return None
    return _open_named(read, launch, named)


def _open_named(read: Opened, launch: LaunchCommand, named: list[str]) -> str | None:
    """A configuration beside the script, or where the script names it."""
    for name in named:
        path = beside(name, launch.folder)
        if path is not None and path.suffix in (".toml", ".json", ".yaml", ".yml", ".py"):
            open_file(path, read)
            return str(path)
    return None


_OPTION = re.compile(rf"(?:{'|'.join(MEGATRON_SIGNS)}|--{option('layers')})[ =]")
_PROGRAM = re.compile(r"\.py\b|\btorchrun\b|\bpython")
_CALL = re.compile(r"(?m)(?:^|[\s;&|])(?:bash|sh)\s+([\w./${}-]+\.sh)\b")


def _called_scripts(read: Opened) -> list[str]:
    """Other scripts that the scripts given start, also inside a string for a container."""
    given = {Path(kind).name for kind in read.kinds}
    names = [item[1] for text in read.texts.values() for item in _CALL.finditer(text.value)]
    named = {Path(name).name for name in names}
    names += [name for name in read.absent if name.endswith(".sh") and name not in named]
    return [name for name in dict.fromkeys(names) if Path(name).name not in given]


def _no_launch(read: Opened, launch: LaunchCommand | None) -> str:
    names = ", ".join(read.kinds)
    missing = [problem.text for problem in read.problems if problem.rule == "shell-not-followed"]
    if launch is None:
        return "\n  - ".join(_no_command(read, names, missing))
    if re.search(r"pretrain_\w+\.py$", launch.program) and not launch.arguments:
        first = f"{names}: the command at line {launch.command.line} starts {launch.program}"
        return "\n  - ".join([f"{first} with no argument that is known", *missing])
    configs = {name.value: name for name in named_configs(launch)}
    if configs and not re.search("maxtext", launch.program, re.IGNORECASE):
        return f"{names}: the command at line {launch.command.line} trains {_with(configs)}"
    # Suites for reinforcement learning fine-tune too.
    supervised = re.search(r"[._]sft(?![a-z])", launch.program)
    for word in () if supervised else re.split(r"[^a-zA-Z0-9]+", launch.program):
        refuse_unmodelled(
            word, f"{names}: the command at line {launch.command.line} runs {launch.program}"
        )
    return (
        f"{names}: the command at line {launch.command.line} runs {launch.program}, which is no "
        f"framework that can be read; readable are {READABLE}"
    )


def _with(configs: Mapping[str, Text]) -> str:
    """What is wanted of the configuration files that a command names."""
    if any("a placeholder" in text.unknown or "{{" in name for name, text in configs.items()):
        return "with a file whose name is to be filled in ({{ ... }}): the script is a template"
    shown = ", ".join(name.replace(HOLE, "...") for name in configs if name.strip(f"{HOLE}/"))
    if shown:
        return f"with {shown}; give it too"
    why = next(text.unknown for text in configs.values())
    return f"with a file that is {why}; give it too, or say which it is"


def _no_command(read: Opened, names: str, missing: list[str]) -> list[str]:
    """Why scripts start nothing that trains; what was not followed, where that may be why."""
    slips = [problem for problem in read.problems if problem.rule == "shell-syntax"]
    if slips:
        place, what = slips[0].places[0], slips[0].text
        return [f"{place}: {what}; no command that starts a training program"]
    if read.hidden:
        return [f"{names}: {read.hidden[-1]} (--env NAME=VALUE sets a variable)"]
    if called := _called_scripts(read):
        return [f"{names}: it starts {', '.join(called)}, which was not given; give it too"]
    texts = [text.value for text in read.texts.values()]
    if any(map(_OPTION.search, texts)) and not any(map(_PROGRAM.search, texts)):
        return [
            f"{names}: options of a training program, and no command that starts it; give the "
            "script that does, too, after it",
            *missing,
        ]
    first = f"{names}: no command that starts a training program; readable are {READABLE}"
    return [first, *missing]


# Files that the scripts of one launch may bring in.
_MOST_FILES = 64


@dataclass
class Opened:
    """Files by kind, and the commands of scripts."""

    files: Files
    kinds: dict[str, Kind] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)
    commands: list[LaunchCommand] = field(default_factory=list)
    # Files that a script starts or reads.
    opened: set[Path] = field(default_factory=set)
    # Where a launcher starts a program whose name is not known, and why it is not.
    hidden: list[str] = field(default_factory=list)
    # Scripts that are started and not there.
    absent: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    submitted: list[Text] = field(default_factory=list)
    contents: Mapping[str, str] = field(default_factory=dict)
    # Python programs that the files hold, by name.
    programs: dict[str, str] = field(default_factory=dict)
    # The command that trains.
    launch: LaunchCommand | None = None
    # Branches of scripts that are taken, those that reading cannot decide, and whether tests are
    # taken as met.
    chosen: Mapping[Site, int] = field(default_factory=dict)
    undecided: Mapping[Site, Undecided] = field(default_factory=dict)
    hopeful: bool = False

    @property
    def program(self) -> str:
        """Name of the program that trains; empty before it is known."""
        return "" if self.launch is None else self.launch.name

    def open_beside(self, name: str, script: str) -> Text | None:
        """A file that a script names, from the folders around it; None where it is not there."""
        path = beside(name, Path(script).parent)
        if path is None or len(self.files.by_path) >= _MOST_FILES:
            return None
        text = self.contents.get(str(path)) or text_of(path)
        if path.resolve() != Path(script).resolve():  # one that starts itself anew
            self.opened.add(path.resolve())
        return None if text is None else self.files.add(str(path), text).as_text()

    def not_opened(self, paths: Sequence[str]) -> list[str]:
        """Those of some paths that no script read so far starts or reads."""
        return [path for path in paths if Path(path).resolve() not in self.opened]

    def of_kind(self, *kinds: Kind) -> list[str]:
        """Paths of some kinds."""
        return [path for path, kind in self.kinds.items() if kind in kinds]


def open_file(path: Path, read: Opened) -> None:
    """Read one file and see what it is."""
    name = str(path)
    if name in read.kinds:
        raise UsageError(f"{name} is given twice")
    text = read.contents.get(name) or _content(path)
    source = read.files.add(name, text)
    read.texts[name] = source.as_text()
    kind = file_kind(name, text)
    if kind is None:
        raise UsageError(f"{name}: this is no launch file; readable are {READABLE}")
    read.kinds[name] = kind


def _content(path: Path) -> str:
    """A text file's content. HardwareError, UsageError for anything else."""
    text = read_text(path) if path.suffix == ".json" else read_text(path, MOST_BYTES)
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_shells(read: Opened, hints: Hints) -> None:
    """Commands of all scripts, in one shell; files that they would write join the others."""
    for path in read.of_kind("arguments"):
        text = _blank_comments(read.texts[path])
        read.commands.append(made_launch([Word(word, word.span()) for word in text.split()], path))
    shell = _walked(read, hints, hopeful=read.hopeful)
    if not any(split_command(command) for command in shell.commands) and not read.chosen:
        again = _walked(read, hints, hopeful=True)
        read.hopeful = len(again.commands) > len(shell.commands)
        shell = again if read.hopeful else shell
    read.undecided = shell.undecided
    for command in shell.commands:
        found = split_command(command)
        if found is not None:
            read.commands.append(found)
        elif why := hidden_program(command):
            read.hidden.append(f"the program that line {command.line} starts is {why}")
        elif (call := script_call(command.words)) is not None:
            read.absent.append(call.name.known.rpartition("/")[2])
    if not read.commands:
        read.commands += _of_a_pair(read)
    read.submitted = shell.submitted
    for path, text in shell.written.items():
        _add_written(path, text, read)
    for place, what in shell.errors:
        said = f"syntax: {what}; bash may read it otherwise"
        read.problems.append(Problem("shell-syntax", said, "warning", (place,)))
    for note in _noted_once(shell.notes):
        read.problems.append(Problem("shell-not-followed", note, "note"))


def _of_a_pair(read: Opened) -> Iterator[LaunchCommand]:
    """The command that starts a Trainer's settings under accelerate's: the two that were given."""
    sharding = read.of_kind("accelerate")
    settings = read.of_kind("trainer", "llamafactory", "axolotl")
    if len(sharding) == len(settings) == 1:
        words = ("accelerate", "launch", "--config_file", sharding[0], "train.py", settings[0])
        command = Command(tuple(Word(Text.made(word)) for word in words), {}, sharding[0], 1)
        found = split_command(command)
        yield from () if found is None else (found,)


def _noted_once(notes: Sequence[str]) -> Iterator[str]:
    """Notes, those of the same on several lines as one."""
    lines: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        match = re.fullmatch(r"line (\d+): (.*)", note, re.DOTALL)
        lines.setdefault(match[2] if match else note, []).extend([match[1]] if match else [])
    for text, found in lines.items():
        several = "s" if len(found) > 1 else ""
        yield f"line{several} {', '.join(found)}: {text}" if found else text


def starting_scripts(paths: Sequence[Path]) -> list[Path]:
    """Those of several scripts and jobs that none of the others starts or reads; all of them where
    each is started. CannotTellError as `read_launch`."""
    read = Opened(Files())
    for path in paths:
        open_file(path, read)
    for hopeful in (False, True):
        _walked(read, Hints(), hopeful=hopeful)
    first = read.not_opened([str(path) for path in paths])
    return [Path(path) for path in first] or list(paths)


def _walked(read: Opened, hints: Hints, *, hopeful: bool = False) -> Shell:
    """One shell that has read all scripts; `hopeful`: tests beyond reading are taken as met."""
    given = read.of_kind("shell")
    shell = _shell_of(given, read, hints, hopeful=hopeful)
    # One that another starts is read there, with what it is given there, and only there.
    first = read.not_opened(given)
    if first and len(first) < len(given):
        shell = _shell_of(first, read, hints, hopeful=hopeful)
    for path in read.of_kind("job"):
        environment = embedded_environment(read.texts[path])
        shell.variables |= environment
        shell.exported |= environment.keys()
        for embedded_text in embedded_texts(read.texts[path]):
            if embedded_text.name:
                shell.written[embedded_text.name] = embedded_text.text
            else:
                with shell.process():
                    read_script(shell, embedded_text.text)
    return shell


def _shell_of(paths: Sequence[str], read: Opened, hints: Hints, *, hopeful: bool) -> Shell:
    """One shell that has read scripts one after another."""
    shell = Shell(
        read.files, hints.environment, open_file=read.open_beside,
        has_file=lambda name, script: beside(name, Path(script).parent) is not None,
        hopeful=hopeful, chosen=read.chosen,
        machine=machine_variables(hints.nodes, hints.gpus_per_node),
    )  # fmt: skip
    for path in paths:
        with shell.process():
            read_script(shell, read.texts[path])
    return shell


def _blank_comments(text: Text) -> Text:
    """A list of arguments with its comments, continuation marks and quotes blanked out."""
    plain = re.sub(r"(?m)^\s*#.*$|(?<=\s)#.*$", lambda item: " " * len(item[0]), text.value)
    plain = re.sub(r"\\\n", "  ", plain)
    return Text(plain, text.origin)


def _add_written(path: str, text: Text, read: Opened) -> None:
    """A file that a script writes (a here-document), if it is one that can be read."""
    read.files.written[path] = text
    if path.endswith(".py"):
        read.programs[Path(path).name] = text.value
    try:
        kind = file_kind(path, text.value)
    except (UsageError, CannotTellError, HardwareError):
        return
    if kind not in (None, "shell", "arguments", "plan", "job") and path not in read.kinds:
        read.kinds[path] = kind
        read.texts[path] = text
