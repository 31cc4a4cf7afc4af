"""Plans for another framework: costed anew, or refused with the search for those that it runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner import Degrees, Request
from planner.cli.program import planner_command
from planner.job.errors import UsageError
from planner.launch.plans import CannotExpressError, launch_of
from planner.launch.registry import target_named, targets
from planner.predict.evaluate import evaluate
from planner.predict.plan import Plan
from planner.search.plan_file import read_plan_file

Planned = Callable[..., tuple[Plan, Request]]


def planned(degrees: Degrees, recompute: str = "none", **fields: object) -> tuple[Plan, Request]:
    """A plan of an 8B model, and its request."""
    request = Request(
        **{"model": "llama-3-8b", "gpus": "8xH100", "gbs": degrees.gbs, "seq": 4096, **fields}
    )
    return evaluate(request, degrees, recompute), request


def test_the_own_framework_keeps_the_plan() -> None:
    plan, request = planned(Degrees(tp=2, dp=4, zero=1, grad_acc=4))
    launch = launch_of(plan, request, target_named("megatron-core"), "slurm")
    assert launch.plan is plan
    assert launch.target == "megatron-core"


@pytest.mark.parametrize(
    ("framework", "model", "degrees", "rule"),
    [
        ("torchtitan", "smollm2-1.7b", {"pp": 2, "dp": 4}, "tied-embeddings-whole"),
        ("torchtitan", "llama-3-8b", {"cp": 2, "dp": 4, "zero": 0}, "context-ranks-shard"),
        ("torchtitan", "qwen3-30b-a3b", {"ep": 8, "zero": 0}, "experts-in-shards"),
        ("accelerate", "llama-3-8b", {"tp": 2, "dp": 4}, "tensor-supported"),
        ("accelerate", "llama-3-8b", {"zero": 1}, "zero-stage-offered"),
        ("deepspeed", "llama-3-8b", {"cp": 2, "dp": 4}, "context-supported"),
        ("nanotron", "llama-3-8b", {"zero": 3}, "zero-stage-offered"),
        ("megatron-core", "llama-3-8b", {"pp": 2, "vpp": 2, "dp": 4, "grad_acc": 5},
         "interleaving-microbatches"),
    ],
)  # fmt: skip
def test_a_plan_that_was_edited_breaks_a_rule(
    framework: str, model: str, degrees: dict[str, int], rule: str
) -> None:
    target = target_named(framework)
    zero = 1 if framework in ("nanotron", "megatron-core") else 3
    plan, request = planned(
        Degrees(dp=8, zero=zero, grad_acc=4), framework=target.profile, model=model
    )
    edited = plan.model_copy(update={"degrees": plan.degrees.model_copy(update=degrees)})
    with pytest.raises(CannotExpressError, match=rule):
        launch_of(edited, request, target, "torchrun")
    layout = replace(plan.layout, block_layers=(3,))
    with pytest.raises(CannotExpressError, match="layers"):
        launch_of(plan.model_copy(update={"layout": layout}), request, target, "torchrun")


def test_another_framework_costs_it_anew() -> None:
    plan, request = planned(Degrees(tp=2, dp=4, zero=1, grad_acc=4))
    launch = launch_of(plan, request, target_named("megatron-bridge"), "torchrun")
    found = request.model_copy(update={"framework": "megatron-bridge"})
    assert launch.plan.step_time_s == evaluate(found, plan.degrees).step_time_s
    assert launch.plan.step_time_s != plan.step_time_s
    assert launch.job.framework.name == "megatron-bridge"


@pytest.mark.parametrize(
    ("degrees", "recompute", "reason"),
    [
        (Degrees(dp=8, zero=3, grad_acc=8), "none", "zero"),
        (Degrees(dp=8, zero=3, grad_acc=8), "selective", "core attention"),
        (Degrees(dp=8, zero=3, grad_acc=8), "full/2", "full/2"),
    ],
)
def test_refused_with_the_search_for_plans_that_it_runs(
    degrees: Degrees, recompute: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan, request = planned(degrees, recompute, framework="torchtitan")
    with pytest.raises(CannotExpressError) as caught:
        launch_of(plan, request, target_named("megatron-core"), "torchrun")
    assert reason in str(caught.value)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(str(caught.value).splitlines()[-1])[1:]
    assert CliRunner().invoke(planner_command, [*words, "--zero", "1", "--tp", "2"]).exit_code == 0
    [found, *_] = read_plan_file(Path("megatron-core-plans.json")).plans
    assert (found.degrees.gpus, found.gbs) == (plan.degrees.gpus, plan.gbs)


def test_limits_of_the_search_do_not_bind_the_launch() -> None:
    plan, request = planned(Degrees(tp=2, dp=4, zero=1, grad_acc=4))
    limited = request.model_copy(update={"limits": {"tp": (2,)}, "gbs": None, "gbs_tokens": 65536})
    launch = launch_of(plan, limited, target_named("megatron-core"), "torchrun")
    assert launch.request.gbs == plan.gbs
    assert launch.request.limits == {}


def test_part_of_the_gpus() -> None:
    plan, request = planned(Degrees(tp=2, dp=4, zero=1, grad_acc=4))
    more = request.model_copy(update={"gpus": "9xH100"})
    launch = launch_of(plan, more, target_named("megatron-core"), "torchrun", gpus=8)
    assert launch.job.cluster.num_gpus == 8
    assert (launch.nodes, launch.gpus_per_node) == (1, 8)


def test_names_of_frameworks() -> None:
    assert target_named("Megatron_Core").dialect == "megatron"
    assert target_named("megatron-local").name == "megatron-core"
    assert target_named("hf-fsdp2").name == "accelerate"
    assert target_named("torchtitan").name == "torchtitan"
    with pytest.raises(UsageError, match="Did you mean 'torchtitan'"):
        target_named("torchtitam")
    with pytest.raises(UsageError, match="give --framework"):
        target_named("nanogpt")


def test_profiles_of_targets_exist() -> None:
    from planner.job.frameworks.names import framework_names
    from planner.job.frameworks.profile import load_framework

    for target in targets().values():
        for profile in (target.profile, *target.profiles):
            assert load_framework(profile).name == profile
            # A profile has one target that writes its plans unasked.
            assert load_framework(profile).launch.target in targets()
    for name in framework_names():
        assert load_framework(name).launch.target in ("", *targets())
