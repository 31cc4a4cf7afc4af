"""A reinforcement-learning job with every name resolved.

A step samples answers to prompts with an inference engine, has them judged, reads them with the
policy (and a reference and a critic), and trains on them. The update is an ordinary `Job` on the
trainer's GPUs whose batch is one mini-batch; this module describes the rest.
"""

from __future__ import annotations

import math
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
    (`planner.job.job.Job.on_gpus` moves it to a part). Its `seq` is the token limit of a
    micro-batch if samples are packed, else the longest sample. `token_limit_read`: token limit of a
    micro-batch in passes that only read; if micro-batches count samples, that many of its longest
    samples. `fused_rotary`: one kernel rotates all packed samples, where the framework would rotate
    them one by one (`rotates_samples`).

    `staleness`: how many updates old the weights that made a sample may be; 0 is synchronous.
    `placements` and `staleness` hold the values that a search chooses from. `engine_gpus`: number
    of the trainer's GPUs that sample, if given. `engine_cluster`: separate GPUs that sample.
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
        """The model that is trained and that samples."""
        return self.trainer.model

    @property
    def sampling_cluster(self) -> Cluster:
        """The machine with the GPUs that sample."""
        return self.engine_cluster or self.trainer.cluster

    def usual_sequences(self, placement: Placement, engines: int) -> int:
        """Concurrent sequences of each of so many engines where the user gives no number."""
        if self.framework.told_sequences or placement == "separate":
            return self.framework.sequences
        return math.ceil(self.rollout.samples / engines)

    @property
    def updates(self) -> int:
        """Optimizer steps per reinforcement-learning step."""
        return self.minibatches * self.epochs
