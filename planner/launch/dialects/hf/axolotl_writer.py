"""Writer for axolotl 0.19: axolotl.yaml, which torchrun hands to its trainer, and DeepSpeed's JSON.

Settings: axolotl 0.19, src/axolotl/utils/schemas. How it holds weights: loaders/model.py
(_configure_embedding_dtypes), monkeypatch/accelerate/fsdp2.py (fsdp2_prepare_model: shards keep the
type in which they were loaded). Its reference models: train.py (setup_reference_model).
Vision-language models: docs/multimodal.qmd and examples/qwen2_5-vl; samples with images are
prepared as they are read, never packed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from planner.job.job import Job
from planner.job.objective import Objective
from planner.job.tuning import PROJECTOR, VISION_TOWER
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
)
from planner.launch.dialects.hf.axolotl_freezing import (
    freezing_words,
    has_known_names,
    unfrozen_pattern,
)
from planner.launch.dialects.hf.deepspeed_writer import ds_config
from planner.launch.dialects.hf.files import (
    ENVIRONMENT,
    hf_config,
    hf_job_refusals,
    layer_class,
    plan_refusals,  # noqa: F401 (the writers' contract)
    without_scores,
)
from planner.launch.dialects.hf.modules import modules_of_family
from planner.launch.dialects.hf.program_pieces import merging
from planner.launch.dialects.hf.settings_file import (
    settings_files,
    settings_names,
    trainer_optimizer,
)
from planner.launch.dialects.hf.tuning_words import tuning_refusals
from planner.launch.registry import dialect_toml
from planner.launch.sentences import (
    names_of_job,
    said_choices,
    said_needs,
    said_refusals,
    said_settings,
    said_variables,
)
from planner.launch.settings_text import SettingsSection, section_choices
from planner.launch.time_limit import save_steps

CONFIG, DEEPSPEED_CONFIG = "axolotl.yaml", "ds_config.json"
_WORDS = dialect_toml("hf", "launch.toml")["axolotl_words"]
_TEMPLATES: Mapping[str, str] = _WORDS["templates"]


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of jobs that axolotl cannot express."""
    yield from hf_job_refusals(job)
    names = names_of_job(job) | {
        "mode": job.framework.mode, "optim": _optimizer(job, sharded=False),
        "engine": _is_engine(job), "has_flash": _has_flash_attention(job),
        "copies": _copies(job.objective), "templates": _TEMPLATES,
        "parts_frozen": set(job.tuning.frozen) == {VISION_TOWER, PROJECTOR},
    }  # fmt: skip
    if job.model.vision is not None:
        yield from said_refusals("hf", "axolotl_vision_refusals", names)
    yield from tuning_refusals(job, freezes=_freezes(job), casts=True, by_peft=False)
    yield from said_refusals("hf", "axolotl_refusals", names)


def _freezes(job: Job) -> bool:
    """Whether axolotl can freeze what `--freeze` asks for: with adapters it can, for whole weights
    only if the parameter names are known. Vision-language models are refused elsewhere."""
    if job.model.vision is not None or job.tuning.has_adapters:
        return True
    return has_known_names(job.model) and freezing_words(job.tuning)


def _optimizer(job: Job, *, sharded: bool) -> str | None:
    """axolotl's name of the optimizer; None if it has none. `sharded`: by FSDP2, under which
    bitsandbytes' optimizers do not run (utils/schemas/validation.py)."""
    return trainer_optimizer(job, _WORDS["optimizers"] | (_WORDS["sharded"] if sharded else {}))


def _packs(job: Job) -> bool:
    """Whether axolotl is told to pack: samples if the plan packs them, or rows of a text. Never for
    images, preferences, eager attention, or GPUs without FlashAttention-2, the only kernel that
    reads packs without a mask."""
    if job.model.vision is not None or not job.objective.is_plain:
        return False
    if job.attention == "eager" or not _has_flash_attention(job):
        return False
    return job.samples.lengths is None or job.samples.packing == "pack-varlen"


def _has_flash_attention(job: Job) -> bool:
    """Whether FlashAttention-2 supports the job's GPUs: NVIDIA's since Ampere, and AMD's."""
    return job.cluster.gpu.architecture not in ("volta", "turing")


def _copies(objective: Objective) -> str:
    """The unneeded copy of the weights that axolotl loads for an objective if there are no
    adapters, in words; empty if there is none. axolotl loads a second model for every `rl` except
    orpo, but TRL's KTO makes its own and SimPO reads none."""
    return {"kto": "a second reference", "simpo": "a reference"}.get(objective.kind, "")


def files(launch: Launch) -> Files:
    """axolotl.yaml, the model's config.json, and DeepSpeed's settings if it shards."""
    found = {**settings_files(launch, "hf", CONFIG, sections(launch)), **merging(launch.job)}
    if _is_engine(launch.job):
        found[DEEPSPEED_CONFIG] = json.dumps(_engine_settings(launch), indent=2) + "\n"
    return found


def _engine_settings(launch: Launch) -> dict[str, object]:
    """DeepSpeed's settings; the values of the optimizer stay in axolotl.yaml."""
    config = ds_config(launch)
    if isinstance(optimizer := config.get("optimizer"), dict):
        usual = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
        config["optimizer"] = {**optimizer, "params": usual}
    return config


def _is_engine(job: Job) -> bool:
    return job.framework.name == "deepspeed"


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The settings that the plan decides, each with its reason, and tables that are not empty."""
    names = _names(launch)
    tables = {"": "axolotl", "bnb_config_kwargs": "axolotl_packing", "fsdp_config": "axolotl_fsdp"}
    found = (said_settings("hf", table, names, {}, title) for title, table in tables.items())
    return tuple(section for section in found if section.settings)


def _names(launch: Launch) -> dict[str, object]:
    """Names that the rows of `launch.toml` may use."""
    job, tuning, model = launch.job, launch.job.tuning, launch.job.model
    sharded = not _is_engine(job) and launch.plan.degrees.zero > 0
    vision = model.vision
    layer = layer_class(hf_config(without_scores(model)) or {}) if sharded else ""
    return settings_names(launch) | {
        "pairs": job.objective.kind not in ("lm", "reward"),
        "packs": _packs(job),
        "held": _held(job),
        "template": _TEMPLATES[vision.rule] if vision else "",
        "language_pattern": language_pattern(job) if vision else "",
        "adapted_layers": list(range(tuning.frozen_layers or 0, model.layers)),
        "unfrozen": unfrozen_pattern(tuning),
        "has_flash": _has_flash_attention(job),
        "optim": _optimizer(job, sharded=sharded) or "",
        "engine": _is_engine(job),
        "sharded": sharded,
        "layer": layer,
        "offloaded": OFFLOADED,
        "resharding": RESHARDING[3 if launch.plan.degrees.zero == 3 else 2],
    }


def _held(job: Job) -> str:
    """The precision of weights and adapters, in words."""
    if _is_engine(job):
        return "the engine casts what axolotl loads"
    if job.tuning.has_adapters:
        return f"frozen weights in 16 bits, adapters in {job.tuning.adapter or 'fp32'}"
    return "weights, gradients and optimizer state in 16 bits, shards of FSDP2 too"


def language_pattern(job: Job) -> str:
    """A pattern for the paths of the language model's modules that have adapters."""
    adapted = set(job.tuning.adapted(job.model.language))
    known = modules_of_family(job.model.language)
    names = [name for name, words in known.items() if set(words.split()) & adapted]
    starts = "|".join(name.removesuffix("_proj") for name in names)
    return rf"model.language_model.layers.[\d]+.(mlp|self_attn).({starts})_proj"


def command(launch: Launch) -> RunCommand:
    """axolotl's trainer, with the user's values in place of those in its file."""
    kind, has_adapters = launch.job.objective.kind, launch.job.tuning.has_adapters
    whole, adapters = _WORDS["rates"].get(kind, _WORDS["rates"]["preferences"])
    rate = adapters if has_adapters else whole
    words = {
        "max_steps": "TRAIN_STEPS", "learning_rate": "LEARNING_RATE",
        "warmup_steps": "WARMUP_STEPS", "lr_scheduler": "LR_SCHEDULE",
    }  # fmt: skip
    overrides = (f"--{name}=${{{variable}}}" for name, variable in words.items())
    data = "--datasets=[{'path':'${DATASET}','type':'${DATASET_TYPE}','split':'${DATASET_SPLIT}'}]"
    every = f"--save_steps={save_steps(launch)}"
    return RunCommand(
        argv=("-m", "axolotl.cli.train", CONFIG, data, *overrides),
        variables=said_variables(
            "hf", launch, "axolotl_variables", rate=rate, rows=_WORDS["data_types"]
        ),
        branches=(
            Branch(PRETRAINED, (f"--base_model=${{{PRETRAINED}}}",)),
            Branch("CHECKPOINTS", ("--output_dir=${CHECKPOINTS}", every),
                   ("--output_dir=outputs", "--save_strategy=no")),
        ),
        environment=ENVIRONMENT,
    )  # fmt: skip


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """Settings that the README explains, and what to do with the adapters."""
    yield from said_choices("hf", "axolotl_choices", {"job": launch.job})
    yield from section_choices(sections(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files need."""
    return said_needs("hf", "axolotl_needs", launch)
