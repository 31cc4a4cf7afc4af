"""Many searches at once: one process each, results in the order of the tasks."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.pool import Pool
from typing import Any

from hardware.errors import HardwareError
from planner.job.errors import NothingFitsError, UsageError
from planner.job.job import Job
from planner.job.request import Request
from planner.predict.configuration import decided_request
from planner.predict.plan import Plan
from planner.predict.threads import limit_threads
from planner.predict.warmup import warm_up
from planner.search.launchable import SILENT, LaunchNotes
from planner.search.result import SearchResult

Progress = Callable[[str, int, int], None]
# Changes a request for one cluster, for example by limits on degrees, which depend on its GPUs.
Prepare = Callable[[Request, Job], Request]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search: a result with the plan to take, or the reason why there is none.

    `needs`: changes that would make something fit, in sentences. `proven`: whether it is proven
    that there is no plan. `refused`: the request contradicts itself or the cluster.
    """

    result: SearchResult | None = None
    reason: str = ""
    proven: bool = True
    needs: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True, slots=True)
class How:
    """How the searches of a study run: `jobs` at a time, in separate processes (which need a main
    module that can be imported); `prepare` changes the request for each cluster; `seed`,
    `time_limit_s`: of each search; `progress` is called when one ends; `launch`: see `Task`."""

    prepare: Prepare | None = None
    jobs: int = 1
    seed: int = 0
    time_limit_s: float | None = None
    progress: Progress | None = None
    launch: LaunchNotes = SILENT

    def task(self, request: Request, **more: Any) -> Task:
        """A search of the study; `more`: further fields of `Task`, which override those of the
        study."""
        alike = {"seed": self.seed, "time_limit_s": self.time_limit_s, "launch": self.launch}
        return Task(request, **alike | more)


ONE_BY_ONE = How()


@dataclass(frozen=True, slots=True)
class Task:
    """One search: its request and the solver's settings.

    `top`: most plans wanted; if 1, plans that need less memory are not searched. `only_plans`: if
    nothing fits, do not search for changes that would help. `launch`: the launch writers' notes on
    plans. `tokens`: to train on; plans of a batch ramp are then ranked by the whole training time.
    """

    request: Request
    seed: int = 0
    time_limit_s: float | None = None
    top: int = 1
    only_plans: bool = False
    launch: LaunchNotes = SILENT
    tokens: int | None = None


@contextmanager
def workers(processes: int) -> Iterator[Pool | None]:
    """A pool of search processes for `run_searches`, ended at the end of the block. None for one
    process or fewer: the searches then run in this process."""
    if processes <= 1:
        yield None
        return
    # Compile once, before the processes start.
    warm_up()
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, start_worker, (threads_of(processes),)) as pool:
        yield pool


def run_searches(
    tasks: Sequence[Task],
    names: Sequence[str],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> list[Outcome]:
    """One full search per distinct task, `jobs` at a time, each in a separate process.

    With one job everything runs in this process. `progress(name, done, total)` is called as
    searches end. `pool`: from `workers`, instead of `jobs`, to serve several calls.
    """
    distinct = list(dict.fromkeys(_key(task) for task in tasks))
    chosen = {_key(task): (task, name) for task, name in zip(tasks, names, strict=True)}
    found: dict[str, Outcome] = {}
    work = [(key, chosen[key][0]) for key in distinct]
    if progress is not None:
        progress("searching", 0, len(work))
    with nullcontext(pool) if pool is not None else workers(min(jobs, len(work))) as several:
        ended = _here(work) if several is None else several.imap_unordered(_run_keyed, work)
        for key, outcome in ended:
            found[key] = outcome
            if progress is not None:
                progress(f"searched {chosen[key][1]}", len(found), len(work))
    return [found[_key(task)] for task in tasks]


def _here(work: Sequence[tuple[str, Task]]) -> Iterator[tuple[str, Outcome]]:
    """Run the searches in this process. After Ctrl-C, the remaining ones are reported as
    interrupted."""
    interrupted = False
    for key, task in work:
        outcome = Outcome(reason="interrupted before its search", proven=False)
        if not interrupted:
            outcome = search_one(task)
        interrupted |= outcome.result is not None and outcome.result.stopped == "interrupted"
        yield key, outcome


def _key(task: Task) -> str:
    text = f"{task.seed} {task.time_limit_s} {task.top} {task.only_plans} {task.tokens}"
    return f"{text} {task.request.model_dump_json()} {task.request.overrides}"


def threads_of(processes: int) -> int:
    return max(1, (os.cpu_count() or 1) // processes)


def start_worker(threads: int) -> None:
    """Ignore Ctrl-C, which the parent handles, and limit the threads so that workers share the
    cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_threads(threads)


def _run_keyed(work: tuple[str, Task]) -> tuple[str, Outcome]:
    key, task = work
    return key, search_one(task)


def search_one(task: Task) -> Outcome:
    """The plans of a request, best first, or the reason why there are none. With a batch ramp,
    those that train on the task's tokens soonest come first."""
    found = _searched(task)
    if task.tokens is None or found.result is None or not found.result.plans[0].ramp:
        return found
    plans = (*found.result.plans, *_of_mean_batch(task, task.tokens, found.result.plans[0]))
    soonest = tuple(sorted(plans, key=lambda plan: plan.training_s(task.tokens or 0)))
    update = {"plans": soonest, "recommended": 1}
    return replace(found, result=found.result.model_copy(update=update))


def _searched(task: Task) -> Outcome:
    from planner.search.infeasibility import DoesNotFitError, relaxation_sentence
    from planner.search.search import find_plans

    try:
        result = find_plans(
            task.request,
            top=task.top,
            seed=task.seed,
            time_limit_s=task.time_limit_s,
            fastest_only=task.top == 1,
            relaxed=not task.only_plans,
            launch=task.launch,
        )
    except DoesNotFitError as error:
        needs = tuple(relaxation_sentence(relaxation) for relaxation in error.why.relaxations)
        text = f"nothing fits: {error.why.conflict[0].text}"
        return Outcome(reason=text, proven=error.why.proven, needs=needs)
    except (NothingFitsError, UsageError, HardwareError) as error:
        return Outcome(reason=str(error), refused=isinstance(error, UsageError))
    return Outcome(result=result)


def _of_mean_batch(task: Task, tokens: int, plan: Plan) -> Iterator[Plan]:
    """The fastest plan at the mean batch of the training, if it is a different one.

    A plan's step takes a fixed time plus a time for each micro-batch, except for overlap. So all
    its steps together take the same seconds as the same number of steps at the mean batch.
    """
    from planner.predict.configuration import Configuration
    from planner.predict.evaluate import checked, evaluated

    mean = tokens / sum(steps for _, _, steps in plan.steps_of(tokens)) / plan.seq
    at_mean = replace(task.request.overrides, mean_batch=mean)
    request = task.request.model_copy(update={"overrides": at_mean})
    outcome = _searched(replace(task, request=request, top=1, only_plans=True))
    for one in () if outcome.result is None else outcome.result.plans:
        count = max(1, round(plan.gbs / (one.degrees.dp * one.degrees.mbs)))
        degrees = one.degrees.model_copy(update={"grad_acc": count})
        if degrees == plan.degrees and one.layout == plan.layout:
            continue
        job = decided_request(task.request, one).resolve()
        at_end = replace(Configuration.of_plan(job, one), degrees=degrees)
        last = evaluated(checked(at_end))
        if last.fits and last.fit_probability >= task.request.fit_probability:
            yield last
