"""Reinforcement-learning frameworks: their trainers, engines, placements and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.errors import unknown_name
from planner.job.rl.spec import EngineName, Placement, ReferenceHome


class RlFramework(Named):
    """Properties of one framework. `frameworks.toml` explains the fields."""

    name: str
    words: str
    source: str
    names: tuple[str, ...] = ()
    trainers: Mapping[str, str]
    engines: tuple[EngineName, ...]
    separate_synchronous: bool = True
    separate_engines: tuple[EngineName, ...] | None = None
    engine_pipelines: bool = False
    engine_whole_experts: bool = False
    placements: tuple[Placement, ...]
    most_staleness: int = 0
    partial_rollouts: bool = False
    references: tuple[ReferenceHome, ...]
    old_logprobs: bool = True
    token_batches: bool = True
    fills_bins: bool = False
    balances: Literal["none", "step", "mini-batch"] = "none"
    position_s: float = 0.0
    answers_alone: bool = False
    without: tuple[str, ...] = ()
    assumes: Mapping[str, tuple[str, ...]] = {}
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
    rotates_samples: tuple[str, ...] = ()
    kv_share_colocated: float
    kv_share_separate: float
    sequences: int
    told_sequences: bool = True
    chunk: int | None = None
    prefix_cache: bool = True
    scatters: bool = False
    engine_logprobs: bool = True
    sleep_level: int
    trainer_leaves: bool = False
    trainer_choices: tuple[bool, ...] = (False, True)
    bucket_bytes: float
    transfer_colocated: str
    transfer_separate: tuple[str, ...] = ()

    @property
    def usual_trainer(self) -> str:
        """The profile of its default trainer."""
        return next(iter(self.trainers.values()))


@cache
def rl_frameworks() -> Mapping[str, RlFramework]:
    """Every framework by name."""
    tables = shipped_toml("planner.job.rl", "frameworks.toml")
    return {name: RlFramework(name=name, **row) for name, row in tables.items()}


def find_rl_framework(name: str) -> RlFramework:
    """The framework of that name. UsageError lists the known ones."""
    plain = name.strip().lower().replace("_", "-")
    for known, framework in rl_frameworks().items():
        if plain in (known, *framework.names):
            return framework
    known_names = ", ".join(rl_frameworks())
    raise unknown_name("--rl-framework", name, rl_frameworks(), f"known are {known_names}")
