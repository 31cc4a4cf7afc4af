"""Files that ask for fine-tuning, read by the tools' own classes.

peft and TRL are those of `sh tests/frameworks/install.sh`; PLANNER_LLAMAFACTORY, PLANNER_AXOLOTL
and
PLANNER_TORCHTUNE name Pythons that have these tools with the libraries that they ask for (see
CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.launch.dialects.hf import axolotl_writer as axolotl
from planner.launch.dialects.hf import llamafactory_writer as llamafactory
from tests.frameworks.tuning_files import FILES, TuningFile
from tests.launch.axolotl_cases import ENGINE, MATRIX, PAIRS, SEEN
from tests.launch.torch_plans import launch_of
from tests.launch.tuning_cases import VISION, WHOLE

pytestmark = pytest.mark.frameworks
_SCRIPT = Path(__file__).with_name("tuning_parser.py")
TOOLS = sorted({one.tool for one in FILES})
Verdict = Mapping[str, Any]


def python_of(tool: str) -> str:
    """The Python that has a tool; a failure, not a skip, where nobody says which."""
    if tool.partition("-")[0] in ("peft", "trl"):
        return sys.executable
    variable = f"PLANNER_{tool.upper()}"
    if not os.environ.get(variable):
        pytest.fail(f"{variable} must name a Python that has {tool}")
    return os.environ[variable]


def verdicts(tool: str, cases: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """What the tool's parser says of files: `file`, `text`, and what to `show`."""
    done = subprocess.run(
        [python_of(tool), str(_SCRIPT), tool],
        input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Verdict] = json.loads(done.stdout)
    return found


@cache
def _judged(tool: str) -> dict[tuple[str, bool], Verdict]:
    """Of every file of a tool what its parser says, as it is and with its mistake."""
    files = [one for one in FILES if one.tool == tool]
    good = [{"file": one.file, "text": one.text, "show": list(one.seen)} for one in files]
    bad = [{"file": one.file, "text": one.broken} for one in files]
    keys = [(one.name, right) for right in (True, False) for one in files]
    return dict(zip(keys, verdicts(tool, [*good, *bad]), strict=True))


def named(one: TuningFile) -> str:
    return f"{one.tool}: {one.name}"


@pytest.mark.parametrize("one", FILES, ids=named)
def test_the_tool_reads_it(one: TuningFile) -> None:
    found = _judged(one.tool)[one.name, True]
    assert found["ok"], found["error"]
    assert found["seen"] == one.seen


@pytest.mark.parametrize("one", FILES, ids=named)
def test_the_tool_refuses_a_mistake(one: TuningFile) -> None:
    found = _judged(one.tool)[one.name, False]
    assert not found["ok"]
    assert found["error"]


def test_llamafactory_reads_what_is_written() -> None:
    """With the words that the launcher's script adds."""
    more = "dataset: identity\nmax_steps: 5\noutput_dir: out\nlearning_rate: 1.0e-4\n"
    launches = [launch_of(item, "hf-transformers", "llamafactory") for item in WHOLE]
    texts = [llamafactory.files(launch)[llamafactory.CONFIG] + more for launch in launches]
    seen = ["finetuning.lora_rank", "model.quantization_bit", "data.cutoff_len", "data.packing"]
    cases = [{"file": "llamafactory.yaml", "text": text, "show": seen} for text in texts]
    for launch, found in zip(launches, verdicts("llamafactory", cases), strict=True):
        assert found["ok"], found["error"]
        tuning = launch.job.tuning
        bits = {"int8": 8, "nf4-double": 4}.get(tuning.base or "")
        if tuning.has_adapters:
            assert found["seen"]["finetuning.lora_rank"] == tuning.rank
        assert found["seen"]["model.quantization_bit"] == bits
        assert found["seen"]["data.cutoff_len"] == launch.plan.seq
        assert found["seen"]["data.packing"]


def test_llamafactory_reads_what_is_written_of_towers() -> None:
    """Its classes hold what is frozen and how large images are, and know the template."""
    more = "dataset: mine\ndataset_dir: data\nmax_steps: 5\noutput_dir: out\n"
    launches = [launch_of(item, "hf-transformers", "llamafactory") for item in VISION]
    texts = [llamafactory.files(launch)[llamafactory.CONFIG] + more for launch in launches]
    parts = {
        "vision_tower": "finetuning.freeze_vision_tower",
        "projector": "finetuning.freeze_multi_modal_projector",
        "language_model": "finetuning.freeze_language_model",
    }
    seen = [*parts.values(), "model.image_max_pixels", "data.template"]
    cases = [{"file": "llamafactory.yaml", "text": text, "show": seen} for text in texts]
    for launch, text, found in zip(launches, texts, verdicts("llamafactory", cases), strict=True):
        assert found["ok"], found["error"]
        for part, key in parts.items():
            assert found["seen"][key] == launch.job.tuning.freezes(part)
        document = yaml.safe_load(text)
        assert found["seen"]["model.image_max_pixels"] == document["image_max_pixels"]
        assert found["seen"]["data.template"] == document["template"]


def test_axolotl_reads_what_is_written() -> None:
    """Every setting at the top has in its configuration the value that is written, with the words
    that the launcher's script adds; those of plug-ins are theirs."""
    data = "datasets: [{path: mine, type: alpaca, split: train}]\n"
    more = f"{data}max_steps: 5\noutput_dir: out\nsave_steps: 5\nlearning_rate: 1.0e-4\n"
    launches = [launch_of(item, "hf-transformers", "axolotl") for item in (*MATRIX, *PAIRS, *SEEN)]
    launches += [launch_of(item, "deepspeed", "axolotl") for item in ENGINE]
    cases, written = [], []
    for launch in launches:
        text = axolotl.files(launch)[axolotl.CONFIG]
        given = {
            name: value
            for name, value in yaml.safe_load(text).items()
            if not name.startswith("liger_") and not isinstance(value, dict)
        }
        written.append(given)
        shown = [f"run.{name}" for name in given]
        cases.append({"file": axolotl.CONFIG, "text": text + more, "show": shown})
    for given, found in zip(written, verdicts("axolotl", cases), strict=True):
        assert found["ok"], found["error"]
        assert found["seen"] == {f"run.{name}": value for name, value in given.items()}
