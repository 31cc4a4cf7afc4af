"""Report of `planner hardware`: all GPUs and node shapes, or one of them with its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hardware.errors import HardwareError
from hardware.facts import CatalogSource, NumberFormat, load_formats, load_sources
from hardware.load import (
    Fact,
    cluster_names,
    facts,
    gpu_facts,
    gpu_names,
    load_cluster_shape,
    load_gpu,
    load_gpu_record,
    load_shape_file,
)
from hardware.prices import Price, load_prices
from hardware.records import ClusterShape
from hardware.schema import Cluster, Gpu
from hardware.sharp import generation_of, why_not
from planner.report.said import fact_rows, notes, table_of
from planner.report.tables import Block, Facts, Notes, Report, TableData, as_report


@as_report
def hardware_report() -> Iterator[Block]:
    yield table_of(
        "hardware.gpus", map(load_gpu, gpu_names()),
        half=lambda gpu: gpu.peak_flop_per_s.get("bf16", gpu.peak_flop_per_s.get("fp16")),
    )  # fmt: skip
    yield table_of("hardware.shapes", map(load_cluster_shape, cluster_names()), nics=_nics)
    yield Notes(tuple(notes("hardware.notes", None)))


def _nics(shape: ClusterShape) -> str:
    nics, rate = shape.nics_per_node.value, shape.nic_rate
    return f"{nics:g}×{rate.value:g} {rate.unit}" if nics else "-"


def hardware_documents() -> list[dict[str, Any]]:
    """The GPUs and node shapes of the catalogue as JSON: every number with unit and source."""
    records = (*map(load_gpu_record, gpu_names()), *map(load_cluster_shape, cluster_names()))
    return [record.model_dump(mode="json") for record in records]


def named_document(name: str) -> dict[str, Any]:
    """A GPU or node shape as JSON. Raises HardwareError for an unknown name."""
    found: dict[str, Any] = _named(
        name, _gpu_document, lambda one: _shape(one)[0].model_dump(mode="json")
    )
    return found


def _gpu_document(name: str) -> dict[str, Any]:
    formats = {one: found.model_dump(mode="json") for one, found in _formats(load_gpu(name))}
    return load_gpu_record(name).model_dump(mode="json") | {"formats": formats}


def _formats(gpu: Gpu) -> Iterator[tuple[str, NumberFormat]]:
    formats = load_formats()
    return ((name, formats[name]) for name in gpu.peak_flop_per_s if name in formats)


def _format_note(found: NumberFormat) -> str:
    scaled = f"one scale of {found.scale_bits} bits for each {found.block} values"
    return "; ".join(part for part in (scaled if found.block else "", found.note) if part)


def named_report(name: str) -> Report:
    """The report of a GPU, a node shape or a cluster file. Raises HardwareError for an unknown
    name."""
    found: Report = _named(name, _gpu_report, _shape_report)
    return found


def _shape(name: str) -> tuple[ClusterShape, Cluster]:
    """A node shape and a cluster of it. `name`: a cluster file, or a shape of the catalogue, of
    which the cluster has two nodes."""
    if _is_file(name):
        return load_shape_file(Path(name))
    shape = load_cluster_shape(name)
    return shape, shape.to_cluster(load_gpu(shape.gpu), 2 * int(shape.gpus_per_node.value))


def _is_file(name: str) -> bool:
    return name.endswith(".toml")


def _named(name: str, as_gpu: Callable[[str], Any], as_shape: Callable[[str], Any]) -> Any:
    if _is_file(name):
        return as_shape(name)
    try:
        return as_gpu(name)
    except HardwareError as unknown_gpu:
        try:
            return as_shape(name)
        except HardwareError:
            raise unknown_gpu from None


def _gpu_report(name: str) -> Report:
    gpu = load_gpu(name)
    also, default = ", ".join(gpu.aliases) or "-", gpu.default_cluster or "-"
    title = fact_rows("hardware.gpu", gpu, also=also, default=default)
    prices = [price for price in load_prices() if price.gpu == gpu.name]
    rows = ({"name": name, "found": one, "note": _format_note(one)} for name, one in _formats(gpu))
    return _facts_report(title, gpu_facts(name), prices, (table_of("hardware.formats", rows),))


def _shape_report(name: str) -> Report:
    shape, cluster = _shape(name)
    title = fact_rows(
        "hardware.shape", shape, also=", ".join(shape.aliases) or "-", sharp=_shape_sharp(cluster),
        shape_title=f"{shape.name} {shape.title}".rstrip(),
        described=f"{name}: {cluster.describe()}" if _is_file(name) else None,
    )  # fmt: skip
    return _facts_report(title, facts(shape.quantities()))


def _shape_sharp(cluster: Cluster) -> str:
    """Whether the switches between nodes can reduce data in the network, and how to ask for it."""
    reason = why_not(cluster)
    if reason:
        return f"no: {reason}"
    found = generation_of(cluster)
    return f"SHARP{found.name} with --sharp, if switches are {found.switches}" if found else "no"


@as_report
def _facts_report(
    title: Sequence[tuple[str, str]],
    facts: Sequence[Fact],
    prices: Sequence[Price] = (),
    further: Sequence[TableData] = (),
) -> Iterator[Block]:
    """One GPU or node shape: each number with unit and source; assumptions are marked."""
    yield Facts(tuple(title))
    yield table_of(
        "hardware.facts", facts, unit_text=lambda fact: "" if fact.unit == "1" else fact.unit,
        cited=lambda fact: "" if fact.assumption else fact.source,
    )  # fmt: skip
    yield from further
    if prices:
        yield table_of("hardware.prices", prices, dated=lambda price: price.date or "unknown")
    named = [fact.source for fact in facts if not fact.assumption]
    cited, sources = dict.fromkeys((*named, *(price.source for price in prices))), load_sources()
    yield Facts(tuple((key, _citation(sources[key])) for key in cited if key in sources), "Sources")


def _citation(source: CatalogSource) -> str:
    accessed = f"accessed {source.accessed}" if source.accessed else ""
    return ", ".join(part for part in (source.title, source.url, accessed) if part)
