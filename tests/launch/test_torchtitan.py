"""torchtitan's writer: degrees and batch of the files, golden files, refusals."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from planner.job.specs import ModelSpec
from planner.launch.contract import Launch
from planner.launch.dialects.torchtitan import writer as torchtitan
from planner.launch.dialects.torchtitan.plan import mesh_of
from planner.launch.dialects.torchtitan.sources import SCHEDULES
from planner.predict.plan import Degrees
from tests.launch.golden_files import check_golden
from tests.launch.titan_cases import DENSE, EXPERTS, LLAMA, MATRIX, SINKS
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, changed, launch_of

GOLDEN = ("fsdp", "hsdp-cp", "pp-uneven", "interleaved", "fp8", "unregistered", "ep", "mixtral",
          "mla-unregistered")  # fmt: skip


def launch(item: Case) -> Launch:
    return launch_of(item, "torchtitan", "torchtitan")


def named(name: str) -> Launch:
    return launch(next(item for item in MATRIX if item.name == name))


def calls(text: str) -> dict[str, dict[str, Any]]:
    """Literal keyword arguments of every call in a Python module, by name of what is called."""
    found: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            arguments = found.setdefault(ast.unparse(node.func), {})
            for keyword in node.keywords:
                try:
                    arguments[keyword.arg or ""] = ast.literal_eval(keyword.value)
                except ValueError:
                    continue
    return found


def assert_degrees(parallelism: dict[str, Any], training: dict[str, Any], item: Launch) -> None:
    """Degrees multiply to the GPUs; the batch is local · dp · accumulation."""
    degrees = item.plan.degrees
    replicate = parallelism["data_parallel_replicate_degree"]
    shard = parallelism["data_parallel_shard_degree"]
    tp, cp = parallelism["tensor_parallel_degree"], parallelism["context_parallel_degree"]
    pp, ep = parallelism["pipeline_parallel_degree"], parallelism["expert_parallel_degree"]
    assert replicate * shard * tp * cp * pp == degrees.gpus
    assert (shard * cp * tp) % ep == 0
    if degrees.zero:
        assert shard * cp == (degrees.shard or degrees.dp * degrees.cp)
    else:
        assert shard * cp == 1
    local, total = training["local_batch_size"], training["global_batch_size"]
    assert total == degrees.gbs
    assert total % (local * replicate * shard) == 0
    accumulation = total // (local * replicate * shard)
    micro = parallelism.get("pipeline_parallel_microbatch_size", local)
    assert micro == degrees.mbs
    assert local // micro * accumulation == degrees.grad_acc
    assert training["seq_len"] == item.plan.seq


def assert_layers(parts: list[list[str]] | None, item: Launch) -> None:
    """Every layer is in one part, in order, as many a part as the plan says."""
    if item.plan.degrees.pp == 1:
        assert parts is None
        return
    assert parts is not None
    names = [name for part in parts for name in part]
    layers = [f"layers.{index}" for index in range(item.job.model.layers)]
    assert names == ["tok_embeddings", *layers, "norm", "lm_head"]
    counts = tuple(sum(name.startswith("layers.") for name in part) for part in parts)
    assert counts == item.plan.layout.block_layers


@pytest.mark.parametrize("entry", (*MATRIX, SINKS), ids=lambda item: item.name)
def test_module_says_what_the_plan_says(entry: Case) -> None:
    assert_complete(torchtitan, launch(entry))
    text = torchtitan.files(launch(entry))["planned_run.py"]
    assert max(len(line) for line in text.splitlines()) <= 100
    found = calls(text)
    parallelism, training = found["ParallelismConfig"], found["TrainingConfig"]
    assert_degrees(parallelism, training, launch(entry))
    assert_layers(parallelism.get("module_fqns_per_model_part"), launch(entry))
    name = parallelism.get("pipeline_parallel_schedule", "1F1B")
    assert name in SCHEDULES


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    check_golden(f"torchtitan/{name}", torchtitan.files(named(name)))


@pytest.mark.parametrize(
    ("recompute", "expression"),
    [
        ("none", "activation_checkpoint=None"),
        ("full", "activation_checkpoint=FullAC.Config()"),
        ("selective", "activation_checkpoint=SelectiveAC.Config()"),
        ("budget=0.5", "activation_checkpoint=MemoryBudgetAC.Config(memory_budget=0.5)"),
        ("full/2", None),
    ],
)
def test_recompute_modes(recompute: str, expression: str | None) -> None:
    found = launch(case("recompute", LLAMA, "8xH100", zero=3, recompute=recompute))
    if expression is None:
        assert "every k-th layer" in reasons(found)
    else:
        assert expression in torchtitan.files(found)["planned_run.py"]


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (Degrees(dp=8, zero=0), (8, 1, "default")),
        (Degrees(dp=8, zero=2), (1, 8, "never")),
        (Degrees(dp=8, zero=3), (1, 8, "default")),
        (Degrees(dp=8, zero=3, pp=2, grad_acc=2), (1, 8, "always")),
        (Degrees(dp=8, zero=3, shard=4), (2, 4, "default")),
        (Degrees(dp=8, cp=2, zero=3, shard=4), (4, 2, "default")),
        (Degrees(dp=2, cp=4, zero=3), (1, 2, "default")),
    ],
)
def test_mesh(degrees: Degrees, expected: tuple[int, int, str]) -> None:
    found = mesh_of(degrees)
    assert tuple(found.values()) == expected
    assert found["replicate"] * found["shard"] == degrees.dp


REFUSED = (
    (case("zb", LLAMA, "8xH100", zero=3, pp=4, vpp=2, grad_acc=8, more={"schedule": "zb-h1"}),
     "splits the backward"),
    (case("zbv", LLAMA, "8xH100", zero=3, pp=4, vpp=2, grad_acc=8, more={"schedule": "zb-v"}),
     "splits the backward"),
    (case("gpt", "gpt3-13b", "8xH100", zero=3, more={"seq": 2048}), "LayerNorm"),
    (case("sliding", "gemma-2-9b", "8xH100", zero=3), "sliding window"),
    (case("shared-gate", "qwen1.5-moe-a2.7b", "8xH100", zero=3), "gate on the shared experts"),
    (case("muon", LLAMA, "8xH100", zero=3, more={"optimizer": "muon"}), "not muon"),
    (case("long", "llama-2-7b", "8xH100", zero=3, more={"seq": 8192}), "longer than the 4,096"),
    (case("dropout", LLAMA, "8xH100", zero=3, more={"dropout": True}), "no dropout"),
    (case("amd", LLAMA, "8xMI355X", zero=3, more={"precision": "mxfp8"}), "Blackwell only"),
)  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), REFUSED, ids=lambda item: getattr(item, "name", ""))
def test_refused(entry: Case, reason: str) -> None:
    assert reason in reasons(launch(entry))


def test_a_changed_size_is_no_registered_one() -> None:
    """A model of a catalogue name but another shape is written out."""
    plain = named("fsdp")
    model: ModelSpec = plain.job.model.model_copy(update={"ffn": 16384})
    text = torchtitan.files(changed(plain, model=model))["planned_run.py"]
    assert "FFN = 16384" in text
    assert 'model_registry("8B"' in torchtitan.files(plain)["planned_run.py"]


def test_matrix_is_broad() -> None:
    """Every axis of parallelism and every precision is in it."""
    plans = [launch(item) for item in (*DENSE, *EXPERTS)]
    for name in ("tp", "pp", "vpp", "cp", "ep", "shard"):
        assert any(getattr(plan.plan.degrees, name) > 1 for plan in plans), name
    assert {plan.job.precision for plan in plans} == {"bf16", "fp8", "mxfp8"}
    assert {plan.plan.degrees.zero for plan in plans} == {0, 2, 3}
