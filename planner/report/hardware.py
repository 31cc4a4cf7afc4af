"""What `planner hardware` shows: GPUs and node shapes, and one of them with its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hardware.errors import HardwareError
from hardware.formats import NumberFormat, load_formats
from hardware.load import (
    CatalogSource,
    Fact,
    cluster_names,
    facts,
    gpu_facts,
    gpu_names,
    load_cluster_shape,
    load_gpu,
    load_gpu_record,
    load_shape_file,
    load_sources,
)
from hardware.prices import Price, load_prices
from hardware.records import ClusterShape
from hardware.schema import Cluster, Gpu
from hardware.sharp import generation_of, why_not
from planner.job.quantities import gib
from planner.report.tables import Block, Facts, Notes, Report, TableData, as_report, table

ASSUMED = "ASSUMED"
_ABSENT = "-"


@as_report
def hardware_report() -> Iterator[Block]:
    """The GPUs and node shapes of the catalogue."""
    yield table(
        "<GPU | 16-bit\nTFLOP/s | fp8\nTFLOP/s | HBM\nGiB | HBM\nTB/s | link\nGB/s"
        " | domain\nGPUs | TDP\nW",
        map(_gpu_row, map(load_gpu, gpu_names())),
        "GPUs",
    )
    shapes = map(_shape_row, map(load_cluster_shape, cluster_names()))
    yield table("<node shape | <node | domain\nGPUs | <NICs | <fabric", shapes, "Node shapes")
    yield Notes((
        "TFLOP/s are dense (no sparsity). HBM: what torch reports as total memory. Links are per "
        "GPU and direction.",
        "Every number with its source:",
        "    planner hardware H100",
        "    planner hardware dgx-h100",
    ))  # fmt: skip


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    peaks = gpu.peak_flop_per_s
    return (
        gpu.name,
        _tera(peaks.get("bf16", peaks.get("fp16"))),
        _tera(peaks.get("fp8")),
        gib(gpu.hbm_usable_bytes),
        f"{gpu.hbm_bytes_per_s / 1e12:.2f}",
        f"{gpu.scale_up_bytes_per_s_per_gpu_per_direction / 1e9:,.0f}",
        str(gpu.scale_up_domain_gpus),
        f"{gpu.tdp_w:,.0f}",
    )


def _tera(rate: float | None) -> str:
    return _ABSENT if rate is None else f"{rate / 1e12:,.0f}"


def _shape_row(shape: ClusterShape) -> tuple[str, ...]:
    nics = shape.nics_per_node.value
    return (
        shape.name,
        f"{shape.gpus_per_node.value:g}×{shape.gpu}",
        f"{shape.scale_up_domain.value:g}",
        f"{nics:g}×{shape.nic_rate.value:g} {shape.nic_rate.unit}" if nics else _ABSENT,
        shape.fabric,
    )


def hardware_documents() -> list[dict[str, Any]]:
    """The GPUs and node shapes of the catalogue as JSON: every number with unit and source."""
    records = (*map(load_gpu_record, gpu_names()), *map(load_cluster_shape, cluster_names()))
    return [record.model_dump(mode="json") for record in records]


def named_document(name: str) -> dict[str, Any]:
    """One of them as JSON. HardwareError where nothing has that name."""
    found: dict[str, Any] = _named(name, _gpu_document, _shape_document)
    return found


def _gpu_document(name: str) -> dict[str, Any]:
    formats = {one: found.model_dump(mode="json") for one, found in _formats(load_gpu(name))}
    return load_gpu_record(name).model_dump(mode="json") | {"formats": formats}


def _shape_document(name: str) -> dict[str, Any]:
    return _shape(name)[0].model_dump(mode="json")


def _formats(gpu: Gpu) -> Iterator[tuple[str, NumberFormat]]:
    """The number formats that the GPU multiplies."""
    formats = load_formats()
    return ((name, formats[name]) for name in gpu.peak_flop_per_s if name in formats)


def _formats_table(gpu: Gpu) -> TableData:
    """Bits, bytes and range of the formats that the GPU multiplies."""
    rows = (
        (name, f"{found.bytes_per_value:.4g}", str(found.exponent_bits), str(found.mantissa_bits),
         f"{found.largest:.3g}", _format_note(found))
        for name, found in _formats(gpu)
    )  # fmt: skip
    return table(
        "<format | bytes | exponent\nbits | mantissa\nbits | largest | ~note", rows,
        "Number formats",
    )  # fmt: skip


def _format_note(found: NumberFormat) -> str:
    scaled = f"a scale of {found.scale_bits} bits for each {found.block} values"
    return "; ".join(part for part in (scaled if found.block else "", found.note) if part)


def named_report(name: str) -> Report:
    """The GPU of that name, else the node shape, or those of a cluster file. HardwareError if there
    is neither."""
    found: Report = _named(name, _gpu_report, _shape_report)
    return found


def _shape(name: str) -> tuple[ClusterShape, Cluster]:
    """A node shape and a cluster of such nodes: of a file, else two nodes of the catalogue's."""
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
    title = [
        ("GPU", gpu.name),
        ("also", ", ".join(gpu.aliases) or "-"),
        ("kind", f"{gpu.vendor}, {gpu.architecture}"),
        ("nodes", f"{gpu.default_cluster or '-'} unless told"),
    ]
    prices = [price for price in load_prices() if price.gpu == gpu.name]
    return _facts_report(title, gpu_facts(name), prices, (_formats_table(gpu),))


def _shape_report(name: str) -> Report:
    shape, cluster = _shape(name)
    title = [
        *([("cluster", f"{name}: {cluster.describe()}")] if _is_file(name) else ()),
        ("node shape", f"{shape.name} {shape.title}".rstrip()),
        ("also", ", ".join(shape.aliases) or "-"),
        ("GPU", shape.gpu),
        ("fabric", shape.fabric + (", rail-optimised" if shape.rail_optimised else "")),
        ("SHARP", _shape_sharp(cluster)),
    ]
    if shape.note:
        title.append(("note", shape.note))
    return _facts_report(title, facts(shape.quantities()))


def _shape_sharp(cluster: Cluster) -> str:
    """Whether the switches between its nodes can reduce, and how to ask for it."""
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
    rows = (
        (fact.name, f"{fact.value:g}", "" if fact.unit == "1" else fact.unit, _origin(fact))
        for fact in facts
    )
    yield Facts(tuple(title))
    yield table("<number | value | <unit | ~source", rows)
    yield from further
    if prices:
        listed = (
            (p.provider, p.kind, f"{p.usd_per_gpu_hour:.2f}", p.date or "unknown", p.source)
            for p in prices
        )
        titles = "<provider | <kind | USD per\nGPU hour | <date | ~source"
        yield table(titles, listed, "List prices")
    named = [fact.source for fact in facts if not fact.assumption]
    cited, sources = dict.fromkeys((*named, *(price.source for price in prices))), load_sources()
    yield Facts(tuple((key, _citation(sources[key])) for key in cited if key in sources), "Sources")


def _origin(fact: Fact) -> str:
    origin = ASSUMED if fact.assumption else fact.source
    return f"{origin}: {fact.note}" if fact.note else origin


def _citation(source: CatalogSource) -> str:
    accessed = f"accessed {source.accessed}" if source.accessed else ""
    return ", ".join(part for part in (source.title, source.url, accessed) if part)
