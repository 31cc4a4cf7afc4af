"""From files to `Found`: what each file is, by its content, the commands of its scripts, in one
shell, and which reader they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.job.errors import CannotTellError, UsageError
from planner.launch.languages.shell import Site
from planner.launch.languages.text import Files, Text
from planner.launch.read.beside import beside, text_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.configured import (
    CONFIGURATIONS,
    is_megatron,
    is_trainer,
    named_configs,
    names_config,
    read_configured,
    read_plan,
    read_trainer,
)
from planner.launch.read.detect import Kind
from planner.launch.read.document import Source
from planner.launch.read.environment import as_unread_may_set, with_blocking, with_network
from planner.launch.read.found import READ_ONLY, Count, Found, Hints, Problem
from planner.launch.read.megatron import MegatronReader
from planner.launch.read.megatron_attributes import is_swift_megatron, read_swift_megatron
from planner.launch.read.megatron_bridge import is_bridge, read_megatron_bridge
from planner.launch.read.megatron_dialects import other_model
from planner.launch.read.no_launch import no_launch
from planner.launch.read.opened import Opened, open_file
from planner.launch.read.options_file import with_options_files
from planner.launch.read.saving import stated_saving
from planner.launch.read.scripts import read_shells
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
        problems = (*read.problems, *plain)
        return replace(found, problems=problems, counts=_counts(read, found))
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
    raise CannotTellError(no_launch(read, launch))


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
