"""Published checkpoints that hold more than their language model, in every kind of file."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.models.catalog import load_model, model_names
from planner.job.request import Request
from planner.launch.check.assess import assess
from planner.launch.dialects.hf.arguments import known_model
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from planner.predict.assumptions import plan_assumptions
from planner.predict.plan import Degrees

TOWERS = tuple(name for name in model_names() if load_model(name).beside)
# A repository of each, whose name a fine-tuning file may hold.
REPOSITORIES = {
    "gemma-3-4b": "google/gemma-3-4b-it",
    "gemma-3-12b": "google/gemma-3-12b-it",
    "gemma-3-27b": "unsloth/gemma-3-27b-it-bnb-4bit",
    "kimi-k2.5": "moonshotai/Kimi-K2.5",
    "qwen3.5-0.8b": "Qwen/Qwen3.5-0.8B",
    "qwen3.5-2b": "Qwen/Qwen3.5-2B",
    "qwen3.5-4b": "Qwen/Qwen3.5-4B-Base",
    "qwen3.5-9b": "unsloth/Qwen3.5-9B",
    "qwen3.5-27b": "Qwen/Qwen3.6-27B",
    "qwen3.5-35b-a3b": "Qwen/Qwen3.6-35B-A3B",
    "qwen3.5-122b-a10b": "Qwen/Qwen3.5-122B-A10B",
    "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama-4-maverick": "unsloth/Llama-4-Maverick-17B-128E-Instruct",
}
# How each program is told of its model; `{}`: the model.
FILES = {
    "trainer.sh": "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path {} --bf16 "
    "--per_device_train_batch_size 1 --learning_rate 1e-5 --output_dir x\n",
    "accelerate.sh": "accelerate launch --num_machines 1 --num_processes 8 sft.py "
    "--model_name_or_path {} --per_device_train_batch_size 1 --learning_rate 1e-5 --output_dir x\n",
    "trl.sh": "trl sft --model_name_or_path {} --learning_rate 1e-5 "
    "--per_device_train_batch_size 1 --output_dir x\n",
    "swift.sh": "NPROC_PER_NODE=8 swift sft --model {} --train_type full "
    "--learning_rate 1e-5 --per_device_train_batch_size 1 --output_dir x\n",
    "llamafactory.yaml": "stage: sft\nfinetuning_type: full\nmodel_name_or_path: {}\n"
    "per_device_train_batch_size: 1\ntemplate: gemma3\ncutoff_len: 2048\n",
    "axolotl.yml": "base_model: {}\nsequence_len: 2048\nmicro_batch_size: 1\n"
    "gradient_accumulation_steps: 1\ndatasets: []\noutput_dir: x\n",
}


def test_the_catalogue_says_which_checkpoints_hold_more() -> None:
    assert set(TOWERS) == set(REPOSITORIES)
    known = [known_model(repository) or "" for repository in REPOSITORIES.values()]
    assert {load_model(name).name for name in known} == set(REPOSITORIES)


# Programs that are known to load all of a checkpoint, and the images of samples of text.
LOADED = {"swift.sh": "none", "llamafactory.yaml": "1x64x64", "axolotl.yml": "none"}
# Those that leave it frozen unless they are told otherwise.
FREEZE = ("swift.sh", "llamafactory.yaml")


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("model", TOWERS)
def test_a_tower_is_loaded_and_frozen(tmp_path: Path, name: str, model: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name].format(REPOSITORIES[model]))
    found = read_launch([path])
    assert "checkpoint-tower" not in {problem.rule for problem in found.problems}
    assert ({"vision_tower", "projector"} <= {*found.freeze}) is (name in FREEZE)
    assert found.images == LOADED[name]
    assert any("samples are text alone" in note for note in found.assumed)
    alone = read_launch([path], Hints(model=model))
    assert (alone.freeze, alone.images) == ((), None)


def test_limits_of_images_say_that_samples_have_some(tmp_path: Path) -> None:
    path = tmp_path / "llamafactory.yaml"
    text = FILES[path.name].format("google/gemma-3-4b-it") + "image_max_pixels: 262144\n"
    path.write_text(text)
    assert read_launch([path]).images == "1x512x512"


@pytest.mark.parametrize(
    ("name", "model"),
    [(name, model) for name in FILES for model in TOWERS if name not in LOADED],
)  # fmt: skip
def test_a_checkpoint_with_a_tower_is_not_predicted(tmp_path: Path, name: str, model: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name].format(REPOSITORIES[model]))
    found = read_launch([path])
    (tower,) = [problem for problem in found.problems if problem.rule == "checkpoint-tower"]
    assert "vision tower" in tower.text
    assert tower.severity == "missing"
    assert tower.places[0].startswith(str(path))
    assert tower.fix.startswith(f"--model {model}")
    advised = read_launch([path], Hints(model=model))
    assert "checkpoint-tower" not in {problem.rule for problem in advised.problems}


def test_check_of_the_language_model_alone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sh"
    path.write_text(FILES["trainer.sh"].format("google/gemma-3-4b-it"))
    assessment = assess(read_launch([path], Hints(model="gemma-3-4b")), "8xH100")
    assert assessment.plan is not None
    assert any("vision tower" in line for line in assessment.found.assumed)


def test_the_verdict_is_that_nobody_can_tell(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sh"
    path.write_text(FILES["trainer.sh"].format("google/gemma-3-4b-it"))
    assert assess(read_launch([path]), "8xH100").verdict == "cannot tell"


@pytest.mark.parametrize("model", TOWERS)
def test_by_catalogue_name_the_language_model_is_planned_and_the_rest_said(model: str) -> None:
    job = Request(model=model, gpus="64xH100", gbs=64).resolve()
    degrees = Degrees(dp=64, zero=1, mbs=1, grad_acc=1)
    said = [line for line in plan_assumptions(job, degrees) if "vision tower" in line]
    (note,) = [note for note in load_model(model).notes if "vision tower" in note]
    assert [f"{line.capitalize()}." for line in said] == [note.capitalize()]


@pytest.mark.parametrize("name", FILES)
def test_a_model_with_parts_that_are_not_described_is_said_to_have_them(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text(FILES[name].format("google/gemma-4-31b-it"))
    (unknown,) = [
        problem for problem in read_launch([path]).problems if problem.rule == "model-unknown"
    ]
    assert "Gemma 4 is not planned" in unknown.text and "--model gemma-3-27b" in unknown.text
