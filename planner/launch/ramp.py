"""Batch ramps: Megatron-LM has them, the other targets do not."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.launch.contract import Refusal
from planner.launch.megatron_flags import Flag, flag
from planner.launch.options import MEGATRON
from planner.predict.plan import Plan

# In place of --global-batch-size. `--rampup-batch-size` is ignored by megatron-core 0.19.2
# (core/num_microbatches_calculator.py, init_num_microbatches_calculator).
SCHEDULE = MEGATRON["batch_ramp"].key


def schedule_flag(plan: Plan) -> Flag:
    """`0:768,250000000000:1536`: from how many tokens on which batch, in sequences."""
    starts = (0, *(batch.until_tokens for batch in plan.ramp))
    sizes = (*(batch.gbs for batch in plan.ramp), plan.gbs)
    return flag(SCHEDULE, ",".join(f"{at}:{gbs}" for at, gbs in zip(starts, sizes, strict=True)))


def ramp_refusals(job: Job, name: str, why: str = "has no batch ramp") -> Iterator[Refusal]:
    """A ramp, where the framework `name` cannot have one."""
    if job.ramp:
        yield Refusal(f"{name} {why}", "--framework megatron-core, or no --batch-ramp")
