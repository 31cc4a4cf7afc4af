"""What training scripts on transformers models share, whoever shards them: `train.py` with the same
model and data, two loops around them, and what they cannot express."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.launch.checkpoints import TRAIN_STEPS, folder_variable
from planner.launch.contract import Choice, Launch, Refusal, Variable
from planner.launch.ramp import ramp_refusals
from planner.launch.template import filled

MODEL_FOLDER = "model"

VARIABLES = (
    Variable("DATASET", "", "folder of datasets.save_to_disk (input_ids); empty: random tokens"),
    TRAIN_STEPS,
    folder_variable("DATASET"),
)

# What stands beside the configuration, in the words of the folder's README.
FILES = (
    Choice(
        f"{MODEL_FOLDER}/config.json",
        "the model, shape to router; token ids take the class's defaults",
    ),
    Choice("train.py", "random tokens unless --dataset names a datasets.save_to_disk folder"),
)
LIGER = "liger-kernels"
ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True", "less fragmentation")}


def attention(launch: Launch) -> str:
    """Transformers' name of the attention."""
    return "eager" if launch.job.attention == "eager" else "sdpa"


def training_script(template: str, title: str, **more: object) -> str:
    """train.py: every value of the plan is an argument that the launcher gives."""
    return filled(template, title=title, data=filled("hf_data.py.txt"), **more)


def hf_refusals(launch: Launch) -> Iterator[Refusal]:
    """Gradients that stay."""
    if launch.job.framework.state.persistent_gradients:
        yield Refusal(
            "the Trainer and the written loop free gradients after each step",
            "no --no-set-to-none, no --gradient-as-bucket-view",
        )


def hf_job_refusals(job: Job) -> Iterator[Refusal]:
    """Dropout, length and batch ramps, whoever trains the model."""
    yield from ramp_refusals(job, "the training loop on transformers")
    if job.dropout:
        yield Refusal("dropout has another key in every model's config.json", "no --dropout")
    if job.seq > job.model.max_positions:
        yield Refusal(
            f"a sequence of {job.seq:,} is longer than the {job.model.max_positions:,} "
            "positions of the model",
            f"--seq {job.model.max_positions}",
        )
