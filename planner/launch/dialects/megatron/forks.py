"""Identifies the Megatron that a launch is for: core 0.19, an older release, DeepSpeed's, or a
fork.

Options of the others that change memory or time are translated to core's. Options that core 0.19
would refuse then give a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath

from planner.launch.dialects.megatron.arguments import RELEASE, Arguments, options
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_RECOMPUTE
from planner.launch.dialects.megatron.rules import CONNECTIONS, refused_everywhere
from planner.launch.dialects.megatron.table import FLAGS, option
from planner.launch.read.beside import text_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Edit, Problem, Setting, Severity, is_slip, nearest
from planner.launch.read.names import effect_of, known_names, left_out, meanings

MOST_NAMED = 50


@lru_cache
def core_like(name: str) -> str:
    """The core option most similar to an unknown one; empty if none is close."""
    return nearest(name, options(), 0.75)


def slip_of(unknown: Setting) -> str:
    """The core option that an unknown option surely means, because it is a misspelling or the
    beginning of that option's name (this parser accepts no abbreviations). Empty otherwise, as for
    an option of a fork."""
    name = _plain(unknown)
    close = core_like(name)
    return close if close and (is_slip(name, close) or close.startswith(name)) else ""


def _plain(setting: Setting) -> str:
    return setting.key.removeprefix("--").replace("_", "-")


def _named(arguments: Arguments) -> Iterator[Setting]:
    """The first few options that no known parser has, each once."""
    return islice({item.key: item for item in arguments.unknown}.values(), MOST_NAMED)


def unknown_problems(arguments: Arguments, parser: str = RELEASE) -> Iterator[Problem]:
    """A problem for each option that no parser has, with the nearest core option. `parser`: the
    launch's parser, in words."""
    for setting in _named(arguments):
        close = core_like(_plain(setting))
        text = f"{setting.key}: {parser} has no such option and refuses it"
        severity: Severity = "error"
        if parser != RELEASE:
            text = f"{setting.key}: not a known option of {parser}"
            if hidden := _hidden_by(setting, close):
                severity, text = "missing", f"{text}: {hidden} is not known"
        if not setting.key.startswith("--"):
            text = f"{setting.key!r} is in the place of an option"
            close = ""
        sure = close and close not in arguments.settings and is_slip(_plain(setting), close)
        yield Problem(
            "unknown-option",
            text,
            severity,
            places=(setting.place,),
            fix=f"--{close}" if close else "",
            edits=(Edit(setting.key, None, f"--{close}"),) if sure else (),
        )


def _hidden_by(setting: Setting, close: str) -> str:
    """The aspect of a run that an unknown option of a fork may decide, in words such as "its effect
    on training", judged by the nearest core option or by its name. Empty if it decides nothing of
    interest or is off."""
    if any(f"--{close}" == row.key for row in FLAGS):
        return "its effect on the model"
    if str(setting.value).lower() in ("0", "1", "false", "none"):
        return ""
    decides = {"trains": "its effect on training", "parallel": "the way it divides the model"}
    return decides.get(effect_of(setting.key), "")


def as_sure_as_read(problems: list[Problem], arguments: Arguments) -> list[Problem]:
    """The problems, unchanged if every word of the command is known. Otherwise a missing option may
    be hidden in an unknown word, so problems about absent options get the severity `missing`
    instead of `error`."""
    hidden = [item for item in arguments.problems if item.rule == "unresolved"]
    if not hidden:
        return problems
    fix = ", ".join(dict.fromkeys(item.fix for item in hidden))
    return [
        replace(problem, severity="missing", fix=fix, edits=())
        if problem.severity in ("error", "missing") and _is_of_absence(problem, arguments)
        else problem
        for problem in problems
    ]


def _is_of_absence(problem: Problem, arguments: Arguments) -> bool:
    """Whether the problem is that an option is absent."""
    if problem.rule in ("model-unknown", "micro-batch", "precision-unknown"):
        return not problem.places  # an option that is given may leave a model to a checkpoint
    keys = [edit.key.removeprefix("--") for edit in problem.edits if edit.value is not None]
    return bool(keys) and all(key[0] != "$" and key not in arguments.settings for key in keys)


_EXPERTS = option("moe.experts")


@dataclass(frozen=True)
class Dialect:
    """A variant of Megatron. `words`: its name in messages; `core`: whether it is megatron-core
    0.19, for which a broken rule is an error (for others a warning).

    `framework`: the profile that it is costed under; empty if the options decide that.
    """

    name: str
    words: str
    core: bool = False
    framework: str = ""


CORE = Dialect("core", RELEASE, core=True)
_DIALECTS = {
    "deepspeed": Dialect("deepspeed", "Megatron-DeepSpeed", framework="megatron-deepspeed"),
    "pai": Dialect("pai", "Pai-Megatron-Patch"),
    "older": Dialect("older", "an older Megatron-LM"),
    "fork": Dialect("fork", "a fork of Megatron-LM"),
    "program": Dialect("program", "a program other than pretrain_gpt.py"),
}
_OF_2022 = known_names("megatron", "of-2022")
_2022 = Dialect("older", "Megatron-LM of 2022", framework="megatron-lm-2022")
# DeepSpeed's engine starts only with --deepspeed (megatron/training.py): without it, or in a fork
# that has only some of its options, Megatron's own optimizer steps.
_WITHOUT_DEEPSPEED = replace(_DIALECTS["deepspeed"], framework=_2022.framework)
_PARSERS = ("megatron/training/arguments.py", "megatron/arguments.py")
# Files with the choices that a fork's parser takes from a field's type.
_FIELDS = ("megatron/core/transformer/transformer_config.py",)
# Values of forks that are understood. A tokenizer changes only the vocabulary, which the user is
# asked for.
_READ_VALUES = ((option("position"), "alibi"),)
# Programs that take exactly the options of pretrain_gpt.py.
_CORE_PROGRAMS = ("", "pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py")


def dialect_of(arguments: Arguments, launch: LaunchCommand) -> Dialect:
    """The variant of Megatron that these options belong to."""
    kinds = {kind for name, kind in arguments.foreign.items() if name in arguments.settings}
    # Options that are neither known to a parser nor misspelt options of core.
    strange = any(one.key.startswith("--") and not slip_of(one) for one in _named(arguments))
    parser = _beside(launch, _PARSERS)
    if parser and CONNECTIONS not in parser:  # of before 2022-10
        kinds.add("older")
    defined = any(_quotes(parser, item.key) for item in arguments.unknown)
    own_values = _settle_values(arguments, launch)
    if own_values or defined or strange or ("older" in kinds and arguments.unknown):
        kinds.add("fork")
    if "deepspeed" in kinds or launch.launcher == "deepspeed":
        on = "deepspeed" in arguments.settings
        return _DIALECTS["deepspeed"] if on else _WITHOUT_DEEPSPEED
    if any(name in arguments.settings for name in _OF_2022):
        return replace(_2022, name="fork") if "fork" in kinds else _2022
    for name in ("pai", "fork", "older", "program"):
        if name in kinds:
            return _DIALECTS[name]
    program = PurePosixPath(launch.program).name
    return CORE if program in _CORE_PROGRAMS else _DIALECTS["program"]


def _settle_values(arguments: Arguments, launch: LaunchCommand) -> bool:
    """Whether the source of the fork around the script defines values of core options that core
    does not have. Such values are not misspelt: their problems are removed, or replaced with the
    problem that the value is not modelled."""
    if not arguments.strange_values:
        return False
    source = _beside(launch, _PARSERS) + _beside(launch, _FIELDS)
    found = False
    for name, problem in arguments.strange_values.items():
        value = str(arguments.settings[name].value)
        if not _quotes(source, value):
            continue
        found, at = True, arguments.problems.index(problem)
        words = f"--{name} {value}: a value of that fork, not modelled"
        is_read = name == MEGATRON["tokenizer-kind"].name or (name, value) in _READ_VALUES
        arguments.problems[at : at + 1] = () if is_read else (arguments.unpredictable(words, name),)
    return found


def _quotes(source: str, word: str) -> bool:
    """Whether Python source contains a word as a string literal."""
    return f'"{word}"' in source or f"'{word}'" in source


def _beside(launch: LaunchCommand, names: Sequence[str]) -> str:
    """The source text of the first of the files `names` that exists in the repository around the
    script; empty if none exists."""
    found = (text_beside(name, launch.folder, whole=True) for name in names)
    return next(filter(None, found), "")


def others_unpredictable(arguments: Arguments, dialect: Dialect) -> list[Problem]:
    """Problems: options of other Megatrons that are not modelled."""
    of_experts = {_EXPERTS: "DeepSpeed's experts are not modelled"}
    refused = of_experts if dialect.name == "deepspeed" else {}
    return [
        arguments.unpredictable(f"--{name}: {why}", name)
        for name, why in {**refused, **left_out("megatron", "others", "refused")}.items()
        if arguments.has(name) and str(arguments.settings[name].value) not in ("1", "0", "none")
    ]


def fork_savings(arguments: Arguments) -> tuple[tuple[Setting, str], ...]:
    """Options of other Megatrons that save memory, and unknown options that may, judged by their
    names."""
    why = "an option of that fork: perhaps less memory than predicted"
    effects = left_out("megatron", "others").items()
    known = ((arguments.settings[name], what) for name, what in effects if arguments.has(name))
    saving = (item for item in arguments.unknown if effect_of(item.key) in ("shards", "saves"))
    return (*known, *((item, why) for item in saving))


# --- others' options in core's words --------------------------------------------------------------


def translate(arguments: Arguments, dialect: Dialect) -> None:
    """Add the core options that other variants' options mean."""
    if dialect.core:
        return
    for asked, meant in meanings("megatron", "synonyms").items():
        name, _, only = asked.partition("=")
        setting = arguments.setting(name)
        if setting is None or (only and str(setting.value).lower() != only):
            continue
        for words in meant.split(", "):
            option, _, value = words.partition(" ")
            if option == name:
                arguments.settings[name] = replace(setting, value=value)
            _set(arguments, option, value == "on" or value or setting.value, setting)
    if dialect.framework:
        _translate_checkpointing(arguments)
    experts = arguments.settings.get(_EXPERTS)
    if dialect.name == "deepspeed" and experts is not None:
        counts = experts.value if isinstance(experts.value, tuple) else (experts.value,)
        if all(str(count) == "1" for count in counts):  # Megatron-DeepSpeed's dense models
            del arguments.settings[_EXPERTS]


def _set(arguments: Arguments, name: str, value: object, where: Setting) -> None:
    arguments.settings.setdefault(name, replace(where, key=f"--{name}", value=value, spans=()))


def _translate_checkpointing(arguments: Arguments) -> None:
    """Translate `--checkpoint-activations`, which meant full recomputation until 2022-04 and still
    does in Megatron-DeepSpeed.

    `--deepspeed-activation-checkpointing` by itself recomputes nothing: it selects the function
    that recomputes if one of the other options asks for it (Megatron-DeepSpeed,
    megatron/training.py, megatron/model/transformer.py).
    """
    setting, method = arguments.setting, arguments.setting("activations-checkpoint-method")
    given = setting("checkpoint-activations") or method
    names = ("recompute", "recompute-method", "recompute-layers")
    whole, how, count = (MEGATRON_RECOMPUTE[name].name for name in names)
    if given is None or whole in arguments.settings:
        return
    layers = setting("checkpoint-num-layers") or setting("activations-checkpoint-num-layers")
    _set(arguments, whole, "full", given)
    _set(arguments, how, method.value if method else "uniform", given)
    _set(arguments, count, layers.value if layers else "1", layers or given)
    arguments.settings.pop("checkpoint-activations", None)


# --- what core 0.19 says of it --------------------------------------------------------------------


def eased(problems: Sequence[Problem], dialect: Dialect) -> list[Problem]:
    """The problems; for a Megatron other than core 0.19, errors of core's rules become warnings."""
    if dialect.core:
        return list(problems)
    return [
        replace(problem, severity="warning", edits=())
        if problem.severity == "error" and problem.rule not in refused_everywhere()
        else problem
        for problem in problems
    ]


def dialect_note(arguments: Arguments, dialect: Dialect) -> list[Problem]:
    """A note naming the Megatron that these options belong to, and the options that core 0.19 would
    refuse."""
    if dialect.core:
        return []
    names = [f"--{name}" for name in arguments.foreign if name in arguments.settings]
    named = f"; {RELEASE} refuses {', '.join(names[:6])}" if names else ""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    text = f"read as options of {dialect.words}{named}{more}"
    return [Problem("dialect", text, "note", arguments.place(*names[:1]))]
