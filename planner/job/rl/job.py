"""A job of reinforcement learning, every name resolved.

A step samples answers to prompts with a serving engine, has them judged, reads them with the policy
(and a reference, and a critic) and trains on them. The update is an ordinary `Job` on the
trainer's GPUs, whose batch is one mini-batch; what lies around it is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hardware.schema import Cluster
from planner.job.job import Job
from planner.job.rl.frameworks import RlFramework
from planner.job.rl.spec import (
    Algorithm,
    EngineSetting,
    Placement,
    ReferenceHome,
    Reward,
    Rollout,
)
from planner.job.specs import ModelSpec


@dataclass(frozen=True)
class RlJob:
    """Reinforcement learning of one policy on one cluster.

    `trainer`: the policy's update over one mini-batch, as if the whole cluster trained
    (`planner.job.job.Job.on_gpus` gives it on a part); its `seq` is the tokens of a micro-batch
    where samples are packed to a number of tokens, else the longest sample.
    `token_limit_read`: tokens of a micro-batch of a pass that only reads, or of as many of its
    longest samples where micro-batches count samples. `fused_rotary`: one kernel rotates all packed
    samples, where a framework would do it one by one (`rotates_samples`).
    `staleness`: how many updates old the weights may be with which a sample was made: 0 is
    synchronous; values among which a search decides. `placements`: likewise. `engine_gpus`: GPUs of
    the trainer's machine that sample, where they are given; `engine_cluster`: GPUs of their own
    that sample, beside all of the trainer's.
    """

    trainer: Job
    algorithm: Algorithm
    rollout: Rollout
    framework: RlFramework
    engine: EngineSetting
    minibatches: int = 1
    epochs: int = 1
    reference: ReferenceHome = "none"
    old_logprobs: bool = True
    critic: ModelSpec | None = None
    reward: Reward = field(default_factory=Reward)
    placements: tuple[Placement, ...] = ("colocated",)
    staleness: tuple[int, ...] = (0,)
    partial_rollouts: bool = False
    token_limit_read: int | None = None
    fused_rotary: bool = True
    engine_gpus: int | None = None
    engine_cluster: Cluster | None = None

    @property
    def policy(self) -> ModelSpec:
        """The model that is trained and sampled."""
        return self.trainer.model

    @property
    def sampling_cluster(self) -> Cluster:
        """The machine whose GPUs sample, or some of them."""
        return self.engine_cluster or self.trainer.cluster

    @property
    def updates(self) -> int:
        """Optimizer steps of one step."""
        return self.minibatches * self.epochs
