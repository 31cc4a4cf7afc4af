"""When the phases of a step begin and end on each side's GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.predict.rl.plan import Phase, Side
from planner.predict.rl.step import RlStep

# Names of phases for people.
PHASE_WORDS = {
    "transfer": "new weights to the engines",
    "wake": "engines wake",
    "generation": "generation",
    "reward": "reward",
    "sleep": "engines sleep",
    "return": "trainer comes back",
    "old_logprobs": "old log-probabilities",
    "reference": "reference",
    "values": "values",
    "critic_update": "critic's update",
    "update": "policy's update",
    "leave": "trainer goes to the host",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase on the clock: `start_s` and `end_s` are seconds since the step began."""

    phase: Phase
    start_s: float
    end_s: float

    @property
    def words(self) -> str:
        """The phase's name in words."""
        return PHASE_WORDS[self.phase.name]


def bars(step: RlStep) -> tuple[Bar, ...]:
    """The phases of a step on one clock. Colocated phases follow each other. In a synchronous step
    on separate GPUs the trainer's part follows the engines'; otherwise both start together, and the
    trainer works on older samples."""
    if step.layout.placement == "colocated":
        return tuple(_in_order(step.phases, 0.0))
    waits = step.layout.staleness == 0
    begins = step.seconds("engine") if waits else 0.0
    trainer = step.of("trainer")
    if waits:
        # Both sides share the exchange of weights, which is already in the engines' part.
        trainer = tuple(phase for phase in trainer if phase.name != "transfer")
    return (*_in_order(step.of("engine"), 0.0), *_in_order(trainer, begins))


def side_words(step: RlStep, side: Side) -> str:
    """The GPUs of a side in words: `32 GPUs` if colocated, otherwise `24 GPUs that train` or `8
    GPUs that sample`."""
    layout = step.layout
    if layout.placement == "colocated":
        return f"{layout.gpus:,} GPUs"
    gpus = layout.trainer_gpus if side == "trainer" else layout.engine.gpus
    return f"{gpus:,} GPUs that {'train' if side == 'trainer' else 'sample'}"


def _in_order(phases: tuple[Phase, ...], start_s: float) -> Iterator[Bar]:
    for phase in phases:
        yield Bar(phase, start_s, start_s + phase.seconds)
        start_s += phase.seconds
