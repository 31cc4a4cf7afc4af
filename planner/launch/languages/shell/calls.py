"""Commands that start other scripts: `bash -c`, `bash train.sh`, `srun ... ./launch.sh`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.launch.languages.shell.expansions import formatted
from planner.launch.languages.shell.state import Value
from planner.launch.languages.text import Text, Word, join, spaced

_SHELLS = ("bash", "sh", "zsh", "dash")
# Options with `NAME=VALUE` for what is started, of env, containers, MPI and Slurm.
_CARRIES = ("-e", "--env", "-x", "-env", "-genv", "--export")
_CARRYING = re.compile(r"--(env|export)=")
# What starts a command on other machines.
_REMOTE = ("ssh", "pdsh")
_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch", ".sub")
# Scripts that start torchtitan's own trainer, read as that.
_PROGRAMS = ("run_train.sh",)
# Commands that only look at a script, or copy it.
_LOOK_ON = (
    "echo", "printf", "cp", "mv", "rm", "cat", "chmod", "ls", "touch", "sed", "grep", "mkdir",
    "tee", "git", "curl", "wget", "head", "tail", "scp", "rsync", "ln", "wc", "diff", "export",
)  # fmt: skip


@dataclass(frozen=True)
class ScriptCall:
    """A script by the name that a command gives it, its arguments, and what starts it."""

    name: Text
    arguments: tuple[Text, ...]
    before: tuple[Word, ...] = ()


def ends_on_failure(words: Sequence[Word], *, before: bool) -> bool:
    """Whether a failing command ends the script after `set -e`, `set -euo pipefail`, `set +e`."""
    found = re.findall(r"(?<!\S)([-+])(?:\w*e|o errexit)", spaced(w.text for w in words).value)
    return found[-1] == "-" if found else before


def carried_variables(words: Sequence[Word]) -> dict[str, Text]:
    """Variables that a command hands to what it starts: `env A=1`, `docker run -e A=1`,
    `mpirun -x A=1`, `srun --export=ALL,A=1`, `singularity exec --env A=1,B=2`."""
    found: dict[str, Text] = {}
    in_env = False
    for before, word in pairwise([Word(Text("")), *words]):
        given, option = word.text, _CARRYING.match(word.text.value)
        in_env = before.base == "env" or (in_env and "=" in before.text.value)
        if option is not None:
            given = given[option.end() :]
        if option is not None or in_env or before.text.value in _CARRIES:
            found |= dict(assignments(given))
    return found


def assignments(text: Text) -> Iterator[tuple[str, Text]]:
    """`A=1,B=2`."""
    for match in re.finditer(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", text.value):
        yield match[1], text[match.start(2) : match.end(2)]


def inline_script(words: Sequence[Word]) -> tuple[Sequence[Word], Text] | None:
    """What `bash -c "..."` runs, and the srun before it; None for another command."""
    if words and words[0].base in ("echo", "printf"):
        return None
    for at, word in enumerate(words):
        if word.base == "sbatch":
            joined = spaced(item.text for item in words[at + 1 :])
            if wrapped := re.search(r"--wrap[= ](.*)", joined.value, re.DOTALL):
                return words[:at], joined[wrapped.start(1) :]
        if word.base == "bcprun":  # NVIDIA Base Command: a launcher around `-c "..."`
            given = (two.text for one, two in pairwise(words[at:]) if one.text.value == "-c")
            return next((((), text) for text in given), None)
        if word.base in _REMOTE:
            return (), spaced(item.text for item in _remote_words(words[at + 1 :]))
        if word.base not in _SHELLS:
            continue
        after = at + 1
        while after < len(words) and re.match(r"-|\+|pipefail$", words[after].text.value):
            if re.fullmatch(r"-\w*c", words[after].text.value) and after + 1 < len(words):
                return words[:at], words[after + 1].text
            after += 1
    return None


def _remote_words(words: Sequence[Word]) -> Sequence[Word]:
    """What `ssh -p 22 host ...` and `pdsh -w hosts ...` run there."""
    at, host = 0, False
    while at < len(words) and (words[at].text.value.startswith("-") or not host):
        option = words[at].text.value
        if option.startswith("-"):
            valued = re.fullmatch(r"-[bcDEeFIiJLlmOopQRSWwxut]", option) is not None
            host = host or option.startswith("-w")
            at += 1 + valued
        else:
            host, at = True, at + 1
    return words[at:]


def script_call(words: Sequence[Word]) -> ScriptCall | None:
    """The script that a command starts; None where it starts a Python program, or none."""
    values = [word.text.value for word in words]
    if not values or words[0].base in _LOOK_ON:
        return None
    if any(value.endswith(".py") or value == "-m" for value in values):
        return None
    for at, value in enumerate(values):
        if not value.endswith(_ENDINGS) or value.startswith("-") or value.endswith(_PROGRAMS):
            continue
        # The value of an option of a launcher: `--prolog x.sh`.
        if at and values[at - 1].startswith("--") and "=" not in values[at - 1]:
            continue
        first = next((i for i in range(at) if words[i].base in _SHELLS), at)
        arguments = tuple(word.text for word in words[at + 1 :])
        return ScriptCall(words[at].text, arguments, tuple(words[:first]))
    return None


def counts_processes(words: Sequence[Word]) -> bool:
    """Whether what stands before a script starts it several times, and says how often."""
    return any(word.base in ("srun", "mpirun", "mpiexec") for word in words)


def as_submitted(call: ScriptCall, script: Text) -> Text | None:
    """A script with the options of the `sbatch --nodes=8` that submits it, which go before those of
    its own directives; None for one that is started otherwise."""
    at = next((at for at, word in enumerate(call.before) if word.base == "sbatch"), None)
    if at is None:
        return None
    options = spaced(word.text for word in call.before[at + 1 :])
    return join((script, Text.made("\n#SBATCH "), options, Text.made("\n")))


def reads_a_script(words: Sequence[Word]) -> bool:
    """Whether a command runs what it is given as its input: `bash <<EOF`, `sbatch <<EOF`."""
    return bool(words) and any(word.base in (*_SHELLS, "sbatch") for word in words)


FILLING = ("read", "mapfile", "readarray", "printf")
# Options of read and mapfile that take a value.
_VALUED = re.compile(r"-\w*[dinNptuCcOs]")


def filled(
    words: Sequence[Word], given: Text | None, environment: Mapping[str, Text]
) -> dict[str, Value]:
    """Variables as a command leaves them. `given`: what `<<<` hands it, None for another input."""
    texts = [word.text for word in words]
    name = texts[0].value
    if name == "printf":
        return _printed(texts[1:])
    array, names = _names(texts[1:], always=name != "read")
    if given is None or given.unknown:
        why = f"which {name} takes from {'its input' if given is None else given.unknown}"
        return {each: Text.not_known(f"${each}, {why}") for each in names if each.isidentifier()}
    if name != "read":
        return {each: [Text.made(line) for line in given.value.splitlines()] for each in names}
    apart = environment.get("IFS")
    return _shared(list(_parts(given, apart.value if apart else "")), array, names)


def _printed(texts: Sequence[Text]) -> dict[str, Value]:
    """`printf -v NAME FORMAT ...`; without `-v` it only prints."""
    if len(texts) < len(("-v", "name", "format")) or texts[0].value != "-v":
        return {}
    name = texts[1].value
    return {name: formatted(texts[2:]) or Text.not_known(f"${name}, which printf writes")}


def _names(texts: Sequence[Text], *, always: bool) -> tuple[bool, list[str]]:
    """Whether one array takes all, and the variables that are named."""
    array, names, skip = always, [], False
    for text in texts:
        option = text.value
        if skip or not option.startswith("-"):
            names += [] if skip else [option]
            skip = False
            continue
        array = array or "a" in option
        skip = option == "-d" or (not always and _VALUED.fullmatch(option) is not None)
    return array, names


def _parts(given: Text, separators: str) -> list[Text]:
    """Words apart by the characters of IFS, by white space without it."""
    if not separators.strip():
        return list(given.split())
    pattern = f"[{re.escape(separators)}]"
    ends = [*(match.span() for match in re.finditer(pattern, given.value)), (len(given.value),) * 2]
    starts = [0, *(end for _, end in ends)]
    return [given[start:end] for start, (end, _) in zip(starts, ends, strict=False)]


def _shared(parts: list[Text], array: bool, names: Sequence[str]) -> dict[str, Value]:
    """Each name one word, the last the rest; an array all of them."""
    if array:
        return dict.fromkeys(names[:1], parts)
    last = len(names) - 1
    return {
        name: spaced(parts[at:] if at == last else parts[at : at + 1])
        for at, name in enumerate(names)
    }
