"""MaxText's writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.job.errors import UsageError
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.contract import Launch
from planner.launch.dialects.maxtext import writer
from planner.launch.dialects.maxtext.mesh import AXES, key, sizes_of, spread
from planner.launch.dialects.maxtext.settings import is_known, keys
from planner.launch.folder import launch_folder
from planner.launch.read.found import Hints
from tests.launch.golden_files import check_golden
from tests.launch.maxtext_cases import BASE, LLAMA, MATRIX
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of


def launch(item: Case) -> Launch:
    return launch_of(item, "maxtext", "maxtext")


def written(item: Case) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(writer.files(launch(item))[writer.CONFIG])
    return read


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_says_what_the_plan_says(entry: Case) -> None:
    """The mesh holds every GPU, a node the axes of `ici`; a step trains on the global batch."""
    assert_complete(writer, launch(entry))
    read, plan = written(entry), launch(entry).plan
    inside = outside = 1
    for axis in AXES:
        inside *= read[key("ici", axis)]
        outside *= read[key("dcn", axis)]
    assert inside == launch(entry).gpus_per_node
    assert inside * outside == plan.degrees.gpus
    batch = read["per_device_batch_size"] * read["gradient_accumulation_steps"] * plan.degrees.gpus
    assert batch == plan.degrees.gbs
    assert read["max_target_length"] == plan.seq
    assert read["remat_policy"] == plan.recompute
    assert read["base_num_decoder_layers"] == launch(entry).job.model.layers


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_writes_settings_that_there_are_with_values_that_they_take(entry: Case) -> None:
    for name, value in written(entry).items():
        assert is_known(name), name
        assert keys()[name].read(value) == value, name
    for word in writer.command(launch(entry)).argv[3:]:
        assert is_known(word.partition("=")[0]), word


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_a_folder_is_predicted_as_its_plan(entry: Case, tmp_path: Path) -> None:
    """Also where MaxText departs from the model, which its README says and no problem repeats."""
    own = launch(entry)
    write_folder(tmp_path / "run", launch_folder(own).files, force=False)
    given = read_given([str(tmp_path / "run")], Hints(), 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.problems == ()
    assert found.plan is not None
    assert (found.plan.step_time_s, found.plan.peak_bytes) == pytest.approx(
        (own.plan.step_time_s, own.plan.peak_bytes), rel=1e-9
    )


@pytest.mark.parametrize("name", ["base", "pipeline", "latent"])
def test_golden(name: str) -> None:
    found = next(item for item in MATRIX if item.name == name)
    check_golden(f"maxtext/{name}", writer.files(launch(found)))


def test_a_pipeline_takes_the_step_in_one_pass() -> None:
    """Eight micro-batches of one sequence on four data-parallel ranks: two sequences a GPU."""
    read = written(next(item for item in MATRIX if item.name == "pipeline"))
    assert read["num_pipeline_microbatches"] == 8
    assert (read["per_device_batch_size"], read["gradient_accumulation_steps"]) == (2, 1)
    assert (read["num_layers_per_pipeline_stage"], read["num_vocab_tiling"]) == (16, 4)
    assert not read["scan_layers"]


def test_ranks_of_an_axis_fill_a_node_before_those_of_the_next() -> None:
    """Experts over eight nodes of which tensor parallelism takes four GPUs each."""
    sizes = {"tensor": 4, "context": 1, "expert": 8, "fsdp": 2, "data": 2, "pipeline": 1}
    assert spread(sizes, 8) == {
        "tensor": (4, 1), "context": (1, 1), "expert": (2, 4), "fsdp": (1, 2), "data": (1, 2),
        "pipeline": (1, 1),
    }  # fmt: skip
    assert spread({**sizes, "tensor": 3}, 8) is None


def test_shards_are_fsdp_context_and_experts() -> None:
    plan = launch(next(item for item in MATRIX if item.name == "latent")).plan
    sizes = sizes_of(plan.degrees)
    assert sizes is not None
    assert (sizes["fsdp"], sizes["expert"], sizes["data"]) == (4, 64, 1)


def test_jax_is_left_less_memory_than_there_is() -> None:
    command = writer.command(launch(BASE))
    fraction = float(command.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"][0])
    assert 0.9 <= fraction <= 0.95
    peak = max(stage.allocated for stage in launch(BASE).plan.stages)
    assert peak < fraction * launch(BASE).plan.usable_bytes


REFUSED = (
    (case("gemma", "gemma-2-9b", "8xH100", zero=3), "sandwich"),
    (case("none", LLAMA, "8xH100", zero=3), "without a remat_policy"),
    (case("microbatches", LLAMA, "16xH100", zero=3, pp=4, grad_acc=6, recompute="full"),
     "multiple of the stages"),
    (case("width", "qwen2.5-0.5b", "256xH100", zero=3, recompute="full"), "does not divide"),
    (case("optimizer", LLAMA, "8xH100", zero=3, recompute="full", more={"dropout": True}),
     "no dropout"),
)  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), REFUSED, ids=lambda item: getattr(item, "name", ""))
def test_refused(entry: Case, reason: str) -> None:
    assert reason in reasons(launch(entry))


def test_refused_mesh() -> None:
    """ZeRO-0 with experts, which MaxText shards over: a plan of another framework."""
    plan = launch(next(item for item in MATRIX if item.name == "experts")).plan
    degrees = plan.degrees.model_copy(update={"zero": 0})
    other = plan.model_copy(update={"degrees": degrees})
    found = launch(next(item for item in MATRIX if item.name == "experts"))
    assert "out of one group" in reasons(
        Launch(other, found.request, found.job, found.target, found.nodes_as)
    )


@pytest.mark.parametrize("degrees", [{"zero": 3, "tp": 2, "etp": 1}, {"zero": 1}])
def test_experts_outside_of_the_shards_are_no_plan(degrees: dict[str, Any]) -> None:
    """Nor does a search offer one: the profile's rule."""
    outside = case("experts", "mixtral-8x7b", "16xH100", ep=4, recompute="full", **degrees)
    with pytest.raises(UsageError, match="etp must be tp; ep > 1 only with zero 3"):
        launch(outside)


def test_uneven_stages_are_no_plan() -> None:
    """28 layers on eight stages: the profile's rule says so before the writer does."""
    uneven = case("stages", "llama-3.2-3b", "16xH100", zero=3, pp=8, grad_acc=8, recompute="full",
                  blocks=(3, 3, 3, 3, 4, 4, 4, 4))  # fmt: skip
    with pytest.raises(UsageError, match="layers"):
        launch(uneven)
