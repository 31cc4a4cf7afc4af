"""The launches of Hugging Face's programs: which files and arguments complete each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from planner.launch.dialects.hf.accelerate_reader import AccelerateReader, deepspeed_in
from planner.launch.dialects.hf.adapter_file import (
    adapter_settings,
    base_setting,
    other_base,
    other_weights,
)
from planner.launch.dialects.hf.arguments import Program, hf_arguments, program_of, value_of
from planner.launch.dialects.hf.deepspeed_reader import DeepspeedReader
from planner.launch.dialects.hf.family_scripts import of_family
from planner.launch.dialects.hf.program_beside import program_beside, with_program
from planner.launch.dialects.hf.program_defaults import (
    by_trl,
    by_unsloth,
    checkpointed,
    with_length,
    with_tuning,
)
from planner.launch.dialects.hf.python import hf_python_settings
from planner.launch.dialects.hf.rows import below_limit, lengths_assumed, packing_of
from planner.launch.dialects.hf.sampling import with_sampling
from planner.launch.dialects.hf.towers import unsized, with_towers
from planner.launch.dialects.hf.training import (
    loads_half,
    of_swift,
    read_hf_training,
    swift_precision,
)
from planner.launch.dialects.hf.tuned import tuned
from planner.launch.dialects.hf.unmodelled import (
    effects_of,
    own_options,
    refusals_of,
)
from planner.launch.languages.text import Text
from planner.launch.read.beside import source_beside
from planner.launch.read.command import CONFIG_NAME, LaunchCommand
from planner.launch.read.document import Document, Source, json_document, yaml_document
from planner.launch.read.found import Found, Hints, Problem, Setting
from planner.launch.read.opened import Opened

# Defaults of a script's own that are named.
_MOST = 8


def with_accelerate(found: Found, source: Source) -> Found:
    """A launch, with a problem where accelerate's own file, which its command names, is missing."""
    return replace(found, problems=(*found.problems, *_absent_file(source)))


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


def read_arguments(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that a Trainer script's arguments describe."""
    options = {item.key.replace("-", "_"): item for item in launch.options}
    kept = ("deepspeed", "zero_stage", "mixed_precision", "deepspeed_config_file")
    named = {name: item for name, item in options.items() if name in kept}
    adapter = next((path for path, kind in read.kinds.items() if kind == "adapter"), "")
    source = Source(Text(""), launch.command.file, launch, read.files, hints, adapter=adapter)
    said, program = with_program({**named, **launch.given}, program_beside(launch), "trainer")
    return with_accelerate(read_hf_training(said, source, program), source)


def read_deepspeed(source: Source) -> Found:
    """DeepSpeed's file, completed by the arguments of the command that names it."""
    document = json_document(source.text, source.path, source.hints.environment)
    return with_accelerate(_sharded(DeepspeedReader, document, source, source.given), source)


def _sharded(
    reader: type[DeepspeedReader] | type[AccelerateReader],
    document: Document,
    source: Source,
    named: Mapping[str, Setting],
) -> Found:
    """What a file shards, completed by the named settings of a Trainer script; with what they ask
    for that is not modelled."""
    named, program = with_program(named, program_beside(source.launch), "trainer")
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
    plain = reader(document, source, script).found()
    found = with_tuning(by_unsloth(plain, named, program), named, source.launch, how)
    if program == "trl":
        found = by_trl(found, named, source, fused=bool(plain.variations))
    found = with_towers(found, named, program, source.launch, source.hints)
    refusals = refusals_of(named, source.launch, program, script.hints.model)
    own = own_options(named, source, program, document.path)
    lengths = (lengths_assumed(named, program, found.seq, source.hints.lengths),) if named else ()
    read = replace(
        found,
        packing=packing_of(named, program) if named else None,
        problems=(*refusals, *unsized(named, found, source.hints), *own, *found.problems),
        unmodelled=(*found.unmodelled, *effects_of(named, program), *below_limit(named, program)),
        assumed=(*found.assumed, *lengths),
    )
    return with_sampling(read, named, source)


def _with_precision(document: Document, named: Mapping[str, Setting]) -> Document:
    """A Trainer's `bf16` and `fp16` go before what accelerate's file says of mixed precision
    (transformers/training_args.py, __post_init__: ACCELERATE_MIXED_PRECISION)."""
    asked = next((name for name in ("bf16", "fp16") if value_of(named, name) == "true"), "")
    if not asked or str(document.get("mixed_precision", "no")) not in ("no", "bf16", "fp16"):
        return document
    stated = replace(named[asked], key="mixed_precision", value=asked, spans=())
    return replace(document, settings={**document.settings, "mixed_precision": stated})


def read_accelerate(source: Source) -> Found:
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
    is_config = re.fullmatch(CONFIG_NAME, name) is not None
    file = source_beside(name, launch.folder, source.files) if is_config else None
    if file is None:
        return launch.given
    reader = json_document if file.path.endswith(".json") else yaml_document
    read = reader(file.as_text(), file.path, source.hints.environment)
    return {**read.settings, **launch.overrides}


def _trained_by(program: Program, source: Source) -> Found:
    """A YAML or JSON of Hugging Face settings, for a program that reads one."""
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
        return with_accelerate(found, source)
    why = "how it is sharded is said by the file or command that starts it"
    fix = "give the accelerate or DeepSpeed file, or the script, too"
    unsharded = Problem("sharding-unknown", why, "missing", (source.path,), fix)
    return replace(found, problems=(*found.problems, unsharded))


read_llamafactory = partial(_trained_by, "llamafactory")
read_axolotl = partial(_trained_by, "axolotl")
# Settings of a Trainer script.
read_settings = partial(_trained_by, "trainer")


def read_adapter(source: Source) -> Found:
    """peft's file of an adapter, alone: how it was trained is said elsewhere."""
    document = source.document()
    named = {**base_setting(document), **adapter_settings(document), **source.given}
    found = read_hf_training(named, source)
    wrong = (*other_base(named, document, source), *other_weights(document))
    found = replace(found, problems=(*found.problems, *wrong))
    if source.hints.mbs is not None or source.launch is not None:
        return found
    text = "an adapter's file says neither the micro-batch nor the length of samples"
    missing = Problem("micro-batch", text, "missing", (source.path,), "--mbs N, --seq N")
    note = "the base in the checkpoint's type: an adapter's file does not say how it was held"
    return replace(found, problems=(*found.problems, missing), assumed=(*found.assumed, note))


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
