"""The user's part of nanotron's runs: variables, and the program that puts them into the file."""

from __future__ import annotations

from planner.launch.checkpoints import FOLDER, TRAIN_STEPS, folder_variable, save_steps
from planner.launch.contract import Launch, Variable

PROGRAM = "train.py"
VARIABLES = (
    Variable("DATASET", "", "folder of tokens as nanotron reads them (Nanoset); empty: made up"),
    Variable("TOKENIZER", "", "folder or name of their Hugging Face tokenizer; empty: none"),
    folder_variable("DATASET"),
    TRAIN_STEPS,
    Variable("LEARNING_RATE", "3e-4", "PLACEHOLDER: yours"),
    Variable("MIN_LEARNING_RATE", "3e-5", "PLACEHOLDER: yours"),
)

_PROGRAM = '''"""nanotron's run_train.py on its configuration with what the environment sets.

python train.py RUN_TRAIN --config-file FILE: the file stays as it is.
"""

import os
import runpy
import sys
import tempfile

import yaml

SAVE_STEPS = {save_steps}


def given(name):
    return os.environ.get(name, "")


def with_data(config):
    """Data, its tokenizer, steps and learning rates."""
    if given("DATASET"):
        config["data_stages"][0]["data"]["dataset"] = {{"dataset_folder": given("DATASET")}}
    if given("TOKENIZER"):
        config["tokenizer"]["tokenizer_name_or_path"] = given("TOKENIZER")
    if given("TRAIN_STEPS"):
        config["tokens"]["train_steps"] = int(given("TRAIN_STEPS"))
    rates = config["optimizer"]["learning_rate_scheduler"]
    for key, name in (("learning_rate", "LEARNING_RATE"), ("min_decay_lr", "MIN_LEARNING_RATE")):
        if given(name):
            rates[key] = float(given(name))
    # A trial may be shorter than the warm-up.
    rates["lr_warmup_steps"] = min(rates["lr_warmup_steps"], config["tokens"]["train_steps"] - 1)


def with_checkpoints(config):
    """Where to save, how often, and the last checkpoint to go on from; nowhere without a folder."""
    table, folder = config["checkpoints"], given("{folder}")
    if not folder:
        table["checkpoint_interval"] = config["tokens"]["train_steps"] + 1
        return
    table.update(checkpoints_path=folder, checkpoint_interval=SAVE_STEPS, save_final_state=True)
    if os.path.isfile(os.path.join(folder, "latest.txt")):
        table["resume_checkpoint_path"] = folder


def main():
    program, file = sys.argv[1], sys.argv[sys.argv.index("--config-file") + 1]
    with open(file) as stream:
        config = yaml.safe_load(stream)
    with_data(config)
    with_checkpoints(config)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as stream:
        yaml.safe_dump(config, stream, sort_keys=False)
    sys.argv = [program, "--config-file", stream.name]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
'''


def program(launch: Launch) -> str:
    """The text of `train.py`."""
    return _PROGRAM.format(save_steps=save_steps(launch), folder=FOLDER)
