"""Configuration files, each with the reader of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from planner.job.frameworks import load_framework
from planner.job.request import Request
from planner.launch.options import NANOTRON
from planner.launch.read.accelerate import deepspeed_in, read_accelerate
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.deepspeed import read_deepspeed
from planner.launch.read.detect import Kind
from planner.launch.read.document import (
    Document,
    json_document,
    toml_document,
    yaml_document,
)
from planner.launch.read.found import ASKED, Found, Hints, Problem, Setting
from planner.launch.read.hf_arguments import given_arguments, hf_arguments, overrides
from planner.launch.read.hf_python import hf_python_settings
from planner.launch.read.hf_training import (
    Program,
    checkpointed,
    program_of,
    read_hf_training,
    refusals_of,
)
from planner.launch.read.megatron_attributes import read_model_config, read_primus
from planner.launch.read.nanotron import read_nanotron
from planner.launch.read.recipe import read_recipe
from planner.launch.read.text import Files, Text, digits
from planner.launch.read.torchtitan import override, read_torchtitan
from planner.launch.read.torchtitan_python import read_torchtitan_python

Launch = LaunchCommand | None
Reader = Callable[[Text, str, Launch, Files, Hints], Found]
# Settings of a Trainer that make a command one of its scripts.
_TRAINER_SIGNS = (
    "model_name_or_path", "per_device_train_batch_size", "num_train_epochs", "learning_rate",
    "gradient_accumulation_steps", "gradient_checkpointing", "output_dir", "deepspeed",
    "finetuning_type",
)  # fmt: skip
_FEWEST_SIGNS = 3


def read_configured(
    kind: Kind, text: Text, path: str, launch: Launch, files: Files, hints: Hints
) -> Found:
    """The launch that a configuration file describes, with the command that names it, if any."""
    found = _READERS[kind](text, path, launch, files, hints)
    absent = () if kind == "accelerate" else _absent_file(launch, files)
    return replace(found, problems=(*found.problems, *absent))


def _absent_file(launch: Launch, files: Files) -> Iterator[Problem]:
    """accelerate's own file, where the command names one that is not there."""
    if launch is None or launch.launcher != "accelerate":
        return
    for config in launch.options:
        if config.key.replace("-", "_") != "config_file":
            continue
        name = str(config.value or config.unknown)
        known = {Path(path).name for path in files.by_path}
        if Path(name).name not in known and not source_beside(name, _folder(launch, "."), files):
            text = f"accelerate's {name} is not beside the script: give it too"
            yield Problem("sharding-unknown", text, "missing", (config.place,), "give that file")


def is_trainer(launch: LaunchCommand, files: Files) -> bool:
    """Whether a command's arguments are those of a Hugging Face Trainer script."""
    given = given_arguments(launch.arguments, files)
    return sum(name in given for name in _TRAINER_SIGNS) >= _FEWEST_SIGNS


def read_trainer(launch: LaunchCommand, files: Files, hints: Hints) -> Found:
    """The launch that a Trainer script's arguments describe."""
    options = {item.key.replace("-", "_"): item for item in launch.options}
    kept = ("deepspeed", "zero_stage", "mixed_precision", "deepspeed_config_file")
    named = {name: item for name, item in options.items() if name in kept}
    given = {**named, **given_arguments(launch.arguments, files)}
    found = read_hf_training(given, launch.command.file, files, hints, launch)
    return replace(found, problems=(*found.problems, *_absent_file(launch, files)))


def _torchtitan(text: Text, path: str, launch: Launch, files: Files, hints: Hints) -> Found:
    document = toml_document(text, path, files)
    override(document, launch, files)
    return read_torchtitan(document, launch, files, hints)


def _deepspeed(text: Text, path: str, launch: Launch, files: Files, hints: Hints) -> Found:
    given = given_arguments(launch.arguments, files) if launch else {}
    script = hf_arguments(given, _folder(launch, "."), hints)
    script = checkpointed(script, given, program_of("trainer", given, launch))
    found = read_deepspeed(json_document(text, path, files), launch, files, script)
    return _refused(found, given, launch)


def _refused(found: Found, given: Mapping[str, Setting], launch: Launch) -> Found:
    """With what a Trainer script's arguments ask for that is not modelled."""
    return replace(found, problems=(*refusals_of(given, launch), *found.problems))


def _nanotron(text: Text, path: str, launch: Launch, files: Files, hints: Hints) -> Found:
    """Its own file; programs around nanotron take some of its settings from their command line."""
    document = yaml_document(text, path, files)
    given = given_arguments(launch.arguments, files) if launch else {}
    for key in (NANOTRON[name].key for name in ("dp", "tp", "pp", "mbs", "grad_acc", "seq")):
        setting = given.get(key.rpartition(".")[2])
        if setting is not None:
            number = digits(str(setting.value))
            value = setting.value if number is None else number
            document.override(replace(setting, key=key, value=value), key)
    return read_nanotron(document, launch, files, hints)


def _accelerate(text: Text, path: str, launch: Launch, files: Files, hints: Hints) -> Found:
    """Its own file, or DeepSpeed's settings in it; a recipe that the command names completes it."""
    document = yaml_document(text, path, files)
    named = _named_beside(launch, files) if launch else {}
    folder = path.rpartition("/")[0] or "."
    script = hf_arguments(named, _folder(launch, folder), hints)
    script = checkpointed(script, named, program_of("trainer", named, launch))
    inside = deepspeed_in(document, files)
    if inside is None:
        found = read_accelerate(document, launch, files, script)
        return _refused(found, named, launch)
    found = read_deepspeed(inside, launch, files, script)
    found = replace(found, format="accelerate", main_file=path, unused=(), unknown=())
    return _refused(found, named, launch)


def _named_beside(launch: LaunchCommand, files: Files) -> dict[str, Setting]:
    """A Trainer script's arguments, and the settings of the YAML that `--config` or the first of
    them names."""
    given = given_arguments(launch.arguments, files)
    first = launch.arguments[0].text.value if launch.arguments else ""
    name = str(given["config"].value) if "config" in given else first
    is_yaml = re.fullmatch(r"[^-=].*\.ya?ml", name) is not None
    source = source_beside(name, _folder(launch, "."), files) if is_yaml else None
    if source is None:
        return given
    settings = yaml_document(source.as_text(), source.path, files).settings
    return {**settings, **overrides(launch.arguments, files)}


def _folder(launch: Launch, otherwise: str) -> Path:
    return Path(launch.command.file).parent if launch else Path(otherwise)


def _of_yaml(read: Callable[[Document, Files, Hints], Found]) -> Reader:
    """A YAML whose reader asks for no command."""
    return lambda text, path, _launch, files, hints: read(
        yaml_document(text, path, files), files, hints
    )


def _trained_by(program: Program) -> Reader:
    """A YAML of Hugging Face settings, for a program that reads one."""

    def reader(text: Text, path: str, launch: Launch, files: Files, hints: Hints) -> Found:
        settings = yaml_document(text, path, files).settings
        given = overrides(launch.arguments, files) if launch else {}
        found = read_hf_training({**settings, **given}, path, files, hints, launch, program)
        named = {"deepspeed", "fsdp", "fsdp_config", "zero_stage"} & {
            key.partition(".")[0] for key in (*settings, *given)
        }
        if program != "trainer" or named or launch is not None:
            return found
        why = "how it is sharded is said by the file or command that starts it"
        fix = "give the accelerate or DeepSpeed file, or the script, too"
        unsharded = Problem("sharding-unknown", why, "missing", (path,), fix)
        return replace(found, problems=(*found.problems, unsharded))

    return reader


def _hf_python(text: Text, path: str, launch: Launch, files: Files, hints: Hints) -> Found:
    given = given_arguments(launch.arguments, files) if launch else {}
    settings = {**hf_python_settings(text, path), **given}
    return read_hf_training(settings, path, files, hints, launch)


_READERS: Mapping[Kind, Reader] = {
    "torchtitan": _torchtitan,
    "torchtitan-python": read_torchtitan_python,
    "deepspeed": _deepspeed,
    "nanotron": _nanotron,
    "accelerate": _accelerate,
    "model-config": _of_yaml(read_model_config),
    "primus": _of_yaml(read_primus),
    "llamafactory": _trained_by("llamafactory"),
    "axolotl": _trained_by("axolotl"),
    "trainer": _trained_by("trainer"),
    "trainer-python": _hf_python,
    "recipe": read_recipe,
}
CONFIGURATIONS = tuple(_READERS)


def read_plan(path: Path, files: Files, hints: Hints, number: int | None = None) -> Found:
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
        files=files.by_path,
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
