"""Data and checkpoints of torchtitan's runs: texts of a folder, samples until the user has some."""

from __future__ import annotations

import json

from planner.launch.checkpoints import TRAIN_STEPS, folder_variable
from planner.launch.contract import Files, Variable

SAMPLES = "sample_data"
VARIABLES = (
    Variable("DATASET", "", "folder of your texts, JSON lines with a field text; empty: samples"),
    folder_variable("DATASET"),
    TRAIN_STEPS,
)
ENVIRONMENT = {
    "PYTORCH_CUDA_ALLOC_CONF": (
        "expandable_segments:True",
        "less fragmentation, as torchtitan's own run_train.sh sets it",
    )
}
DEMANDS = {"HF_ASSETS": "folder with the model's tokenizer files (tokenizer.json)"}
_LINES, _WORDS = 64, 512


def sample_files() -> Files:
    """Texts that torchtitan can read without the internet: numbers in words of their own."""
    lines = (
        json.dumps({"text": " ".join(f"{line * _WORDS + word:x}" for word in range(_WORDS))})
        for line in range(_LINES)
    )
    return {f"{SAMPLES}/samples.jsonl": "\n".join(lines) + "\n"}
