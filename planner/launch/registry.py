"""The dialects: every folder below `planner/launch/dialects` that holds a `dialect.toml`.

A folder is all that a dialect needs: no other file names it. Its `dialect.toml` says what a reader
of this page would ask (which targets it writes, which kinds of files it reads, how it is
recognised) and names the functions that do the work, which are imported when they are first called:
scanning reads texts alone. `planner.launch.contract` says what these functions get and give.
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
# The package of the folders, by name: what they hold imports this module.
_FOLDERS = "planner.launch.dialects"
# How the settings of a file are written, which `--fix` must know: options of a command, Python,
# JSON, TOML, YAML, or JSON or YAML by the text.
Form = Literal["options", "python", "json", "toml", "yaml"]
# What a kind of file is recognised by: the table that a YAML or JSON holds, a JSON's that holds
# nothing else, a TOML's, the text of a Python program, or a command.
Recognised = Literal["table", "json", "toml", "python", "command"]


@dataclass(frozen=True, slots=True)
class Target:
    """A launch target: `[targets.NAME]` of a `dialect.toml`.

    `summary`: one line; `profile`: the framework profile that other frameworks' plans are costed
    under when they are written for it; `profiles`: further ones that its runs can be, whose plans
    keep theirs; `writer`: the module of the folder that writes
    (`planner.launch.contract.Writer`); `model`: how it says a model (`module:name`), a
    `planner.launch.architecture.Table` or a function that gives one for a model.

    Words of the folder's README: `time` and `memory`: where the framework reports the time of a
    step and its memory, and which memory that is (`held`); `weights`: how a run starts from
    weights; `alone`: what `planner check` needs beside the file alone; `from_plan`: what it takes
    from the plan file besides. `stops`: whether a run can be told when to end.

    `versions`: modules that the files are written for -> their version, or version and the variable
    of the folder that holds the module; in a table `with-NAME` those of a precision, an optimizer
    or a framework profile besides ("" where it does without). `page_models`: models by which
    `docs/dialects.md` shows the table of the architecture. `tunes`: its files can say that a part
    of the weights is trained; `packs`: what becomes of samples of unlike lengths; `sees`: it
    trains vision-language models; `objectives`: what it minimises besides the next token;
    `from_weights`: it always starts from published weights; `quantised`: techniques that its runs
    have beside a quantised base; `as_run`: the function (`module:name`) that gives a request as the
    target runs it, `(Request) -> Request`.
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
        """Whether its files run plans of a framework profile as they are."""
        own = load_framework(profile).launch.target
        return self.name == own or profile in (self.profile, *self.profiles)


@dataclass(frozen=True, slots=True)
class Format:
    """How files are written that were read: `[formats.NAME]`; `Found.format` is its name.

    `words`: of a report's head; `form`: how its settings are written. `options`: the tables of
    `options.toml` by which `--fix` spells a changed configuration, and `says`: the function
    (`module:name`) that says what a file of the format says of a configuration, by our names, where
    that is not its degrees, batch and recompute mode. `edits`: the function that makes all edits
    itself. A format with none of them is read and not written. `anchors`: options behind which new
    ones go, the likeliest first; `removes`: whether an option can be taken out. `splits`: the
    function that gives the layers of each stage as the framework splits them, `(layers, stages)`;
    evenly where there is none.
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

    `by`: what it is recognised by. A file is of this kind where its table has every name in `all`
    and one of `any`, or where the function `sign` (`module:name`) says so of the table, the text or
    the command. `read`: the function that reads it: `(Source) -> Found`, of a command
    `(LaunchCommand, Opened, Hints) -> Found`. `order`: kinds are asked from the lowest to the
    highest, the dialect's own where it is not said. `part`: what a file says where several make one
    launch: what `starts` it, `trains`, `shards` or `adapts`; empty where it is one of its own.
    `pretrains`: whether the programs that read it do nothing but pretrain.

    `told`: what it is and the settings that tell it, in a few words, for files that are of no kind.
    `by_text_alone`: a Python text is of this kind whatever its file is called.

    `is_program`: the file is a program, which is no launch where another file starts it.

    Of a command: `before_files`: it is read without the configuration files that it names;
    `completed_by`: kinds of files that say more of it, where others are read in its place;
    `surely`: its sign tells it from every other program's.
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
    """A command that trains and is no Python file: `[programs.NAME]`.

    `verbs`: it trains where it is told one of them; none: whatever it is told, and its name may end
    in this one. `gpus`: the variable that counts its processes on one node; `every_gpu`: it takes
    every GPU that it may see.
    """

    dialect: str
    name: str
    verbs: tuple[str, ...] = ()
    gpus: str = ""
    every_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One folder. `order`: its place in lists and in detection; `reads`: what it reads, as phrases
    of a list; `also_reads`: profiles that nothing writes for and whose files it reads. `shown_by`:
    options that show a training program's command where only a part of one stands.
    `config_options`: options by which commands name a configuration file; `names_files`: the
    function that says which files a command names in another way,
    `(LaunchCommand) -> Iterator[Text]`."""

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
    """The dialect of a folder. TypeError for a field that there is not."""
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
    """Every kind of file and command by its name, in the order in which they are asked."""
    every = (one for dialect in dialects().values() for one in dialect.kinds.values())
    return {one.name: one for one in sorted(every, key=lambda one: one.order)}


@cache
def programs() -> Mapping[str, Program]:
    """Every command that trains and is no Python file, by its name."""
    return {name: one for dialect in dialects().values() for name, one in dialect.programs.items()}


def program_named(name: str) -> Program | None:
    """The command that a word without its folders names; None where it names none."""
    ends = (one for one in programs().values() if not one.verbs and name.endswith(one.name))
    return programs().get(name) or next(ends, None)


def kind_of(by: Recognised, content: Any) -> Kind | None:
    """The first kind that says that a table, text or command is one of its own."""
    return next((one for one in kinds().values() if one.by == by and one.is_one(content)), None)


def function(dialect: str, name: str) -> Callable[..., Any]:
    """A function that a registration names, as `module:name` of its folder."""
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
    """How a target says a model: a `planner.launch.architecture.Table`."""
    entry = targets()[target]
    table = function(entry.dialect, entry.model)
    return table(model) if callable(table) else table


# --- the target of a framework --------------------------------------------------------------------


def target_of_profile(profile: str) -> Target | None:
    """The target that a framework's own file names as the writer of its plans; None where nothing
    writes them."""
    return targets().get(load_framework(profile).launch.target)


def target_named(name: str) -> Target:
    """The writer of a framework's launch files, by its own name or the framework's. UsageError
    where there is none."""
    target = targets().get(plain_name(name)) or target_of_profile(name)
    if target is None:
        raise UsageError(
            f"nothing writes launch files for {_spoken(name)}: give --framework, one of "
            + ", ".join(targets())
        )
    return target


def dialect_named(name: str) -> str:
    """The dialect that reads a framework's launch files. UsageError where none does."""
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
