"""nanotron's writer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from planner.cost.layout import usual_split
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.launch.contract import Launch
from planner.launch.dialects.nanotron import writer as nanotron
from planner.launch.plans import refusals_of
from planner.predict.cost_tables import greedy_costs
from tests.launch.golden_files import check_golden
from tests.launch.nanotron_cases import BASE, LLAMA, MATRIX
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, changed, launch_of


def stage_split(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron places them."""
    costs = greedy_costs(model, load_framework("nanotron").parallelism)
    return usual_split(model.layers, pp, *costs)


def launch(item: Case) -> Launch:
    return launch_of(item, "nanotron", "nanotron")


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_says_what_the_plan_says(entry: Case) -> None:
    assert_complete(nanotron, launch(entry))
    read: Any = yaml.safe_load(nanotron.files(launch(entry))["nanotron.yaml"])
    degrees, given, tokens = launch(entry).plan.degrees, read["parallelism"], read["tokens"]
    ranks = given["dp"] * given["tp"] * given["pp"] * given["context_parallel_size"]
    assert ranks == degrees.gpus
    batch = tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * given["dp"]
    assert batch == degrees.gbs
    assert tokens["sequence_length"] == launch(entry).plan.seq
    assert read["optimizer"]["zero_stage"] == degrees.zero
    assert given["recompute_layer"] == (launch(entry).plan.recompute == "full")
    model = read["model"]["model_config"]
    spec = launch(entry).job.model
    assert model["num_hidden_layers"] == spec.layers
    assert model["vocab_size"] == spec.vocab
    assert model.get("attention_bias", False) == spec.qkv_bias


@pytest.mark.parametrize("name", ["base", "biases"])
def test_golden(name: str) -> None:
    found = next(item for item in MATRIX if item.name == name)
    check_golden(f"nanotron/{name}", nanotron.files(launch(found)))


def test_stages_by_hand() -> None:
    """Llama 3.1 8B on two stages: a layer 4·4096² + 3·14336·4096 = 243.3 M, the head 525.3 M.

    Half of 32·243.3 + 525.3 = 8,310 M is exceeded by the 18th layer (4,379 M), which still goes
    to the first stage.
    """
    assert stage_split(load_model(LLAMA).spec, 2) == (18, 14)


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-2-7b", "llama-3.1-70b", "gpt3-1.3b"])
def test_stages_hold_every_layer(name: str, pp: int) -> None:
    model = load_model(name).spec
    split = stage_split(model, pp)
    assert len(split) == pp
    assert sum(split) == model.layers
    assert min(split) >= 0


PIPELINE = next(item for item in MATRIX if item.name == "pipeline")


def test_pipelines_are_placed_by_nanotron() -> None:
    """A plan costed before its stages were nanotron's own."""
    found = launch(PIPELINE)
    layout = replace(found.plan.layout, block_layers=(16, 16))
    old = Launch(
        found.plan.model_copy(update={"layout": layout}), found.request, found.job, "nanotron"
    )
    assert "18+14 on 2 stages, not the plan's 16+16" in reasons(old)


def test_a_pipeline_takes_the_stages_that_nanotron_makes() -> None:
    found = launch(PIPELINE)
    assert found.plan.layout.block_layers == stage_split(found.job.model, 2) == (18, 14)
    read: Any = yaml.safe_load(nanotron.files(found)["nanotron.yaml"])
    assert list(refusals_of(found)) == []
    assert read["parallelism"]["pp_engine"] == "1f1b"


REFUSED = (
    (case("moe", "mixtral-8x7b", "32xH100", zero=1), "experts"),
    (case("norm", "qwen3-8b", "8xH100", zero=1, tp=4), "query/key norm"),
    (case("foreach", "llama-3.2-1b", "8xH100", zero=1, more={"optimizer_kernel": "foreach"}),
     "fused or one by one"),
    (case("dropout", "llama-3.2-1b", "8xH100", zero=1, more={"dropout": True}), "no dropout"),
)  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), REFUSED, ids=lambda item: getattr(item, "name", ""))
def test_refused(entry: Case, reason: str) -> None:
    assert reason in reasons(launch(entry))


def test_refused_attention() -> None:
    assert "flash attention" in reasons(changed(launch(BASE), attention="eager"))
