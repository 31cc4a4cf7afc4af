"""What is known of a job beside its request, in place of what resolving would look up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hardware.schema import Cluster
from hardware.transport import TransportSettings
from planner.job.frameworks.profile import Tables
from planner.job.specs import ModelSpec

# The variation of a launched profile whose tensor-parallel ranks keep the whole sequence.
NO_SEQUENCE_PARALLEL = "no-sequence-parallel"


@dataclass(frozen=True)
class Started:
    """Processes that a launch starts, one a GPU, on a part of the machine that it is given."""

    nodes: int
    per_node: int

    @property
    def processes(self) -> int:
        """On all nodes together."""
        return self.nodes * self.per_node

    def part_of(self, cluster: Cluster) -> Cluster:
        """The GPUs that the processes use. Each keeps its share of its node's network."""
        return cluster.with_nodes(self.nodes, self.per_node)


@dataclass(frozen=True)
class Launched:
    """A run that files describe: what they say of it stands, and nothing is left to choose.

    `variations`: names of what their settings change in the framework's profile, with the tables
    that each changes; a technique is used under its name and not used under `no-` and its name.
    `transport`: what NCCL's variables make of the links; `started`: the processes that the files
    start, where they leave GPUs of the machine idle.
    """

    variations: Mapping[str, Tables] = field(default_factory=dict)
    transport: TransportSettings = field(default_factory=TransportSettings)
    started: Started | None = None

    def without(self, *names: str) -> Launched:
        """Without some of its variations."""
        kept = {name: self.variations[name] for name in self.variations if name not in names}
        return replace(self, variations=kept)

    def using(self, technique: str) -> Launched:
        """With a technique of its framework in use, which the profile has tables for."""
        kept = self.without(f"no-{technique}").variations
        return replace(self, variations={**kept, technique: {}})


@dataclass(frozen=True)
class Overrides:
    """`model`: what is trained, in place of the model that the request names. `mean_batch`: the
    batch, in sequences, at which a job with a ramp is costed, in place of its last one.
    `launched`: the run of launch files, None for a job that is planned."""

    model: ModelSpec | None = None
    mean_batch: float | None = None
    launched: Launched | None = None
