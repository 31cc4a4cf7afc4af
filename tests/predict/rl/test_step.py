"""Phases that add up, phases that overlap, and what is held while they last."""

import dataclasses

import pytest

from planner.predict.configuration import Configuration
from planner.predict.plan import Degrees
from planner.predict.rl.plan import EngineLayout, Generation, Phase, RlLayout, Training
from planner.predict.rl.step import beside_engine, compose
from tests.job.rl.test_request import request

GIB = 2.0**30
_PROFILE = ((0.0, 1.0), (60.0, 0.5), (70.0, 0.1), (100.0, 0.0))


def made(placement="colocated", staleness=0, generation_s=100.0, update_s=40.0, **given):
    """A step of a trainer and an engine whose figures are given."""
    job = request(model="qwen2.5-0.5b", gpus="8xH100", **given.pop("request", {})).resolve()
    trainer = job.trainer.on_gpus(8 if placement == "colocated" else 4)
    degrees = Degrees(dp=trainer.cluster.num_gpus, tp=1, pp=1, cp=1, mbs=1, grad_acc=1)
    layout = RlLayout(
        placement,
        Configuration.even(trainer, degrees),
        EngineLayout(8 if placement == "colocated" else 4),
        staleness,
        **given,
    )
    held = {"weights": 1.0 * GIB, "KV cache": 40.0 * GIB}
    engine = Phase("generation", "engine", generation_s, {"decode": generation_s}, held, 0.8, 1.3)
    generation = Generation(engine, 0.6 * generation_s, 30.0, 256, 2.0, 0.0, 1e6, _PROFILE, True)
    phases = (
        Phase("old_logprobs", "trainer", 10.0, {"forward": 10.0}, {"weights": 2.0 * GIB}),
        Phase("update", "trainer", update_s, {"step": update_s}, {"weights": 30.0 * GIB}, 0.9, 1.1),
    )
    training = Training(phases, {"weights": 4.0 * GIB, "states": 8.0 * GIB}, {"context": GIB}, 1e9)
    return job, layout, compose(job, layout, training, generation)


def test_colocated_phases_add_up_in_order():
    _, _, step = made()
    assert step.step_s == pytest.approx(sum(phase.seconds for phase in step.phases))
    names = [phase.name for phase in step.phases]
    assert names == ["transfer", "wake", "generation", "sleep", "old_logprobs", "update"]
    assert step.low_s < step.step_s < step.high_s
    assert step.idle == {"trainer": 0.0, "engine": 0.0}


def test_a_trainer_that_leaves_makes_room_and_takes_time():
    _, stays, step = made()
    _, leaves, left = made(trainer_leaves=True)
    assert sum(beside_engine(stays, step.training).values()) == pytest.approx(13.0 * GIB)
    assert sum(beside_engine(leaves, left.training).values()) == pytest.approx(1.0 * GIB)
    assert left.step_s > step.step_s
    sampling = {one.name: one.peak_bytes for one in left.phases}
    assert sampling["generation"] == pytest.approx(42.0 * GIB)


def test_on_their_own_synchronous_sides_wait_for_each_other():
    _, _, step = made("separate")
    assert step.step_s == pytest.approx(100.0 + 50.0 + step.transfer.seconds)
    assert step.idle["trainer"] == pytest.approx(100.0 / step.step_s)


def test_with_staleness_the_slower_side_binds():
    _, _, step = made("separate", 1)
    assert step.step_s == pytest.approx(100.0 + step.transfer.seconds)
    _, _, trains = made("separate", 1, update_s=300.0)
    assert trains.step_s == pytest.approx(310.0 + trains.transfer.seconds)


def test_answers_that_go_on_over_an_update_leave_no_tail():
    _, _, step = made("separate", 2, streams=True)
    assert step.step_s == pytest.approx(60.0 + step.transfer.seconds)


def test_an_engine_that_never_sleeps_stays_beside_the_update():
    trl = {"framework": "trl", "trainer": {"framework": "hf-fsdp2"}}
    _, _, asleep = made()
    _, _, awake = made(request=trl)
    update = {one.name: one.peak_bytes for one in awake.phases}["update"]
    assert update == pytest.approx(71.0 * GIB)
    assert {one.name: one.peak_bytes for one in asleep.phases}["update"] < 33.0 * GIB


def test_it_fits_as_surely_as_its_fullest_phase():
    _, _, step = made()
    assert step.fits
    assert step.fit_probability > 0.9
    phases = tuple(
        dataclasses.replace(one, held={"weights": 160.0 * GIB}) if one.name == "update" else one
        for one in step.training.phases
    )
    job, layout, _ = made()
    too_large = compose(
        job, layout, dataclasses.replace(step.training, phases=phases), step.generation
    )
    assert not too_large.fits
    assert too_large.fit_probability < 0.1


def test_a_reward_that_takes_time_counts():
    _, _, rule = made()
    _, _, seconds = made(request={"reward": "7.5"})
    assert seconds.step_s == pytest.approx(rule.step_s + 7.5)
