"""Reader of Hugging Face training settings from any source.

A LLaMA-Factory, axolotl or TRL YAML, the arguments of a Trainer script, or `TrainingArguments` in
Python all give named settings. They state the batch and the model, whether DeepSpeed, FSDP or
nothing shards, how the weights are trained, and the objective. Names: transformers 5.23
(TrainingArguments), LLaMA-Factory 0.9 (hparams), axolotl 0.13 (utils/schemas), TRL 1.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from planner.launch.dialects.hf import DEEPSPEED, said
from planner.launch.dialects.hf.accelerate_reader import AccelerateReader
from planner.launch.dialects.hf.adapter_file import with_adapter
from planner.launch.dialects.hf.arguments import (
    Half,
    HfArguments,
    Named,
    Program,
    hf_arguments,
    is_on,
    program_of,
    value_of,
)
from planner.launch.dialects.hf.deepspeed_reader import DeepspeedReader
from planner.launch.dialects.hf.family_scripts import of_family
from planner.launch.dialects.hf.modules import adapter_table
from planner.launch.dialects.hf.program_defaults import (
    below_limit,
    by_trl,
    by_unsloth,
    checkpointed,
    lengths_assumed,
    packing_of,
    position_problems,
    with_length,
    with_tuning,
)
from planner.launch.dialects.hf.sampling import with_sampling
from planner.launch.dialects.hf.towers import unsized, with_towers
from planner.launch.dialects.hf.tuned import FULL, Tuned, asks_for, tuned
from planner.launch.dialects.hf.unmodelled import effects_of, own_loss, own_options, refusals_of
from planner.launch.languages.text import digits
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Document, Source, below, json_document
from planner.launch.read.found import Found, Problem, Setting, unresolved
from planner.launch.sentences import evaluated

# The default micro-batch of TrainingArguments, and of programs that have another default.
_TRAINER_BATCH = 8
_BATCHES: Mapping[Program, int] = {"axolotl": 1, "swift": 1}
# ms-swift accumulates to this many sequences per step by default.
_SWIFT_BATCH = 16
# Settings that ms-swift 2 had under other names.
_SWIFT_2 = {"batch_size": "per_device_train_batch_size"}
_SWIFT_MODELS = ("model", "model_id_or_path", "model_name_or_path")
# Settings of launchers that derive the micro-batch and pass it on.
_WHOLE_BATCHES = ("global_batch_size", "total_batch_size", "effective_batch_size")
# A stage in the file name of a DeepSpeed configuration: ds_z2_config.json, zero3.json,
# stage-1.json.
_STAGE_IN_NAME = re.compile(r"(?:^|[^a-z])(?:z|zero|stage|zero_?stage)[-_]?([0-3])(?![0-9])")
_BF16 = ("bfloat16", "bf16", "torch.bfloat16")
_FP16 = ("float16", "fp16", "half", "torch.float16", "torch.half")


# axolotl's names that equal those of accelerate's ParallelismConfig (utils/trainer.py,
# setup_parallelism_envs).
_OF_AXOLOTLS_MESH = ("dp_shard_size", "dp_replicate_size")
# Words of `fsdp`, and their equivalents in accelerate's file.
_FSDP_WORDS: Mapping[str, tuple[str, object]] = {
    **{
        word: ("sharding_strategy", word.upper())
        for word in ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                     "hybrid_shard_zero2")
    },
    "auto_wrap": ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
    "offload": ("offload_params", True),
}  # fmt: skip


def read_hf_training(given: Named, source: Source, program: Program = "trainer") -> Found:
    """The launch described by named settings. `source`: the file that holds them."""
    path, launch = source.path, source.launch
    named, of_adapter = with_adapter(given, source)
    named, program = of_family(named, program_of(program, named, launch))
    if program == "trl" and not {"bf16", "fp16", "mixed_precision"} & named.keys():
        named["bf16"] = Setting("bf16", True, path)  # trl/trainer/base_config.py
    if program == "swift":
        named = of_swift(named)
    script = hf_arguments(named, Path(path).parent, source.hints)
    document, whole = _deepspeed(named, source), _batch_elsewhere(named, script.hints.mbs)
    shards = document is not None or is_on(named, "fsdp") or bool(below(named, "fsdp_config"))
    how = tuned(named, program, script.hints.model, sharded=shards)
    training = Training(named, program, _completed(script, named, program, launch, how), how)
    if document is not None:
        found = DeepspeedReader(document, source, training.script).found()
    else:
        sharded = _sharded(named, path, training.script.half_weights, program)
        found = AccelerateReader(sharded, source, training.script).found()
        # The document was made above: no file holds keys that accelerate would not know.
        kept = tuple(one for one in found.problems if one.rule != "unknown-option")
        found = replace(found, settings=(), unused=(), unknown=(), problems=kept)
    note = f"micro-batch {_TRAINER_BATCH} (TrainingArguments' own)"
    states_batch = "per_device_train_batch_size" in named or program in _BATCHES
    found = trained(
        found, training, source, "" if document is None else document.path,
        noted=() if states_batch else (note,),
    )  # fmt: skip
    read = replace(
        found,
        format="settings",
        main_file=path,
        problems=(
            *of_adapter,
            *position_problems(found),
            *found.problems,
            *_unsettled(named, document),
            *whole,
            *_spread_over_gpus(launch, program, source.hints.gpus),
        ),
        unmodelled=(
            *found.unmodelled,
            *own_loss(named, launch),
            *_launcher_shards(named, source, program),
        ),
        settings=(*named.values(), *found.settings),
        assumed=(*found.assumed, *_assumed_stage(named, document, path)),
    )
    return with_sampling(read, named, source)


@dataclass(frozen=True)
class Training:
    """Settings, the program whose defaults apply, and what they say: the arguments, and how the
    weights are trained."""

    named: Named
    program: Program
    script: HfArguments
    how: Tuned


def trained(
    found: Found, training: Training, source: Source, sharded_by: str, noted: Sequence[str] = ()
) -> Found:
    """Completes a launch, read from a file that configures sharding, with what the training
    settings say. `sharded_by`: the path of that file; `noted`: further assumptions."""
    named, program, launch, hints = training.named, training.program, source.launch, source.hints
    fused = bool(found.variations)
    found = with_tuning(by_unsloth(found, named, program), named, launch, training.how)
    found = with_towers(found, named, program, launch, hints)
    if program == "trl":
        found = by_trl(found, named, source, fused=fused)
    lengths = lengths_assumed(named, program, found.seq, hints.lengths)
    return replace(
        found,
        packing=packing_of(named, program) if named else None,
        problems=(
            *refusals_of(named, launch, program, training.script.hints.model),
            *unsized(named, found, hints),
            *own_options(named, source, program, sharded_by),
            *found.problems,
        ),
        unmodelled=(*found.unmodelled, *effects_of(named, program), *below_limit(named, program)),
        assumed=(*found.assumed, *noted, *([lengths] if named else [])),
    )


def of_swift(named: Named) -> dict[str, Setting]:
    """ms-swift's settings under the Trainer's names. Its `model_name` is the name that an assistant
    learns to give (arguments/sft_args.py), not a model; ms-swift 2 named models in `model_type`."""
    found = {_SWIFT_2.get(name, name): setting for name, setting in named.items()}
    found.pop("model_name", None)
    if "model_type" in found and not any(name in found for name in _SWIFT_MODELS):
        found["model_id_or_path"] = found["model_type"]
    return found


def swift_precision(named: Named) -> dict[str, Setting]:
    """The settings, with ms-swift's default for mixed precision: the format in which it loads the
    model, by default bf16 (arguments/base_args/model_args.py)."""
    dtype = value_of(named, "torch_dtype") or "bfloat16"
    key = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype.removeprefix("torch."))
    if key is None or {"bf16", "fp16"} & named.keys():
        return dict(named)
    at = named.get("torch_dtype", Setting(key, True))
    return {**named, key: replace(at, key=key, value=True, spans=())}


def _spread_over_gpus(
    launch: LaunchCommand | None, program: Program, gpus: int | None
) -> tuple[Problem, ...]:
    """ms-swift starts one process per GPU if NPROC_PER_NODE or NNODES is set (cli/main.py,
    use_torchrun). Otherwise one process spreads the layers over all visible GPUs, which work in
    turn (utils/torch_utils.py, get_default_device_map: `auto`)."""
    if program != "swift" or launch is None or launch.launcher or gpus == 1:
        return ()
    alone = launch.per_node is None and launch.nodes is None
    return said("one_process", launch.place) if alone else ()


def _launcher_shards(
    named: Named, source: Source, program: Program
) -> tuple[tuple[Setting, str], ...]:
    """A note that the launch is costed as plain data parallelism, although `accelerate launch` may
    shard it: the settings mention no sharding and the command is not known. Empty for axolotl, for
    a known command and for one GPU."""
    tables = {key.partition(".")[0] for key in named}
    says = program == "axolotl" or source.launch is not None or {"deepspeed", "fsdp"} & tables
    if says or source.hints.gpus == 1:
        return ()
    why = "costed as plain data parallelism; accelerate may shard it: less memory than predicted"
    return ((Setting("deepspeed, fsdp", None, source.path), why),)


def _unsettled(named: Named, document: Document | None) -> Iterator[Problem]:
    """Settings of sharding with unknown values, and a missing DeepSpeed file."""
    setting = _configuration(named)
    for item in (setting, named.get("fsdp"), named.get("zero_stage")):
        if item is not None and item.unknown:
            yield unresolved(item)
    if setting is None or setting.unknown or document is not None:
        return
    if (missing := str(setting.value)) not in ("", "None", "True"):
        yield from said("deepspeed_absent", setting.place, missing=missing)


def _batch_elsewhere(named: Named, mbs: int | None) -> tuple[Problem, ...]:
    """A global batch without a micro-batch: no Trainer takes it, so a launcher must derive the
    latter."""
    whole = next((named[name] for name in _WHOLE_BATCHES if name in named), None)
    if whole is None or mbs is not None:
        return ()
    return said("whole_batch", whole.place, key=whole.key)


def _completed(
    script: HfArguments, named: Named, program: Program, launch: LaunchCommand | None, how: Tuned
) -> HfArguments:
    """Adds the program's defaults."""
    script = with_length(script, named, program)
    mbs = script.hints.mbs or _BATCHES.get(program, _TRAINER_BATCH)
    hints = replace(script.hints, mbs=mbs)
    if hints.grad_acc is None and hints.gbs is None:
        world = hints.gpus or (launch.world if launch else None)
        accumulated = -(-_SWIFT_BATCH // (mbs * world)) if program == "swift" and world else 1
        hints = replace(hints, grad_acc=accumulated)
    eager = is_on(named, "eager_attention") or script.attention == "eager"
    half = loads_half(named, program) if how.half is None else how.half
    script = replace(script, hints=hints, attention="eager" if eager else "flash",
                     half_weights=half, shards_as_loaded=program == "axolotl")  # fmt: skip
    return checkpointed(script, named, program)


def loads_half(named: Named, program: Program) -> Half:
    """The 16-bit format of the trained weights; empty if they are fp32 under autocast. fp16 weights
    under fp16 autocast count as autocast."""
    stated = [value_of(named, name) for name in ("dtype", "torch_dtype")]
    mixed = any(is_on(named, name) for name in ("bf16", "fp16", "fp8"))
    fp16 = not mixed and any(text in _FP16 for text in stated)
    half: Half = evaluated(
        adapter_table("programs")[program]["half"],
        {
            "on": partial(is_on, named),
            "by_dtype": "bf16" if any(text in _BF16 for text in stated) else "fp16" if fp16 else "",
            "stated": any(stated),
            "mixed": mixed,
            "adapted": asks_for(named, program) != FULL,
        },
    )
    return half


def _assumed_stage(named: Named, document: Document | None, path: str) -> Iterator[str]:
    """Notes a stage that was guessed from the name of a missing file."""
    setting = _configuration(named)
    file = "" if setting is None else str(setting.value)
    stage = _stage_of_name(file) if "." in file else None
    if document is not None and document.path == path and stage is not None:
        yield f"ZeRO-{stage} and DeepSpeed's defaults, by the name of {file}; give that file too"


# --- what shards ----------------------------------------------------------------------------------


def _configuration(named: Named) -> Setting | None:
    """The setting that names DeepSpeed's configuration, in the Trainer, its script or
    accelerate."""
    options = ("deepspeed", "deepspeed_config", "deepspeed_config_file")
    return next((named[name] for name in options if name in named), None)


def _deepspeed(named: Named, source: Source) -> Document | None:
    """DeepSpeed's configuration: a file beside the settings, a table inside them, or a stage alone,
    which a preset such as `zero2`, the name of a missing file or `zero_stage` states. None if there
    is none."""
    path, setting = source.path, _configuration(named)
    preset = re.fullmatch(r"(?:default-)?zero([0-3])(_offload)?", value_of(named, "deepspeed"))
    staged: dict[str, Setting] = {}
    if setting is not None and preset is not None:
        staged = {"zero_stage": replace(setting, value=int(preset[1]))}
        staged |= {"offload": setting} if preset[2] else {}
    elif setting is None or setting.unknown:
        if inside := below(named, "deepspeed"):
            return Document(path, inside)
    elif isinstance(setting.value, str):
        name, text = setting.value, source.files.written.get(setting.value)
        if text is None and (file := source_beside(name, Path(path).parent, source.files)):
            name, text = file.path, file.as_text()
        if text is not None:
            return json_document(text, name, source.hints.environment)
        if (stage := _stage_of_name(setting.value)) is not None:
            staged = {"zero_stage": replace(setting, value=stage)}
    return _zero_stage({**named, **staged}, path)


def _stage_of_name(path: str) -> int | None:
    """The ZeRO stage that the name of a file states, such as 3 for `zero3.json`. None if it states
    none, or if it mentions offloading: the name does not say what is offloaded."""
    name = path.rpartition("/")[2].lower()
    stated = _STAGE_IN_NAME.search(name)
    offloads = re.search(r"(?<!no[-_])(?<!without[-_])offload", name) is not None
    return None if stated is None or offloads else int(stated[1])


def _zero_stage(named: Named, path: str) -> Document | None:
    """`--zero_stage 2`, as in DeepSpeed's examples."""
    setting = named.get("zero_stage")
    if setting is None or setting.unknown:
        return None
    number = digits(str(setting.value))
    stage = setting.value if number is None else number
    key = DEEPSPEED["zero"].key
    settings = {key: replace(setting, key=key, value=stage)}
    device = named.get("offload")
    # As in get_train_ds_config of DeepSpeed-Chat, and in files of that name by ms-swift and others.
    tables = ("offload_optimizer", "offload_param") if stage == 3 else ("offload_optimizer",)
    for inner in (f"zero_optimization.{table}.device" for table in tables):
        if device is not None:
            settings[inner] = replace(device, key=inner, value="cpu")
    return Document(path, settings)


def _sharded(named: Named, path: str, half: Half, program: Program) -> Document:
    """FSDP as accelerate's file would configure it, otherwise plain data parallelism. `half`: the
    format of the weights, if no mixed precision is stated."""
    fsdp = named.get("fsdp")
    words = _words(fsdp.value) if fsdp is not None and not fsdp.unknown else []
    table = below(named, "fsdp_config")
    version = named.get("fsdp_version") or table.get("version")
    settings: dict[str, Setting] = {}
    if words or table or (fsdp is not None and fsdp.value is True):
        _put(settings, "distributed_type", "FSDP", fsdp or next(iter(table.values())))
        for name, item in table.items():
            _put(settings, f"fsdp_config.fsdp_{name.removeprefix('fsdp_')}", item.value, item)
        if version is not None:
            _put(settings, "fsdp_config.fsdp_version", version.value, version)
        for word in words:
            if fsdp is not None and word in _FSDP_WORDS:
                name, setting = _FSDP_WORDS[word]
                _put(settings, f"fsdp_config.fsdp_{name}", setting, fsdp)
    elif "distributed_type" not in settings:
        _put(settings, "distributed_type", "MULTI_GPU", Setting("", "", path))
    if program == "axolotl":
        _put_mesh(settings, named)
    _put_precision(settings, named, path, half)
    return Document(path, settings)


def _put_mesh(settings: dict[str, Setting], named: Named) -> None:
    """The sizes of axolotl's device mesh, if they are stated."""
    for name in _OF_AXOLOTLS_MESH:
        if name in named and named[name].value is not None:
            key = f"parallelism_config.parallelism_config_{name}"
            _put(settings, key, named[name].value, named[name])


def _put_precision(settings: dict[str, Setting], named: Named, path: str, half: Half) -> None:
    for name in ("bf16", "fp16", "fp8"):
        if value_of(named, name) in ("true", "auto", "full"):
            _put(settings, "mixed_precision", name, named[name])
            return
    if half and "mixed_precision" not in named:
        _put(settings, "mixed_precision", half, Setting("", "", path))
    elif "mixed_precision" in named:
        settings["mixed_precision"] = named["mixed_precision"]


def _words(value: object) -> list[str]:
    """The words of a value such as `full_shard auto_wrap`, or the items of a list; empty for any
    other value."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).replace(",", " ").split() if isinstance(value, str) else []


def _put(settings: dict[str, Setting], key: str, value: object, where: Setting) -> None:
    settings.setdefault(key, replace(where, key=key, value=value, spans=()))
