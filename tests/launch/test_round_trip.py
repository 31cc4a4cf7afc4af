"""Launch, then check: the same plan, memory and time, whatever the framework and the launcher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.contract import Launch, NodesAs
from planner.launch.folder import launch_folder
from planner.launch.plans import refusals_of
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from planner.search.plan_file import read_plan_file, to_json
from tests.cli.conftest import run_cli
from tests.launch import (
    accelerate_cases,
    automodel_cases,
    axolotl_cases,
    deepspeed_cases,
    maxtext_cases,
    nanotron_cases,
    titan_cases,
    trl_cases,
    tuning_cases,
)
from tests.launch.plans import BRIDGE, MEGATRON, bridge, megatron
from tests.launch.round_trip import EXACT, assert_same, read_back, read_folder
from tests.launch.torch_plans import Case, launch_of

# Writer -> its profile and plans.
TORCH = {
    "torchtitan": ("torchtitan", (*titan_cases.MATRIX, titan_cases.SINKS)),
    "deepspeed": ("deepspeed", deepspeed_cases.MATRIX),
    "accelerate": ("hf-fsdp2", accelerate_cases.MATRIX),
    "nanotron": ("nanotron", nanotron_cases.MATRIX),
    "maxtext": ("maxtext", maxtext_cases.MATRIX),
    "llamafactory": ("hf-transformers", tuning_cases.WHOLE),
    "axolotl": ("hf-transformers", axolotl_cases.MATRIX),
}
# Tried in test_automodel.py, those with lengths besides.
TUNERS = {"automodel": ("automodel", automodel_cases.MATRIX)}
CASES = [(target, case) for target, (_, matrix) in TORCH.items() for case in matrix]
CASES += [(target, case) for target in tuning_cases.WRITERS for case in tuning_cases.SHARDED]
# One plan of each writer that the launchers are tried with.
EXAMPLES = {
    "megatron-core": "pipeline",
    "megatron-bridge": "pipeline",
    "torchtitan": "four-dimensions",
    "deepspeed": "zero2-tp",
    "accelerate": "hsdp",
    "nanotron": "base",
    "maxtext": "hsdp",
    "llamafactory": "lora-attention",
    "automodel": "lora-attention",
    "axolotl": "hsdp",
    "trl": "hsdp",
}


def expressible(target: str, case: Case) -> Launch | None:
    """The case's plan for a writer; None if the framework cannot run it."""
    launch = launch_of(case, TORCH[target][0], target)
    return None if tuple(refusals_of(launch)) else launch


def example(target: str) -> Launch:
    name = EXAMPLES[target]
    if target == "megatron-core":
        return megatron(name)
    if target == "megatron-bridge":
        return bridge(name)
    if target == "trl":
        return trl_cases.named("hf-fsdp2", name)
    profile, matrix = (TORCH | TUNERS)[target]
    return launch_of(next(item for item in matrix if item.name == name), profile, target)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron(name: str, tmp_path: Path) -> None:
    assert_same(megatron(name), read_back(megatron(name), tmp_path / "run"))


@pytest.mark.parametrize("name", BRIDGE)
def test_megatron_bridge(name: str, tmp_path: Path) -> None:
    back = read_back(bridge(name), tmp_path / "run")
    assert_same(bridge(name), back)
    assert back.assessment.found.unknown == ()
    assert [item for item in back.assessment.found.assumed if "plan.json" not in item] == []


@pytest.mark.parametrize(
    ("target", "item"), CASES, ids=[f"{target}-{case.name}" for target, case in CASES]
)
def test_torch_frameworks(target: str, item: Case, tmp_path: Path) -> None:
    launch = expressible(target, item)
    assert launch is not None
    back = read_back(launch, tmp_path / "run")
    assert_same(launch, back)
    assert back.assessment.found.unknown == ()
    assert back.assessment.found.unmodelled == ()


@pytest.mark.parametrize("nodes_as", get_args(NodesAs))
@pytest.mark.parametrize("target", EXAMPLES)
def test_every_launcher(target: str, nodes_as: NodesAs, tmp_path: Path) -> None:
    launch = replace(example(target), nodes_as=nodes_as)
    assert_same(launch, read_back(launch, tmp_path / "run"))


@pytest.mark.parametrize("target", EXAMPLES)
def test_check_of_the_folder_passes(target: str, tmp_path: Path) -> None:
    """Exit status 0, with no more than the folder's name."""
    folder = tmp_path / "run"
    launch = example(target)
    write_folder(folder, launch_folder(launch).files, False)
    result = run_cli("check", "-q", str(folder))
    assert result.exit_code == 0, result.output
    assert "(from plan.json)" in result.stdout


def test_plan_file(tmp_path: Path) -> None:
    launch = megatron("ends-differ")
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(launch).files, False)
    path = folder / "plan.json"
    assert to_json(read_plan_file(path)) == path.read_text()
    for name in set(launch_folder(launch).files) - {"plan.json"}:
        (folder / name).unlink()
    assert_same(launch, read_folder(folder))


def test_a_file_alone_with_the_options_that_it_lacks(tmp_path: Path) -> None:
    """As the folder's README says: accelerate.yaml holds no model, batch or length."""
    launch = example("accelerate")
    degrees = launch.plan.degrees
    write_folder(tmp_path / "run", launch_folder(launch).files, False)
    hints = Hints(
        model="llama-3.1-8b",
        seq=launch.plan.seq,
        mbs=degrees.mbs,
        grad_acc=degrees.grad_acc,
        gpus=16,
    )
    found = read_launch([tmp_path / "run" / "accelerate.yaml"], hints)
    again = assess(found, "16xH100").plan
    assert again is not None
    assert again.degrees == degrees
    assert again.step_time_s == pytest.approx(launch.plan.step_time_s, rel=EXACT)


def test_an_edit_is_seen(tmp_path: Path) -> None:
    """The files count, not the plan beside them."""
    folder = tmp_path / "run"
    launch = example("megatron-core")
    write_folder(folder, launch_folder(launch).files, False)
    script = folder / "launch.sh"
    script.write_text(script.read_text().replace("--micro-batch-size 1", "--micro-batch-size 2"))
    given = read_given([str(folder)], Hints(), 1, None, None)
    assert given.found.mbs == 2


def test_a_folder_with_two_launches_asks_which(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text('[model]\nname = "llama3"\nflavor = "8B"\n')
    result = run_cli("check", "-q", str(tmp_path), "--gpus", "8xH100")
    assert result.exit_code == 2
    assert "several configurations (a.toml, b.toml): name the files" in result.stderr


def test_a_folder_without_a_launch(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    result = run_cli("check", str(tmp_path), "--gpus", "8xH100")
    assert result.exit_code == 2
    assert "contains no launch file" in result.stderr
