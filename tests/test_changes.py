"""What CONTRIBUTING says that a change touches: each change is made on a copy, and used there.

A change adds files and inserts lines behind an anchor. It may touch at most three files of the
packages, those that its line in CONTRIBUTING names, and a command on the copy then shows it. The
tests of new axes, parameter classes, terms and dialects make their changes beside what they test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from planner.cli.declared import commands
from planner.cli.program import planner_command

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("planner", "constraints", "hardware")
TOUR = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_PATH = re.compile(r"`((?:planner|constraints|hardware|tests|docs|examples)/[\w./*-]+)`")
MOST_FILES = 3
_ASSUMED = 'unit = "{unit}", source = "assumption", note = "a toy"'


@dataclass(frozen=True)
class Change:
    """One change. `line`: the first words of its line in CONTRIBUTING; `files`: path -> text of
    new files; `inserts`: path -> (anchor, text behind it); `command`: what then shows it."""

    line: str
    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    inserts: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def touched(self) -> set[str]:
        """Paths of all files that the change adds or edits."""
        return {*self.files, *self.inserts}


def _quantity(value: float, unit: str) -> str:
    return f"{{ value = {value}, {_ASSUMED.format(unit=unit)} }}"


_TOY_GPU = "\n".join(
    (
        'name = "Toy-X1"',
        'vendor = "nvidia"',
        'architecture = "toyland"',
        'default_cluster = "dgx-h100"',
        *(
            f"{name} = {_quantity(value, unit)}"
            for name, value, unit in (
                ("hbm", 80, "GiB"), ("hbm_usable", 79, "GiB"), ("hbm_bandwidth", 4, "TB/s"),
                ("l2", 50, "MiB"), ("sm_count", 100, "1"), ("boost_clock", 2000, "MHz"),
                ("host_link", 63, "GB/s"), ("scale_up_link", 450, "GB/s"),
                ("scale_up_domain", 8, "1"), ("tdp", 700, "W"), ("context", 0.5, "GiB"),
            )
        ),
        "[peak]",
        *(f"{dtype} = {_quantity(500, 'TFLOP/s')}" for dtype in ("fp16", "bf16")),
        "",
    )
)  # fmt: skip

CHANGES = {
    "gpu of a new architecture": Change(
        "GPU |",
        "evaluate --model gpt2 --gpus 8xToy-X1 --gbs 8 --mbs 1 --seq 1024",
        {"hardware/catalog/gpus/toy-x1.toml": _TOY_GPU},
        {"hardware/catalog/architectures.toml": ("", '\n[toyland]\ntitle = "Toyland"\n')},
    ),
    "price": Change(
        "price |",
        "compare --model gpt2 --seq 1024 --tokens 1B --gbs 8 --gpus 1xH100 --provider toycloud",
        inserts={
            "hardware/catalog/prices.csv": (
                "", "H100-SXM5-80GB,toycloud,on_demand,1.23,2026-11-01,assumption,,,a toy\n"
            ),
        },
    ),
    "model": Change(
        "model |",
        "evaluate --model toy-1b --gpus 1xH100 --gbs 8 --mbs 1 --seq 1024",
        {
            "planner/job/models/toy-1b.toml": (
                'source = "a toy"\n[shape]\nfamily = "llama"\nlayers = 4\nhidden = 1024\n'
                "heads = 8\nkv_heads = 8\nhead_dim = 128\nffn = 4096\nvocab = 32000\n"
                'max_positions = 2048\npretraining_seq = 2048\nactivation = "silu"\n'
                "tied_embeddings = false\n"
            ),
        },
    ),
    "framework": Change(
        "framework |",
        "evaluate --model gpt2 --gpus 1xH100 --gbs 8 --mbs 1 --seq 1024 --framework toy-frame",
        {
            "planner/job/frameworks/toy-frame.toml": (
                'extends = "megatron-core"\nname = "toy-frame"\nsummary = "a toy"\n'
                'sources = ["a toy"]\nassumptions = ["a toy"]\n'
            ),
        },
    ),
    "optimizer with a state of its own": Change(
        "optimizer |",
        "memory --model gpt2 --gpus 1xH100 --mbs 1 --seq 1024 --optimizer toy-shampoo",
        inserts={
            "planner/job/optimizers.toml": (
                "",
                '\n[toy-shampoo]\nsummary = "two preconditioners a matrix"\nfamily = "toy"\n'
                'states = { exp_avg = "fp32" }\nscope = "preconditioned"\nsource = "a toy"\n',
            ),
            "planner/job/frameworks/megatron-core.toml": ('families = ["adamw", ', '"toy", '),
            "planner/predict/optimizer_terms.py": (
                'UPDATES: Mapping[str, Update] = {',
                '"preconditioned": lambda one: ParameterUpdate(\n'
                "    4.0 * one.matrix[0] * sum(width**2 for width in one.matrix[1:])), ",
            ),
        },
    ),
    "recompute module": Change(
        "recompute mode |",
        "evaluate --model gpt2 --gpus 1xH100 --gbs 8 --mbs 1 --seq 1024 --recompute toy_part",
        inserts={
            "planner/job/recompute.py": (
                "RECOMPUTED: Mapping[str, RecomputedModule] = {",
                '\n    "toy_part": RecomputedModule(Module.MLP, "dense", "dense layers"),',
            ),
            "planner/job/frameworks/megatron-core.toml": (
                '[recomputing]\nmodules = [', '"toy_part", '
            ),
        },
    ),
    "rule over shapes": Change(
        "rule over shapes |",
        "evaluate --model gpt2 --gpus 2xH100 --gbs 8 --mbs 1 --seq 1024 --tp 2",
        inserts={
            "constraints/divisibility.py": (
                "",
                "\n\n@shape_rule()\n"
                "def toy_rule(columns: Columns, ctx: RuleContext) -> Mask:\n"
                '    return equals(columns["tp"], 1)\n',
            ),
            "constraints/registry.py": (
                "    divisibility.kv_heads_by_tp,", "divisibility.toy_rule,"
            ),
            "constraints/rules.toml": (
                "", '[toy-rule]\nsentence = "tp is 1"\nsource = "a toy"\nwording = "a toy"\n'
            ),
        },
    ),
    "node shape": Change(
        "node shape |",
        "evaluate --model gpt2 --gpus 8xtoy-node --gbs 8 --mbs 1 --seq 1024",
        {
            "hardware/catalog/clusters/toy-node.toml": (
                'name = "toy-node"\ntitle = "Toy"\ngpu = "H100-SXM5-80GB"\n'
                'fabric = "infiniband"\n'
                + "".join(
                    f"{name} = {_quantity(value, unit)}\n"
                    for name, value, unit in (
                        ("gpus_per_node", 8, "1"), ("scale_up_domain", 8, "1"),
                        ("nics_per_node", 8, "1"), ("nic_rate", 400, "Gbit/s"),
                        ("oversubscription", 1.0, "1"), ("host_memory", 960, "GB"),
                    )
                )
            ),
        },
    ),
}  # fmt: skip

# Words of the JSON or of the refusal that tell each change from its absence.
_SHOWS = {
    "gpu of a new architecture": '"Toy-X1"',
    "price": "toycloud",
    "model": "toy-1b",
    "framework": "toy-frame",
    "optimizer with a state of its own": "toy-shampoo",
    "recompute module": '"recompute": "toy_part"',
    "rule over shapes": "toy-rule",
    "node shape": "toy-node",
}


def _copy(folder: Path) -> None:
    """The three packages by hard links; an edited file is written anew."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = folder / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)


def _made(change: Change, folder: Path) -> None:
    for name, text in change.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, (anchor, text) in change.inserts.items():
        path = folder / name
        before = path.read_text(encoding="utf-8")
        assert anchor in before, f"{name} no longer holds {anchor!r}"
        place = before.index(anchor) + len(anchor) if anchor else len(before)
        path.unlink()
        path.write_text(before[:place] + text + before[place:], encoding="utf-8")


def _answer(folder: Path, command: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "planner", *command.split(), "--json"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_touches_the_files_that_its_line_names(name: str, tmp_path: Path) -> None:
    change = CHANGES[name]
    _copy(tmp_path)
    _made(change, tmp_path)
    status, text = _answer(tmp_path, change.command)
    assert _SHOWS[name] in text, text[-2000:]
    if name != "rule over shapes":
        document: Any = json.loads(text[text.index("{") : text.rindex("}") + 1])
        assert status in (0, 1), text[-2000:]
        assert document
    (line,) = (line for line in TOUR.splitlines() if line.startswith(f"| {change.line}"))
    named = _PATH.findall(line.split("|")[2])
    assert len(change.touched) <= MOST_FILES
    assert [
        path for path in change.touched if not any(path.startswith(prefix) for prefix in named)
    ] == []


def test_every_path_of_the_tour_exists() -> None:
    paths = _PATH.findall(TOUR)
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_room_is_drawn_and_has_a_line() -> None:
    rooms = {path.parent.name for path in (ROOT / "planner").glob("*/__init__.py")}
    assert rooms
    for room in rooms:
        assert re.search(rf"^    {room} ─", TOUR, re.MULTILINE), room
        assert f"`planner/{room}/" in TOUR, room


def test_every_command_is_a_function_that_its_table_names() -> None:
    assert "a function in `planner/cli/`, which `planner/cli/commands.toml` names" in TOUR
    for name in planner_command.list_commands(click.Context(planner_command)):
        module, _, does = commands()[name].get("does", f"{name}.run").partition(".")
        assert callable(getattr(import_module(f"planner.cli.{module}"), does)), name
