"""Generations of engines that sample: what their CPU side costs a step, and their memory share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.rl.spec import EngineName, EngineSetting


class EngineGeneration(Named):
    """One generation of an engine; the fields of `engines.toml`, which says what each is."""

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
    """Every generation, by its name."""
    tables = shipped_toml("planner.job.rl", "engines.toml")
    return {name: EngineGeneration(name=name, **row) for name, row in tables.items()}


def generation_of(setting: EngineSetting) -> EngineGeneration:
    """The generation that a setting names, else the usual one of its engine."""
    return engine_generations()[setting.generation or setting.name]
