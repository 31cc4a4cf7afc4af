"""Values of DeepSpeed files: errors where DeepSpeed's own classes refuse them, and only there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.launch.read.names import meanings
from tests.launch.read.conftest import ReadFolder, judged

KNOWN: dict[str, Any] = {
    "gpus": 8, "model": "llama-3.2-1b", "seq": 2048, "recompute": "full", "mbs": 1,
}  # fmt: skip
# What DeepSpeedConfig of DeepSpeed 0.19.8 said of each, run on a CPU for 8 processes.
ACCEPTED: list[tuple[str, object]] = [
    ("stage", "3"), ("stage", 3.0), ("stage", True), ("stage", "auto"),
    ("reduce_bucket_size", "auto"), ("reduce_bucket_size", 5e8), ("overlap_comm", "yes"),
    ("offload_optimizer", None), ("cpu_offload", "true"),
]  # fmt: skip
REFUSED: list[tuple[str, object]] = [
    ("stage", 2.5), ("stage", "three"), ("offload_optimizer", "cpu"), ("offload_optimizer", True),
    ("offload_optimizer", {"device": "gpu"}), ("offload_optimizer", {"devise": "cpu"}),
    ("offload_param", {"device": "disk"}), ("reduce_bucket_size", "5e8"),
    ("reduce_bucket_size", 1.5), ("overlap_comm", "maybe"), ("overlap_comm", 3),
    ("zero_hpz_partition_size", -1), ("zero_hpz_partition_size", 8.5),
    ("offload_optimizer", {"device": "cpu", "ratio": 1.5}),
]  # fmt: skip


def of(zero: dict[str, object], **more: object) -> str:
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    bf16 = {"bf16": {"enabled": True}}
    return json.dumps({**batch, **bf16, "zero_optimization": {"stage": 2, **zero}, **more})


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_what_deepspeed_takes(folder: ReadFolder, key: str, value: object) -> None:
    assert not judged(folder({"z.json": of({key: value})}, **KNOWN)).errors


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_what_deepspeed_refuses(folder: ReadFolder, key: str, value: object) -> None:
    assert key in judged(folder({"z.json": of({key: value})}, **KNOWN)).errors[0].text


@pytest.mark.parametrize(
    ("key", "value"),
    [("optimizer", "AdamW"), ("activation_checkpointing", "full"), ("bf16", True), ("bf16", 1),
     ("zero_optimization", []), ("bf16", {"enabled": "on!"})],
)  # fmt: skip
def test_tables_that_are_none(folder: ReadFolder, key: str, value: object) -> None:
    assert judged(folder({"z.json": of({}, **{key: value})}, **KNOWN)).errors


def test_true_is_stage_one(folder: ReadFolder) -> None:
    """As it was before ZeRO had stages."""
    found = folder({"z.json": of({}, zero_optimization=True)}, **KNOWN)
    assert not judged(found).errors and found.zero == 1


@pytest.mark.parametrize(("kind", "wrong"), [("bool", "perhaps"), ("int", 0.5), ("device", "x")])
def test_every_field_of_a_type(folder: ReadFolder, kind: str, wrong: object) -> None:
    """All fields at once: each is named."""
    zero: dict[str, Any] = {}
    names = str(meanings("hf", "deepspeed-types")[kind]).split()
    for name in names:
        table, _, inner = name.rpartition(".")
        (zero.setdefault(table, {}) if table else zero)[inner] = wrong
    texts = " ".join(problem.text for problem in folder({"z.json": of(zero)}, **KNOWN).problems)
    assert all(f"zero_optimization.{name}: {wrong!r} is not" in texts for name in names)
