"""Shell lines that all launchers share: environment, arguments, the process launcher."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.launch.contract import PRETRAINED, Launch, RunCommand, Variable
from planner.launch.quoting import comment_text, shell_word
from planner.launch.settings_text import comment

PORT = 29500
PREFLIGHT = "preflight.py"
_WIDTH = 88


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Shell words with which the nodes find each other: the rank of this node, and address and port
    of the first."""

    node_rank: str
    address: str
    port: str = str(PORT)


ALONE = Rendezvous("0", "127.0.0.1")


# `--dry-run` puts this before the name of a required variable that is not set.
UNSET = "/set/"


def variable_lines(command: RunCommand) -> list[str]:
    """Lines that export the user's variables, each below a comment with its meaning; those that
    must be set come first. Empty without variables."""
    others = [entry for entry in command.variables if not entry.needed]
    lines: list[str] = []
    for title, entries in (("You must set these", command.needed), ("Yours to change", others)):
        lines += [f"# {title}, here or in the environment."] if entries else []
        lines += [line for entry in entries for line in _variable(entry)]
    return [*lines, ""] if lines else []


def _variable(entry: Variable) -> list[str]:
    if entry.given is not None:
        return [*comment(entry.meaning), f"export {entry.name}={shlex.quote(entry.given)}"]
    # An empty value in the environment counts if it has a meaning.
    dash = "-" if "$" in entry.default or "empty:" in entry.meaning else ":-"
    value = f"${{{entry.name}{dash}{entry.default}}}"
    return [*comment(entry.meaning), f'export {entry.name}="{value}"']


def unset_lines(command: RunCommand) -> list[str]:
    """Lines that give each required variable a placeholder (`/set/NAME`) if it is not set, for a
    dry run."""
    return [
        f'export {entry.name}="${{{entry.name}:-{UNSET}{entry.name}}}"' for entry in command.needed
    ]


def looking_lines(command: RunCommand, more: Sequence[str] = ()) -> list[str]:
    """Lines that check the variables: a dry run (`MODE` is --dry-run) runs `unset_lines` and
    `more`, any other run `setting_tests`."""
    unset = [f"    {line}" for line in (*unset_lines(command), *more)] or ["    :"]
    tests = [f"    {line}" for line in setting_tests(command)]
    return [
        'if [[ "${MODE:-}" == --dry-run ]]; then',
        "    # Prints the command, with names in place of variables that are not set.",
        *unset,
        *(["else", *tests] if tests else []),
        "fi",
    ]


def setting_tests(command: RunCommand, *, container: bool = False) -> list[str]:
    """Lines that end the script with a message and status 2 if a required variable is not set or a
    file is missing. `container`: files are not tested if the job runs in a container."""
    lines: list[str] = []
    outside = '-z "${CONTAINER}" && ' if container else ""
    for entry in command.variables:
        if entry.needed:
            sentence = f"set {entry.name}: {entry.meaning}"
            lines += _refused(f'[[ -z "${{{entry.name}}}" ]]', shlex.quote(sentence))
        if entry.holds:
            given = "" if entry.needed else f'-n "${{{entry.name}}}" && '
            missing = f'"{entry.name}: {entry.holds} is not there"'
            lines += _refused(f'[[ {outside}{given}! -e "{entry.holds}" ]]', missing)
    warms_up = {entry.name for entry in command.variables} >= {"WARMUP_STEPS", "TRAIN_STEPS"}
    sentence = "'WARMUP_STEPS must be below TRAIN_STEPS'"
    return [*lines, *(_refused("((WARMUP_STEPS >= TRAIN_STEPS))", sentence) if warms_up else ())]


def _refused(condition: str, sentence: str) -> list[str]:
    return [f"if {condition}; then", f"    echo {sentence} >&2", "    exit 2", "fi"]


def start_notes(command: RunCommand) -> list[str]:
    """Lines that print a warning that training starts from random weights, if the user gives none;
    empty if the run has no optional weights."""
    if not any(entry.name == PRETRAINED and not entry.needed for entry in command.variables):
        return []
    return [
        f'if [[ -z "${{{PRETRAINED}}}" ]]; then',
        "    echo 'FROM SCRATCH: random weights, unless CHECKPOINTS holds a checkpoint;"
        f" {PRETRAINED} names weights to start from.' >&2",
        "fi",
    ]


def branch_lines(command: RunCommand) -> Iterator[str]:
    """Lines that add arguments depending on whether a user's variable is set."""
    for entry in command.branches:
        yield from (f'if [[ -n "${{{entry.variable}}}" ]]; then', f"    {_added(entry.given)}")
        if entry.otherwise:
            yield from ("else", f"    {_added(entry.otherwise)}")
        yield "fi"


def _added(words: Sequence[str]) -> str:
    # Unquoted commas look like those of another language; bash lists have none.
    listed = (
        f"'{word}'" if "," in word and shell_word(word) == word else shell_word(word)
        for word in words
    )
    return f"ARGUMENTS+=({' '.join(listed)})"


def mode_lines(launch: Launch, command: RunCommand, meeting: Rendezvous) -> list[str]:
    """Lines for `--dry-run` and `--preflight`: they define a shell function that stands in for the
    process launcher."""
    options = _launcher(launch, command, meeting)
    words = " ".join((*options, *command.launcher_arguments)).split()
    name, first = words[0], f'"${{@:1:{len(words) - 1}}}"'
    return [
        "# --dry-run prints the command; --preflight checks nodes, GPUs, versions, one all-reduce.",
        'case "${MODE:-}" in',
        f"    --dry-run) {name}() {{ printf '%q ' {name} \"$@\"; echo; }} ;;",
        f"    --preflight) {name}() {{ command {name} {first} {PREFLIGHT}; }} ;;",
        "esac",
    ]


def environment_lines(command: RunCommand) -> Iterator[str]:
    """Lines that export the environment variables, each below a comment with its reason."""
    for name, (value, reason) in command.environment.items():
        yield from (f"# {reason}", f"export {name}={shlex.quote(value)}")


def program_words(command: RunCommand) -> tuple[str, ...]:
    """The program that the process launcher runs: a file, or `-m` and a module."""
    return command.argv[:2] if command.argv[0] == "-m" else command.argv[:1]


def argument_lines(command: RunCommand) -> list[str]:
    """Lines that set the bash array ARGUMENTS to the program's arguments: one option per line, with
    comments above groups."""
    lines, current = ["ARGUMENTS=("], ""
    first = len(program_words(command))
    if len(command.argv) == first:
        return ["ARGUMENTS=()"]
    for index, word in enumerate(command.argv[first:], start=first):
        title = command.comments.get(index)
        starts = word.startswith("--") or title is not None or "=" in word
        if current and (starts or len(current) + len(word) > _WIDTH):
            lines.append(current)
            current = ""
        if title is not None:
            lines.append(f"    # {comment_text(title)}")
        current = f"{current} {shell_word(word)}" if current else f"    {shell_word(word)}"
    return [*lines, *([current] if current else []), ")"]


def start_lines(launch: Launch, command: RunCommand, meeting: Rendezvous) -> list[str]:
    """Lines that call the process launcher with the program on one node."""
    lines = _launcher(launch, command, meeting)
    for number, word in enumerate(command.launcher_arguments):
        if word.startswith("-") or not number:
            lines.append(f"    {shell_word(word)}")
        else:
            lines[-1] += f" {shell_word(word)}"
    program = " ".join(shell_word(word) for word in program_words(command))
    return [*(f"{line} \\" for line in (*lines, f"    {program}")), '    "${ARGUMENTS[@]}"']


def _launcher(launch: Launch, command: RunCommand, meeting: Rendezvous) -> list[str]:
    """Lines with the process launcher and its own options, without the program."""
    nodes, local = launch.nodes, launch.gpus_per_node
    if command.launcher == "accelerate":
        return [
            "accelerate launch",
            f"    --num_machines {nodes} --num_processes {launch.plan.degrees.gpus}",
            f"    --machine_rank {meeting.node_rank}",
            f"    --main_process_ip {meeting.address} --main_process_port {meeting.port}",
        ]
    if command.launcher == "python":
        return _python(nodes, command, meeting)
    if nodes == 1:
        return ["torchrun", f"    --standalone --nproc-per-node {local}"]
    return [
        "torchrun",
        f"    --nnodes {nodes} --nproc-per-node {local}",
        f"    --node-rank {meeting.node_rank}",
        f"    --master-addr {meeting.address} --master-port {meeting.port}",
    ]


def _python(nodes: int, command: RunCommand, meeting: Rendezvous) -> list[str]:
    """Lines that start a single Python process on a node; environment variables tell it about the
    other nodes."""
    if nodes == 1:
        return ["env python3"]
    values = {
        "nodes": str(nodes), "rank": meeting.node_rank, "address": meeting.address,
        "port": meeting.port,
    }  # fmt: skip
    told = [f"    {name}={values[what]}" for what, name in command.node_variables.items()]
    return ["env", *told, "    python3"]


def program_lines(launch: Launch, command: RunCommand, meeting: Rendezvous) -> list[str]:
    """All lines that run on a node: environment, arguments, modes and the call of the process
    launcher."""
    parts = (
        [*environment_lines(command)],
        [*argument_lines(command), *branch_lines(command)],
        mode_lines(launch, command, meeting),
        start_lines(launch, command, meeting),
    )
    return [line for part in parts if part for line in (*part, "")][:-1]


def headline(launch: Launch) -> str:
    """One line on the job that a script starts: model, target, GPUs, batch and sequence length."""
    degrees, job = launch.plan.degrees, launch.job
    return comment_text(
        f"{job.model.name} with {launch.target} on {degrees.gpus} x {job.cluster.gpu.name}, "
        f"{launch.plan.gbs} sequences of {launch.plan.seq} tokens a step"
    )


def job_name(launch: Launch) -> str:
    """The job's name of lower-case letters, digits and dashes, valid in Kubernetes."""
    if launch.name:
        return launch.name
    name = re.sub(r"[^a-z0-9]+", "-", f"{launch.job.model.name}-{launch.target}".lower())
    return name.strip("-")[:40].strip("-")
