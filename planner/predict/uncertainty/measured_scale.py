"""How many GPUs runs like a job's were measured on: said where a verdict goes beyond it."""

from __future__ import annotations

from functools import lru_cache

from planner.job.job import Job
from planner.predict.uncertainty.families import (
    Family,
    architecture_text,
    is_mixture,
    is_tuned_kind,
)
from planner.predict.uncertainty.intervals import family_of, learnt_figure
from planner.predict.uncertainty.shipped import shipped_tables

_MODELS = {"dense": "dense models", "moe": "mixtures of experts"}


def beyond_measured(job: Job, num_gpus: int) -> str:
    """That no run of a job's kind (model, framework, GPU architecture) was measured on so many
    GPUs; empty where one was."""
    family, largest = family_of(job), _learnt_gpus(job)
    kind = family._replace(scale="")
    largest = max(largest, most_measured_gpus(kind))
    if num_gpus <= largest:
        return ""
    where = f"on {architecture_text(family.architecture)} GPUs"
    what = f"{_words(family.model)} with {family.framework} {where}"
    if largest:
        return f"never measured beyond {_gpus(largest)} of this kind ({what})"
    nearest = most_measured_gpus(Family(architecture=family.architecture))
    other = f"; other runs {where}: at most {_gpus(nearest)}" if nearest else f", nor any {where}"
    return f"no run of this kind was measured ({what}){other}"


def _words(model: str) -> str:
    """A kind of model as people say it."""
    words = _MODELS["moe" if is_mixture(model) else "dense"]
    return f"fine-tuned {words}" if is_tuned_kind(model) else words


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count:,} GPUs"


@lru_cache(maxsize=256)
def most_measured_gpus(family: Family) -> int:
    """GPUs of the largest run measured in a family, 0 without any; empty fields hold for all."""
    found = (
        entry.measured["gpus"][1]
        for entry in shipped_tables()["time"].entries
        if family.includes(entry.family) and "gpus" in entry.measured
    )
    return round(max(found, default=0.0))


def _learnt_gpus(job: Job) -> int:
    """GPUs of the largest run that calibrated the job's cluster, 0 without any."""
    learnt = learnt_figure(job, "time")
    ranges = learnt.measured if learnt else ()
    return round(max((high for axis, _, high in ranges if axis == "gpus"), default=0.0))
