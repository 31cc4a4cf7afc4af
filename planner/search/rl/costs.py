"""Calls of the cost model by a reinforcement-learning search, with their results cached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hardware.schema import Gpu
from planner.job.rl.job import RlJob
from planner.predict.configuration import Configuration
from planner.predict.cost_model import Columns
from planner.predict.rl.plan import EngineLayout, Generation, RlLayout, Training
from planner.predict.rl.step import RlStep, beside_engine, compose
from planner.predict.rl.training_rows import TrainingRows

if TYPE_CHECKING:
    from planner.predict.rl.training import Models


class CostModels(Protocol):
    """Interface of the models that cost the two sides of a step."""

    def train_rows(self, job: RlJob, columns: Columns) -> TrainingRows: ...

    def train(
        self, job: RlJob, trainer: Configuration, critic: Configuration | None
    ) -> Training: ...

    def generate(
        self, job: RlJob, engine: EngineLayout, beside: float, gpu: Gpu | None
    ) -> Generation: ...


class Predicted:
    """The planner's own cost models. `models`: those of trainers that were already built."""

    def __init__(self) -> None:
        self.models: Models | None = None

    def train_rows(self, job: RlJob, columns: Columns) -> TrainingRows:
        """Time and memory of the trainer's side for many configurations at once."""
        from planner.predict.rl.training_rows import train_rows

        return train_rows(job, columns)

    def train(self, job: RlJob, trainer: Configuration, critic: Configuration | None) -> Training:
        """Time and memory of the trainer's side."""
        from planner.predict.rl.training import Models, train

        self.models = self.models or Models()
        return train(job, trainer, critic, self.models)

    def generate(
        self, job: RlJob, engine: EngineLayout, beside: float, gpu: Gpu | None
    ) -> Generation:
        """Time and memory of the engines."""
        from planner.predict.rl.generation import generate

        return generate(job, engine, beside, gpu)


@dataclass
class Costs:
    """Cached results of the cost models for one job. Generation is computed once for each engine
    and each number of bytes beside it."""

    models: CostModels = field(default_factory=Predicted)
    _generated: dict[tuple[EngineLayout, float, str], Generation] = field(default_factory=dict)

    def train_rows(self, job: RlJob, columns: Columns) -> TrainingRows:
        """Time and memory of the trainer's side for many configurations at once."""
        return self.models.train_rows(job, columns)

    def again(self) -> Costs:
        """An empty cache with the same models, for another job."""
        return Costs(self.models)

    def train(self, job: RlJob, trainer: Configuration, critic: Configuration | None) -> Training:
        """Time and memory of the trainer's side."""
        return self.models.train(job, trainer, critic)

    def generate(
        self, job: RlJob, engine: EngineLayout, beside: float, gpu: Gpu | None
    ) -> Generation:
        """Time and memory of the engines beside this many bytes of a trainer."""
        key = engine, beside, gpu.name if gpu else ""
        if key not in self._generated:
            self._generated[key] = self.models.generate(job, engine, beside, gpu)
        return self._generated[key]

    def step(self, job: RlJob, layout: RlLayout, training: Training) -> RlStep:
        """The whole step of a layout whose trainer was costed."""
        beside = sum(beside_engine(layout, training).values())
        generation = self.generate(job, layout.engine, beside, layout.engine_gpu)
        return compose(job, layout, training, generation)
