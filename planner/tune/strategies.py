"""Strategies for choosing trials on a recorded sweep: the loop and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.job.errors import demand_installed
from planner.job.job import SURE_TO_FIT
from planner.tune.belief import Observation
from planner.tune.errors import Array
from planner.tune.recorded import Sweep
from planner.tune.value import best_trial

# Most trials that are played.
MOST = 10
# Assumed seconds of the job that is tuned.
REST_S = 30 * 86_400.0
# Repetitions of random strategies.
REPEATS = 20
# Random trials at the start of TPE: its usual ten would be all that are played.
_TPE_START = 3


@dataclass(frozen=True)
class Played:
    """One strategy on one group: regret of the recommended plan and GPU-seconds spent, after 0, 1,
    ... `MOST` trials; `stopped`: number of trials after which the loop finds that no further one
    pays."""

    regrets: Array
    gpu_s: Array
    stopped: int | None = None


Strategy = Callable[[Sweep], Played]


def loop(sweep: Sweep) -> Played:
    """Choose as `planner tune` does, but continue even if it would stop."""
    belief, costs = sweep.belief, sweep.expected_gpu_s()
    regrets, spent, stopped = [], [0.0], None
    for trials in range(MOST + 1):
        regrets.append(sweep.regret(belief.place(belief.recommended)))
        if trials == MOST:
            break
        choice = best_trial(belief, costs, REST_S)
        if stopped is None and not choice.pays:
            stopped = trials
        if choice.trial is None:
            spent.append(spent[-1])
            continue
        place = belief.place(choice.trial)
        spent.append(spent[-1] + sweep.gpu_s(place))
        belief = belief.observed([_observation(sweep, place)])
    return Played(np.array(regrets), np.array(spent), stopped)


def _observation(sweep: Sweep, place: int) -> Observation:
    """The observation from the recorded run of a candidate."""
    key = sweep.candidates[place].key
    if not sweep.ran[place]:
        return Observation(key, out_of_memory=True)
    return Observation(key, float(sweep.seconds[place]))


def by_prediction(sweep: Sweep) -> Played:
    """Trials in the order of the prediction, without learning: first the candidates that fit with
    the probability that a search requires, then the others, each sorted by predicted step time."""
    unsure = [one.fits < SURE_TO_FIT for one in sweep.candidates]
    expected = [one.step_s for one in sweep.candidates]
    return in_order(sweep, np.lexsort((expected, unsure)))


def in_order(sweep: Sweep, order: NDArray[np.int64]) -> Played:
    """Trials in a fixed order. The fastest candidate that was tried is recommended; before any has
    run, the next one of the order."""
    count = len(order)
    tried = np.array([sweep.seconds[place] for place in order[:MOST]])
    costs = [sweep.gpu_s(int(place)) for place in order[:MOST]]
    regrets = []
    for trials in range(MOST + 1):
        ran = tried[:trials]
        if len(ran) and np.isfinite(ran.min()):
            place = int(order[int(ran.argmin())])
        else:
            place = int(order[min(trials, count - 1)])
        regrets.append(sweep.regret(place))
    spent = np.concatenate([[0.0], np.cumsum(costs)])
    return Played(np.array(regrets), np.pad(spent, (0, MOST + 1 - len(spent)), mode="edge"))


def at_random(sweep: Sweep) -> Played:
    """Trials in random order, mean over `REPEATS`."""
    generator = np.random.default_rng(0)
    return _mean([in_order(sweep, generator.permutation(len(sweep.seconds))) for _ in _times()])


def _times() -> range:
    return range(REPEATS)


def _mean(played: Sequence[Played]) -> Played:
    return Played(
        np.mean([one.regrets for one in played], axis=0),
        np.mean([one.gpu_s for one in played], axis=0),
    )


def by_tpe(sweep: Sweep) -> Played:
    """Trials proposed by Optuna's TPE, which knows the configurations but no predictions, mean over
    `REPEATS`. Each proposal is replaced by the nearest recorded configuration not yet tried."""
    demand_installed("the comparison with TPE needs", "tune", "optuna")
    return _mean([in_order(sweep, np.array(list(_tpe_order(sweep, seed)))) for seed in _times()])


def _tpe_order(sweep: Sweep, seed: int) -> Iterator[int]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = _parameters(sweep)
    space: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(sorted({row[name] for row in rows}))
        for name in rows[0]
    }
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_TPE_START)
    study = optuna.create_study(sampler=sampler)
    left = list(range(len(rows)))
    slowest = float(sweep.seconds[sweep.ran].max())
    while left and len(rows) - len(left) < MOST:
        asked = study.ask(space).params
        place = min(left, key=lambda at: sum(rows[at][name] != asked[name] for name in asked))
        left.remove(place)
        seconds = float(sweep.seconds[place]) if sweep.ran[place] else 2.0 * slowest
        study.add_trial(
            optuna.trial.create_trial(params=rows[place], distributions=space, value=seconds)
        )
        yield place
    yield from left


def _parameters(sweep: Sweep) -> list[dict[str, str]]:
    """The parameters that differ between configurations, by name, as texts, since TPE treats them
    as categories."""
    found = []
    for one in sweep.candidates:
        configuration = one.configuration
        degrees = configuration.degrees.model_dump()
        found.append(
            {name: f"{value:06d}" for name, value in degrees.items()}
            | {
                "recompute": configuration.mode.name,
                "attention": f"{configuration.job.attention} {configuration.job.attention_kernel}",
                "rest": " ".join(filter(None, map(one.prediction.row.text, _REST))),
            }
        )
    varied = [name for name in found[0] if len({row[name] for row in found}) > 1]
    return [{name: row[name] for name in varied} for row in found]


_REST = ("kernel", "variant", "software", "schedule", "loss", "fabric")
