"""The result of a reinforcement-learning search, which a plan file stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hardware.frozen import Frozen
from planner.job.rl.request import RlRequest
from planner.job.rl.spec import Placement
from planner.predict.plan import Plan, Positive
from planner.predict.rl.plan import EngineLayout, Phase, Side
from planner.search.plan_file import RL_KIND

if TYPE_CHECKING:
    import pandas as pd

RL_PLAN_FILE_VERSION = 1


class RlPlan(Frozen):
    """One way to run a step, with its seconds and bytes.

    `trainer`: the update of one mini-batch as a plan of its own, on the GPUs that train.
    `token_limit`: tokens of a micro-batch, over all ranks that share one. `trainer_leaves`: its
    tensors go to the host while engines sample. `streams`: engines do not wait for the longest
    answer. `way`: how new weights reach the engines. `step_s` lies between `low_s` and `high_s`
    with 80 % probability. `phases`: phases of both sides, in order. `usable_bytes`: per GPU of each
    side. `status`: `optimal` if, by the cost model, no plan of its job is proven to be faster by
    more than `OPTIMAL_WITHIN` with no more memory.
    """

    placement: Placement
    staleness: int = Field(ge=0)
    streams: bool = False
    trainer_leaves: bool = False
    way: str = ""
    token_limit: int = Field(ge=1)
    trainer: Plan
    engine: EngineLayout
    trainer_gpu: str
    engine_gpu: str
    step_s: Positive
    low_s: Positive
    high_s: Positive
    samples: int = Field(ge=1)
    tokens: Positive
    gpus: int = Field(ge=1)
    phases: tuple[Phase, ...]
    usable_bytes: dict[Side, float]
    fits: bool
    fit_probability: float
    steady_s: float
    tail_s: float
    running: float
    waves: float
    preempted: float
    room_tokens: float
    profile: tuple[tuple[float, float], ...] = ()
    status: Literal["optimal", "feasible", "evaluated"]
    gap: float = 0.0

    @property
    def trainer_gpus(self) -> int:
        """GPUs that train."""
        return self.trainer.degrees.gpus

    @property
    def engine_gpus(self) -> int:
        """GPUs that sample."""
        return self.engine.gpus

    @property
    def samples_per_s(self) -> float:
        """Trained samples per second, over all GPUs."""
        return self.samples / self.step_s

    @property
    def samples_per_gpu_hour(self) -> float:
        """Trained samples per GPU-hour, counting the GPUs of both sides."""
        return 3600.0 * self.samples_per_s / self.gpus

    def seconds(self, side: Side) -> float:
        """Seconds that one side works per step."""
        return sum(one.seconds for one in self.phases if one.side == side)

    def phase_s(self, name: str) -> float:
        """Seconds of a phase; of the longer side if both have it."""
        return max((one.seconds for one in self.phases if one.name == name), default=0.0)

    def peak(self, side: Side) -> Phase:
        """The phase in which the fullest GPU of a side uses most memory."""
        own = [one for one in self.phases if one.side == side] or list(self.phases)
        return max(own, key=lambda one: one.peak_bytes)

    @property
    def peak_share(self) -> float:
        """Memory share of the fullest GPU of either side."""
        return max(one.peak_bytes / self.usable_bytes[one.side] for one in self.phases)


class RlCounts(Frozen):
    """How much a search examined. `groups`: combinations of placement, split and staleness.
    `trainers`, `engines`: legal ones. `costed`: trainers costed in full. `pairs`: trainers and
    engines costed together."""

    groups: int
    trainers: int
    engines: int
    costed: int
    pairs: int
    seconds: float


class RlSummary(Frozen):
    """The resolved job in words, for headers and files."""

    model: str
    parameters: int
    algorithm: str
    framework: str
    trainer: str
    engine: str
    cluster: str
    engine_cluster: str = ""
    gpus: int
    prompts: int
    samples: int
    lengths: str
    tokens: float
    longest: int
    minibatches: int
    epochs: int
    reference: str
    critic: str = ""
    reward: str
    notes: tuple[str, ...] = ()


class RlResult(Frozen):
    """The front of a search: step time against memory of the fullest GPU, fastest first. `proven`,
    `gap`: as in `planner.search.result.SearchResult`."""

    kind: Literal["reinforcement learning"] = RL_KIND
    version: int = RL_PLAN_FILE_VERSION
    planner_version: str
    request: RlRequest
    job: RlSummary
    counts: RlCounts
    plans: Annotated[tuple[RlPlan, ...], Field(min_length=1)]
    recommended: int = 1
    proven: bool
    gap: float
    stopped: Literal["", "time-limit", "interrupted"] = ""
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row per plan, in SI units."""
        import pandas as pd

        return pd.DataFrame([plan_row(plan) for plan in self.plans])


_PHASES = (
    "transfer", "wake", "generation", "reward", "sleep", "return", "old_logprobs", "reference",
    "values", "critic_update", "update", "leave",
)  # fmt: skip


def plan_row(plan: RlPlan) -> dict[str, Any]:
    """The columns of a plan: its layout, its time and memory, and each phase."""
    degrees = plan.trainer.degrees
    engine = plan.engine
    return {
        "placement": plan.placement,
        "staleness": plan.staleness,
        "gpus": plan.gpus,
        "trainer_gpus": plan.trainer_gpus,
        "trainer_gpu": plan.trainer_gpu,
        **{f"trainer_{name}": getattr(degrees, name) for name in ("tp", "pp", "cp", "ep", "dp")},
        "trainer_zero": degrees.zero,
        "recompute": plan.trainer.recompute,
        "token_limit": plan.token_limit,
        "trainer_leaves": plan.trainer_leaves,
        "rollout_gpus": plan.engine_gpus,
        "rollout_gpu": plan.engine_gpu,
        "rollout_replicas": engine.replicas,
        **{f"rollout_{name}": getattr(engine, name) for name in ("tp", "pp", "ep", "dp")},
        "kv_share": engine.kv_share,
        "sequences": engine.sequences,
        "way": plan.way,
        "step_s": plan.step_s,
        "step_low_s": plan.low_s,
        "step_high_s": plan.high_s,
        "samples_per_s": plan.samples_per_s,
        "samples_per_gpu_hour": plan.samples_per_gpu_hour,
        "trainer_peak_bytes": plan.peak("trainer").peak_bytes,
        "rollout_peak_bytes": plan.peak("engine").peak_bytes,
        "peak_share": plan.peak_share,
        "fits": plan.fits,
        "fit_probability": plan.fit_probability,
        **{f"{name}_s": plan.phase_s(name) for name in _PHASES},
        "tail_s": plan.tail_s,
        "status": plan.status,
        "gap": plan.gap,
    }
