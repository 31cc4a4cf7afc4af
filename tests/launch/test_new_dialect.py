"""A new dialect is a folder: one is made on a copy of the package, and every room finds it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import planner

# The whole of a small dialect: a YAML with the degrees, of Llama's block alone.
FOLDER = {
    "__init__.py": "",
    "dialect.toml": """
order = 90
reads = ["a toy YAML"]

[targets.toy]
summary = "toy, YAML"
profile = "toy"
model = "writer:MODEL"
time = "`step` in every log line"
memory = "`held` in every log line"
weights = "It has no way to start from weights."
[targets.toy.versions]
toy = "1.0"

[formats.toy]
words = "toy YAML"
form = "yaml"
options = ["run"]

[kinds.toy]
by = "table"
read = "reader:read"
all = ["toy_degrees"]
told = "toy (toy_degrees)"
""",
    "options.toml": """
[run]
dp = "toy_degrees.copies"
tp = "toy_degrees.split"
mbs = "toy_batch.each"
grad_acc = "toy_batch.rounds"
seq = "toy_batch.length"
""",
    "writer.py": """
from planner.launch.architecture import lacking, row
from planner.launch.contract import RunCommand
from planner.launch.options import run_options
from planner.launch.settings_text import SettingsSection, WrittenSetting, yaml_text

OPTIONS = run_options("toy")["run"]
MODEL = (row("hidden", "width"), row("layers", "depth"), *lacking(set()))


def job_refusals(job):
    return iter(())


def plan_refusals(launch):
    return iter(())


def files(launch):
    values = launch.plan.degrees.model_dump() | {"seq": launch.plan.seq}
    tables = {}
    for ours, option in OPTIONS.items():
        table, _, name = option.key.partition(".")
        tables.setdefault(table, []).append(WrittenSetting(name, values[ours]))
    sections = [SettingsSection(title, tuple(settings)) for title, settings in tables.items()]
    return {"toy.yaml": yaml_text(sections)}


def command(launch):
    return RunCommand(("-m", "toy.train", "--config", "toy.yaml"))


def choices(launch):
    return iter(())


def requirements(launch):
    return ("toy 1.0",)
""",
    "reader.py": """
from functools import partial

from planner.launch.dialects.toy.writer import OPTIONS
from planner.launch.read.document import DocumentReader
from planner.launch.read.found import model_unknown


class ToyReader(DocumentReader):
    def found(self):
        keys = {ours: option.key for ours, option in OPTIONS.items()}
        values = {ours: self.whole(key, 1) for ours, key in keys.items()}
        if not self.hints.model:
            self.problems.append(model_unknown("the file does not name the model"))
        known = partial(str.startswith, "toy_")
        return self.gathered(
            lambda key: key in keys.values(), keys, format="toy", framework="toy",
            model=self.hints.model, **values,
        )


def read(source):
    return ToyReader(source.yaml(), source).found()
""",
}
PROFILE = 'extends = "nanotron"\nname = "toy"\nsummary = "toy"\nlaunch.target = "toy"\n'
# What is asked of the copy; it answers in JSON.
ASKED = """
import json, sys
from dataclasses import replace
from pathlib import Path
from planner.job.request import Request
from planner.launch.check.assess import assess
from planner.launch.check.spelling import edits_for
from planner.launch.folder import launch_folder, write_launch
from planner.launch.plans import launch_of
from planner.launch.read.opened import file_kind, readable
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from planner.launch.registry import dialect_named, target_named, targets
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from tests.documents.dialects import tables

last = list(targets())[-1]
scanned = [name for name in sys.modules if name.startswith("planner.launch.dialects.toy")]
request = Request(model="llama-3-8b", gpus="8xH100", gbs=16, framework="toy")
plan = evaluate(request, Degrees(tp=4, dp=2, grad_acc=8))
folder = Path(sys.argv[1])
launch = launch_of(plan, request, target_named("toy"), "torchrun")
write_launch(folder, launch_folder(launch), force=False)
found = read_launch([folder / "toy.yaml"], Hints(model="llama-3-8b"))
assessment = assess(found, "8xH100")
asked = assessment.proposal
wider = replace(asked, degrees=asked.degrees.model_copy(update={"mbs": 2}))
readme = (folder / "README.md").read_text()
print(json.dumps({
    "imported_by_the_scan": scanned,
    "target": last,
    "kind": file_kind("toy.yaml", (folder / "toy.yaml").read_text()),
    "readable": "a toy YAML" in readable(),
    "reader": dialect_named("toy"),
    "back": [found.framework, found.tp, found.dp, found.mbs, found.grad_acc, found.seq],
    "same_step": assessment.plan.step_time_s == plan.step_time_s,
    "edits": [[edit.key, edit.value] for edit in edits_for(found, asked, wider)],
    "readme": "`held` in every log line" in readme and "toy 1.0" in readme,
    "page": all(
        any(word in cell for row in one.rows for cell in row)
        for one, word in zip(tables()[::3], ("toy", "toy_degrees.split"), strict=True)
    ),
}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the copy with the folder answers. Beside it only the framework's own file is made."""
    copy, source = tmp_path_factory.mktemp("copy"), Path(planner.__file__).parents[1]
    for name in ("planner", "constraints", "hardware"):
        shutil.copytree(source / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = copy / "planner" / "launch" / "dialects" / "toy"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text)
    (copy / "planner" / "job" / "frameworks" / "toy.toml").write_text(PROFILE)
    environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{source}"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(copy / "run")],
        capture_output=True, text=True, check=False, env=environment, cwd=copy,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_scan_imports_nothing_of_a_dialect(answers: dict[str, object]) -> None:
    assert answers["imported_by_the_scan"] == []


def test_a_target_is_found_and_writes(answers: dict[str, object]) -> None:
    assert (answers["target"], answers["readme"]) == ("toy", True)


def test_its_file_is_told_and_read(answers: dict[str, object]) -> None:
    assert (answers["kind"], answers["readable"], answers["reader"]) == ("toy", True, "toy")
    assert answers["back"] == ["toy", 4, 2, 1, 8, 8192]
    assert answers["same_step"]


def test_a_change_is_spelled_by_its_options(answers: dict[str, object]) -> None:
    assert ["toy_batch.each", "2"] in answers["edits"]  # type: ignore[operator]


def test_the_page_shows_its_tables(answers: dict[str, object]) -> None:
    assert answers["page"]
