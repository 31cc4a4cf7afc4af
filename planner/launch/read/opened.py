"""The state of reading one launch: its files, the kind of each by its content, and the commands and
files that scripts add."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hardware.errors import HardwareError
from hardware.files import json_content, read_text, shipped_toml, toml_content
from planner.job.errors import CannotTellError, UsageError
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.languages.shell import Site, Undecided
from planner.launch.languages.text import Files, Text
from planner.launch.read.beside import MOST_BYTES, beside, text_of
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import yaml_document
from planner.launch.read.found import Problem
from planner.launch.read.yaml_text import documents_of, is_embedding
from planner.launch.registry import Kind, dialects, kind_of, kinds

# Kinds of files that are not a dialect's configuration.
SHELL, ARGUMENTS, PLAN, JOB = "shell", "arguments", "plan", "job"


def readable() -> str:
    """The readable kinds of files, as a list in a sentence."""
    phrases = [phrase for one in dialects().values() for phrase in one.reads]
    job = "a Kubernetes or SkyPilot job with such a script"
    return ", ".join((*phrases, job)) + ", or a plan file"


_UNREAD = shipped_toml("planner.launch.read", "commands.toml")["unread_yaml"]
_TEMPLATE = re.compile(r"(?m)^\s*\{\{-?\s|:\s*\{\{-?\s*[.$]?\w")
_NOTHING = (None, False, "none", "null")


def file_kind(name: str, text: str) -> str | None:
    """The kind of a file: a name in the registry, or one of SHELL, ARGUMENTS, PLAN and JOB; None if
    it is none of these. The content decides; the suffix only affects the order in which kinds are
    tried. UsageError or CannotTellError for a file that is clearly something else."""
    stripped = text.lstrip()
    if name.endswith(".toml"):
        # The reader's message names the line if it is not TOML.
        usual = next(one.name for one in kinds().values() if one.by == "toml")
        return _toml_kind(text) or usual
    if name.endswith((".yaml", ".yml")):
        return _yaml_kind(name, text)
    if stripped.startswith("{") or name.endswith(".json"):
        return _json_kind(name, text)
    return _named(kind_of("python", text)) if name.endswith(".py") else _plain_kind(name, text)


def _named(kind: Kind | None) -> str | None:
    return None if kind is None else kind.name


def _plain_kind(name: str, text: str) -> str | None:
    """The kind of a file whose suffix does not tell it; None if it is no launch file. UsageError
    for a script in another language."""
    python = kind_of("python", text)
    if python is not None and python.by_text_alone:
        return python.name
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if code.lstrip().startswith("--"):
        return ARGUMENTS
    if settings_kind := _toml_kind(text) or _mapping_kind(text):
        return settings_kind
    if other := re.match(r"#!.*\b(fish|t?csh|perl|ruby)\b", text):
        raise UsageError(
            f"{name}: a script of {other[1]}; of shells, those of sh and bash are read"
        )
    shebang = text.startswith("#!") and re.match(r"#!.*\b(ba|z|k|da)?sh\b", text) is not None
    runs = re.search(
        r"\b(torchrun|accelerate|deepspeed|srun|python[\d.]*|swift|megatron|llamafactory-cli|axolotl|trl)\b"
        r"|\b(tune +run|automodel)\b"
        r"|\b(mpirun|mpiexec|sbatch)\b|\bbash +\S+\.sh\b|\.py\b|run_train\.sh",
        code,
    )
    assigns = re.search(r"^\s*(export\s+)?[A-Za-z_]\w*\+?=", code, re.MULTILINE)
    return SHELL if shebang or runs or assigns else None


def _toml_kind(text: str) -> str | None:
    try:
        return _named(kind_of("toml", toml_content(text, "")))
    except HardwareError:
        return None


def _json_kind(name: str, text: str) -> str:
    """The kind of a JSON file: a plan file or a dialect's configuration. UsageError for any
    other."""
    content = json_content(text, name)
    if isinstance(content, dict):
        if "planner_version" in content:
            return PLAN
        if kind := kind_of("table", content) or kind_of("json", content):
            return kind.name
    raise UsageError(
        f"{name}: this JSON is no configuration that is read; readable are {readable()}"
    )


def _yaml_kind(name: str, text: str) -> str:
    if mapping_kind := _mapping_kind(text):
        return mapping_kind
    if _TEMPLATE.search(text):
        raise CannotTellError(
            f"{name}: a template with {{{{ ... }}}} in it: render it first (`helm template`), or "
            "give the script that it starts"
        )
    if is_embedding(text):
        return JOB
    if (count := len(documents_of(text).contents)) > 1:
        raise UsageError(
            f"{name}: holds {count} YAML documents, none of which starts a training program in a "
            "way that is read; give the script that it starts"
        )
    # The message names the line if it is not YAML.
    settings = yaml_document(Text.made(text), name).settings
    off = tuple(
        key.rpartition(".")[0] + "."
        for key, setting in settings.items()
        if key.endswith((".enabled", "_scheme")) and setting.value in _NOTHING
    )
    names = {key.replace("-", "_") for key in settings}
    names |= {key.partition(".")[0] for key in names}
    known = [one for one in _UNREAD if names.issuperset(one["has"])]
    whose = next((one["whose"] for one in known if "complete" in one), "")
    for path, setting in settings.items() if not whose else ():
        if setting.value not in _NOTHING and not path.startswith(off):
            for key in path.split("."):
                refuse_unmodelled(key, f"{name}: {key}")
    others = (one["whose"] for one in known)
    whose = whose or next(others, "has the settings of none that is read")
    tables = (one.told for one in kinds().values() if one.by == "table")
    raise UsageError(f"{name}: this YAML {whose}; read are {', '.join(filter(None, tables))}")


def _mapping_kind(text: str) -> str | None:
    """The kind of a YAML text that is a single table; None for other texts."""
    documents = documents_of(text).contents
    content = documents[0] if len(documents) == 1 else None
    return _named(kind_of("table", content)) if isinstance(content, dict) else None


# How many files the scripts of a launch may add.
_MOST_FILES = 64


@dataclass
class Opened:
    """The files of a launch, with their kinds and texts by path, and what reading the scripts has
    found so far."""

    files: Files
    kinds: dict[str, str] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)
    commands: list[LaunchCommand] = field(default_factory=list)
    # Files that a script starts or reads.
    opened: set[Path] = field(default_factory=set)
    # Launchers whose program is unknown, and why.
    hidden: list[str] = field(default_factory=list)
    # Scripts that are started but missing.
    absent: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    submitted: list[Text] = field(default_factory=list)
    contents: Mapping[str, str] = field(default_factory=dict)
    # Python programs that the files contain, by name.
    programs: dict[str, str] = field(default_factory=dict)
    # The command that trains.
    launch: LaunchCommand | None = None
    # Branches of scripts that are taken, those that cannot be decided, and whether tests count as
    # true.
    chosen: Mapping[Site, int] = field(default_factory=dict)
    undecided: Mapping[Site, Undecided] = field(default_factory=dict)
    hopeful: bool = False

    @property
    def program(self) -> str:
        """Name of the program that trains; empty before it is known."""
        return "" if self.launch is None else self.launch.name

    def open_beside(self, name: str, script: str) -> Text | None:
        """The text of a file that a script names, looked for in the folders around the script. None
        if it is missing, or if too many files were read."""
        path = beside(name, Path(script).parent)
        if path is None or len(self.files.by_path) >= _MOST_FILES:
            return None
        text = self.contents.get(str(path)) or text_of(path)
        if path.resolve() != Path(script).resolve():  # one that starts itself anew
            self.opened.add(path.resolve())
        return None if text is None else self.files.add(str(path), text).as_text()

    def not_opened(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths that no script starts or reads, as far as scripts have been read."""
        return [path for path in paths if Path(path).resolve() not in self.opened]

    def of_kind(self, *kinds: str) -> list[str]:
        """Paths of the files of these kinds."""
        return [path for path, kind in self.kinds.items() if kind in kinds]


def open_file(path: Path, read: Opened) -> None:
    """Read a file and determine its kind. HardwareError or UsageError if it is not a launch
    file."""
    name = str(path)
    if name in read.kinds:
        raise UsageError(f"{name} is given twice")
    text = read.contents.get(name)
    if not text:
        text = read_text(path) if path.suffix == ".json" else read_text(path, MOST_BYTES)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.strip():
            raise UsageError(f"{path} is empty")
    source = read.files.add(name, text)
    read.texts[name] = source.as_text()
    kind = file_kind(name, text)
    if kind is None:
        raise UsageError(f"{name}: this is no launch file; readable are {readable()}")
    read.kinds[name] = kind
