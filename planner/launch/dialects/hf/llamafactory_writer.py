"""Writer for LLaMA-Factory 0.9: llamafactory.yaml, which torchrun hands to its launcher.

Settings: LLaMA-Factory 0.9.5, src/llamafactory/hparams; how it casts weights:
src/llamafactory/model/adapter.py (init_adapter).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.job.job import Job
from planner.job.samples import PACKING_WORDS
from planner.job.tuning import Tuning
from planner.launch.contract import (
    PRETRAINED,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    Variable,
)
from planner.launch.dialects.hf.files import (
    BITSANDBYTES,
    ENVIRONMENT,
    LIGER,
    MODEL_FOLDER,
    hf_job_refusals,
    plan_refusals,  # noqa: F401 (the writers' contract)
    settings_files,
)
from planner.launch.dialects.hf.llamafactory_vision import (
    template,
    vision_refusals,
    vision_rows,
)
from planner.launch.dialects.hf.modules import ALL_LINEAR
from planner.launch.dialects.hf.tuned_program import merging
from planner.launch.dialects.hf.tuning_words import (
    alpha,
    target_modules,
    tuning_refusals,
    whole_modules,
)
from planner.launch.dialects.hf.vision_program import of_language
from planner.launch.quoting import Value
from planner.launch.sentences import (
    names_of_job,
    said_needs,
    said_refusals,
    said_variables,
)
from planner.launch.settings_text import (
    SettingsSection,
    WrittenSetting,
    section_choices,
)
from planner.launch.time_limit import save_steps

CONFIG = "llamafactory.yaml"
_OPTIMIZERS = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}
_DATA = (
    Variable("DATASET_DIR", "", "folder with dataset_info.json, which describes your data sets",
             needed=True, holds="${DATASET_DIR}/dataset_info.json"),
    Variable("DATASET", "", "names of data sets in dataset_info.json, joined by commas",
             needed=True),
    Variable("LR_SCHEDULE", "cosine", "PLACEHOLDER, yours to choose: how the learning rate falls"),
)  # fmt: skip
# Samples with images say so in a column of their own (data/README.md).
_IMAGES = tuple(
    replace(entry, meaning=f"{entry.meaning}; their column images holds the files")
    if entry.name == "DATASET"
    else entry
    for entry in _DATA
)


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What LLaMA-Factory cannot express of the job."""
    yield from hf_job_refusals(job)
    yield from vision_refusals(job)
    language = replace(job, tuning=of_language(job.tuning))
    yield from tuning_refusals(language, freezes=_freezes(job), by_peft=False)
    names = names_of_job(job) | {"mode": job.framework.mode, "optim": _optimizer(job)}
    yield from said_refusals("hf", "llamafactory_refusals", names)


def _freezes(job: Job) -> bool:
    """Whether its settings freeze what the language model has frozen; beside a tower, said
    before."""
    return job.model.vision is not None or _frozen_layers(job) is not None


def _frozen_layers(job: Job) -> int | None:
    """Layers that its `freeze` keeps, with embeddings and head; None where it freezes others."""
    tuning = job.tuning
    tables = {"embeddings", "head"}
    layers = tuning.frozen_layers
    as_it_does = {*tables, f"layers:{layers}"} if layers else None
    if tuning.has_adapters or set(tuning.frozen) != as_it_does:
        return None
    return layers


def _optimizer(job: Job) -> str | None:
    """The name of the optimizer as transformers has it; None where it has none."""
    kernel, family = job.optimizer_setting.kernel, job.optimizer.family
    if family in BITSANDBYTES:
        return BITSANDBYTES[family]
    return _OPTIMIZERS.get(kernel) if family == "adamw" else None


def files(launch: Launch) -> Files:
    """llamafactory.yaml and the model's config.json."""
    written = settings_files(launch, "hf", CONFIG, sections(launch), launch.job.model)
    return {**written, **merging(launch.job)}


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The settings that the plan decides, each with its reason."""
    job, plan = launch.job, launch.plan
    rows: list[tuple[str, Value, str]] = [
        ("model_name_or_path", MODEL_FOLDER,
         "the shape alone: the script puts PRETRAINED in its place"),
        ("do_train", True, ""),
        *_rows(job),
        *_weights(job),
        *vision_rows(job, launch.request),
        ("cutoff_len", plan.seq, "tokens of a row"),
        ("per_device_train_batch_size", plan.degrees.mbs, ""),
        ("gradient_accumulation_steps", plan.degrees.grad_acc,
         f"global batch {plan.gbs}, with dp {plan.degrees.dp}"),
        ("disable_gradient_checkpointing", not launch.recomputes_layers, launch.recompute_reason),
        ("use_reentrant_gc", False, ""),
        ("flash_attn", _attention(job), ""),
        ("optim", _optimizer(job) or "", ""),
        ("enable_liger_kernel", LIGER in plan.techniques, ""),
        ("max_grad_norm", 1.0, ""),
        ("logging_steps", 1, ""),
        ("save_steps", save_steps(launch), ""),
        ("report_to", "none", ""),
    ]  # fmt: skip
    return (SettingsSection("", tuple(WrittenSetting(*row) for row in rows)),)


def _rows(job: Job) -> Iterator[tuple[str, Value, str]]:
    """How samples become rows. A pack leaves one place free (hparams/data_args.py)."""
    samples = job.samples
    if own := template(job):
        yield "stage", "sft", ""
        yield "template", own, "PLACEHOLDER, yours to choose: LLaMA-Factory's of this family"
        return
    if samples.lengths is None:
        yield "stage", "pt", "rows cut from one text, each full"
        return
    yield "stage", "sft", ""
    yield "template", "default", "PLACEHOLDER, yours to choose: that of the model's chats"
    yield "packing", samples.is_packed, PACKING_WORDS[samples.packing]
    if samples.is_packed:
        yield "neat_packing", samples.packing == "pack-varlen", ""


def _attention(job: Job) -> str:
    """Its name of the attention: flash-attention alone stays within the samples of a pack without a
    mask over the whole (data/collator.py)."""
    if job.attention == "eager":
        return "disabled"
    within = job.samples.lengths is not None and job.samples.packing == "pack-varlen"
    return "fa2" if within else "sdpa"


def _weights(job: Job) -> Iterator[tuple[str, Value, str]]:
    """How weights are held and which are trained."""
    tuning, model = job.tuning, job.model
    if tuning.has_adapters:
        yield "bf16", True, "frozen weights in 16 bits, adapters in fp32"
        targets, whole = target_modules(tuning, model, by_peft=False), whole_modules(tuning, model)
        targets = targets or (ALL_LINEAR,)
        yield "finetuning_type", "lora", ""
        yield "lora_rank", tuning.rank, ""
        yield "lora_alpha", round(alpha(tuning)), ""
        yield "lora_dropout", tuning.dropout, ""
        yield "lora_target", "all" if targets == (ALL_LINEAR,) else ",".join(targets), ""
        yield "use_dora", tuning.method == "dora", ""
        if whole:
            yield "additional_target", ",".join(whole), "trained in full beside the adapters"
        yield from _packed(tuning)
        return
    if job.framework.mode == "bf16":
        yield "pure_bf16", True, "weights, gradients and optimizer state in 16 bits"
    else:
        yield "bf16", True, "what is trained in fp32, products in bf16"
    layers = _frozen_layers(job)
    yield "finetuning_type", "freeze" if layers else "full", ""
    if layers:
        yield "freeze_trainable_layers", model.layers - layers, "the last layers train"


def _packed(tuning: Tuning) -> Iterator[tuple[str, Value, str]]:
    if tuning.base is None:
        return
    yield "quantization_method", "bnb", ""
    yield "quantization_bit", 8 if tuning.base == "int8" else 4, f"frozen weights: {tuning.base}"
    if tuning.base != "int8":
        yield "double_quantization", tuning.base == "nf4-double", ""


def command(launch: Launch) -> RunCommand:
    """LLaMA-Factory's launcher, with what is yours in place of what stands in its file."""
    given = said_variables("hf", launch)
    weights = "published weights to start from: a Hugging Face model's folder or name"
    variables = tuple(
        replace(entry, needed=True, default="", meaning=weights)
        if entry.name == PRETRAINED
        else entry
        for entry in given
        if entry.name != "DATASET"
    )
    data = _DATA if launch.job.model.vision is None else _IMAGES
    words = {
        "dataset_dir": "DATASET_DIR", "dataset": "DATASET", "max_steps": "TRAIN_STEPS",
        "learning_rate": "LEARNING_RATE", "warmup_steps": "WARMUP_STEPS",
        "lr_scheduler_type": "LR_SCHEDULE",
    }  # fmt: skip
    overrides = (f"{name}=${{{variable}}}" for name, variable in words.items())
    none = ("output_dir=outputs", "save_strategy=no")
    return RunCommand(
        argv=("-m", "llamafactory.launcher", CONFIG, *overrides),
        variables=(*data, *variables),
        branches=(
            Branch(PRETRAINED, (f"model_name_or_path=${{{PRETRAINED}}}",)),
            Branch("CHECKPOINTS", ("output_dir=${CHECKPOINTS}",), none),
        ),
        environment=ENVIRONMENT,
    )


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence."""
    for one in section_choices(sections(launch)):
        yield ExplainedSetting(one.setting.lstrip("."), one.purpose)


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files are written for."""
    return said_needs("hf", "llamafactory_needs", launch)
