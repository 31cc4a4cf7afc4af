"""One search of one model on one cluster: a line of JSON.

    python model_row.py MODEL GPUS TOKENS SECONDS [--work SECONDS]

After SECONDS of the processor the search is interrupted as Ctrl-C would. `--work`: of work that it
may do (`planner.search.limit_results.Spent`), in place of the usual.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from planner.job.request import Request
from planner.launch.plans import find_plans
from planner.search import limit_results, search
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits

# What is over this multiple of its time is ended.
_GRACE = 1.5


def main() -> None:
    """Search, and print what came of it."""
    model, gpus, tokens, seconds = sys.argv[1:5]
    row: dict[str, Any] = {"model": model, "gpus": int(gpus), "tokens": int(tokens)}
    if sys.argv[5:6] == ["--work"]:
        setattr(search, "MOST_WORK_S", float(sys.argv[6]))  # noqa: B010
    _interrupt_after(float(seconds))
    row |= _searched(Request(model=model, gpus=f"{gpus}xH100", gbs_tokens=int(tokens)))
    print(json.dumps(row | {"end_s": time.process_time()}))


def _interrupt_after(seconds: float) -> None:
    """Ctrl-C after so much time of the processor; the end some time later."""
    most = round(_GRACE * seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _searched(request: Request) -> dict[str, Any]:
    """Outcome of a search: as it is printed, `--top` and `--all` left out."""
    first: list[float] = []

    def progress(what: str, _done: int, _total: int) -> None:
        if "so far" in what and not first:
            first.append(time.process_time())

    def verdict(_why: WhyNothingFits) -> None:
        first.append(time.process_time())
        raise KeyboardInterrupt

    limit_results.SAY_EVERY_S = 0.0
    try:
        result = find_plans(request, short=8, relaxed=False, progress=progress, verdict=verdict)
    except DoesNotFitError as error:
        return {"outcome": "nothing fits" if error.why.proven else "nothing found"}
    except KeyboardInterrupt:
        return {"outcome": "nothing fits" if first else "nothing found"}
    best = result.plans[max(result.recommended, 1) - 1]
    return {
        "outcome": "proven" if result.proven else "gap",
        "stopped": result.stopped,
        "first_s": (first or [time.process_time()])[0],
        "plans": len(result.plans),
        "gap": result.gap,
        "pick_gap": best.gap,
        "pick_s": best.step_time_s / best.gbs,
        "fastest_s": min(plan.step_time_s / plan.gbs for plan in result.plans),
    }


if __name__ == "__main__":
    main()
