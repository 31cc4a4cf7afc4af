"""Which plans the switches reduce for, what it changes in them, and how sure that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware.errors import HardwareError
from planner import Degrees, Plan, Request, evaluate
from planner.job.errors import UsageError
from planner.predict.sharp import NOTE, or_by_hosts, sharp_use

REPLICATED = Degrees(tp=8, dp=8, zero=0, grad_acc=4)
SHARDED = Degrees(tp=8, dp=8, zero=1, grad_acc=4)
HYBRID = Degrees(tp=2, dp=32, zero=1, grad_acc=1, shard=8)
MANY_GROUPS = Degrees(tp=8, pp=4, dp=2, zero=0, grad_acc=16)


def plan(degrees: Degrees, sharp: bool, gpus: str = "64xH100", framework: str = "") -> Plan:
    request = Request(
        model="llama-3-8b",
        gpus=gpus,
        gbs=degrees.gbs,
        sharp=sharp,
        framework=framework or "megatron-core",
        allow_tp_across_domains=True,
    )
    return evaluate(request, degrees)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Plan, Plan]]:
    """Each configuration without and with SHARP."""
    named = {"replicated": REPLICATED, "sharded": SHARDED, "hybrid": HYBRID}
    exposed = "megatron-core-no-overlap"
    return {
        name: (plan(item, False, framework=exposed), plan(item, True, framework=exposed))
        for name, item in named.items()
    }


def test_replicated_gradients_are_all_reduced_faster(pairs: dict[str, tuple[Plan, Plan]]) -> None:
    without, switched = pairs["replicated"]
    assert switched.step_time_s < without.step_time_s
    assert switched.time.dp_s < 0.8 * without.time.dp_s
    assert switched.time.compute_s == without.time.compute_s


def test_so_are_those_of_replicas_of_shards(pairs: dict[str, tuple[Plan, Plan]]) -> None:
    without, switched = pairs["hybrid"]
    assert switched.step_time_s < without.step_time_s


def test_scatters_and_gathers_save_latency_alone(pairs: dict[str, tuple[Plan, Plan]]) -> None:
    without, switched = pairs["sharded"]
    assert switched.step_time_s <= without.step_time_s
    assert switched.time.dp_s > 0.95 * without.time.dp_s


def test_the_interval_reaches_to_where_the_switches_bring_nothing(
    pairs: dict[str, tuple[Plan, Plan]],
) -> None:
    without, switched = pairs["replicated"]
    assert switched.step_time.high == pytest.approx(without.step_time.high, rel=1e-3)
    assert any("SHARP" in text for text in switched.step_time.beyond)
    assert not any("SHARP" in text for text in without.step_time.beyond)


def test_a_plan_says_that_no_run_was_compared(pairs: dict[str, tuple[Plan, Plan]]) -> None:
    without, switched = pairs["replicated"]
    assert NOTE in switched.assumptions
    assert NOTE not in without.assumptions


def test_more_groups_than_trees_change_nothing_and_say_so() -> None:
    """32 groups of two A100 nodes: Quantum switches have trees for 8."""
    without = plan(MANY_GROUPS, False, "64xA100")
    switched = plan(MANY_GROUPS, True, "64xA100")
    assert switched.step_time_s == without.step_time_s
    assert switched.step_time == without.step_time
    assert any("32 data-parallel groups" in text for text in switched.assumptions)


@pytest.mark.parametrize(
    ("degrees", "gpus", "group", "size", "groups", "words"),
    [
        (REPLICATED, "64xH100", "dp", 8, 8, ""),
        (SHARDED, "64xH100", "dp", 8, 8, ""),
        (HYBRID, "64xH100", "dp_replica", 4, 16, ""),
        (MANY_GROUPS, "64xA100", "dp", 2, 32, "32 data-parallel groups"),
        (Degrees(pp=8, dp=8, zero=0, grad_acc=8), "64xH100", "dp", 8, 8, "inside a scale-up"),
        (Degrees(tp=8, pp=8, dp=1, zero=0, grad_acc=8), "64xH100", "dp", 1, 64, "inside a scale"),
    ],
)
def test_which_groups_have_the_switches(
    degrees: Degrees, gpus: str, group: str, size: int, groups: int, words: str
) -> None:
    job = Request(model="llama-3-8b", gpus=gpus, gbs=degrees.gbs, sharp=True).resolve()
    use = sharp_use(job, degrees)
    assert use is not None
    assert (use.group, use.size, use.groups) == (group, size, groups)
    assert bool(use.reason) == bool(words)
    assert words in use.reason


def test_nics_shared_by_gpus_do_not_scatter() -> None:
    job = Request(model="llama-3-8b", gpus="64xH100", gbs=32, sharp=True).resolve()
    shared = job.cluster.model_copy(update={"nics_per_node": 4})
    use = sharp_use(replace(job, cluster=shared), SHARDED)
    assert use is not None
    assert "each GPU has a NIC" in use.reason


def test_without_sharp_nothing_is_said() -> None:
    job = Request(model="llama-3-8b", gpus="64xH100", gbs=32).resolve()
    assert sharp_use(job, REPLICATED) is None


def test_an_interval_is_widened_upwards_alone(pairs: dict[str, tuple[Plan, Plan]]) -> None:
    step_time = pairs["replicated"][0].step_time
    beside = step_time.model_copy(update={"low": 1.1 * step_time.low, "high": 1.1 * step_time.high})
    wider = or_by_hosts(step_time, 10.0, beside, 11.0)
    assert (wider.low, wider.high) == (step_time.low, 1.1 * step_time.high)
    assert wider.beyond[-1] == "SHARP, 10.0 % of the step"
    assert or_by_hosts(step_time, 10.0, step_time, 10.0) == step_time


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": "64xaws-p5"}, "only InfiniBand switches reduce"),
        ({"gpus": "64xMI300X"}, "primus cannot name the communicator"),
        ({"gpus": "64xH100", "framework": "torchtitan"}, "frameworks that can: megatron-bridge"),
        ({"gpus": "64xH100", "framework": "deepspeed"}, "cannot name the communicator"),
    ],
)
def test_what_cannot_be_says_why(fields: dict[str, str], words: str) -> None:
    with pytest.raises((UsageError, HardwareError), match=words):
        Request(model="llama-3-8b", gbs=64, sharp=True, **fields).resolve()  # type: ignore[arg-type]


def test_a_framework_that_cannot_name_a_group_goes_without(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('gpu = "H100"\nnum_gpus = 64\nsharp = "v3"\n', encoding="utf-8")
    titan = Request(model="llama-3-8b", gbs=64, cluster=str(path), framework="torchtitan")
    assert titan.resolve().cluster.sharp == ""
    assert Request(model="llama-3-8b", gbs=64, cluster=str(path)).resolve().cluster.sharp == "v3"


def test_each_part_of_a_pool_has_its_own_switches() -> None:
    pool = Request(model="llama-3-8b", gpus="32xH100+32xH200", gbs=64, sharp=True).resolve()
    assert all(machine.cluster.sharp for machine in pool.machines)
    assert pool.on_clusters(lambda one: one.model_copy(update={"sharp": ""})).cluster.sharp == ""
