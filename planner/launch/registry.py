"""The dialects: all folders below `planner/launch/dialects` that contain a `dialect.toml`.

No other file names a dialect. Its `dialect.toml` lists its targets and the kinds of files that it
reads and how to recognise them, and names the functions that do the work, which are imported when
first called. `planner.launch.contract` defines these functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli as tomllib

from hardware.files import shipped_toml
from planner.job.errors import UsageError
from planner.job.frameworks.names import plain_name, profile_named
from planner.job.frameworks.profile import load_framework

FILE = "dialect.toml"
# A package name, since the modules in it import this one.
_FOLDERS = "planner.launch.dialects"
# The syntax of a file, for `--fix`: options of a command, Python, JSON, TOML, YAML, or JSON or YAML
# by the text.
Form = Literal["options", "python", "json", "toml", "yaml"]
# What a kind of file is recognised by: a YAML or JSON table, a table that is only in JSON, a TOML
# table, the text of a Python program, or a command.
Recognised = Literal["table", "json", "toml", "python", "command"]


@dataclass(frozen=True, slots=True)
class Target:
    """A launch target: `[targets.NAME]` of a `dialect.toml`.

    `summary`: one line; `profile`: the framework profile under which plans of other frameworks are
    costed for it; `profiles`: further profiles that it can run; `writer`: the module that writes
    (`planner.launch.contract.Writer`); `model`: how it describes a model (`module:name`), a
    `planner.launch.architecture.Table` or a function from a model to one.

    For the README: `time` and `memory`: where the framework reports these, and which memory it is
    (`held`); `weights`: how a run loads weights; `alone`: what `planner check` needs besides the
    files; `from_plan`: what else it takes from the plan file; `stops`: whether a run can be told
    when to end.

    `versions`: module -> version, or version and the variable with the module's folder; a table
    `with-NAME` adds those for a precision, optimizer or framework profile ("" removes one).
    `page_models`: models for `docs/dialects.md`. `tunes`: it can train part of the weights;
    `packs`: it handles samples of different lengths; `sees`: it trains vision-language models;
    `objectives`: besides next-token prediction; `from_weights`: it always starts from published
    weights; `quantised`: techniques that it uses with a quantised base; `as_run`: a function
    (`module:name`), `(Request) -> Request`, that returns the request as the target runs it.
    """

    dialect: str
    name: str
    summary: str
    profile: str
    model: str
    time: str
    memory: str
    weights: str
    versions: Mapping[str, Any]
    writer: str = "writer"
    held: Literal["allocated", "reserved"] = "allocated"
    alone: str = ""
    from_plan: str = ""
    stops: bool = True
    page_models: tuple[str, ...] = ("llama-3-8b",)
    tunes: bool = False
    packs: bool = False
    sees: bool = False
    objectives: tuple[str, ...] = ()
    from_weights: bool = False
    quantised: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    as_run: str = ""

    def runs(self, profile: str) -> bool:
        """Whether its files can run plans of a framework profile unchanged."""
        own = load_framework(profile).launch.target
        return self.name == own or profile in (self.profile, *self.profiles)


@dataclass(frozen=True, slots=True)
class Format:
    """How files that were read are written: `[formats.NAME]`; `Found.format` is its name.

    `words`: for the head of a report; `form`: the syntax. `options`: tables of `options.toml` from
    which `--fix` takes keys; `says`: a function (`module:name`) that describes a configuration by
    our names, for what is not its degrees, batch and recompute mode; `edits`: a function that makes
    all edits itself. Without any of these, the format is only read. `anchors`: options after which
    new ones are inserted, by preference; `removes`: whether options can be removed. `splits`: a
    function `(layers, stages)` that returns the framework's layers per stage; evenly by default.
    """

    dialect: str
    name: str
    words: str
    form: Form
    options: tuple[str, ...] = ()
    says: str = ""
    edits: str = ""
    anchors: tuple[str, ...] = ()
    removes: bool = False
    splits: str = ""

    @property
    def is_written(self) -> bool:
        """Whether `--fix` writes files of this format."""
        return bool(self.options or self.edits)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file or command that is read: `[kinds.NAME]`.

    `by`: what it is recognised by. A file is of this kind if its table has every name in `all` and
    one of `any`, or if the function `sign` (`module:name`) accepts its table, text or command.
    `read`: the function that reads it, `(Source) -> Found`, or for a command `(LaunchCommand,
    Opened, Hints) -> Found`. `order`: kinds are tried in this order, by default the dialect's.
    `part`: the role of a file in a launch of several: it `starts`, `trains`, `shards` or `adapts`.
    `pretrains`: programs that read it only pretrain. `told`: a short description for messages.
    `by_text_alone`: a Python text is of this kind whatever its file is called. `is_program`: the
    file is a program, which is not a launch if another file starts it.

    For commands: `before_files`: the command is read without the configuration files that it names;
    `completed_by`: kinds of files that complete it, where others replace it; `surely`: its sign is
    conclusive.
    """

    dialect: str
    name: str
    by: Recognised
    read: str
    order: int
    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    sign: str = ""
    part: Literal["starts", "trains", "shards", "adapts", ""] = ""
    pretrains: bool = False
    before_files: bool = False
    completed_by: tuple[str, ...] = ()
    surely: bool = True
    told: str = ""
    by_text_alone: bool = False
    is_program: bool = False

    def is_one(self, content: Any) -> bool:
        """Whether a table, text or command is of this kind."""
        if self.sign:
            return bool(function(self.dialect, self.sign)(content))
        return all(name in content for name in self.all) and (
            not self.any or any(name in content for name in self.any)
        )

    def reader(self) -> Callable[..., Any]:
        """The function that reads it."""
        return function(self.dialect, self.read)


@dataclass(frozen=True, slots=True)
class Program:
    """A command that trains and is not a Python file: `[programs.NAME]`. `verbs`: subcommands that
    train; without any, it always trains, and the name may be a suffix. `gpus`: the variable with
    its number of processes per node; `every_gpu`: it uses every visible GPU."""

    dialect: str
    name: str
    verbs: tuple[str, ...] = ()
    gpus: str = ""
    every_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect's folder. `order`: its place in lists and detection; `reads`: what it reads, as
    phrases; `also_reads`: profiles that it reads but nothing writes. `shown_by`: options that
    suggest a training command in an incomplete script. `config_options`: options that name a
    configuration file; `names_files`: a function `(LaunchCommand) -> Iterator[Text]` for files that
    a command names otherwise."""

    name: str
    order: int
    reads: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    config_options: tuple[str, ...] = ()
    names_files: str = ""
    shown_by: tuple[str, ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)
    formats: Mapping[str, Format] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)


Part = TypeVar("Part", Target, Format, Kind, Program)


def _made(
    part: type[Part], dialect: str, tables: Mapping[str, Any], **usual: Any
) -> dict[str, Part]:
    """The parts of one table of a registration, by name."""
    return {
        name: part(dialect=dialect, name=name, **usual | _tuples(table))
        for name, table in tables.items()
    }


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with its lists as tuples."""
    return {key: tuple(one) if isinstance(one, list) else one for key, one in table.items()}


def _read(folder: Path) -> Dialect:
    """The dialect of a folder. TypeError for an unknown field."""
    stated = _tuples(tomllib.loads((folder / FILE).read_text(encoding="utf-8")))
    name, order = folder.name, stated["order"]
    return Dialect(
        name=name,
        targets=_made(Target, name, stated.pop("targets", {})),
        formats=_made(Format, name, stated.pop("formats", {})),
        kinds=_made(Kind, name, stated.pop("kinds", {}), order=order),
        programs=_made(Program, name, stated.pop("programs", {})),
        **stated,
    )


@cache
def dialects() -> Mapping[str, Dialect]:
    """Every dialect by its name, in order."""
    folders = (
        folder
        for place in importlib.import_module(_FOLDERS).__path__
        for folder in Path(place).iterdir()
        if (folder / FILE).is_file()
    )
    found = sorted(map(_read, folders), key=lambda one: (one.order, one.name))
    return {one.name: one for one in found}


@cache
def targets() -> Mapping[str, Target]:
    """Every launch target by its name."""
    return {name: one for dialect in dialects().values() for name, one in dialect.targets.items()}


@cache
def formats() -> Mapping[str, Format]:
    """Every format by its name."""
    return {name: one for dialect in dialects().values() for name, one in dialect.formats.items()}


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind of file and command by its name, in the order of detection."""
    every = (one for dialect in dialects().values() for one in dialect.kinds.values())
    return {one.name: one for one in sorted(every, key=lambda one: one.order)}


@cache
def programs() -> Mapping[str, Program]:
    """Every command that trains and is not a Python file, by its name."""
    return {name: one for dialect in dialects().values() for name, one in dialect.programs.items()}


def program_named(name: str) -> Program | None:
    """The command for a word without its folders; None if there is none."""
    ends = (one for one in programs().values() if not one.verbs and name.endswith(one.name))
    return programs().get(name) or next(ends, None)


def kind_of(by: Recognised, content: Any) -> Kind | None:
    """The first kind that accepts a table, text or command."""
    return next((one for one in kinds().values() if one.by == by and one.is_one(content)), None)


def function(dialect: str, name: str) -> Callable[..., Any]:
    """A function that a registration names as `module:name` of its folder."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(module_of(dialect, module), attribute)
    return found


def package_of(dialect: str) -> str:
    """The package of a dialect's folder."""
    return f"{_FOLDERS}.{dialect}"


@cache
def dialect_toml(dialect: str, name: str) -> Mapping[str, Any]:
    """The tables of a TOML file in a dialect's folder."""
    return shipped_toml(package_of(dialect), name)


def module_of(dialect: str, name: str) -> Any:
    """A module of a dialect's folder, imported now."""
    own = f"{package_of(dialect)}.{name}"
    return importlib.import_module(name if name.startswith("planner.") else own)


def table_of(target: str, model: Any) -> Any:
    """How a target describes a model: a `planner.launch.architecture.Table`."""
    entry = targets()[target]
    table = function(entry.dialect, entry.model)
    return table(model) if callable(table) else table


# --- the target of a framework --------------------------------------------------------------------


def target_of_profile(profile: str) -> Target | None:
    """The target that writes plans of a framework profile; None if there is none."""
    return targets().get(load_framework(profile).launch.target)


def target_named(name: str) -> Target:
    """The target by its own name or its framework's. UsageError if there is none."""
    target = targets().get(plain_name(name)) or target_of_profile(name)
    if target is None:
        raise UsageError(
            f"nothing writes launch files for {_spoken(name)}: give --framework, one of "
            + ", ".join(targets())
        )
    return target


def dialect_named(name: str) -> str:
    """The dialect that reads a framework's launch files. UsageError if there is none."""
    profile, target = profile_named(name), target_of_profile(name)
    reads = (one.name for one in dialects().values() if profile in one.also_reads)
    dialect = target.dialect if target else next(reads, None)
    if dialect is None:
        raise UsageError(
            f"files of {_spoken(name)} are not read; those of {', '.join(_read_profiles())} are, "
            "and plan files (plan)"
        )
    return dialect


def _read_profiles() -> Iterator[str]:
    yield from targets()
    for dialect in dialects().values():
        yield from dialect.also_reads


def _spoken(name: str) -> str:
    profile = profile_named(name)
    return profile if name == profile else f"{name} ({profile})"
