"""What a search decided for a plan, as the request or the job that has it decided."""

from __future__ import annotations

from planner.job.job import Job
from planner.job.request import Request
from planner.predict.plan import Plan


def decided_job(job: Job, plan: Plan) -> Job:
    """The job with what its search decided for a plan."""
    fraction = plan.activation_offload_fraction
    return job.at_choice(plan.optimizer_offload, plan.activation_offload, fraction, plan.techniques)


def decided_request(request: Request, plan: Plan) -> Request:
    """The request with what its search decided for a plan: what is offloaded, context exchange,
    techniques.

    What costs, launches or explains a plan resolves this one.
    """
    decided: dict[str, object] = {}
    if request.optimizer_offload == "search":
        decided["optimizer_offload"] = plan.optimizer_offload
    if request.activation_offload == "search":
        decided["activation_offload"] = ",".join(plan.activation_offload) or "off"
    if request.activation_offload_fraction != plan.activation_offload_fraction:
        decided["activation_offload_fraction"] = plan.activation_offload_fraction
    if plan.degrees.cp > 1 and request.cp_comm_type is None:
        decided |= {"cp_comm_type": plan.cp_comm_type or "p2p", "cp_sizes": plan.cp_sizes}
    decided |= _decided_techniques(request, plan)
    return request.model_copy(update=decided) if decided else request


def _decided_techniques(request: Request, plan: Plan) -> dict[str, object]:
    """Techniques that a search tried with and without: used, or not, as in the plan; and those that
    nobody had to ask for when the plan was written."""
    said = (*request.use, *request.without)
    offered = [one for one in request.find_framework().techniques if one.name not in said]
    used = tuple(one.name for one in offered if one.use != "on" and one.name in plan.techniques)
    searched = [one.name for one in offered if one.use == "searched"]
    left = tuple(name for name in searched if name not in used)
    if not (used or left):
        return {}
    return {"use": (*request.use, *used), "without": (*request.without, *left)}
