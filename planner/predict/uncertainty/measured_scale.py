"""The number of GPUs on which similar runs were measured, for verdicts about larger jobs."""

from __future__ import annotations

from functools import lru_cache

from planner.job.job import Job
from planner.predict.uncertainty.families import Family, architecture_text, model_words
from planner.predict.uncertainty.intervals import family_of, learnt_figure
from planner.predict.uncertainty.shipped import shipped_tables


def beyond_measured(job: Job, num_gpus: int) -> str:
    """A note that fewer GPUs than `num_gpus` were measured in runs of the job's kind (model,
    framework, GPU architecture), or that no such run was measured; empty if a run on
    that number of GPUs was."""
    family, largest = family_of(job), _learnt_gpus(job)
    kind = family._replace(scale="")
    largest = max(largest, most_measured_gpus(kind))
    if num_gpus <= largest:
        return ""
    where = f"on {architecture_text(family.architecture)} GPUs"
    what = f"{model_words(family.model)} with {family.framework} {where}"
    if largest:
        return f"never measured beyond {_gpus(largest)} of this kind ({what})"
    nearest = most_measured_gpus(Family(architecture=family.architecture))
    other = f"; other runs {where}: at most {_gpus(nearest)}" if nearest else f", nor any {where}"
    return f"no run of this kind was measured ({what}){other}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count:,} GPUs"


@lru_cache(maxsize=256)
def most_measured_gpus(family: Family) -> int:
    """GPUs of the largest run measured in a family, 0 if there is none; empty fields match any."""
    found = (
        entry.measured["gpus"][1]
        for entry in shipped_tables()["time"].entries
        if family.includes(entry.family) and "gpus" in entry.measured
    )
    return round(max(found, default=0.0))


def _learnt_gpus(job: Job) -> int:
    """GPUs of the largest run that calibrated the job's cluster, 0 if there is none."""
    learnt = learnt_figure(job, "time")
    ranges = learnt.measured if learnt else ()
    return round(max((high for axis, _, high in ranges if axis == "gpus"), default=0.0))
