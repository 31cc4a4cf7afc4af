"""Commands that start other scripts: `bash -c`, `bash train.sh`, `srun ... ./launch.sh`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from planner.launch.languages.text import Text, Word, join, spaced

_SHELLS = ("bash", "sh", "zsh", "dash")
# Programs that start a command on other machines.
_REMOTE = ("ssh", "pdsh")
_VALUED_REMOTE = re.compile(r"-[bcDEeFIiJLlmOopQRSWwxut]")
# Commands that only look at a script or copy it.
_LOOK_ON = (
    "echo", "printf", "cp", "mv", "rm", "cat", "chmod", "ls", "touch", "sed", "grep", "mkdir",
    "tee", "git", "curl", "wget", "head", "tail", "scp", "rsync", "ln", "wc", "diff", "export",
)  # fmt: skip


@dataclass(frozen=True)
class ScriptCall:
    """The call of a script: its name, its arguments, and the words before it."""

    name: Text
    arguments: tuple[Text, ...]
    before: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Starters:
    """Programs that start other programs, in addition to the shells, `env`, `ssh` and `pdsh`.

    `endings`: endings of script names; `programs`: names of scripts that count as programs and are
    not followed. `carries`: options that pass `NAME=VALUE` on; `counts`: programs that start a
    script several times and state how often; `wraps`: programs that take a command as `-c COMMAND`,
    after any other words. `submits`: programs that take a script with options, or a command as
    `--wrap COMMAND`, each with the beginning of the script lines that state the same options
    (`#SBATCH`).
    """

    endings: Sequence[str] = (".sh", ".bash")
    programs: Sequence[str] = ()
    carries: Sequence[str] = ()
    counts: Sequence[str] = ()
    wraps: Sequence[str] = ()
    submits: Mapping[str, str] = field(default_factory=dict)

    def carried_variables(self, words: Sequence[Word]) -> dict[str, Text]:
        """Variables that a command passes to the program that it starts: `env A=1`, `docker run -e
        A=1`, `mpirun -x A=1`, `srun --export=ALL,A=1`, `singularity exec --env A=1,B=2`."""
        found: dict[str, Text] = {}
        in_env = False
        for before, word in pairwise([Word(Text("")), *words]):
            name, equals, _ = word.text.value.partition("=")
            is_option = bool(equals) and name.startswith("--") and name in self.carries
            in_env = before.base == "env" or (in_env and "=" in before.text.value)
            if is_option or in_env or before.text.value in self.carries:
                given = word.text[len(name) + 1 :] if is_option else word.text
                found |= dict(assignments(given))
        return found

    def inline_script(self, words: Sequence[Word]) -> tuple[Sequence[Word], Text] | None:
        """The script in `bash -c "..."` and the words before it, for example srun; None for other
        commands."""
        if words and words[0].base in ("echo", "printf"):
            return None
        for at, word in enumerate(words):
            after = words[at + 1 :]
            if word.base in self.submits:
                joined = spaced(item.text for item in after)
                if wrapped := re.search(r"--wrap[= ](.*)", joined.value, re.DOTALL):
                    return words[:at], joined[wrapped.start(1) :]
            if word.base in self.wraps:
                given = (two.text for one, two in pairwise(words[at:]) if one.text.value == "-c")
                return next((((), text) for text in given), None)
            if word.base in _REMOTE:
                return (), spaced(item.text for item in _remote_words(after))
            if word.base in _SHELLS and (text := _given_to_shell(after)) is not None:
                return words[:at], text
        return None

    def script_call(self, words: Sequence[Word]) -> ScriptCall | None:
        """The script that a command starts; None if it starts a Python program or no script."""
        values = [word.text.value for word in words]
        if not values or words[0].base in _LOOK_ON:
            return None
        if any(value.endswith(".py") or value == "-m" for value in values):
            return None
        for at, value in enumerate(values):
            is_program = value.endswith(tuple(self.programs))
            is_script = value.endswith(tuple(self.endings)) and not is_program
            # The script may be the value of a launcher's option: `--prolog x.sh`.
            before = values[at - 1] if at else ""
            is_value = before.startswith("--") and "=" not in before
            if not is_script or value.startswith("-") or is_value:
                continue
            first = next((i for i in range(at) if words[i].base in _SHELLS), at)
            arguments = tuple(word.text for word in words[at + 1 :])
            return ScriptCall(words[at].text, arguments, tuple(words[:first]))
        return None

    def counts_processes(self, words: Sequence[Word]) -> bool:
        """Whether the words before a script start it several times and state how often."""
        return any(word.base in self.counts for word in words)

    def as_submitted(self, call: ScriptCall, script: Text) -> Text | None:
        """The script with the options of the command that submits it (`sbatch --nodes=8`) added as
        directives, which override its own; None if it is not submitted."""
        at = next((at for at, word in enumerate(call.before) if word.base in self.submits), None)
        if at is None:
            return None
        options = spaced(word.text for word in call.before[at + 1 :])
        return join(
            (
                script,
                Text.made(f"\n{self.submits[call.before[at].base]} "),
                options,
                Text.made("\n"),
            )
        )

    def reads_a_script(self, words: Sequence[Word]) -> bool:
        """Whether a command runs its input as a script: `bash <<EOF`, `sbatch <<EOF`."""
        return any(word.base in (*_SHELLS, *self.submits) for word in words)


def assignments(text: Text) -> Iterator[tuple[str, Text]]:
    """Name and value of each assignment in `A=1,B=2`."""
    for match in re.finditer(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", text.value):
        yield match[1], text[match.start(2) : match.end(2)]


def _given_to_shell(words: Sequence[Word]) -> Text | None:
    """The COMMAND in `-euo pipefail -c COMMAND`; None without `-c`."""
    for word, following in pairwise(words):
        if not re.match(r"-|\+|pipefail$", word.text.value):
            return None
        if re.fullmatch(r"-\w*c", word.text.value):
            return following.text
    return None


def _remote_words(words: Sequence[Word]) -> Sequence[Word]:
    """The words of the command that `ssh -p 22 host ...` or `pdsh -w hosts ...` runs remotely."""
    at, host = 0, False
    while at < len(words) and (words[at].text.value.startswith("-") or not host):
        option = words[at].text.value
        is_option = option.startswith("-")
        host = host or not is_option or option.startswith("-w")
        at += 1 + (is_option and _VALUED_REMOTE.fullmatch(option) is not None)
    return words[at:]
