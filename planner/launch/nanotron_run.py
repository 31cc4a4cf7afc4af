"""The user's part of nanotron's runs: variables, and the program that puts them into the file."""

from __future__ import annotations

from planner.launch.checkpoints import FOLDER, TRAIN_STEPS, folder_variable, save_steps
from planner.launch.contract import Launch, Variable
from planner.launch.template import filled

PROGRAM = "train.py"
VARIABLES = (
    Variable("DATASET", "", "folder of tokens as nanotron reads them (Nanoset); empty: made up"),
    Variable("TOKENIZER", "", "folder or name of their Hugging Face tokenizer; empty: none"),
    folder_variable("DATASET"),
    TRAIN_STEPS,
    Variable("LEARNING_RATE", "3e-4", "PLACEHOLDER: yours"),
    Variable("MIN_LEARNING_RATE", "3e-5", "PLACEHOLDER: yours"),
)


def program(launch: Launch) -> str:
    """The text of `train.py`."""
    return filled("nanotron.py.txt", save_steps=save_steps(launch), folder=FOLDER)
