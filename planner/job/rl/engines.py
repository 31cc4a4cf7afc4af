"""Versions of inference engines: CPU time per engine step, and default memory share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.rl.spec import EngineName, EngineSetting


class EngineGeneration(Named):
    """One version of an engine. `engines.toml` explains its fields."""

    name: str
    words: str
    engine: EngineName
    step_s: float
    sequence_s: float
    logprob_s: float
    launch_s: float
    prefill_share: float
    memory: str
    source: str
    hidden: bool = False
    static_share: bool = False


@cache
def engine_generations() -> Mapping[str, EngineGeneration]:
    """Every engine version by name."""
    tables = shipped_toml("planner.job.rl", "engines.toml")
    return {name: EngineGeneration(name=name, **row) for name, row in tables.items()}


def generation_of(setting: EngineSetting) -> EngineGeneration:
    """The engine version that a setting names, else the default of its engine."""
    return engine_generations()[setting.generation or setting.name]
