"""Techniques of a framework besides its degrees: overlap, dispatchers, rank order and so on.

A profile is a set of defaults. Each technique says what it changes in the profile's tables, where
it works, how it is switched on, and what measured it. A search uses the ones that are on by default
wherever they work, tries the searched ones with and without, and uses the rest only on request. A
technique that changes the numbers of a training, or trades time for memory, is always on request
only. A search reports what it would gain (`planner.search.unused`) or, if nothing fits, that a plan
with it does (`planner.search.changes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from hardware.settings import Settings, declared, pairs
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.tables import SETTINGS
from planner.job.tuning import FULL, Tuning

Changes = Annotated[
    tuple[tuple[str, tuple[tuple[str, bool | float | str], ...]], ...], BeforeValidator(pairs)
]


# Properties of a training that a technique may need. `one-shape`: all micro-batches are alike.
Applies = Literal[
    "all", "moe", "moe-layers", "adapters", "plain-adapters", "quantised", "one-shape"
]


@declared(*SETTINGS, "technique")
class Technique(Settings):
    """One technique of a framework. `tables`: its changes to the profile. `autocast`: further
    changes under autocast over fp32 weights. `without`: the changes if it is off, for techniques
    that the profile assumes to be on."""

    tables: Changes = ()
    autocast: Changes = ()
    without: Changes = ()
    if TYPE_CHECKING:
        name: str
        words: str
        effect: Literal["speed", "memory", "numerics"]
        use: Literal["on", "searched", "asked"]
        flags: str = ""
        needs: str = ""
        when: str = ""
        refuses: tuple[str, ...] = ()
        applies: Applies = "all"
        families: tuple[str, ...] = ()
        profile: str = ""
        ends: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _asked_where_numbers_change(self) -> Technique:
        if self.effect != "speed" and self.use != "asked":
            raise ValueError(
                f"{self.name}: only techniques for speed may be used without a request"
            )
        return self

    @property
    def frees_gradients(self) -> bool:
        """Whether each gradient is freed during backward, so that none waits for its end."""
        return bool(self.changes(used=True).get("state", {}).get("updates_in_backward"))

    @property
    def moves_weights(self) -> bool:
        """Whether shards of weights leave the GPU between uses."""
        return "weights_home" in self.changes(used=True).get("state", {})

    @property
    def moves_states(self) -> bool:
        """Whether optimizer states that the CPU updates are stored on a drive."""
        return "states_home" in self.changes(used=True).get("state", {})

    @property
    def usual_flags(self) -> str:
        """Its flags for an unspecified job, with `...` for values that depend on the job."""
        return re.sub(r"\{\w+\}", "...", self.flags)

    def changes(self, *, used: bool, mode: str = "bf16") -> Mapping[str, Mapping[str, Any]]:
        """The changes to the profile's tables with it, or without it, in a dtype mode."""
        tables = {name: dict(values) for name, values in (self.tables if used else self.without)}
        for name, values in self.autocast if used and mode == "amp" else ():
            tables[name] = tables.get(name, {}) | dict(values)
        return tables


def _named(table: object) -> object:
    """Turn a table of techniques by name into a list."""
    if not isinstance(table, dict):
        return table
    return tuple({"name": name} | values for name, values in table.items())


Techniques = Annotated[tuple[Technique, ...], BeforeValidator(_named)]


@dataclass(frozen=True, slots=True)
class Site:
    """The properties of a job that decide which techniques apply.

    `mixture`: the model has experts. `linked`: NVLink joins all tensor-parallel ranks, and they
    split the sequence. `family`: the model's family. `separate`: attention and experts are separate
    layers. `altered`: other options changed the profile. `vendor`: that of the GPUs. `tuning`: how
    the weights are trained. `differ`: micro-batches differ in length.
    """

    mixture: bool
    linked: bool
    family: str = ""
    separate: bool = False
    altered: bool = False
    vendor: str = "nvidia"
    tuning: Tuning = FULL
    differ: bool = False

    def obstacle(self, technique: Technique) -> str:
        """Why a technique cannot work for this job; empty if it can."""
        if lacked := self._lacked(technique.applies):
            return lacked
        if technique.families and self.family not in technique.families:
            return f"its kernels are modelled only for models of {', '.join(technique.families)}"
        if technique.profile and self.altered:
            return "it is modelled only with the framework's default switches"
        return self._machine_obstacle(technique)

    def _lacked(self, applies: str) -> str:
        """The property of model or training that a technique needs and this job lacks; empty if
        none."""
        if applies.startswith("moe") and not self.mixture:
            return "it works only for mixtures of experts"
        if applies == "moe-layers" and self.separate:
            return "it needs attention and experts in one layer"
        return self._training_lacks(applies)

    def _training_lacks(self, applies: str) -> str:
        """The property of the training that a technique needs and this job lacks; empty if none."""
        if applies == "one-shape" and self.differ:
            return (
                "it replays micro-batches of one shape, but samples of different lengths have many"
            )
        if applies.endswith("adapters") and not self.tuning.has_adapters:
            return "it works only for adapters (--train lora)"
        if applies == "plain-adapters" and not self.tuning.is_plain:
            return "it works only for LoRA without dropout on 16-bit weights (--train lora)"
        if applies == "quantised" and self.tuning.base is None:
            return "it works only for adapters on a quantised base (--train qlora)"
        return ""

    def _machine_obstacle(self, technique: Technique) -> str:
        """Why a technique cannot work on these GPUs and links; empty if it can."""
        if technique.cuda and self.vendor != "nvidia":
            return f"its kernels are written in CUDA, and the GPUs are {self.vendor.upper()}'s"
        if technique.linked and not self.linked:
            return (
                "it needs NVLink and sequence parallelism among tensor-parallel ranks, on Ampere, "
                "Hopper or Blackwell"
            )
        return ""


@dataclass(frozen=True, slots=True)
class TechniqueDecision:
    """Names of the techniques that a job uses, and of those that its search decides on."""

    used: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    # Techniques that switch to another profile, tried without the others.
    alone: tuple[str, ...] = ()
    # The used techniques that were requested, and the framework's techniques that are not used.
    demanded: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """Every subset of the undecided techniques, smallest first, then each technique that
        switches to another profile. Empty if nothing is undecided."""
        sets = (combinations(self.open, size) for size in range(len(self.open) + 1))
        every = [one_set for sizes in sets for one_set in sizes]
        every += [(name,) for name in self.alone]
        return tuple(every) if len(every) > 1 else ()


def decide(
    framework: str,
    offered: tuple[Technique, ...],
    asked: tuple[str, ...],
    excluded: tuple[str, ...],
    site: Site,
) -> TechniqueDecision:
    """Decide which of a framework's techniques a job uses. UsageError if a technique is unknown or
    cannot work for the job."""
    known = {one.name: one for one in offered}
    for option, names in (("--with", asked), ("--without", excluded)):
        for name in names:
            if name not in known:
                hint = f"{framework} has: {', '.join(known) or 'none'}"
                raise unknown_name(f"technique for {option}", name, known, hint)
    for name in asked:
        _demand_possible(known[name], excluded, site)
    possible = [one for one in offered if one.name not in excluded and not site.obstacle(one)]
    used = tuple(one.name for one in possible if one.name in asked or one.use == "on")
    placed = next((one.name for one in possible if one.profile and one.name in asked), "")
    if beside := [name for name in asked if placed and name != placed]:
        raise UsageError(
            f"--with {beside[0]}: {placed} takes the framework's place, without its other "
            "techniques; leave one of them out"
        )
    searched = [
        one for one in possible if one.use == "searched" and one.name not in asked and not placed
    ]
    return TechniqueDecision(
        used,
        tuple(one.name for one in searched if not one.profile),
        # The other profile lacks a requested technique.
        tuple(one.name for one in searched if one.profile and not asked),
        tuple(name for name in used if name in asked),
        tuple(one.name for one in offered if one.name not in used),
    )


def _demand_possible(technique: Technique, excluded: tuple[str, ...], site: Site) -> None:
    if technique.name in excluded:
        raise UsageError(
            f"--with {technique.name} and --without {technique.name}: give one of them"
        )
    if obstacle := site.obstacle(technique):
        raise UsageError(f"--with {technique.name}: {obstacle}; leave it out")
