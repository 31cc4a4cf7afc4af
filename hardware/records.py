"""The catalogue's files, field by field. Every number is a `Quantity` with unit and source.

Users' own GPU and cluster files have the same fields; there, `"450 GB/s"` is short for `{ value =
450, unit = "GB/s" }`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field, field_validator

from hardware.facts import ArchitectureName
from hardware.frozen import Named
from hardware.schema import FABRICS, Cluster, Gpu, Vendor
from hardware.sharp import generation, leaf_nodes, with_sharp
from hardware.units import (
    ArithmeticRate,
    Bandwidth,
    Count,
    CountOrNone,
    Frequency,
    Power,
    Quantity,
    Ratio,
    Size,
)

# `sharp = true` in a file means the generation of switches that matches the NICs.
AS_THE_NICS = "as the NICs"


class _Record(Named):
    def quantities(self) -> dict[str, Quantity]:
        """Every number of the record by field name (`peak.bf16` for those in a table)."""
        found: dict[str, Quantity] = {}
        for name, value in self:
            if isinstance(value, Quantity):
                found[name] = value
            elif isinstance(value, dict):
                found.update({f"{name}.{key}": entry for key, entry in value.items()})
        return found


class GpuRecord(_Record):
    """One file of `catalog/gpus`. Link rates are per GPU and direction."""

    name: str
    vendor: Vendor
    architecture: ArchitectureName
    aliases: tuple[str, ...] = ()
    default_cluster: str = ""
    note: str = ""
    hbm: Size
    hbm_usable: Size
    hbm_bandwidth: Bandwidth
    l2: Size
    sm_count: Count
    boost_clock: Frequency
    host_link: Bandwidth
    scale_up_link: Bandwidth
    scale_up_pair_link: Bandwidth | None = None
    scale_up_domain: Count
    tdp: Power
    context: Size
    peak: Annotated[dict[str, ArithmeticRate], Field(min_length=1)]
    measured_matmul: dict[str, ArithmeticRate] = Field(default_factory=dict)

    def to_gpu(self) -> Gpu:
        """The same facts in SI units, without provenance."""
        pair = self.scale_up_pair_link
        return Gpu(
            name=self.name,
            vendor=self.vendor,
            architecture=self.architecture,
            aliases=self.aliases,
            default_cluster=self.default_cluster,
            peak_flop_per_s={dtype: rate.si for dtype, rate in self.peak.items()},
            hbm_bytes=self.hbm.si,
            hbm_usable_bytes=self.hbm_usable.si,
            hbm_bytes_per_s=self.hbm_bandwidth.si,
            l2_bytes=self.l2.si,
            sm_count=int(self.sm_count.si),
            boost_clock_hz=self.boost_clock.si,
            host_link_bytes_per_s_per_direction=self.host_link.si,
            scale_up_bytes_per_s_per_gpu_per_direction=self.scale_up_link.si,
            scale_up_pair_bytes_per_s_per_direction=pair.si if pair else None,
            scale_up_domain_gpus=int(self.scale_up_domain.si),
            tdp_w=self.tdp.si,
            context_bytes=self.context.si,
            measured_matmul_flop_per_s={
                dtype: rate.si for dtype, rate in self.measured_matmul.items()
            },
        )


class ClusterShape(_Record):
    """One file of `catalog/clusters`: the node that a cluster repeats.

    `gpus_per_node`: GPUs that one operating system sees (NVL72: 4, a compute tray).
    `scale_up_domain`: GPUs that reach each other over NVLink or xGMI (NVL72: 72). `nic_rate`: per
    NIC and direction. `oversubscription` 2 means that the spine carries half of all that nodes can
    send. `gpus_per_host_link`: GPUs that share one link to host memory. `scale_up_link` replaces
    the GPU's own rate in nodes that have less. `leaf_nodes`: nodes below one leaf switch or one set
    of rail leaves; on InfiniBand it is derived from the switches if not given
    (`hardware.sharp.leaf_nodes`). `sharp`: generation of switches that reduce for a job
    (`hardware.sharp`), or true; empty if none do. `host_speed`, `host_launch_speed`: speed of one
    core relative to a DGX A100 (`hardware.schema.Cluster`).
    """

    name: str
    title: str = ""
    aliases: tuple[str, ...] = ()
    gpu: str
    gpus_per_node: Count
    scale_up_domain: Count
    scale_up_link: Bandwidth | None = None
    nics_per_node: CountOrNone
    nic_rate: Bandwidth
    fabric: str
    rail_optimised: bool = True
    oversubscription: Ratio
    leaf_nodes: CountOrNone | None = None
    sharp: str = ""
    host_memory: Size
    gpus_per_host_link: Count | None = None
    host_speed: Ratio | None = None
    host_launch_speed: Ratio | None = None
    pcie: str = ""
    note: str = ""

    @field_validator("fabric")
    @classmethod
    def _fabric_is_known(cls, fabric: str) -> str:
        wanted = fabric.strip().lower()
        for name, row in FABRICS.items():
            if wanted == name or wanted in row.get("spellings", ()):
                return name
        raise ValueError(f"{wanted!r} is not one of {', '.join(FABRICS)}")

    @field_validator("sharp", mode="before")
    @classmethod
    def _sharp_is_known(cls, given: object) -> str:
        """Check the generation; `true` means the generation that matches the NICs."""
        if isinstance(given, bool):
            return AS_THE_NICS if given else ""
        if not isinstance(given, str):
            raise ValueError(f"{given!r} is neither true nor v2, v3 or v4")
        return generation(given).name if given not in ("", AS_THE_NICS) else given

    def to_cluster(self, gpu: Gpu, num_gpus: int) -> Cluster:
        """`num_gpus` of `gpu` in nodes of this shape, in SI units."""
        node_gpus = int(self.gpus_per_node.si)
        nics = 0 if self.fabric == "none" else int(self.nics_per_node.si)
        link = self.scale_up_link
        host_speed = self.host_speed.si if self.host_speed else 1.0
        cluster = Cluster(
            name=self.name,
            gpu=gpu,
            num_gpus=num_gpus,
            gpus_per_node=min(node_gpus, num_gpus),
            node_gpus=node_gpus,
            scale_up_domain_gpus=int(self.scale_up_domain.si),
            scale_up_bytes_per_s_per_gpu_per_direction=(
                link.si if link else gpu.scale_up_bytes_per_s_per_gpu_per_direction
            ),
            nics_per_node=nics,
            nic_bytes_per_s=self.nic_rate.si,
            scale_out_bytes_per_s_per_gpu_per_direction=nics * self.nic_rate.si / node_gpus,
            fabric=self.fabric,
            rail_optimised=self.rail_optimised,
            oversubscription=self.oversubscription.si,
            host_memory_bytes_per_node=self.host_memory.si,
            gpus_per_host_link=(
                min(int(self.gpus_per_host_link.si), num_gpus) if self.gpus_per_host_link else 1
            ),
            host_speed=host_speed,
            host_launch_speed=(self.host_launch_speed.si if self.host_launch_speed else host_speed),
        )
        cluster.demand_network(num_gpus)
        stated = self.leaf_nodes
        below = leaf_nodes(cluster) if stated is None else int(stated.si)
        cluster = cluster.model_copy(update={"leaf_nodes": below})
        if not self.sharp:
            return cluster
        return with_sharp(cluster, "" if self.sharp == AS_THE_NICS else self.sharp)

    def resized(self, gpus_per_node: int) -> ClusterShape:
        """This shape with smaller or larger nodes; NICs and host memory change in proportion.

        A domain that spans several nodes stays the same; one inside a node shrinks with it.
        """
        share = gpus_per_node / self.gpus_per_node.value
        domain = self.scale_up_domain.value
        spans_nodes = domain > self.gpus_per_node.value
        return self.model_copy(
            update={
                "gpus_per_node": _scaled(self.gpus_per_node, gpus_per_node),
                "nics_per_node": _scaled(
                    self.nics_per_node, math.ceil(self.nics_per_node.value * share)
                ),
                "host_memory": _scaled(self.host_memory, self.host_memory.value * share),
                "scale_up_domain": _scaled(
                    self.scale_up_domain, domain if spans_nodes else min(domain, gpus_per_node)
                ),
            }
        )


def _scaled(quantity: Quantity, value: float) -> Quantity:
    return quantity.model_copy(update={"value": float(value)})


def as_table(record: _Record) -> dict[str, Any]:
    """The record as a file would contain it, so that a user's fields can replace some."""
    return {name: value for name, value in record if value not in (None, "", {})}
