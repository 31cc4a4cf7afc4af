"""Code shared by the writers of one YAML file: LLaMA-Factory's, axolotl's and TRL's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from planner.job.job import Job
from planner.job.samples import PACKING_WORDS
from planner.launch.contract import Files, Launch
from planner.launch.dialects.hf.files import LIGER, MODEL_FOLDER, hf_config, without_scores
from planner.launch.dialects.hf.modules import ALL_LINEAR
from planner.launch.dialects.hf.tuning_words import alpha, target_modules, whole_modules
from planner.launch.sentences import names_of
from planner.launch.settings_text import SettingsSection, filled, yaml_text
from planner.launch.time_limit import save_steps

# Names of torch's AdamW, by how it updates.
_ADAMW = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}


def settings_files(
    launch: Launch, dialect: str, name: str, sections: Sequence[SettingsSection]
) -> Files:
    """The YAML file, filled into its template, and the model's config.json."""
    model = launch.job.model
    text = filled(
        f"{dialect}/{name}.txt", model=model.name, gpus=launch.plan.degrees.gpus,
        settings=yaml_text(sections).rstrip("\n"),
    )  # fmt: skip
    config = json.dumps(hf_config(without_scores(model)) or {}, indent=2) + "\n"
    return {name: text, f"{MODEL_FOLDER}/config.json": config}


def settings_names(launch: Launch, *, by_peft: bool = False) -> dict[str, object]:
    """Names that the rows for such a file may use. `by_peft`: as in `target_modules`."""
    job, tuning, model = launch.job, launch.job.tuning, launch.job.model
    has_adapters = tuning.has_adapters
    targets = target_modules(tuning, model, by_peft=by_peft) if has_adapters else ()
    return names_of(launch) | {
        "folder": MODEL_FOLDER,
        "mode": job.framework.mode,
        "objective": job.objective,
        "samples": job.samples,
        "sees": model.vision is not None,
        "full": job.samples.lengths is None,
        "packing": _packing(job),
        "tuning": tuning,
        "alpha": round(alpha(tuning)) if has_adapters else 0,
        "targets": list(targets or (ALL_LINEAR,)),
        "whole": list(whole_modules(tuning, model)),
        "liger": LIGER in launch.plan.techniques,
        "save_steps": save_steps(launch),
    }


def _packing(job: Job) -> str:
    """How samples become rows, in words."""
    if job.model.vision is not None:
        return PACKING_WORDS["longest"]
    full = "rows cut from one text, each full"
    return full if job.samples.lengths is None else PACKING_WORDS[job.samples.packing]


def trainer_optimizer(job: Job, others: Mapping[str, str]) -> str | None:
    """The Trainer's name of the optimizer; `others`: names by family; None if it has none."""
    family = job.optimizer.family
    if family in others:
        return others[family]
    return _ADAMW.get(job.optimizer_setting.kernel) if family == "adamw" else None
