"""`planner models`, `hardware` and `frameworks`: lists, entries, unknown names."""

from __future__ import annotations

import json

import pytest

from hardware.load import cluster_names, gpu_names
from planner.job.frameworks.names import framework_names
from planner.job.models.catalog import load_model, model_names
from tests.cli.conftest import Run, lines_are_short, refused

EVERYTHING = [
    *(("models", name) for name in model_names()),
    *(("hardware", name) for name in (*gpu_names(), *cluster_names())),
    *(("frameworks", name) for name in framework_names()),
]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("models", model_names()),
        ("hardware", (*gpu_names(), *cluster_names())),
        ("frameworks", framework_names()),
    ],
)
def test_lists_name_everything_once(run: Run, command: str, names: tuple[str, ...]) -> None:
    options = ("--all",) if command == "frameworks" else ()
    assert [entry["name"] for entry in json.loads(run(command, *options, "--json").stdout)] == [
        *names
    ]
    result = run(command, *options)
    assert result.exit_code == 0
    assert lines_are_short(result.stdout)
    listed = [line.split()[0] for line in result.stdout.splitlines() if line[:1].strip()]
    for name in names:
        assert listed.count(name) == 1, name


def test_every_entry_is_shown_in_80_columns(run: Run) -> None:
    for command, name in EVERYTHING:
        result = run(command, name)
        assert result.exit_code == 0, (command, name, result.output)
        assert name in result.stdout
        assert lines_are_short(result.stdout), (command, name)


def test_model_shows_exact_parameters_and_alias(run: Run) -> None:
    text = run("models", "70b").stdout
    assert "70b is llama-3-70b" in text
    assert f"{load_model('70b').exact_parameters:,}" in text


def test_frameworks_lists_what_one_would_train_with(run: Run) -> None:
    text = run("frameworks").stdout
    assert "megatron-lm-2022" not in text and "megatron-core " in text
    assert "accelerate" in text  # what plans of hf-fsdp2 are launched with


def test_framework_says_what_its_settings_mean(run: Run) -> None:
    shown = run("frameworks", "fsdp1", "--all").stdout
    assert "2 B/parameter: Weights that the products read." in shown
    document = json.loads(run("frameworks", "megatron-core", "--json").stdout)
    named = {(setting["table"], setting["name"]): setting for setting in document["settings"]}
    found = named["kernels", "issue_s"]
    assert (found["value"], found["default"], found["unit"]) == (1.7e-4, 4e-5, "s")
    assert "CPU time to issue one kernel" in found["meaning"]


def test_gpu_marks_assumptions_and_names_sources(run: Run) -> None:
    text = run("hardware", "h100").stdout
    assert "ASSUMED: clock" in text
    assert "nvidia-h100-datasheet" in text
    assert "Sources" in text


@pytest.mark.parametrize(
    ("command", "given", "meant"),
    [
        ("models", "lama-3-70b", "llama-3-70b"),
        ("hardware", "H10O", "h100"),
        ("frameworks", "torchtitn", "torchtitan"),
    ],
)
def test_unknown_names_meet_close_ones(run: Run, command: str, given: str, meant: str) -> None:
    refused(run(command, given), given, meant)


def test_model_shows_parameters_by_component_and_they_add_up(run: Run) -> None:
    assert "attention/qkv" in run("models", "gpt2").stdout
    for document in json.loads(run("models", "--json").stdout):
        parts = document["parameters_by_component"]
        assert sum(part["total"] for part in parts) == document["parameters"], document["name"]
        assert all(part["each"] * part["layers"] == part["total"] for part in parts)


def test_model_says_what_reads_images(run: Run) -> None:
    text = run("models", "qwen2.5-vl-7b").output
    assert "28 layers attend within windows of 8x8 patches" in text
    assert "of 1024x768 pixels: 1,001 tokens, 3,996 patches" in text
    assert "Vision tower, counted where --images are given" in run("models", "gemma-3-4b").output
    assert "Vision tower" not in run("models", "llama-3-8b").output
