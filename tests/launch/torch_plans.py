"""Plans for the launch writers of torch frameworks, each costed once a session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from planner.job.request import Request
from planner.launch.contract import Launch
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees


@dataclass(frozen=True)
class Case:
    """One configuration; `more`: fields of the request, as pairs."""

    name: str
    model: str
    gpus: str
    degrees: tuple[tuple[str, int], ...]
    recompute: str = "none"
    blocks: tuple[int, ...] | None = None
    more: tuple[tuple[str, object], ...] = ()


def case(
    name: str,
    model: str,
    gpus: str,
    *,
    recompute: str = "none",
    blocks: tuple[int, ...] | None = None,
    more: dict[str, object] | None = None,
    **degrees: int,
) -> Case:
    """A case; dp is what the GPUs leave."""
    count = int(gpus.partition("x")[0])
    values = {"tp": 1, "pp": 1, "cp": 1, "mbs": 1, "grad_acc": 2, **degrees}
    values.setdefault("dp", count // (values["tp"] * values["pp"] * values["cp"]))
    pairs = tuple(sorted((more or {}).items()))
    return Case(name, model, gpus, tuple(sorted(values.items())), recompute, blocks, pairs)


@cache
def launch_of(case: Case, framework: str, target: str) -> Launch:
    """The case's plan under a profile, for a writer."""
    degrees = Degrees(**dict(case.degrees))
    request = Request.model_validate(
        {
            "model": case.model,
            "gpus": case.gpus,
            "gbs": degrees.gbs,
            "seq": 4096,
            "framework": framework,
        }
        | dict(case.more)
    )
    plan = evaluate(request, degrees, case.recompute, case.blocks)
    return Launch(plan, request, request.resolve(), target)


def changed(launch: Launch, **job: object) -> Launch:
    """The same plan under another job: for what no evaluation would allow."""
    return replace(launch, job=replace(launch.job, **job))  # type: ignore[arg-type]
