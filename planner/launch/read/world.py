"""Reads numbers of nodes, GPUs and processes, and the requests of a script to its scheduler with
the variables that result; then the effects of the command's environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardware.files import shipped_toml
from hardware.transport import VARIABLES
from planner.launch.languages.shell import Starters, assignments, evaluate_arithmetic
from planner.launch.languages.text import Text, Word, digits
from planner.launch.read.command import (
    LaunchCommand,
    counting_variables,
    included_gpus,
    setting_of,
    whole_number,
)
from planner.launch.read.found import Count, CountKind, Found, Problem, Saving, Setting
from planner.launch.read.yaml_text import documents_of, items, pairs

_LINE = re.compile(r"(?m)^[ \t]*#SBATCH[ \t]+([^#\n]*)")
# `-l select=2:ncpus=36:ngpus=8`, `-l nodes=2:ppn=8`; ABCI's Grid Engine: `#$ -l rt_AF=2`.
_PBS_LINE = re.compile(r"(?m)^[ \t]*#(?:PBS|\$)[ \t]+([^#\n]*)")
_RESOURCES = re.compile(r"(?<!\S)-l[ \t]*(\S+)")
_RESOURCE = re.compile(r"(\w+)=([^:,]+)")
# `--nodes=8`, `--nodes 8`, `-N 8` and `-N8`; a line may contain several.
_OPTION = re.compile(r"(?<!\S)(?:(--[\w-]+)(?:[= \t]+|$)|(-[A-Za-z])[= \t]*)([^\s-]\S*)?")
# Which settings count nodes, GPUs and processes.
_COUNTS = shipped_toml("planner.launch.read", "counts.toml")
_VARIABLES: Mapping[str, Sequence[str]] = _COUNTS["variables"]
_PBS: Mapping[str, CountKind] = _COUNTS["pbs"]
_YAML: Mapping[str, CountKind] = _COUNTS["yaml"]
_LAUNCHERS: Mapping[str, Mapping[str, CountKind]] = _COUNTS["launchers"]
_SAME: Mapping[str, str] = _COUNTS["same"]


def slurm_options(source: Text) -> Mapping[str, Text]:
    """Options with a value in `#SBATCH` lines, by name; the last of each. Empty for a job of
    several components."""
    found: dict[str, Text] = {}
    if "#SBATCH hetjob" in source.value or "#SBATCH packjob" in source.value:
        return found
    for line in _LINE.finditer(source.value):
        for option in _OPTION.finditer(line[1]):
            if option[3]:
                at, name = line.start(1), option[1] or option[2]
                found[name] = source[at + option.start(3) : at + option.end(3)]
    return found


def pbs_resources(source: Text) -> Iterator[tuple[str, Text]]:
    """Names and amounts of resources in `#PBS -l` lines. Requests for several kinds of nodes are
    left out."""
    for line in _PBS_LINE.finditer(source.value):
        for asked in _RESOURCES.finditer(line[1]):
            at = line.start(1) + asked.start(1)
            for resource in _RESOURCE.finditer(asked[1]) if "+" not in asked[1] else ():
                yield resource[1], source[at + resource.start(2) : at + resource.end(2)]


def scheduler_variables(source: Text) -> dict[str, Text]:
    """Variables that the scheduler sets because of a script's directives (`#SBATCH`, `#PBS`), by
    name."""
    return _of_pbs(source) | _of_slurm(source)


def _of_pbs(source: Text) -> dict[str, Text]:
    """Variables that result from `#PBS` lines; empty if these state no number of nodes.

    PBS_NP counts the lines of PBS_NODEFILE, the only variable of the two that PBS Pro sets.
    PBS_NGPUS, the GPUs of a node, is defined by scripts.
    """
    found: dict[str, Text] = {}
    asked = dict(pbs_resources(source))
    counted = (asked[name] for name, kind in _PBS.items() if kind == "nodes" and name in asked)
    if (nodes := next(counted, None)) is None:
        return found
    each = asked.get("mpiprocs") or asked.get("ppn") or Text.made("1")
    lines = evaluate_arithmetic(f"{nodes.value}*{each.value}", {})
    found |= {"PBS_NGPUS": asked["ngpus"]} if "ngpus" in asked else {}
    found |= {"NHOSTS": nodes, "PBS_NUM_NODES": nodes, "PBS_NUM_PPN": each}
    return found if lines is None else found | {"PBS_NP": Text.made(str(lines))}


def _of_slurm(source: Text) -> dict[str, Text]:
    options = slurm_options(source)
    found = dict(assignments(options["--export"])) if "--export" in options else {}
    for option, value in options.items():
        # gres=gpu:a100:8 ends with the number.
        for name in _VARIABLES.get(option, ()):
            found[name] = value[value.value.rfind(":") + 1 :]
    nodes, per_node = (found.get(name) for name in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
    if "SLURM_NTASKS" not in found and nodes and per_node:
        product = evaluate_arithmetic(f"{nodes.value}*{per_node.value}", {})
        if product is not None:
            found["SLURM_NTASKS"] = Text.made(str(product))
    return found


# For a variable and what precedes its value.
_LONGEST_NAME = 100
# An option that means a single node.
ALONE = "torchrun --standalone"
# A job with several kinds of parts, whose nodes are not comparable.
_PARTS = re.compile(r"replicatedJobs\.1\.|pytorchReplicaSpecs")


def stated_counts(
    texts: Sequence[Text], jobs: Sequence[Text], launch: LaunchCommand | None
) -> tuple[Count, ...]:
    """The numbers of nodes, GPUs and processes that are stated in scripts, in jobs, and by the
    command that trains, in that order."""
    found = [count for text in texts for count in _directives(text)]
    found += [count for text in jobs for count in _of_job(text)]
    if launch is not None:
        # Only srun starts the tasks that a directive counts.
        if launch.launcher not in ("srun", "mpirun"):
            found = [count for count in found if not count.kind.startswith("tasks")]
        words = launch.command.words[: len(launch.command.words) - len(launch.arguments)]
        found += _of_words(words)
        # A task that is itself a launcher takes its number of processes from elsewhere: a variable,
        # or accelerate's YAML.
        starters = _LAUNCHERS.keys() - {"srun", "mpirun"}
        if any(_SAME.get(word.base, word.base) in starters for word in words):
            found = [count for count in found if not count.kind.startswith("tasks")]
        found += _of_trainer(launch)
    return tuple(found)


def _of_trainer(launch: LaunchCommand) -> Iterator[Count]:
    """Numbers of nodes and processes that a trainer's command takes from environment variables."""
    stated: tuple[tuple[CountKind, Setting | None], ...] = (
        ("nodes", launch.nodes), ("processes a node", launch.per_node),
    )  # fmt: skip
    for kind, setting in stated:
        number = whole_number(setting)
        if setting is not None and setting.key in counting_variables() and number is not None:
            # swift uses the stated number of visible GPUs, and one by default.
            takes = "NPROC_PER_NODE" if launch.name == "swift" else setting.key
            yield Count(kind, number, takes, setting, _is_default(setting))


def accelerate_counts(found: Found, stated: Sequence[Count]) -> Iterator[Count]:
    """Counts in accelerate's YAML, unless options of `accelerate launch` override them."""
    kinds: Mapping[str, CountKind] = {"num_machines": "nodes", "num_processes": "processes"}
    for key, kind in kinds.items():
        setting = found.setting(key) if found.format == "accelerate" else None
        replaced = any(count.kind == kind and "accelerate" in count.who for count in stated)
        if setting is not None and isinstance(setting.value, int) and not replaced:
            yield Count(kind, setting.value, key, setting)


def _directives(text: Text) -> Iterator[Count]:
    """Counts in a script's directives: `#SBATCH --nodes=8`, `#PBS -l select=8`."""
    for option, value in slurm_options(text).items():
        if kind := _LAUNCHERS["srun"].get(option):
            yield from _count(kind, f"#SBATCH {option}", value)
    for resource, value in pbs_resources(text):
        if kind := _PBS.get(resource):
            sign = "#$" if resource.startswith("rt_") else "#PBS"
            yield from _count(kind, f"{sign} -l {resource}", value)


def _of_words(words: Sequence[Word]) -> Iterator[Count]:
    """Counts in the options of a command's launchers; an option belongs to the launcher before
    it."""
    launcher = ""
    for at, word in enumerate(words):
        name = _SAME.get(word.base, word.base)
        if name in _LAUNCHERS:
            launcher = name
        if launcher == "torchrun" and word.text.value == "--standalone":
            yield Count("nodes", 1, ALONE, setting_of(ALONE, Text.made("1"), word.used))
        key, equals, _ = word.text.value.partition("=")
        plain = key.replace("-", "_").replace("__", "--", 1) if key.startswith("--") else key
        counted = _LAUNCHERS.get(launcher, {})
        kind = counted.get(key) or counted.get(plain)
        value = word if equals else words[at + 1] if at + 1 < len(words) else None
        if value is None:
            continue
        text = word.text[len(key) + 1 :] if equals else value.text
        is_named = launcher == "deepspeed" and key in ("--include", "-i")
        if is_named and (number := included_gpus(text.value)) is not None:
            setting = setting_of(key, Text.made(str(number)), value.used)
            yield Count("processes", number, f"deepspeed {key}", setting)
        elif kind is not None:
            yield from _count(kind, f"{launcher} {key}", text, value)


def _count(kind: CountKind, who: str, value: Text, word: Word | None = None) -> Iterator[Count]:
    """The count that a value states: `8`, `h100:8`, `gpu:h100:8`; for `1:8` nodes the maximum.
    Nothing if it is no number."""
    match = re.fullmatch(r"(?:[\w.-]*:)*(-?\d{1,9})", value.value)
    if match is not None and not value.unknown:
        number = value[match.start(1) : match.end(1)]
        setting = setting_of(who, number, word.used if word else None)
        yield Count(kind, int(match[1]), who, setting, _is_default(setting))


def _is_default(setting: Setting) -> bool:
    """Whether a value is the default of a variable that the environment may set: `${N:-1}`, or
    `N=1` after `[ -z "$N" ]`."""
    for span in setting.spans:
        text = span.file.text[: span.start]
        if text.endswith((":-", ":=")) or re.search(r"\w-$", text[-2:]):
            return True
        assigned = re.search(r"(\w+)=[\"']?$", text[-_LONGEST_NAME:])
        if assigned and re.search(rf"-z\s+[\"']?\$\{{?{assigned[1]}\b", text):
            return True
    return False


# --- jobs -----------------------------------------------------------------------------------------


def _of_job(text: Text) -> Iterator[Count]:
    """Nodes and GPUs of a Kubernetes job or a SkyPilot task."""
    for document in documents_of(text.value).nodes:
        leaves = list(_leaves(document, ""))
        if any(_PARTS.search(path) for path, _ in leaves):
            continue
        counts = [count for path, node in leaves for count in _yaml_count(path, node, text)]
        # A JobSet may have several replicas, or several parallel pods; the other number is 1.
        if any(count.kind == "nodes" and count.number > 1 for count in counts):
            counts = [one for one in counts if (one.kind, one.number) != ("nodes", 1)]
        yield from counts


def _yaml_count(path: str, node: Any, text: Text) -> Iterator[Count]:
    kind = next((kind for ending, kind in _YAML.items() if re.search(ending + "$", path)), None)
    value = text[node.start_mark.index : node.end_mark.index]
    digits = re.search(r"\d{1,9}(?=[\"']?$)", value.value)
    if kind is not None and digits is not None:
        who = path.rpartition("spec.")[2] or path
        yield from _count(kind, who, value[digits.start() : digits.end()])


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and node of every scalar in a document; the path is dotted and has the index for list
    items."""
    if node.id == "scalar":
        yield path.removeprefix("."), node
    for name, value in (*enumerate(items(node)), *pairs(node)):
        yield from _leaves(value, f"{path}.{name}")


_SAVING: Mapping[str, Sequence[str]] = _COUNTS["saving"]
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def stated_saving(
    scripts: Sequence[Text], launch: LaunchCommand | None, found: Found
) -> Saving | None:
    """The time limit of a Slurm job and when its run saves. None if there is no limit, or if a
    signal makes the run save."""
    options = [slurm_options(text) for text in scripts]
    limits = [one[name] for one in options for name in ("--time", "-t") if name in one]
    seconds = _seconds(limits[-1].value) if limits else None
    if (
        seconds is None
        or launch is None
        or any(name in launch.given for name in _SAVING["on_signal"])
    ):
        return None
    limit, place = limits[-1], limits[-1].first()
    minutes = _number(_SAVING["stop"], launch, found)
    return Saving(
        seconds,
        limit.value,
        f"{place.file.path}:{place.line}" if place else "",
        _number(_SAVING["every"], launch, found),
        None if minutes is None else 60.0 * minutes,
        _number(_SAVING["steps"], launch, found),
    )


def _seconds(text: str) -> float | None:
    """Seconds of a time as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours and so on. None if it is none of these."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, *parts = (None if part is None else int(part) for part in match.groups())
    given = [part for part in parts if part is not None]
    units = (3600, 60, 1) if days is not None or len(given) == 3 else (60, 1)
    clock = sum(unit * part for unit, part in zip(units, given, strict=False))
    return 86400.0 * (days or 0) + clock


def _number(names: Sequence[str], launch: LaunchCommand, found: Found) -> int | None:
    """The value of the first of these settings that is a whole number above 0; None if there is
    none."""
    words = (word.text.value.partition("=") for word in launch.arguments)
    overrides = {key: value for key, _, value in reversed(list(words))}  # the first of several
    for name in names:
        setting = launch.given.get(name) or found.setting(name)
        if number := digits(overrides.get(name, "") if setting is None else str(setting.value)):
            return number
    return None


_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def with_environment(found: Found, launch: LaunchCommand | None, given: Mapping[str, str]) -> Found:
    """The launch with the effects that its command's environment has under any framework: kernel
    launches that block, and variables of NCCL and libfabric.

    `given`: variables from the user, which take priority. A variable with an unknown value is noted
    and counts as unset.
    """
    seen = {} if launch is None else launch.command.environment
    problems, variations = list(found.problems), found.variations
    blocking = seen.get(_BLOCKING)
    if blocking is not None and digits(blocking.value.strip()):
        text = (
            f"{_BLOCKING}={blocking.value} is for debugging: the CPU waits for each kernel to end"
        )
        places = tuple(span.place for span in [blocking.first()] if span)
        fix = f"unset {_BLOCKING}"
        problems.append(Problem("blocking-launches", text, "warning", places, fix))
        variations = (*variations, "blocking-launches")
    network = {name: setting_of(name, seen[name]) for name in VARIABLES if name in seen}
    network |= {name: Setting(name, given[name]) for name in VARIABLES if name in given}
    for one in network.values():
        if one.unknown:
            text, fix = f"{one.key} is {one.unknown}: counted as not set", f"--env {one.key}=VALUE"
            problems.append(Problem("network-unknown", text, "note", (one.place,), fix))
    known = tuple(one for one in network.values() if not one.unknown)
    return replace(found, network=known, variations=variations, problems=tuple(problems))


def as_unread_may_set(
    problems: Sequence[Problem], launch: LaunchCommand | None, noted: Sequence[Problem]
) -> Iterator[Problem]:
    """The problems; one that a variable is not set becomes a warning if a file that may set it
    could not be read. `noted`: problems with the scripts, which name such files."""
    words = () if launch is None else launch.command.words
    unread = [item.text for item in noted if item.text.startswith("source ")]
    unread += [one.text.value for one in words if one.text.value.startswith("--env-file")]
    for problem in problems:
        is_absent = problem.rule == "cuda-device-max-connections" and "not set" in problem.text
        if not (unread and is_absent):
            yield problem
            continue
        text = f"{problem.text}; {unread[0].partition(':')[0]} may set it, and was not read"
        yield replace(problem, severity="warning", text=text)


# Launchers and schedulers, which start other programs.
STARTERS = Starters(**_COUNTS["starters"])
# What a script may count, and the variables with the same value.
_COUNTED = tuple(
    (re.compile(row["command"], re.DOTALL), row["variables"]) for row in _COUNTS["counted"]
)


def machine_variables(nodes: int | None, gpus_per_node: int | None) -> dict[str, str]:
    """The variables that a scheduler sets on a machine with these numbers, by name; those of an
    unknown number are left out."""
    found: dict[str, str] = {}
    for kind, number in (("nodes", nodes), ("gpus a node", gpus_per_node)):
        if number is not None:
            found |= dict.fromkeys(_COUNTS["machine"][kind], str(number))
    return found


def counted_by(command: str) -> Sequence[str]:
    """Variables that hold the same number as the output of a counting command in `$(...)`, the
    preferred first; empty for other commands."""
    return next((names for what, names in _COUNTED if what.match(command)), ())
