"""What a search offers for a framework can be launched with it; what cannot is said."""

from __future__ import annotations

from functools import partial

import pytest

from planner.job.errors import NothingFitsError, UsageError
from planner.job.request import Request
from planner.launch.plans import find_plans, launch_of, usual_target
from planner.launch.registry import targets
from planner.predict.configuration import decided_request

# Grouped heads, tied embeddings, biases, experts, latent attention, LayerNorm with dropout masks.
MODELS = (
    "llama-3-8b",
    "smollm2-1.7b",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gpt3-1.3b",
    "gemma-2-9b",
)
NOTED = "planner launch writes none of these plans"
# Half of what hf-transformers offers is sharded, which no file of its target says: a note tells.
PARTLY = "hf-transformers"
_WRITTEN = dict.fromkeys(target.profile for target in targets().values())
PROFILES = (*(name for name in _WRITTEN if name != PARTLY), "megatron-fsdp")
# The plans of a table, not the whole front.
offered = partial(find_plans, short=6)
# Small searches: few micro-batches, no long pipelines.
LIMITS = {"mbs": (1, 2), "tp": (1, 2), "pp": (1, 2, 4), "vpp": (1, 2)}
OPTIONS: dict[str, dict[str, object]] = {
    "8-bit": {"optimizer": "adamw-8bit"},
    "8-bit on the CPU": {"optimizer": "adamw-8bit", "optimizer_offload": 1.0},
    "bf16 states": {"optimizer": "adamw-bf16", "optimizer_offload": "search"},
    "sgd on the CPU": {"optimizer": "sgd", "optimizer_offload": "search"},
    "lion": {"optimizer": "lion"},
    "lists": {"optimizer_kernel": "foreach"},
    "eager": {"attention": "eager"},
    "dropout": {"dropout": True},
    "fp8": {"precision": "fp8"},
    "long": {"seq": 2**18, "gbs": 16},
    "shards": {"limits": LIMITS | {"shard": (4, 8)}},
}


def refused(request: Request) -> list[str]:
    """Why plans of a search cannot be launched though no note says so; none where none is found."""
    try:
        found = offered(request)
    except (UsageError, NothingFitsError):
        return []
    if any(NOTED in note for note in found.notes):
        return []
    reasons = []
    for plan in found.plans:
        target = usual_target(plan, request)
        try:
            launch_of(plan, decided_request(request, plan), target, "torchrun", found.job.used_gpus)
        except UsageError as error:
            reasons.append(str(error))
    return reasons


def job(**fields: object) -> Request:
    values = {"gpus": "16xH100", "gbs": 64, "seq": 4096, "limits": LIMITS, **fields}
    return Request.model_validate(values)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_offered_plan_is_launchable(profile: str) -> None:
    for model in MODELS:
        assert refused(job(model=model, framework=profile)) == [], model


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_whatever_the_options(options: dict[str, object]) -> None:
    for profile in PROFILES:
        assert refused(job(model="llama-3-8b", framework=profile, **options)) == [], profile


@pytest.mark.parametrize("profile", PROFILES)
def test_something_is_offered(profile: str) -> None:
    """The tests above would pass on empty hands."""
    found = offered(job(model="llama-3-8b", framework=profile))
    assert found.plans
    assert not any(NOTED in note for note in found.notes)


def test_sharded_plans_of_transformers_are_noted() -> None:
    found = offered(job(model="llama-3-8b", framework=PARTLY))
    notes = [note for note in found.notes if "not written by planner launch" in note]
    sharded = [number for number, plan in enumerate(found.plans, start=1) if plan.degrees.zero]
    assert sharded
    assert all(str(number) in notes[0] for number in sharded)
    alone = job(model="llama-3.2-1b", gpus="1xH100", framework=PARTLY, gbs=16)
    assert refused(alone) == []


def test_a_pipeline_of_nanotron_has_nanotron_s_stages() -> None:
    """Llama 3 8B on two stages: 18 and 14 layers, as its own `build_model` places them."""
    limits = LIMITS | {"pp": (2,), "tp": (2,)}
    found = offered(job(model="llama-3-8b", framework="nanotron", limits=limits))
    assert {plan.layout.block_layers for plan in found.plans} == {(18, 14)}


@pytest.mark.parametrize(
    ("fields", "reason", "instead"),
    [
        ({"model": "gemma-2-9b", "framework": "megatron-core"}, "norms placed", "hf-fsdp2"),
        ({"model": "olmoe-1b-7b", "framework": "nanotron"}, "no experts", "megatron-core"),
        (
            {"model": "llama-3-8b", "framework": "hf-fsdp2", "optimizer": "adamw-8bit",
             "optimizer_offload": 1.0},
            "no CPU kernel", "--optimizer adamw",
        ),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_launched_says_so(
    fields: dict[str, object], reason: str, instead: str
) -> None:
    """It is searched all the same: people run forks that have the model."""
    notes = [note for note in offered(job(**fields)).notes if NOTED in note]
    assert len(notes) == 1
    assert reason in notes[0]
    assert instead in notes[0]


def test_nanotron_has_no_context_parallelism() -> None:
    with pytest.raises(UsageError, match="no context parallelism"):
        offered(job(model="llama-3-8b", framework="nanotron", limits={"cp": (2,)}))


def test_a_schedule_asked_for_by_name_is_searched_and_noted() -> None:
    found = offered(
        job(model="llama-3-8b", framework="torchtitan", schedule="zb-v", limits={"pp": (2,)})
    )
    assert any("not written by planner launch for torchtitan" in note for note in found.notes)


def test_a_writer_s_name_means_the_profile_of_its_plans() -> None:
    assert job(model="llama-3-8b", framework="accelerate").framework == "hf-fsdp2"
