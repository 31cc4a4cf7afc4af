"""What a command or configuration file is, and the reader of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.job.frameworks import load_framework
from planner.job.request import Request
from planner.launch.languages.text import HOLE, Files, Text, digits
from planner.launch.dialects.megatron.table import option
from planner.launch.options import MEGATRON, NANOTRON
from planner.launch.dialects.hf.accelerate_reader import AccelerateReader, deepspeed_in
from planner.launch.read.beside import source_beside
from planner.launch.read.command import OF_TORCHTITAN, TRAINER_COMMANDS, LaunchCommand
from planner.launch.dialects.hf.deepspeed_reader import DeepspeedReader
from planner.launch.read.detect import FEWEST_SIGNS, TRAINER_SIGNS, Kind
from planner.launch.read.document import Document, Source, json_document, yaml_document
from planner.launch.read.found import ASKED, Found, Hints, Problem, Setting
from planner.launch.dialects.hf.arguments import hf_arguments
from planner.launch.dialects.hf.lengths import lengths_assumed
from planner.launch.dialects.hf.own import effects_of, own_options
from planner.launch.dialects.hf.python import hf_python_settings
from planner.launch.dialects.hf.refusals import refusals_of
from planner.launch.dialects.hf.training import checkpointed, read_hf_training
from planner.launch.dialects.hf.values import Program, program_of
from planner.launch.dialects.megatron.arguments import options, other_options
from planner.launch.dialects.megatron.attributes import (
    is_swift_megatron,
    read_model_config,
    read_primus,
)
from planner.launch.dialects.nanotron.reader import NanotronReader
from planner.launch.dialects.megatron.recipe import read_recipe
from planner.launch.dialects.torchtitan.reader import read_torchtitan
from planner.launch.dialects.torchtitan.python_reader import read_torchtitan_python

Reader = Callable[[Source], Found]


def read_configured(kind: Kind, source: Source) -> Found:
    """The launch that a configuration file describes, with the command that names it, if any."""
    found = _READERS[kind](source)
    absent = () if kind == "accelerate" else _absent_file(source)
    return replace(found, problems=(*found.problems, *absent))


def _absent_file(source: Source) -> Iterator[Problem]:
    """accelerate's own file, where the command names one that is not there."""
    if source.launch is None or source.launch.launcher != "accelerate":
        return
    for config in source.launch.options:
        if config.key.replace("-", "_") != "config_file":
            continue
        name = str(config.value or config.unknown)
        known = {Path(path).name for path in source.files.by_path}
        if Path(name).name not in known and not source_beside(name, source.folder, source.files):
            text = f"accelerate's {name} is not beside the script"
            yield Problem("sharding-unknown", text, "missing", (config.place,), "give it too")


def is_trainer(launch: LaunchCommand) -> bool:
    """Whether a command's arguments are those of a Hugging Face Trainer script."""
    return sum(name in launch.given for name in TRAINER_SIGNS) >= FEWEST_SIGNS


def read_trainer(launch: LaunchCommand, files: Files, hints: Hints) -> Found:
    """The launch that a Trainer script's arguments describe."""
    options = {item.key.replace("-", "_"): item for item in launch.options}
    kept = ("deepspeed", "zero_stage", "mixed_precision", "deepspeed_config_file")
    named = {name: item for name, item in options.items() if name in kept}
    source = Source(Text(""), launch.command.file, launch, files, hints)
    found = read_hf_training({**named, **launch.given}, source)
    return replace(found, problems=(*found.problems, *_absent_file(source)))


def _deepspeed(source: Source) -> Found:
    document = json_document(source.text, source.path, source.hints.environment)
    return _sharded(DeepspeedReader, document, source, source.given)


def _sharded(
    reader: type[DeepspeedReader] | type[AccelerateReader],
    document: Document,
    source: Source,
    named: Mapping[str, Setting],
) -> Found:
    """What a file shards, completed by the named settings of a Trainer script; with what they ask
    for that is not modelled."""
    script = hf_arguments(named, source.folder, source.hints)
    program = program_of("trainer", named, source.launch)
    script = checkpointed(script, named, program)
    found = reader(document, source, script).found()
    own = own_options(named, source, program, document.path)
    lengths = (lengths_assumed(named, program, found.seq),) if named else ()
    return replace(
        found,
        problems=(*refusals_of(named, source.launch), *own, *found.problems),
        unmodelled=(*found.unmodelled, *effects_of(named)),
        assumed=(*found.assumed, *lengths),
    )


def _nanotron(source: Source) -> Found:
    """Its own file; programs around nanotron take some of its settings from their command line."""
    document = source.yaml()
    for key in (NANOTRON[name].key for name in ("dp", "tp", "pp", "mbs", "grad_acc", "seq")):
        setting = source.given.get(key.rpartition(".")[2])
        if setting is not None:
            number = digits(str(setting.value))
            value = setting.value if number is None else number
            document.override(replace(setting, key=key, value=value), key)
    return NanotronReader(document, source).found()


def _accelerate(source: Source) -> Found:
    """Its own file, or DeepSpeed's settings in it; a recipe that the command names completes it."""
    document = source.yaml()
    named = _named_beside(source.launch, source) if source.launch else {}
    inside = deepspeed_in(document, source)
    if inside is None:
        return _sharded(AccelerateReader, document, source, named)
    found = _sharded(DeepspeedReader, inside, source, named)
    return replace(found, format="accelerate", main_file=source.path, unused=(), unknown=())


def _named_beside(launch: LaunchCommand, source: Source) -> dict[str, Setting]:
    """A Trainer script's arguments, and the settings of the YAML or JSON that `--config` or the
    first of them names."""
    first = launch.arguments[0].text.value if launch.arguments else ""
    name = str(launch.given["config"].value) if "config" in launch.given else first
    is_config = re.fullmatch(_CONFIG_NAME, name) is not None
    file = source_beside(name, launch.folder, source.files) if is_config else None
    if file is None:
        return launch.given
    reader = json_document if file.path.endswith(".json") else yaml_document
    read = reader(file.as_text(), file.path, source.hints.environment)
    return {**read.settings, **launch.overrides}


def _trained_by(program: Program) -> Reader:
    """A YAML or JSON of Hugging Face settings, for a program that reads one."""

    def reader(source: Source) -> Found:
        given = source.launch.overrides if source.launch else {}
        settings = {**source.document().settings, **given}
        tables = {key.partition(".")[0] for key in settings}
        if source.sharding and not {"deepspeed", "deepspeed_config", "fsdp"} & tables:
            path = str(Path(source.sharding).absolute())
            settings["deepspeed"] = Setting("deepspeed", path, source.sharding)
        found = read_hf_training(settings, source, program)
        named = {"deepspeed", "fsdp", "fsdp_config", "zero_stage"} & {
            key.partition(".")[0] for key in settings
        }
        if program != "trainer" or named or source.launch is not None:
            return found
        why = "how it is sharded is said by the file or command that starts it"
        fix = "give the accelerate or DeepSpeed file, or the script, too"
        unsharded = Problem("sharding-unknown", why, "missing", (source.path,), fix)
        return replace(found, problems=(*found.problems, unsharded))

    return reader


def _hf_python(source: Source) -> Found:
    settings = hf_python_settings(source.text, source.path)
    return read_hf_training({**settings, **source.given}, source)


_READERS: Mapping[Kind, Reader] = {
    "torchtitan": read_torchtitan,
    "torchtitan-python": read_torchtitan_python,
    "deepspeed": _deepspeed,
    "nanotron": _nanotron,
    "accelerate": _accelerate,
    "model-config": read_model_config,
    "primus": read_primus,
    "llamafactory": _trained_by("llamafactory"),
    "axolotl": _trained_by("axolotl"),
    "trainer": _trained_by("trainer"),
    "trainer-python": _hf_python,
    "recipe": read_recipe,
}
CONFIGURATIONS = tuple(_READERS)


def read_plan(path: Path, hints: Hints, number: int | None = None) -> Found:
    """Plan `number` of a plan file, or the recommended one. UsageError if there is none."""
    from planner.search.explanation import pick_plan
    from planner.search.plan_file import read_plan_file

    result = read_plan_file(path)
    plan, request = pick_plan(result, number or result.recommended or 1), result.request
    degrees = plan.degrees
    recomputes = plan.recompute != "none"
    profile = load_framework(request.framework)
    # As the request says, but for what the search decided.
    asked = {name: getattr(request, name) for name in ASKED} | {
        "seq": hints.seq or plan.seq,
        "attention": request.attention or profile.attention,
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
            *(f"no-{name}" for name in _usual_techniques(request) if name not in plan.techniques),
        ),
        cublas_workspace_config=request.cublas_workspace_config,
        plan_gpus=request.gpus,
        main_file=str(path),
        **degrees.model_dump(exclude={"mbs", "grad_acc"}),
        **asked,
    )


def _usual_techniques(request: Request) -> tuple[str, ...]:
    """Those that the job uses where nobody says otherwise."""
    return request.model_copy(update={"use": (), "without": ()}).resolve().techniques


_REGISTRY = "torchtitan/{}/{}/config_registry.py"
# Options by which Megatron's command is told from other programs.
MEGATRON_SIGNS = (f"--{option('heads')}", MEGATRON["tp"].key, MEGATRON["mbs"].key)
# Options that no Megatron is known to have: a fork's parser adds a few, another program many.
_FOREIGN = 5
# A program's first arguments that are its configuration: Trainer scripts take YAML and JSON.
_CONFIG_NAME = r"[^-=].*\.(ya?ml|json)"
# Arguments that name a configuration file.
_CONFIG_OPTIONS = (
    "--job.config_file", "--job.config-file", "--config-file", "--config_file", "--deepspeed",
    "--deepspeed_config", "--config",
)  # fmt: skip


def is_megatron(launch: LaunchCommand) -> bool:
    """Whether a command has Megatron's options, by its program's name or by theirs."""
    words = [word.text.value.partition("=")[0] for word in launch.arguments]
    # A file by its name, a module by all of it: folders may be called anything.
    name = launch.name
    if is_swift_megatron(launch):
        return False
    named = "pretrain_" in name or "megatron" in name
    if named and any(word.startswith(("--", HOLE)) for word in words):
        # Others call their programs so, too; NeMo's take `trainer.devices=8`.
        return not _has_foreign_options(words) or any(sign in words for sign in MEGATRON_SIGNS)
    signs = [sign for sign in MEGATRON_SIGNS if sign in words]
    # Megatron-LLM's spelling; the last sign is a name that many programs have in it.
    signs += [sign for sign in MEGATRON_SIGNS[:-1] if _underscored(sign) in words]
    # The last is a name that other programs have, too.
    return bool(signs) and (signs != [MEGATRON_SIGNS[-1]] or not _has_foreign_options(words))


def _underscored(name: str) -> str:
    return "--" + name[2:].replace("-", "_")


def _has_foreign_options(words: Sequence[str]) -> bool:
    """Whether several options are those of no Megatron."""
    known = options().keys() | other_options().keys()
    names = {word[2:] for word in words if re.fullmatch(r"--[a-z][a-z0-9_-]+", word)}
    return len(names - known) >= _FOREIGN


def names_config(launch: LaunchCommand) -> bool:
    """Whether what it trains stands in a file that it or its launcher names."""
    return any(True for _ in named_configs(launch)) or launch.launcher in (
        "accelerate", "deepspeed",
    )  # fmt: skip


def _registries(module: Text) -> Iterator[Text]:
    """Files that may hold the configurations of a module of torchtitan 0.3."""
    folder = module.value.replace(".", "/")
    for part in ("models", "experiments"):
        yield Text.made(_REGISTRY.format(part, folder))


def named_configs(launch: LaunchCommand) -> Iterator[Text]:
    """Files that arguments and environment name as configuration."""
    words = [*launch.command.words]
    # Behind the program; before it, it is the launcher's own switch (`deepspeed --module`).
    first_argument = len(words) - len(launch.arguments)
    for at, word in enumerate(words):
        name, equals, _ = word.text.value.partition("=")
        value = word.text[len(name) + 1 :]
        if not equals and at + 1 < len(words):
            value = words[at + 1].text
        if name == "--module" and at >= first_argument:  # torchtitan 0.3's
            yield from _registries(value)
        if name in _CONFIG_OPTIONS and value.value:
            yield value
    by_name = launch.name in TRAINER_COMMANDS
    for word in launch.arguments[:2]:
        is_hidden = by_name and bool(word.text.unknown) and not word.text.value.startswith("-")
        if is_hidden or re.fullmatch(_CONFIG_NAME, word.text.value):
            yield word.text
    environment = launch.command.environment
    if "CONFIG_FILE" in environment:
        yield environment["CONFIG_FILE"]
    if "MODULE" in environment and launch.program.endswith(OF_TORCHTITAN):
        yield from _registries(environment["MODULE"])
