"""Launch files of vision-language models."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.job.models.catalog import load_model, model_names
from planner.job.models.hf_config import read_hf_model
from planner.job.request import Request
from planner.launch.contract import Launch
from planner.launch.dialects.hf import llamafactory_writer as llamafactory
from planner.launch.dialects.hf.files import hf_config, layer_class
from planner.launch.plans import job_refusals, refusals_of, writer_of
from planner.launch.registry import targets
from planner.launch.settings_text import filled
from tests.job.models.test_vision_configs import CONFIGS
from tests.launch.axolotl_cases import SEEN
from tests.launch.round_trip import assert_same, read_back
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of
from tests.launch.trl_cases import as_run
from tests.launch.tuning_cases import VISION

TOWERS = [name for name in model_names() if load_model(name).with_vision().spec.vision]


def _launch(item: Case) -> Launch:
    return launch_of(item, "hf-transformers", "llamafactory")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_written_as_it_was_read(name: str) -> None:
    read = read_hf_model(CONFIGS[name]["config"], f"{name}/config.json").spec
    written = hf_config(read)
    assert written is not None
    again = read_hf_model(written, f"{name}/config.json")
    assert again.left_out == ()
    assert again.spec == read


@pytest.mark.parametrize("name", TOWERS)
def test_a_model_of_the_catalogue_has_a_config(name: str) -> None:
    spec = load_model(name).with_vision().spec
    written = hf_config(spec)
    assert written is not None
    assert read_hf_model(written, f"{name}/config.json").spec.vision == spec.vision
    assert all(one.endswith(("Layer", "Block")) for one in layer_class(written).split(","))


def test_a_tower_that_no_type_has_is_named() -> None:
    spec = load_model("llava-1.5-7b").spec
    assert spec.vision is not None
    tower = spec.vision.tower.model_copy(update={"mlp_bias": False})
    vision = spec.vision.model_copy(update={"tower": tower})
    assert hf_config(spec.model_copy(update={"vision": vision})) is None


@pytest.mark.parametrize("item", VISION, ids=lambda one: one.name)
def test_llamafactory_is_told_the_parts(item: Case, tmp_path: Path) -> None:
    written = _launch(item)
    assert list(refusals_of(written)) == []
    assert_complete(writer_of(targets()[written.target]), written)
    read = yaml.safe_load(llamafactory.files(written)["llamafactory.yaml"])
    frozen = [read[f"freeze_{part}"] for part in
              ("vision_tower", "multi_modal_projector", "language_model")]  # fmt: skip
    said = written.job.tuning.freezes
    assert frozen == [said(part) for part in ("vision_tower", "projector", "language_model")]
    assert_same(written, read_back(written, tmp_path / "run"))


@pytest.mark.parametrize("item", VISION, ids=lambda one: one.name)
def test_trl_is_told_the_parts(item: Case, tmp_path: Path) -> None:
    written = as_run("hf-transformers", item)
    assert list(refusals_of(written)) == []
    writer = writer_of(targets()["trl"])
    assert_complete(writer, written)
    program = writer.files(written)["train_sft.py"]
    ast.parse(program)
    assert max(map(len, program.splitlines())) <= 100
    assert_same(written, read_back(written, tmp_path / "run"))


SHARDED = [
    ("hf-fsdp2", "accelerate", {"train": "lora", "freeze": ("vision_tower", "projector")}),
    ("hf-fsdp2", "accelerate", {"freeze": ("vision_tower",), "images": "2x640x480"}),
    ("hf-fsdp2", "accelerate", {"image_tokens": 600}),
    ("hf-fsdp2", "trl", {"train": "lora", "freeze": ("vision_tower", "projector")}),
    ("hf-fsdp2", "trl", {}),
    ("deepspeed", "deepspeed", {"train": "lora"}),
    ("deepspeed", "deepspeed", {"images": "none", "freeze": ("vision_tower", "projector")}),
    ("deepspeed", "trl", {"freeze": ("vision_tower",)}),
]


@pytest.mark.parametrize(("profile", "target", "more"), SHARDED)
def test_a_tower_is_divided_over_gpus(
    profile: str, target: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Written, complete, Python, and read again as the same plan."""
    item = case("seen", "qwen2.5-vl-7b", "8xH100", zero=3, more=more)
    written = as_run(profile, item) if target == "trl" else launch_of(item, profile, target)
    assert list(refusals_of(written)) == []
    writer = writer_of(targets()[target])
    assert_complete(writer, written)
    (program,) = (text for name, text in writer.files(written).items() if name.startswith("train"))
    ast.parse(program)
    assert max(map(len, program.splitlines())) <= 100
    assert_same(written, read_back(written, tmp_path / "run"))


def test_layers_of_tower_and_language_model_are_units() -> None:
    item = case("units", "gemma-3-4b", "8xH100", zero=3, more={"images": "1x896x896"})
    written = launch_of(item, "hf-fsdp2", "accelerate")
    settings = yaml.safe_load(writer_of(targets()["accelerate"]).files(written)["accelerate.yaml"])
    named = settings["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"]
    assert set(named.split(",")) == {"Gemma3DecoderLayer", "SiglipEncoderLayer"}


@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
def test_modules_beside_a_tower_are_not_frozen(target: str) -> None:
    profile = {"accelerate": "hf-fsdp2"}.get(target, target)
    item = case("few", "qwen2-vl-2b", "2xH100", zero=3, more={"freeze": ("embeddings",)})
    assert "freeze parts, not embeddings" in reasons(launch_of(item, profile, target))


# Modules of transformers' models and the part that each is of.
PATHS = {
    "model.visual.blocks.3.attn.qkv": "vision_tower",
    "model.visual.merger.mlp.0": "projector",
    "model.visual.deepstack_merger_list.1.linear_fc1": "projector",
    "model.vision_tower.encoder.layers.2.self_attn.q_proj": "vision_tower",
    "model.multi_modal_projector.linear_1": "projector",
    "model.vision_model.encoder.layers.0.mlp.fc1": "vision_tower",
    "model.connector.modality_projection.proj": "projector",
    "vision_model.vision_adapter.mlp.fc1": "projector",
    "model.language_model.layers.7.mlp.down_proj": "language_model",
    "model.text_model.layers.7.self_attn.q_proj": "language_model",
}


@pytest.mark.parametrize("parts", [("vision_tower",), ("projector",), ("language_model",),
                                   ("vision_tower", "projector")])  # fmt: skip
def test_the_program_finds_parts_by_name(parts: tuple[str, ...]) -> None:
    names: dict[str, Any] = {}
    exec(filled("hf/parts.py.txt", adapters="", adapted=""), names)
    pattern = re.compile(names["left_out"](parts))
    for path, part in PATHS.items():
        assert names["part_of"](path) == part
        assert bool(pattern.fullmatch(path)) == (part in parts), path


@pytest.mark.parametrize(
    ("profile", "more", "reason"),
    [
        ("hf-fsdp2", {"zero": 3, "more": {"objective": "dpo"}}, "by next-token prediction"),
        ("hf-transformers", {"more": {"objective": "dpo"}}, "by next-token prediction"),
        ("hf-transformers", {"more": {"freeze": ("embeddings",)}}, "freeze parts, not embeddings"),
        ("hf-transformers", {"more": {"lengths": "mean=900", "packing": "pack"}}, "no --packing"),
    ],
)
def test_trl_refuses(profile: str, more: dict[str, Any], reason: str) -> None:
    item = case("refused", "qwen2-vl-2b", "2xH100", **({"zero": 0} | more))
    assert reason in reasons(launch_of(item, profile, "trl"))


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        ("smolvlm-2b", {}, "neither has a template"),
        ("qwen2-vl-2b", {"train": "lora"}, "no adapters on the projector"),
        ("qwen3-vl-2b", {"freeze": ("vision_tower",)}, "freezes the projectors of"),
        ("qwen3-vl-2b", {"train": "lora", "freeze": ("projector",)}, "freezes the projectors of"),
        ("qwen2-vl-2b", {"freeze": ("embeddings",)}, "freezes parts, not embeddings"),
        ("qwen2-vl-2b", {"lengths": "mean=900", "packing": "pack"}, "padded, not packed"),
    ],
)
def test_llamafactory_refuses(model: str, more: dict[str, Any], reason: str) -> None:
    item = case("refused", model, "1xH100", zero=0, more=more)
    assert reason in reasons(_launch(item))


@pytest.mark.parametrize("item", SEEN, ids=lambda one: one.name)
def test_axolotl_is_told_the_parts(item: Case, tmp_path: Path) -> None:
    written = launch_of(item, "hf-transformers", "axolotl")
    assert list(refusals_of(written)) == []
    assert_complete(writer_of(targets()["axolotl"]), written)
    assert_same(written, read_back(written, tmp_path / "run"))


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        ("smolvlm-2b", {"train": "lora", "freeze": ("vision_tower", "projector")}, "no template"),
        ("qwen2-vl-2b", {"train": "lora"}, "adapters on the language model"),
        ("qwen2-vl-2b", {"freeze": ("vision_tower",)}, "all weights or adapters"),
        ("qwen2-vl-2b", {"lengths": "mean=900", "packing": "pack"}, "padded, not packed"),
    ],
)
def test_axolotl_refuses(model: str, more: dict[str, Any], reason: str) -> None:
    item = case("refused", model, "1xH100", zero=0, more=more)
    assert reason in reasons(launch_of(item, "hf-transformers", "axolotl"))


def test_one_sentence_of_a_framework_without_towers() -> None:
    item = case("tower", "qwen2-vl-2b", "1xH100", zero=3)
    (refusal,) = refusals_of(launch_of(item, "automodel", "automodel"))
    assert "has a vision tower" in refusal.reason
    assert "llamafactory" in refusal.nearest


@pytest.mark.parametrize("name", ["internvl2-8b", "phi-3.5-vision", "kimi-vl-a3b"])
def test_a_modelling_file_of_its_own_is_named(name: str) -> None:
    """No class of transformers loads the config that would be written."""
    request = Request(
        model=name, gpus="1xH100", framework="hf-transformers", gbs=8, train="lora",
        images="1x336x336",
    )  # fmt: skip
    said = [one.reason for one in job_refusals(targets()["trl"], request.resolve())]
    assert any("stands beside the checkpoint" in text for text in said)


@pytest.mark.parametrize("name", ["llama-3.2-11b-vision", "paligemma-3b-224"])
def test_llamafactory_has_templates_of_other_families(name: str) -> None:
    request = Request(
        model=name, gpus="1xH100", framework="hf-transformers", gbs=8, train="lora",
        freeze=("vision_tower", "projector"), images="1x224x224",
    )  # fmt: skip
    assert list(job_refusals(targets()["llamafactory"], request.resolve())) == []


def test_videos_are_in_no_launch_file() -> None:
    item = case("video", "qwen2.5-vl-7b", "1xH100", mbs=1, grad_acc=1)
    written = launch_of(item, "hf-transformers", "llamafactory")
    seen = written.request.model_copy(update={"images": "8x448x448@video"})
    said = [one.reason for one in refusals_of(replace(written, request=seen))]
    assert any("not with videos" in reason for reason in said)
