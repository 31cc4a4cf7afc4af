"""Data and checkpoints of torchtitan's runs: texts of a folder, samples until the user has some."""

from __future__ import annotations

import json

from planner.launch.checkpoints import folder_variable
from planner.launch.contract import Files, Variable
from planner.launch.titan_sections import TRIAL_STEPS

SAMPLES = "sample_data"
VARIABLES = (
    Variable("DATASET", "", "folder of your texts, JSON lines with a field text; empty: samples"),
    folder_variable("DATASET"),
    Variable("TRAIN_STEPS", str(TRIAL_STEPS), "steps of the run; the default is a trial"),
)
_LINES, _WORDS = 64, 512


def sample_files() -> Files:
    """Texts that torchtitan can read without the internet: numbers in words of their own."""
    lines = (
        json.dumps({"text": " ".join(f"{line * _WORDS + word:x}" for word in range(_WORDS))})
        for line in range(_LINES)
    )
    return {f"{SAMPLES}/samples.jsonl": "\n".join(lines) + "\n"}
