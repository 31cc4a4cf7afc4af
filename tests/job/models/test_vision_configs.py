"""Configs of published vision-language models: sizes as their config.json states them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.job.errors import ModelError, UsageError
from planner.job.models.catalog import load_model
from planner.job.models.hf_config import read_hf_model
from planner.job.models.hf_vision import vision_types
from planner.job.request import Request
from planner.predict.ops.table import parameter_count

_FILE = Path(__file__).with_name("vision_configs.json")
CONFIGS: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_catalogue_model(name: str) -> None:
    read, known = read_hf_model(CONFIGS[name]["config"], f"{name}/config.json"), load_model(name)
    assert read.left_out == ()
    assert read.spec.vision == (known.spec.vision or known.vision)
    whole = known.with_vision()
    assert parameter_count(read.spec).total == parameter_count(whole.spec).total
    assert load_model(CONFIGS[name]["repository"]).name == name


def test_every_type_has_a_config() -> None:
    types = {entry["config"]["model_type"] for entry in CONFIGS.values()}
    # Whose sizes are those of the models' files (test_parameters.py).
    assert types == set(vision_types()) - {"qwen3_5", "qwen3_5_moe", "llama4"}


@pytest.mark.parametrize(
    "name", ["qwen3.5-0.8b", "qwen3.5-397b-a17b", "gemma-3-27b", "llama-4-scout"]
)
def test_a_part_beside_the_language_model_is_as_large_as_the_file_says(name: str) -> None:
    found = load_model(name)
    whole = found.with_vision()
    more = parameter_count(whole.spec).total - parameter_count(found.spec).total
    assert f"({more / 1e9:.2f} B parameters)" in found.beside[0]
    assert whole.beside == ()


def test_images_take_up_the_part_beside_the_language_model() -> None:
    request = Request(
        model="gemma-3-4b", gpus="1xH100", framework="hf-transformers", gbs=4, seq=1024,
        images="1x800x600",
    )  # fmt: skip
    assert request.resolve().model.vision == load_model("gemma-3-4b").vision
    assert request.model_copy(update={"images": None}).resolve().model.vision is None


def test_a_part_with_a_wrong_size_is_named() -> None:
    config = CONFIGS["qwen2.5-vl-3b"]["config"]
    wrong = {**config, "vision_config": {**config["vision_config"], "num_heads": "many"}}
    with pytest.raises(ModelError, match=r"vision_config.*num_heads"):
        read_hf_model(wrong, "config.json")


def test_an_unknown_part_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {**CONFIGS["llava-1.5-7b"]["config"]["text_config"], "vision_config": {"depth": 12}}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UsageError, match="vision_config"):
        Request(model=str(path), gpus="8xH100", gbs=8).resolve()
