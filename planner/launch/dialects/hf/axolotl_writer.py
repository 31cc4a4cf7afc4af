"""Writer for axolotl 0.19: axolotl.yaml, which torchrun hands to its trainer, and DeepSpeed's JSON.

Settings: axolotl 0.19, src/axolotl/utils/schemas. How it holds weights: loaders/model.py
(_configure_embedding_dtypes), monkeypatch/accelerate/fsdp2.py (fsdp2_prepare_model: shards stay in
the type that they were loaded in). Its reference models: train.py (setup_reference_model).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.job.objective import Objective
from planner.job.samples import PACKING_WORDS
from planner.job.tuning import Tuning
from planner.launch.contract import (
    OFFLOADED,
    PRETRAINED,
    RESHARDING,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    Variable,
)
from planner.launch.dialects.hf.axolotl_freezing import (
    freezing_words,
    has_known_names,
    unfrozen_pattern,
)
from planner.launch.dialects.hf.axolotl_vision import (
    language_pattern,
    vision_refusals,
    vision_rows,
)
from planner.launch.dialects.hf.deepspeed_writer import ds_config
from planner.launch.dialects.hf.files import (
    ENVIRONMENT,
    LIGER,
    MODEL_FOLDER,
    hf_config,
    hf_job_refusals,
    layer_class,
    plan_refusals,  # noqa: F401 (the writers' contract)
    settings_files,
    without_scores,
)
from planner.launch.dialects.hf.modules import ALL_LINEAR
from planner.launch.dialects.hf.tuned_program import merging
from planner.launch.dialects.hf.tuning_words import (
    alpha,
    target_modules,
    tuning_refusals,
    whole_modules,
)
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

CONFIG, DEEPSPEED_CONFIG = "axolotl.yaml", "ds_config.json"
FUSED_ADAPTERS = "fused-adapters"
_OPTIMIZERS = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}
# bitsandbytes' with states in unified memory, on one GPU or under DDP.
_PAGED = {
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "paged-lion": "paged_lion_32bit",
}
_FA2 = "flash_attention_2"
# Data sets that a job of a kind takes, as axolotl calls what is in them.
_DATA_TYPES = {
    "dpo": "chat_template.default", "ipo": "chat_template.default", "kto": "chatml.argilla",
    "orpo": "chat_template.argilla", "simpo": "chat_template.default",
    "reward": "bradley_terry.chat_template",
}  # fmt: skip
# Learning rates of whole weights and of adapters that recipes take: QLoRA and Llama's own; of
# preferences Zephyr's (huggingface/alignment-handbook); of rewards TRL's examples.
_RATES = {"lm": ("2e-5", "2e-4"), "reward": ("1e-5", "1e-4")}
_PREFERENCE_RATES = ("5e-7", "5e-6")
Row = tuple[str, Value, str]


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What axolotl cannot express of the job."""
    yield from hf_job_refusals(job)
    yield from vision_refusals(job)
    freezes = job.model.vision is not None or _freezes(job)
    yield from tuning_refusals(job, freezes=freezes, casts=True, by_peft=False)
    names = names_of_job(job) | {
        "mode": job.framework.mode, "optim": _optimizer(job, sharded=False),
        "engine": _is_engine(job), "has_flash": _has_flash_attention(job),
        "copies": _copies(job.objective),
    }  # fmt: skip
    yield from said_refusals("hf", "axolotl_refusals", names)


def _freezes(job: Job) -> bool:
    """Whether its settings freeze what `--freeze` does: of adapters the first layers, and modules
    that have none."""
    tuning = job.tuning
    if tuning.has_adapters:
        return True
    return has_known_names(job.model) and freezing_words(tuning)


def _optimizer(job: Job, *, sharded: bool) -> str | None:
    """The name of the optimizer as axolotl has it; None where it has none. `sharded`: by FSDP2,
    which bitsandbytes' optimizers do not run under (utils/schemas/validation.py)."""
    kernel, family = job.optimizer_setting.kernel, job.optimizer.family
    if family in _PAGED:
        return _PAGED[family]
    if family == "adamw-8bit":
        return "adamw_torch_8bit" if sharded else "adamw_bnb_8bit"
    if family == "adamw-4bit":
        return "adamw_torch_4bit"
    return _OPTIMIZERS.get(kernel) if family == "adamw" else None


def _packs(job: Job) -> bool:
    """Whether samples, or rows of a text, become packs, which need no mask by flash-attn alone."""
    if job.model.vision is not None:
        return False
    if not job.objective.is_plain or job.attention == "eager" or not _has_flash_attention(job):
        return False
    return job.samples.lengths is None or job.samples.packing == "pack-varlen"


def _has_flash_attention(job: Job) -> bool:
    """Whether FlashAttention-2 runs on the job's GPUs: from Ampere on, and on AMD's."""
    return job.cluster.gpu.architecture not in ("volta", "turing")


def _copies(objective: Objective) -> str:
    """What axolotl loads beside the trained weights where no adapters are, and nothing reads: a
    second model for every `rl` but orpo, though TRL's KTO makes its own and SimPO reads none."""
    return {"kto": "a second reference", "simpo": "a reference"}.get(objective.kind, "")


def files(launch: Launch) -> Files:
    """axolotl.yaml, the model's config.json, and DeepSpeed's settings where it shards."""
    model = without_scores(launch.job.model)
    found = {**settings_files(launch, "hf", CONFIG, sections(launch), model), **merging(launch.job)}
    if _is_engine(launch.job):
        found[DEEPSPEED_CONFIG] = json.dumps(_engine_settings(launch), indent=2) + "\n"
    return found


def _engine_settings(launch: Launch) -> dict[str, object]:
    """DeepSpeed's settings, an optimizer's as axolotl.yaml has them."""
    config = ds_config(launch)
    if isinstance(optimizer := config.get("optimizer"), dict):
        usual = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
        config["optimizer"] = {**optimizer, "params": usual}
    return config


def _is_engine(job: Job) -> bool:
    """Whether DeepSpeed trains."""
    return job.framework.name == "deepspeed"


def _is_sharded(launch: Launch) -> bool:
    """Whether FSDP2 shards."""
    return not _is_engine(launch.job) and launch.plan.degrees.zero > 0


# --- the settings ---------------------------------------------------------------------------------


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The settings that the plan decides, each with its reason."""
    job, plan = launch.job, launch.plan
    rows: list[Row] = [
        ("base_model", MODEL_FOLDER,
         "the shape alone: the script puts PRETRAINED in its place"),
        *vision_rows(job.model),
        *_objective(job),
        *_rows(job),
        *_weights(job),
        *_frozen(job),
        ("sequence_len", plan.seq, "tokens of a row"),
        ("micro_batch_size", plan.degrees.mbs, ""),
        ("gradient_accumulation_steps", plan.degrees.grad_acc,
         f"global batch {plan.gbs}, with dp {plan.degrees.dp}"),
        *_recomputation(launch),
        ("attn_implementation", _attention(job), ""),
        ("optimizer", _optimizer(job, sharded=_is_sharded(launch)) or "", ""),
        *_kernels(launch),
        *_sharding(launch),
        ("max_grad_norm", 1.0, ""),
        ("logging_steps", 1, ""),
        ("save_strategy", "steps", ""),
        ("auto_resume_from_checkpoints", True, "a job that is started again goes on"),
    ]  # fmt: skip
    settings = tuple(WrittenSetting(*row) for row in rows)
    return SettingsSection("", settings), *_tables(launch)


def _objective(job: Job) -> Iterator[Row]:
    """What training minimises besides the next token."""
    kind = job.objective.kind
    if kind == "lm":
        return
    if kind == "reward":
        yield "reward_model", True, job.objective.rules.words
        return
    yield "rl", kind, job.objective.rules.words
    if job.objective.reference == "precomputed":
        yield "precompute_ref_log_probs", True, "the reference is read once, before training"
    if kind == "kto":
        yield "remove_unused_columns", False, ""


def _rows(job: Job) -> Iterator[Row]:
    """How samples become rows."""
    if job.objective.kind not in ("lm", "reward"):
        return
    packs, rule = _packs(job), job.samples.packing
    if job.model.vision is not None:
        yield "sample_packing", False, PACKING_WORDS["longest"]
        return
    full = job.samples.lengths is None
    why = "rows cut from one text, each full" if full else PACKING_WORDS[rule]
    if job.objective.is_plain:
        yield "sample_packing", packs, why
    yield "pad_to_sequence_len", packs or full or rule == "limit", ""
    if rule == "padding-free" and not full:
        yield "batch_flattening", True, ""


def _weights(job: Job) -> Iterator[Row]:
    """How weights are held and which are trained."""
    tuning, model = job.tuning, job.model
    half = job.precision
    what = "adapters in fp32" if tuning.adapter is None else f"adapters in {tuning.adapter}"
    why = f"frozen weights in 16 bits, {what}" if tuning.has_adapters else _IN_16_BITS
    yield half, True, "the engine casts what axolotl loads" if _is_engine(job) else why
    yield ("fp16", False, "") if half == "bf16" else ("bf16", False, "")
    if not tuning.has_adapters:
        return
    targets, whole = target_modules(tuning, model, by_peft=False), whole_modules(tuning, model)
    yield "adapter", "qlora" if tuning.base in ("nf4", "nf4-double") else "lora", ""
    yield "lora_r", tuning.rank, ""
    yield "lora_alpha", round(alpha(tuning)), ""
    yield "lora_dropout", tuning.dropout, ""
    if model.vision is not None:
        yield "lora_target_modules", language_pattern(job), "of the language model alone"
    elif targets == (ALL_LINEAR,):
        yield "lora_target_linear", True, ""
    else:
        yield "lora_target_modules", list(targets), ""
    yield "peft_use_dora", tuning.method == "dora", ""
    if whole:
        yield "lora_modules_to_save", list(whole), "trained in full beside the adapters"
    if tuning.adapter is not None:
        yield "peft_autocast_adapter_dtype", tuning.adapter == "fp32", ""
    yield from _packed(tuning)


_IN_16_BITS = "weights, gradients and optimizer state in 16 bits, shards of FSDP2 too"


def _packed(tuning: Tuning) -> Iterator[Row]:
    if tuning.base is None:
        return
    yield "load_in_8bit", tuning.base == "int8", f"frozen weights: {tuning.base}"
    yield "load_in_4bit", tuning.base != "int8", ""


def _frozen(job: Job) -> Iterator[Row]:
    """What nothing trains."""
    tuning, layers = job.tuning, job.tuning.frozen_layers
    if tuning.has_adapters and layers:
        left = list(range(layers, job.model.layers))
        yield "peft_layers_to_transform", left, f"no adapters in the first {layers} layers"
    elif tuning.frozen and not tuning.has_adapters:
        yield "unfrozen_parameters", [unfrozen_pattern(tuning)], f"not: {tuning.words}"


def _recomputation(launch: Launch) -> Iterator[Row]:
    yield "gradient_checkpointing", launch.recomputes_layers, launch.recompute_reason
    if launch.recomputes_layers:
        yield "gradient_checkpointing_kwargs", {"use_reentrant": False}, ""


def _attention(job: Job) -> str:
    """Its name of the attention."""
    if job.attention == "eager":
        return "eager"
    return _FA2 if _has_flash_attention(job) else "sdpa"


def _kernels(launch: Launch) -> Iterator[Row]:
    """Kernels in place of torch's, and those that axolotl would take unasked."""
    if LIGER in launch.plan.techniques:
        yield "plugins", ["axolotl.integrations.liger.LigerPlugin"], ""
        for part in ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy"):
            yield f"liger_{part}", True, ""
    if launch.job.tuning.has_adapters:
        fused = FUSED_ADAPTERS in launch.plan.techniques
        for part in ("mlp", "qkv", "o"):
            yield f"lora_{part}_kernel", fused, ""
        yield "lora_embedding_kernel", False, ""


def _sharding(launch: Launch) -> Iterator[Row]:
    """What shards: DeepSpeed by its file, or FSDP2."""
    degrees = launch.plan.degrees
    if _is_engine(launch.job):
        yield "deepspeed", DEEPSPEED_CONFIG, f"ZeRO-{degrees.zero}"
    elif _is_sharded(launch):
        yield "fsdp_version", 2, ""
        if degrees.shard and degrees.shard < degrees.dp:
            replicas = degrees.dp // degrees.shard
            yield "dp_shard_size", degrees.shard, "ranks that share a parameter"
            yield "dp_replicate_size", replicas, "groups that hold all of it each"


def _tables(launch: Launch) -> Iterator[SettingsSection]:
    """Settings in tables of their own."""
    if launch.job.tuning.base == "nf4":
        double = WrittenSetting("bnb_4bit_use_double_quant", False)
        yield SettingsSection("bnb_config_kwargs", (double,))
    if not _is_sharded(launch):
        return
    zero, offloads = launch.plan.degrees.zero, launch.plan.optimizer_offload > 0
    layer = layer_class(hf_config(without_scores(launch.job.model)) or {})
    rows: list[Row] = [
        ("reshard_after_forward", zero == 3, RESHARDING[3 if zero == 3 else 2]),
        ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "one unit a layer"),
        ("transformer_layer_cls_to_wrap", layer, ""),
        ("state_dict_type", "FULL_STATE_DICT", ""),
        ("offload_params", offloads, OFFLOADED if offloads else ""),
        # Weights that rank 0 alone packs do not fit those of the others.
        ("cpu_ram_efficient_loading", launch.job.tuning.base is None, ""),
    ]  # fmt: skip
    yield SettingsSection("fsdp_config", tuple(WrittenSetting(*row) for row in rows))


# --- how it starts --------------------------------------------------------------------------------


def command(launch: Launch) -> RunCommand:
    """axolotl's trainer, with what is yours in place of what stands in its file."""
    given = said_variables("hf", launch)
    weights = "published weights to start from: a Hugging Face model's folder or name"
    changed = {
        PRETRAINED: {"needed": True, "default": "", "meaning": weights},
        "LEARNING_RATE": _rate(launch.job),
    }
    variables = tuple(
        replace(entry, **changed.get(entry.name, {})) for entry in given if entry.name != "DATASET"
    )
    words = {
        "max_steps": "TRAIN_STEPS", "learning_rate": "LEARNING_RATE",
        "warmup_steps": "WARMUP_STEPS", "lr_scheduler": "LR_SCHEDULE",
    }  # fmt: skip
    overrides = (f"--{name}=${{{variable}}}" for name, variable in words.items())
    data = "--datasets=[{'path':'${DATASET}','type':'${DATASET_TYPE}','split':'${DATASET_SPLIT}'}]"
    every = f"--save_steps={save_steps(launch)}"
    return RunCommand(
        argv=("-m", "axolotl.cli.train", CONFIG, data, *overrides),
        variables=(*_data(launch.job), *variables),
        branches=(
            Branch(PRETRAINED, (f"--base_model=${{{PRETRAINED}}}",)),
            Branch("CHECKPOINTS", ("--output_dir=${CHECKPOINTS}", every),
                   ("--output_dir=outputs", "--save_strategy=no")),
        ),
        environment=ENVIRONMENT,
    )  # fmt: skip


def _rate(job: Job) -> dict[str, Any]:
    """The usual learning rate of the way of training, which is the user's."""
    whole, adapters = _RATES.get(job.objective.kind, _PREFERENCE_RATES)
    rate, what = (adapters, "adapters") if job.tuning.has_adapters else (whole, "whole weights")
    kind = "" if job.objective.kind == "lm" else f" and {job.objective.kind}"
    meaning = f"PLACEHOLDER, yours to choose: {rate} is usual with {what}{kind}; peak learning rate"
    return {"default": rate, "meaning": meaning}


def _data(job: Job) -> Iterator[Variable]:
    """The data set, which is the user's, and what is in it."""
    texts = job.samples.lengths is None and job.model.vision is None
    rows = "completion" if texts else "chat_template"
    kind = _DATA_TYPES.get(job.objective.kind, rows)
    source = "your data set: a name on the Hugging Face Hub, a folder or file"
    inside = "PLACEHOLDER, yours to choose: what is in it, in axolotl's words (datasets.type)"
    schedule = "PLACEHOLDER, yours to choose: how the learning rate falls"
    yield Variable("DATASET", "", source, needed=True)
    yield Variable("DATASET_TYPE", kind, inside)
    yield Variable("DATASET_SPLIT", "train", "the part of it that is trained on")
    yield Variable("LR_SCHEDULE", "cosine", schedule)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence, and what becomes of the adapters."""
    if launch.job.tuning.has_adapters:
        yield ExplainedSetting(
            "merge.py",
            "the folder of checkpoints holds the adapters alone; `python merge.py BASE ADAPTERS "
            "OUTPUT` puts them into the weights",
        )
    for one in section_choices(sections(launch)):
        yield ExplainedSetting(one.setting.lstrip("."), one.purpose)


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files are written for."""
    return said_needs("hf", "axolotl_needs", launch)
