"""Every file of the catalogue: provenance, physical sanity, references between files."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from hardware.errors import HardwareError
from hardware.facts import load_formats, load_sources
from hardware.load import (
    CATALOG,
    _shipped,
    cluster_facts,
    cluster_names,
    gpu_facts,
    gpu_names,
    load_cluster_shape,
    load_gpu,
    name_key,
)
from hardware.prices import load_prices
from hardware.records import GpuRecord
from hardware.schema import FABRIC_TITLES, Gpu
from hardware.units import ASSUMPTION

GPUS = gpu_names()
CLUSTERS = cluster_names()
# Dense FLOP of one SM (CU) in one clock, 16-bit: the architecture's whitepaper.
FLOP_PER_SM_CLOCK = {
    "volta": 1024,
    "turing": 1024,
    "ampere": 2048,
    "ada": 1024,
    "hopper": 4096,
    "blackwell": 8192,
    "cdna2": 1024,
    "cdna3": 2048,
    "cdna4": 4096,
}


def test_the_catalogue_has_what_people_train_on() -> None:
    wanted = (
        "t4 a10g a30 l4 l20 4000-ada 2000-ada 4060 4060-laptop 3060 3080 3080-ti "
        "3090 4060-ti 4070 4070-ti-super 4080-super 5070-ti 5080 gb10 "
        "v100 v100-16gb v100-pcie a100 a100-40gb a100-pcie a800 a10 l40s 4090 5090 h100 "
        "h100-pcie h100-nvl h100-96gb h200 gh200 gh200-141gb h20 h20-141gb h800 b200 b300 "
        "gb200 gb300 mi250x mi300x mi325x mi355x"
    )
    assert len({load_gpu(name).name for name in wanted.split()}) == len(wanted.split())


@pytest.mark.parametrize("name", GPUS)
def test_every_number_of_a_gpu_has_a_source(name: str) -> None:
    facts = gpu_facts(name)
    assert len(facts) >= 13
    for fact in facts:
        assert fact.unit
        assert fact.source != "user", fact.name
        assert not fact.assumption or fact.note, f"{fact.name}: an assumption says from what"


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_number_of_a_cluster_has_a_source(name: str) -> None:
    for fact in cluster_facts(name):
        assert fact.source in load_sources()
        assert fact.source != "user", fact.name


@pytest.mark.parametrize("folder", ["gpus", "clusters"])
def test_files_are_named_after_what_they_hold(folder: str) -> None:
    for path in (CATALOG / folder).glob("*.toml"):
        assert tomllib.loads(path.read_text(encoding="utf-8"))["name"].lower() == path.stem


@pytest.mark.parametrize("folder", ["gpus", "clusters"])
def test_the_first_paragraph_alone_holds_names_and_aliases(folder: str) -> None:
    for path in (CATALOG / folder).glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        head, whole = tomllib.loads(text.partition("\n\n")[0]), tomllib.loads(text)
        assert head == {key: whole[key] for key in ("name", "aliases") if key in whole}


@pytest.mark.parametrize("folder", ["gpus", "clusters"])
def test_no_spelling_means_two_things(folder: str) -> None:
    owners: dict[tuple[str, ...], set[Path]] = {}
    for path in (CATALOG / folder).glob("*.toml"):
        record = tomllib.loads(path.read_text(encoding="utf-8"))
        for spelling in (record["name"], *record.get("aliases", ())):
            owners.setdefault(name_key(spelling), set()).add(path)
    assert [paths for paths in owners.values() if len(paths) > 1] == []


def test_no_source_is_unused_and_none_lacks_a_title() -> None:
    used = {fact.source for name in GPUS for fact in gpu_facts(name)}
    used |= {fact.source for name in CLUSTERS for fact in cluster_facts(name)}
    used |= {price.source for price in load_prices()}
    used |= {number_format.source for number_format in load_formats().values()}
    economics = (CATALOG / "economics.toml").read_text(encoding="utf-8")
    used |= set(re.findall(r'\bsource = "([^"]+)"', economics)) - {ASSUMPTION}
    assert used == set(load_sources())
    assert all(source.title for source in load_sources().values())


def test_formats_are_those_of_the_peak_rates_and_add_up() -> None:
    named = {name for gpu in GPUS for name in load_gpu(gpu).peak_flop_per_s}
    assert {name for name, one in load_formats().items() if not one.weights_only} == named
    for name, found in load_formats().items():
        written = 19 if name == "tf32" else found.bits  # tf32 is held in 32 bits
        assert 1 + found.exponent_bits + found.mantissa_bits == written, name
    ieee = load_formats()["fp16"]
    assert ieee.largest == (2 - 2.0**-ieee.mantissa_bits) * 2.0 ** (
        2 ** (ieee.exponent_bits - 1) - 1
    )
    assert load_formats()["mxfp8"].bytes_per_value == 1 + 1 / 32
    # QLoRA, section 3: 0.5 bits a parameter of fp32 scales, 8/64 + 32/(64·256) when these are
    # quantised again.
    assert load_formats()["nf4"].bytes_per_value == 4.5 / 8
    assert load_formats()["nf4-double"].bytes_per_value == (4 + 8 / 64 + 32 / (64 * 256)) / 8


def test_most_numbers_are_published() -> None:
    kinds = Counter(fact.assumption for name in GPUS for fact in gpu_facts(name))
    assert kinds[False] > 2 * kinds[True]


@pytest.mark.parametrize("name", GPUS)
def test_narrower_arithmetic_is_never_slower(name: str) -> None:
    peak = load_gpu(name).peak_flop_per_s
    widest_first = [peak[d] for d in ("fp32", "tf32", "bf16", "fp8", "nvfp4") if d in peak]
    assert widest_first == sorted(widest_first)
    if "bf16" in peak:
        assert peak["bf16"] == pytest.approx(peak["fp16"], rel=0.01)
    if "mxfp8" in peak:
        assert peak["mxfp8"] == peak["fp8"]


def _begins(name: str, words: tuple[str, ...]) -> bool:
    """Whether a GPU's name is one of these, or begins with one that ends in a digit of a series."""
    return name in words or name.startswith(tuple(one for one in words if one.startswith("RTX")))


@pytest.mark.parametrize("name", [name for name in GPUS if not name.startswith("H20-")])
def test_the_peak_follows_from_units_and_clock(name: str) -> None:
    """Peak = SMs x FLOP per SM and clock x clock; clocks of some boards are upper limits.

    Other chips of the family do half of their architecture's (GA102, AD102), GeForce boards of
    Ampere a quarter with fp32 accumulation; on H20 the rate is capped by regulation, so nothing
    follows.
    """
    gpu = load_gpu(name)
    halves = ("A10", "A40", "RTX-A6000", "RTX4", "RTX5", "L40", "L20", "GB10-128GB")
    quarters = ("A10G", "RTX30")
    divisor = 4 if _begins(name, quarters) else 2 if _begins(name, halves) else 1
    per_clock = gpu.sm_count * FLOP_PER_SM_CLOCK[gpu.architecture] / divisor
    assert 0.86 < gpu.peak("fp16") / (per_clock * gpu.boost_clock_hz) < 1.02


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_plausible(name: str) -> None:
    """torch sees 90 to 100 % of what the datasheet prints, in bytes."""
    gpu = load_gpu(name)
    assert 0.9 * gpu.hbm_bytes < gpu.hbm_usable_bytes <= gpu.hbm_bytes
    assert 0.1 * 2**30 < gpu.context_bytes < 1.0 * 2**30
    assert 2 * 2**20 < gpu.l2_bytes < 256 * 2**20


@pytest.mark.parametrize("name", GPUS)
def test_links_are_ordered_as_in_nature(name: str) -> None:
    gpu = load_gpu(name)
    scale_up = gpu.scale_up_bytes_per_s_per_gpu_per_direction
    assert gpu.hbm_bytes_per_s > scale_up >= gpu.host_link_bytes_per_s_per_direction
    if gpu.scale_up_domain_gpus == 1:
        assert scale_up == gpu.host_link_bytes_per_s_per_direction
    if gpu.scale_up_pair_bytes_per_s_per_direction is not None:
        assert gpu.scale_up_pair_bytes_per_s_per_direction < scale_up


@pytest.mark.parametrize("name", GPUS)
def test_measured_matmul_stays_below_the_peak(name: str) -> None:
    gpu = load_gpu(name)
    for dtype, measured in gpu.measured_matmul_flop_per_s.items():
        assert 0.4 * gpu.peak(dtype) < measured < gpu.peak(dtype)


@pytest.mark.parametrize("name", GPUS)
def test_the_default_cluster_exists_and_agrees(name: str) -> None:
    gpu = load_gpu(name)
    shape = load_cluster_shape(gpu.default_cluster)
    assert shape.scale_up_domain.value == gpu.scale_up_domain_gpus
    assert load_gpu(shape.gpu).architecture == gpu.architecture


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_are_plausible(name: str) -> None:
    shape = load_cluster_shape(name)
    cluster = shape.to_cluster(load_gpu(shape.gpu), 64)
    domain, node = cluster.scale_up_domain_gpus, cluster.node_gpus
    assert domain % node == 0 or node % domain == 0
    assert cluster.fabric in FABRIC_TITLES
    assert cluster.oversubscription == 1.0
    assert (
        cluster.scale_out_bytes_per_s_per_gpu_per_direction
        <= cluster.scale_up_bytes_per_s_per_gpu_per_direction
    )
    assert 16e9 < cluster.host_memory_bytes_per_node / node < 1e12


def test_published_figures_of_the_h100() -> None:
    gpu = load_gpu("h100")
    assert gpu.name == "H100-SXM5-80GB"
    assert gpu.peak("bf16") == 989.4e12
    assert gpu.hbm_bytes_per_s == 3.35e12
    assert gpu.hbm_usable_bytes / 2**30 == pytest.approx(79.11)
    assert gpu.scale_up_bytes_per_s_per_gpu_per_direction == 450e9
    assert gpu.sm_count == 132


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("v100", "fp32 fp16"),
        ("a100", "fp32 tf32 fp16 bf16"),
        ("l40s", "fp32 tf32 fp16 bf16 fp8"),
        ("h100", "fp32 tf32 fp16 bf16 fp8"),
        ("b200", "fp32 tf32 fp16 bf16 fp8 mxfp8 nvfp4"),
        ("mi250x", "fp32 fp16 bf16"),
        ("mi355x", "fp32 fp16 bf16 fp8 mxfp8 mxfp4"),
    ],
)
def test_dtypes_of_an_architecture(name: str, dtypes: str) -> None:
    assert list(load_gpu(name).peak_flop_per_s) == dtypes.split()


def test_a_dtype_that_a_gpu_lacks_is_named_with_those_it_has() -> None:
    message = r"V100-SXM2-32GB has no bf16 matrix arithmetic; it has: fp32, fp16"
    with pytest.raises(HardwareError, match=message):
        load_gpu("v100").peak("bf16")


def test_a_gpu_is_a_value() -> None:
    gpu = load_gpu("h100")
    assert gpu == Gpu.model_validate(gpu.model_dump())
    assert hash(gpu) == hash(gpu.model_copy())


def test_prices_name_gpus_and_sources_of_the_catalogue() -> None:
    prices = load_prices()
    assert {price.gpu for price in prices} <= set(GPUS)
    assert {price.source for price in prices} <= set(load_sources())
    by_row = {(p.gpu, p.provider, p.kind): p.usd_per_gpu_hour for p in prices}
    assert len(by_row) == len(prices)
    # Whole instance over its GPUs: p5.48xlarge lists 55.04 USD an hour, spot 11.56.
    assert by_row["H100-SXM5-80GB", "aws", "on_demand"] == pytest.approx(55.04 / 8)
    assert by_row["H100-SXM5-80GB", "aws", "spot"] == pytest.approx(11.56 / 8)


def test_a_users_price_table(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    head = "gpu,provider,kind,usd_per_gpu_hour,date,source\n"
    path.write_text(head + "h100 sxm,us,reserved,1.5,2026-10-01,contract\n", encoding="utf-8")
    assert load_prices(path)[0].gpu == "H100-SXM5-80GB"
    path.write_text(head + "h100,us,gratis,1.5,,contract\n", encoding="utf-8")
    with pytest.raises(HardwareError, match=r"prices\.csv, line 2, column 3: field 'kind'"):
        load_prices(path)
    path.write_text(head + "h1000,us,spot,1.5,,contract\n", encoding="utf-8")
    with pytest.raises(HardwareError, match=r"line 2: unknown GPU 'h1000'. Did you mean 'h100'"):
        load_prices(path)
    with pytest.raises(HardwareError, match=r"absent\.csv does not exist"):
        load_prices(tmp_path / "absent.csv")


def test_a_wrong_field_of_a_new_file_is_named(tmp_path: Path) -> None:
    text = (CATALOG / "gpus" / "rtx4090.toml").read_text(encoding="utf-8")
    path = tmp_path / "rtx4070.toml"
    path.write_text(text.replace("hbm_bandwidth", "hbm_bandwith"), encoding="utf-8")
    with pytest.raises(HardwareError, match=r"rtx4070\.toml: .*Did you mean 'hbm_bandwidth'"):
        _shipped(GpuRecord, path)
