"""The planning request that commands pass on, and what follows from its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hardware.schema import Cluster
from planner.job import lookups, resolve
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.job import Job
from planner.job.models.catalog import ResolvedModel
from planner.job.request_fields import NO_SEQUENCE_PARALLEL, Launched, RequestFields


class Request(RequestFields):
    """A planning request in the user's words; `resolve` turns it into a `Job`."""

    def resolve(self) -> Job:
        """The job with every name looked up. Raises UsageError."""
        return resolve.resolve(self)

    def find_model(self) -> ResolvedModel:
        """The model named by `model`, without biases if the request says so."""
        return lookups.find_model(self)

    def find_framework(self) -> FrameworkProfile:
        """The profile named by `framework`, or the one that replaces it on AMD's GPUs."""
        return lookups.find_framework(self)

    def find_cluster(self) -> Cluster:
        """The machine of the request. UsageError unless it names exactly one."""
        return lookups.find_cluster(self)

    # --- other requests, as the fields that change ------------------------------------------------

    def launched_as(self, launched: Launched) -> dict[str, Any]:
        """Changes that turn the run of launch files into another one."""
        return {"overrides": replace(self.overrides, launched=launched)}

    def with_technique(self, name: str) -> dict[str, Any]:
        """Changes that add a technique of the framework."""
        if self.overrides.launched is not None:
            return self.launched_as(self.overrides.launched.using(name))
        left = tuple(other for other in self.without if other != name)
        return {"use": (*self.use, name), "without": left}

    def with_sequence_parallel(self) -> dict[str, Any] | None:
        """Changes that add sequence parallelism; None if it is already on, as far as the framework
        has it."""
        launched = self.overrides.launched
        if launched is None:
            return None if self.sequence_parallel else {"sequence_parallel": True}
        if NO_SEQUENCE_PARALLEL not in launched.variations:
            return None
        return self.launched_as(launched.without(NO_SEQUENCE_PARALLEL))

    def on_gpus(self, count: int) -> dict[str, Any] | None:
        """Changes for another number of the same GPUs, as one would type them; None if a file
        describes the machine."""
        if self.gpus is None:
            return None
        number, _, name = self.gpus.partition("x")
        node, _, behind = name.partition("x")
        if not number.replace(",", "").replace("_", "").isdigit():
            return None
        if not node.isdigit():
            return {"gpus": f"{count}x{name}"}
        whole = count % int(node) == 0
        return {"gpus": f"{count // int(node)}x{name}" if whole else f"{count}x{behind}"}
