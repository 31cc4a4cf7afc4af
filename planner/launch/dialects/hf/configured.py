"""Launches of Hugging Face's programs: which files and arguments complement each other."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from planner.job.errors import CannotTellError, UsageError
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.accelerate_reader import AccelerateReader, deepspeed_in
from planner.launch.dialects.hf.adapter_file import (
    adapter_settings,
    base_setting,
    other_base,
    other_weights,
)
from planner.launch.dialects.hf.arguments import (
    Named,
    Program,
    hf_arguments,
    program_of,
    value_of,
)
from planner.launch.dialects.hf.deepspeed_reader import DeepspeedReader
from planner.launch.dialects.hf.family_scripts import of_family
from planner.launch.dialects.hf.program_defaults import checkpointed, with_length
from planner.launch.dialects.hf.python import (
    OTHER_CLASS,
    PREPARED,
    ScriptSettings,
    hf_python_settings,
)
from planner.launch.dialects.hf.sampling import with_sampling
from planner.launch.dialects.hf.training import (
    Training,
    loads_half,
    of_swift,
    read_hf_training,
    swift_precision,
    trained,
)
from planner.launch.dialects.hf.tuned import tuned
from planner.launch.languages.text import Text
from planner.launch.read.beside import beside, source_beside, text_of
from planner.launch.read.command import CONFIG_NAME, LaunchCommand
from planner.launch.read.document import Document, Source, json_document, yaml_document
from planner.launch.read.found import Found, Hints, Setting
from planner.launch.read.opened import Opened

# How many of the script's own defaults are listed.
_MOST = 8


def with_accelerate(found: Found, source: Source) -> Found:
    """The launch, plus a problem for each missing accelerate file that an `accelerate launch`
    command names."""
    if source.launch is None or source.launch.launcher != "accelerate":
        return found
    problems = list(found.problems)
    for config in source.launch.options:
        name = str(config.value or config.unknown)
        known = {Path(path).name for path in source.files.by_path}
        if config.key.replace("-", "_") != "config_file" or Path(name).name in known:
            continue
        if not source_beside(name, source.folder, source.files):
            problems += said("accelerate_absent", config.place, name=name)
    return replace(found, problems=tuple(problems))


def read_arguments(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch described by the arguments of a Trainer script."""
    options = {item.key.replace("-", "_"): item for item in launch.options}
    kept = ("deepspeed", "zero_stage", "mixed_precision", "deepspeed_config_file")
    named = {name: item for name, item in options.items() if name in kept}
    adapter = next((path for path, kind in read.kinds.items() if kind == "adapter"), "")
    source = Source(Text(""), launch.command.file, launch, read.files, hints, adapter=adapter)
    stated, program = with_program({**named, **launch.given}, launch)
    return with_accelerate(read_hf_training(stated, source, program), source)


def read_deepspeed(source: Source) -> Found:
    """DeepSpeed's file, completed by the arguments of the command that names it."""
    document = json_document(source.text, source.path, source.hints.environment)
    return with_accelerate(_sharded(DeepspeedReader, document, source, source.given), source)


def _sharded(
    reader: type[DeepspeedReader] | type[AccelerateReader],
    document: Document,
    source: Source,
    named: Named,
) -> Found:
    """A launch from a file that configures sharding, completed by the settings of a Trainer
    script."""
    named, program = with_program(named, source.launch)
    named, program = of_family(named, program_of(program, named, source.launch))
    if program == "swift":
        named = swift_precision(of_swift(named))
    script = hf_arguments(named, source.folder, source.hints)
    script = checkpointed(with_length(script, named, program), named, program)
    if reader is AccelerateReader:
        document = _with_precision(document, named)
    shards = reader is DeepspeedReader or document.get("distributed_type") == "FSDP"
    how = tuned(named, program, script.hints.model, sharded=shards)
    half = loads_half(named, program) if how.half is None else how.half
    script = replace(script, half_weights=half)
    found = reader(document, source, script).found()
    training = Training(named, program, script, how)
    return with_sampling(trained(found, training, source, document.path), named, source)


def _with_precision(document: Document, named: Named) -> Document:
    """A Trainer's `bf16` and `fp16` override the mixed precision of accelerate's file
    (transformers/training_args.py, __post_init__: ACCELERATE_MIXED_PRECISION)."""
    asked = next((name for name in ("bf16", "fp16") if value_of(named, name) == "true"), "")
    if not asked or str(document.get("mixed_precision", "no")) not in ("no", "bf16", "fp16"):
        return document
    stated = replace(named[asked], key="mixed_precision", value=asked, spans=())
    return replace(document, settings={**document.settings, "mixed_precision": stated})


def read_accelerate(source: Source) -> Found:
    """accelerate's file, or DeepSpeed's settings in it, completed by a recipe that the command
    names."""
    document = source.yaml()
    named = _named_beside(source.launch, source) if source.launch else {}
    inside = deepspeed_in(document, source)
    if inside is None:
        return _sharded(AccelerateReader, document, source, named)
    found = _sharded(DeepspeedReader, inside, source, named)
    return replace(found, format="accelerate", main_file=source.path, unused=(), unknown=())


def _named_beside(launch: LaunchCommand, source: Source) -> dict[str, Setting]:
    """The arguments of the command that starts a Trainer script. If `--config` or the first
    argument names a YAML or JSON that is found, also the settings in that file, which the arguments
    override."""
    first = launch.arguments[0].text.value if launch.arguments else ""
    name = str(launch.given["config"].value) if "config" in launch.given else first
    is_config = re.fullmatch(CONFIG_NAME, name) is not None
    file = source_beside(name, launch.folder, source.files) if is_config else None
    if file is None:
        return launch.given
    reader = json_document if file.path.endswith(".json") else yaml_document
    read = reader(file.as_text(), file.path, source.hints.environment)
    return {**read.settings, **launch.overrides}


def _trained_by(program: Program, source: Source) -> Found:
    """The launch that a YAML or JSON of Hugging Face settings describes, read with the defaults of
    `program`. The command's arguments override the file's settings."""
    given = source.launch.overrides if source.launch else {}
    settings = {**source.document().settings, **given}
    tables = {key.partition(".")[0] for key in settings}
    if source.sharding and not {"deepspeed", "deepspeed_config", "fsdp"} & tables:
        path = str(Path(source.sharding).absolute())
        settings["deepspeed"] = Setting("deepspeed", path, source.sharding)
        tables.add("deepspeed")
    found = read_hf_training(settings, source, program)
    says_sharding = {"deepspeed", "fsdp", "fsdp_config", "zero_stage"} & tables
    if program != "trainer" or says_sharding or source.launch is not None:
        return with_accelerate(found, source)
    return replace(found, problems=(*found.problems, *said("sharding_unknown", source.path)))


read_llamafactory = partial(_trained_by, "llamafactory")
read_axolotl = partial(_trained_by, "axolotl")
# For a Trainer script.
read_settings = partial(_trained_by, "trainer")


def read_adapter(source: Source) -> Found:
    """peft's file of an adapter, given alone; it does not say how the adapter was trained."""
    document = source.document()
    named = {**base_setting(document), **adapter_settings(document), **source.given}
    found = read_hf_training(named, source)
    wrong = (*other_base(named, document, source), *other_weights(document))
    found = replace(found, problems=(*found.problems, *wrong))
    if source.hints.mbs is not None or source.launch is not None:
        return found
    problems = (*found.problems, *said("adapter_alone", source.path))
    note = "the base in the checkpoint's type: an adapter's file does not say how it was held"
    return replace(found, problems=problems, assumed=(*found.assumed, note))


def read_python(source: Source) -> Found:
    """A Trainer script in Python, with the arguments of its command."""
    script = hf_python_settings(source.text, source.path, source.given, source.hints.environment)
    settings = {**script.settings, **source.given}
    found = with_accelerate(read_hf_training(settings, source, script.program), source)
    if not script.defaults:
        return found
    shown = ", ".join(f"{name} {value}" for name, value in list(script.defaults.items())[:_MOST])
    more = ", …" * (len(script.defaults) > _MOST)
    return replace(found, assumed=(*found.assumed, f"the script's own defaults: {shown}{more}"))


# --- the source of the program --------------------------------------------------------------------

# Signs that the source says what the arguments do not.
_SAYS = re.compile(
    r"\b(LoraConfig|get_peft_model|FastLanguageModel|BitsAndBytesConfig|\w*Trainer)\("
)
# Settings that only the source can state; for others it holds defaults, which the arguments change.
_OWN = (
    "adapter", PREPARED, "prepare_kbit", "use_unsloth", OTHER_CLASS, "load_in_4bit",
    "load_in_8bit", "bnb_4bit_use_double_quant", "stage",
)  # fmt: skip
_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "modules_to_save")


def with_program(named: Named, launch: LaunchCommand | None) -> tuple[dict[str, Setting], Program]:
    """A command's arguments, completed by the adapters, packed weights and objective in the source
    of its program; and the program whose defaults apply."""
    script = None if launch is None else _program_beside(launch)
    if script is None:
        return dict(named), "trainer"
    has_adapters = "adapter" in script.settings
    read = {*_OWN, *(_OF_ADAPTERS if has_adapters else ())}
    kept = {
        name: setting
        for name, setting in script.settings.items()
        if name in read and (not setting.unknown or name == "adapter")
    }
    return {**kept, **named}, script.program


def _program_beside(launch: LaunchCommand) -> ScriptSettings | None:
    """The settings in the source of the program that a command starts; None if it is missing or
    does not mention adapters."""
    if not launch.program.endswith(".py"):
        return None
    # Scripts in a subfolder are usually started from the folder above it.
    places = (launch.folder, launch.folder.absolute().parent)
    file = next((found for place in places if (found := beside(launch.program, place))), None)
    text = None if file is None else text_of(file)
    if file is None or text is None or not _SAYS.search(text):
        return None
    try:
        return hf_python_settings(Text.made(text), str(file), launch.given, demanded=False)
    except (CannotTellError, UsageError):
        return None
