"""Turns launch files into `Found`: recognises each file by its content, runs the scripts' commands
in one simulated shell, and chooses a reader. If the files start nothing that can be read, it says
why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.job.errors import CannotTellError, UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.languages.shell import Site
from planner.launch.languages.text import HOLE, Files, Text
from planner.launch.read import world
from planner.launch.read.beside import beside
from planner.launch.read.command import (
    LaunchCommand,
    named_configs,
    names_config,
    only_evaluates,
    other_model,
)
from planner.launch.read.document import Source
from planner.launch.read.found import ASKED, Count, Found, Hints, Problem, not_predictable
from planner.launch.read.opened import JOB, PLAN, SHELL, Opened, open_file, readable
from planner.launch.read.scripts import read_shells
from planner.launch.read.undecided import Reading, first_readable, settled
from planner.launch.registry import Kind, dialects, formats, kind_of, kinds


def read_plan(path: Path, hints: Hints, number: int | None = None) -> Found:
    """The launch in plan `number` of a plan file, by default the recommended plan. UsageError if
    there is no such plan."""
    from planner.search.explanation import pick_plan
    from planner.search.plan_file import read_plan_file

    result = read_plan_file(path)
    plan, request = pick_plan(result, number or result.recommended or 1), result.request
    degrees = plan.degrees
    recomputes = plan.recompute != "none"
    # Techniques that the job uses by default.
    usual = request.model_copy(update={"use": (), "without": ()}).resolve().techniques
    # As in the request, except for what the search decided.
    asked = {name: getattr(request, name) for name in ASKED} | {
        "seq": hints.seq or plan.seq,
        "attention": request.attention or load_framework(request.framework).attention,
        "optimizer": plan.optimizer,
        "optimizer_offload": plan.optimizer_offload,
        "activation_offload": ",".join(plan.activation_offload) or "off",
        "activation_offload_fraction": plan.activation_offload_fraction,
        "cp_comm_type": plan.cp_comm_type or None,
        "cp_sizes": plan.cp_sizes,
    }
    return Found(
        format="plan",
        model=hints.model or request.model,
        world=degrees.gpus,
        mbs=hints.mbs or degrees.mbs,
        gbs=hints.gbs or plan.gbs,
        batch_ramp=None if hints.gbs else plan.ramp_text or None,
        block_layers=plan.layout.block_layers,
        mtp_standalone=plan.layout.mtp_standalone,
        recompute=hints.recompute or plan.recompute,
        recomputed=plan.layout.recomputed if recomputes and not hints.recompute else None,
        optimizer_kernel=plan.optimizer_kernel or None,
        variations=(
            *(() if request.sequence_parallel else ("no-sequence-parallel",)),
            *plan.techniques,
            *(f"no-{name}" for name in usual if name not in plan.techniques),
        ),
        cublas_workspace_config=request.cublas_workspace_config,
        plan_gpus=request.gpus,
        main_file=str(path),
        **degrees.model_dump(exclude={"mbs", "grad_acc"}),
        **asked,
    )


_PROGRAM = re.compile(r"\.py\b|\btorchrun\b|\bpython")
_CALL = re.compile(r"(?m)(?:^|[\s;&|])(?:bash|sh)\s+([\w./${}-]+\.sh)\b")


def no_launch(read: Opened, launch: LaunchCommand | None) -> str:
    """The reason why the files start nothing that can be read, as a text. `launch`: the command
    that trains, None if none was found."""
    names = ", ".join(read.kinds)
    missing = [problem.text for problem in read.problems if problem.rule == "shell-not-followed"]
    if launch is None:
        return "\n  - ".join(_no_command(read, names, missing))
    command, program = f"{names}: the command at line {launch.command.line}", launch.program
    if re.search(r"pretrain_\w+\.py$", program) and not launch.arguments:
        first = f"{command} starts {program} with no argument that is known"
        return "\n  - ".join([first, *missing])
    configs = {name.value: name for name in named_configs(launch)}
    if configs and not re.search("maxtext", program, re.IGNORECASE):
        return f"{command} trains {_with(configs)}"
    # Suites for reinforcement learning also fine-tune.
    supervised = re.search(r"[._]sft(?![a-z])", program)
    for word in () if supervised else re.split(r"[^a-zA-Z0-9]+", program):
        refuse_unmodelled(word, f"{command} runs {program}")
    what = f"no framework that can be read; readable are {readable()}"
    return f"{command} runs {program}, which is {what}"


def _with(configs: Mapping[str, Text]) -> str:
    """A phrase on the missing configuration files that a command names, with advice."""
    if any("a placeholder" in text.unknown or "{{" in name for name, text in configs.items()):
        return "with a file whose name is to be filled in ({{ ... }}): the script is a template"
    shown = ", ".join(name.replace(HOLE, "...") for name in configs if name.strip(f"{HOLE}/"))
    if shown:
        return f"with {shown}; give it too"
    why = next(text.unknown for text in configs.values())
    return f"with a file that is {why}; give it too, or say which it is"


def _no_command(read: Opened, names: str, missing: list[str]) -> list[str]:
    """The reason why the scripts start no training, then the parts that were not followed, if one
    of these may be the cause."""
    slips = [problem for problem in read.problems if problem.rule == "shell-syntax"]
    if slips:
        place, what = slips[0].places[0], slips[0].text
        return [f"{place}: {what}; no command that starts a training program"]
    if read.hidden:
        return [f"{names}: {read.hidden[-1]} (--env NAME=VALUE sets a variable)"]
    texts = [text.value for text in read.texts.values()]
    # Scripts that the given scripts start, including in a string for a container.
    calls = [item[1] for text in texts for item in _CALL.finditer(text)]
    by_name = {Path(name).name for name in (*calls, *read.kinds)}
    calls += [name for name in read.absent if name.endswith(".sh") and name not in by_name]
    given = {Path(name).name for name in read.kinds}
    if called := [name for name in dict.fromkeys(calls) if Path(name).name not in given]:
        return [f"{names}: it starts {', '.join(called)}, which was not given; give it too"]
    options = [option for one in dialects().values() for option in one.shown_by]
    shown = re.compile(rf"(?:{'|'.join(options)})[ =]")
    if any(map(shown.search, texts)) and not any(map(_PROGRAM.search, texts)):
        what = "options of a training program, and no command that starts it; give the script that"
        return [f"{names}: {what} does, too, after it", *missing]
    first = f"{names}: no command that starts a training program; readable are {readable()}"
    return [first, *missing]


def read_launch(
    paths: Sequence[str | Path],
    hints: Hints | None = None,
    plan: int | None = None,
    contents: Mapping[str, str] | None = None,
) -> Found:
    """The launch that some files describe together.

    Scripts are read one after another in one shell; a configuration file that is given, or that a
    script names, completes the command. `plan`: number of a plan in a plan file, by default the
    recommended one; `contents`: by path, texts that replace those of files. UsageError if a file is
    no launch file; CannotTellError if the files start no training that can be read.
    """
    hints = hints or Hints()

    def again(chosen: Mapping[Site, int]) -> Reading:
        read = _opened(paths, contents or {})
        read.chosen, read.hopeful = chosen, first.hopeful
        read_shells(read, hints)
        return (_found_in(read, hints) if read.commands else None), read.program

    first = _opened(paths, contents or {})
    for path in first.of_kind(PLAN):
        if others := ", ".join(other for other in first.kinds if other != path):
            raise UsageError(f"{path} is a plan file: give it alone, without {others}")
        return replace(read_plan(Path(path), hints, plan), files=first.files.by_path)
    read_shells(first, hints)
    try:
        found = _found_in(first, hints)
    except CannotTellError as error:
        return first_readable(error, first.undecided, again)
    return settled(found, first.program, first.undecided, again)


def _opened(paths: Sequence[str | Path], contents: Mapping[str, str]) -> Opened:
    read = Opened(Files(), contents=contents)
    for path in paths:
        open_file(Path(path).expanduser(), read)
    return read


def _found_in(read: Opened, hints: Hints) -> Found:
    """The launch in files whose scripts have been read."""
    launch_found = replace(_found(read, hints), files=read.files.by_path, lengths=hints.lengths)
    found = world.with_environment(launch_found, read.launch, hints.environment)
    problems, saving = found.problems, None
    if formats()[found.format].is_written:
        problems = tuple(world.as_unread_may_set(problems, read.launch, read.problems))
        saving = world.stated_saving(_scripts(read), read.launch, found)
    else:
        problems = tuple(replace(problem, edits=()) for problem in problems)
    problems, counts = (*read.problems, *problems), _counts(read, found)
    return replace(found, problems=problems, counts=counts, saving=saving)


def _scripts(read: Opened) -> list[Text]:
    """Texts of the scripts; those passed to a scheduler include the options of the command that
    submits them."""
    submitted = {place.file.path: text for text in read.submitted if (place := text.first())}
    others = (read.texts[path] for path in read.of_kind(SHELL) if path not in submitted)
    return [*submitted.values(), *others]


def _counts(read: Opened, found: Found) -> tuple[Count, ...]:
    """The numbers of nodes, GPUs and processes that the files state."""
    jobs = [read.texts[path] for path in read.of_kind(JOB)]
    counts = world.stated_counts(_scripts(read), jobs, read.launch)
    if found.one_process_a_node:
        counts = tuple(count for count in counts if not count.kind.startswith("tasks"))
    return (*counts, *world.accelerate_counts(found, counts))


# --- the launch -----------------------------------------------------------------------------------


def _found(read: Opened, hints: Hints) -> Found:
    """The launch as the reader for these files gives it. CannotTellError if no reader fits."""
    launch = read.launch = _choose_command(read)
    command = None if launch is None else kind_of("command", launch)
    config = None if command and command.before_files else _config_path(read, launch, command)
    if config is not None and not (command and read.kinds[config] in command.completed_by):
        return replace(_configured(read, config, hints), document=read.texts[config])
    if command is not None:
        found: Found = command.reader()(launch, read, hints)
        return found
    raise CannotTellError(no_launch(read, launch))


def _configured(read: Opened, config: str, hints: Hints) -> Found:
    """The launch that a configuration file describes, together with the command that names it, if
    there is one."""
    kind, launch = kinds()[read.kinds[config]], read.launch

    def beside_it(part: str) -> str:
        others = (path for path in read.kinds if path != config and _part(read, path) == part)
        return next(others, "")

    source = Source(
        read.texts[config], config, launch, read.files, hints, beside_it("shards"),
        beside_it("adapts"),
    )  # fmt: skip
    found: Found = kind.reader()(source)
    if launch is not None and kind.pretrains and other_model(launch):
        why = f"{launch.name} trains nothing, by its name"
        found = replace(found, problems=(not_predictable(why),))
    return found


def _part(read: Opened, path: str) -> str:
    kind = kinds().get(read.kinds[path])
    return kind.part if kind else ""


def _choose_command(read: Opened) -> LaunchCommand | None:
    """The command that trains; None without commands. If several train, the last counts, and a
    warning says so."""
    if not read.commands:
        return None
    # Commands that a script only prints count if there are no others.
    shown = [command for command in read.commands if not _is_shown(command)]
    read.commands = shown or read.commands
    # Commands that only predict or evaluate do not train.
    training = [command for command in read.commands if not only_evaluates(command)]
    read.commands = training or read.commands
    others = [command for command in read.commands if not other_model(command)] or read.commands
    kinds_of = [(command, kind_of("command", command)) for command in read.commands]
    trains = [
        command
        for command, kind in kinds_of
        if (kind and kind.surely) or (names_config(command) and command in others)
    ]
    # A command with a launcher trains rather than those before or after it.
    chosen = (trains or [command for command in others if command.launcher] or others)[-1]
    if len(trains) > 1:
        text = f"{len(trains)} commands that train; the last one is read"
        read.problems.append(Problem("several-commands", text, "warning", (chosen.place,)))
    return chosen


def _is_shown(launch: LaunchCommand) -> bool:
    """Whether the script only prints the command: `echo torchrun ...`."""
    words = launch.command.words
    return bool(words) and words[0].text.value in ("echo", "printf")


# Roles of files in a launch of several, by priority: the first names the others, or is completed by
# them.
_PARTS = ("starts", "trains", "shards", "adapts")


def is_one_launch(names: Sequence[str]) -> bool:
    """Whether configuration files of these kinds can belong to one launch: each has a role in a
    launch of several files, and no two have the same."""
    parts = [kinds()[name].part for name in names]
    return len(set(parts)) == len(parts) and set(parts) <= set(_PARTS)


def _config_path(read: Opened, launch: LaunchCommand | None, command: Kind | None) -> str | None:
    """Path of the configuration file, whether the user gave it, a script writes it, or the command
    names it; None if there is none. `command`: the kind of the command."""
    given = read.of_kind(*kinds())
    named = [name.value for name in named_configs(launch)] if launch else []
    matches = (item for name in named for item in given if Path(item).name == Path(name).name)
    if match := next(matches, None):
        return match
    if given:
        if len(given) > 1 and not is_one_launch([read.kinds[path] for path in given]):
            raise UsageError(f"several configurations ({', '.join(given)}): give one at a time")
        return min(given, key=lambda path: _PARTS.index(_part(read, path)) if len(given) > 1 else 0)
    if launch is None or (command and command.surely):
        return None
    # Beside the script, or where the script names it.
    for path in filter(None, (beside(name, launch.folder) for name in named)):
        if path.suffix in (".toml", ".json", ".yaml", ".yml", ".py"):
            open_file(path, read)
            return str(path)
    return None
