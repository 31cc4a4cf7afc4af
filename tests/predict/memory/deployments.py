"""Deployments for tests of serving."""

from __future__ import annotations

from typing import Any

from hardware.load import load_gpu
from planner.job.models.catalog import load_model
from planner.predict.memory.serving.deployment import Deployment


def serving(model: str, gpu: str = "h100", **settings: Any) -> Deployment:
    """A deployment of a catalogue model."""
    return Deployment(load_model(model).spec, load_gpu(gpu), **settings)
