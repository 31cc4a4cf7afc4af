"""Reading the catalogue, and finding GPUs and clusters by the names that people write.

Files are parsed when needed. The index of names reads only the first paragraph of each file, which
holds its name and aliases.

People spell a GPU in many ways: H100-80GB-SXM, h100 sxm5. The model, form factor and memory size
identify a GPU. Case, order, separators, vendor, kind of memory and the generation of the form
factor are ignored.
"""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import tomli as tomllib
from pydantic import ValidationError

from hardware.calibration import Calibration
from hardware.errors import WHERE_TO_LOOK, HardwareError, did_you_mean, invalid_file, unknown_name
from hardware.files import read_text, toml_content
from hardware.records import ClusterShape, GpuRecord, as_table
from hardware.schema import Cluster, Gpu
from hardware.units import ASSUMPTION, Quantity

CATALOG = Path(__file__).parent / "catalog"
_Record = TypeVar("_Record", GpuRecord, ClusterShape)
_GPUS_FILE = re.compile(r"^\s*(?P<count>[0-9]+)x(?P<path>\S.*\.toml)\s*$")
_GPUS_TEXT = re.compile(
    r"^\s*(?P<count>[+-]?\d[\d_]*)\s*[x×*]\s*(?:(?P<per_node>[+-]?\d+)\s*[x×*]\s*)?(?P<name>\w(?:.*[\w)])?)\s*$",
    re.IGNORECASE | re.ASCII,
)
# Fields that describe the catalogue entry itself and are not copied to a user's cluster.
_ENTRY_FIELDS = ("name", "title", "aliases", "note", "gpu")
# Largest relative difference between two printed memory sizes of the same GPU, such as total and
# usable.
_SAME_MEMORY = 0.03
_UNITS = (1e9, 2.0**30)
_SEVERAL = re.compile(r"[,;&]\s*[0-9]")
_APART = (
    "give --gpus again for another cluster (--gpus 64xH100 --gpus 64xA100); GPUs of several types "
    "in one job: 64xH100+64xA100"
)
_EXAMPLES = "write COUNTxGPU (64xH100) or NODESxGPUS_PER_NODExGPU (8x8xH100)"


class _Folder:
    """Index of one catalogue folder: any spelling of a name or alias -> file."""

    def __init__(self, folder: str) -> None:
        self.names: dict[str, Path] = {}
        self.spellings: list[str] = []
        self.keys: dict[Key, Path] = {}
        for path in sorted((CATALOG / folder).glob("*.toml")):
            header = tomllib.loads(path.read_text(encoding="utf-8").partition("\n\n")[0])
            self.names[header["name"]] = path
            for spelling in (header["name"], *header.get("aliases", ())):
                self.spellings.append(spelling)
                self.keys[name_key(spelling)] = path

    def find(self, name: str) -> Path | None:
        return self.keys.get(name_key(name))


@cache
def _folder(folder: str) -> _Folder:
    return _Folder(folder)


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs in the catalogue."""
    return tuple(_folder("gpus").names)


def cluster_names() -> tuple[str, ...]:
    """Names of the node shapes in the catalogue."""
    return tuple(_folder("clusters").names)


def _shipped(kind: type[_Record], path: Path) -> _Record:
    """A file of the catalogue. HardwareError names the wrong field."""
    table = toml_content(path.read_text(encoding="utf-8"), str(path))
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise invalid_file(str(path), error, kind.model_fields) from None


_read_gpu = cache(partial(_shipped, GpuRecord))
_read_shape = cache(partial(_shipped, ClusterShape))


@cache
def _to_gpu(path: Path) -> Gpu:
    return _read_gpu(path).to_gpu()


def _gpu_path(name: str) -> Path | None:
    """The file of a GPU, or None.

    A memory size that no spelling has is accepted if it is within a few percent of the GPU's
    printed or usable memory, in GB or GiB.
    """
    path = _folder("gpus").find(name)
    key, size = without_memory(name_key(name))
    if path is not None or size is None:
        return path
    path = _folder("gpus").keys.get(key)
    if path is None:
        return None
    gpu = _to_gpu(path)
    sizes = [count / unit for count in (gpu.hbm_bytes, gpu.hbm_usable_bytes) for unit in _UNITS]
    return path if any(abs(size / other - 1.0) <= _SAME_MEMORY for other in sizes) else None


def load_gpu_record(name: str) -> GpuRecord:
    """A GPU with the source of every number. HardwareError for an unknown name."""
    return _read_gpu(_known_gpu(name))


def load_gpu(name: str) -> Gpu:
    """A GPU by name or alias, in any spelling. HardwareError for an unknown name."""
    return _to_gpu(_known_gpu(name))


def _known_gpu(name: str) -> Path:
    path = _gpu_path(name)
    if path is None:
        raise unknown_name("GPU", name, _folder("gpus").spellings)
    return path


def load_cluster_shape(name: str) -> ClusterShape:
    """A node shape by name or alias, in any spelling. HardwareError for an unknown name."""
    path = _folder("clusters").find(name)
    if path is None:
        raise unknown_name("cluster", name, _folder("clusters").spellings)
    return _read_shape(path)


def _shape_of(name: str) -> ClusterShape | None:
    """The node shape of that name, or the default shape of the GPU of that name."""
    gpu_path = _gpu_path(name)
    if gpu_path is not None:
        return load_cluster_shape(_read_gpu(gpu_path).default_cluster)
    shape_path = _folder("clusters").find(name)
    return _read_shape(shape_path) if shape_path is not None else None


def _gpu_of(name: str, shape: ClusterShape) -> Gpu:
    """The named GPU, or the GPU of `shape` if the name is a shape's."""
    return load_gpu(name if _gpu_path(name) else shape.gpu)


# More than any site has.
MOST_GPUS = 2**22


def parse_gpus(text: str) -> Cluster:
    """The cluster described by `64xH100`, `8x8xH100-80GB-SXM` or `64xaws-p5`.

    The first form gives the number of GPUs, in nodes of the GPU's default shape (H100: DGX H100).
    The second gives nodes and GPUs per node. The name of a node shape, or a cluster file as in
    `64xmine.toml`, may replace the GPU's name. Fewer GPUs than one node holds make one partial
    node. Raises HardwareError for anything else.
    """
    if file := _GPUS_FILE.match(text):
        return load_cluster_file(Path(file["path"])).with_gpus(_positive(text, file["count"]))
    match = _GPUS_TEXT.match(text)
    if not match or _SEVERAL.search(match["name"]):
        _reject_text(text)
    name = match["name"]
    shape = _shape_of(name)
    if shape is None:
        known = (*_folder("gpus").spellings, *_folder("clusters").spellings)
        raise HardwareError(
            f"{text!r}: unknown GPU or cluster {name!r}.{did_you_mean(name, known)} "
            f"({WHERE_TO_LOOK})"
        )
    gpu, count = _gpu_of(name, shape), _positive(text, match["count"])
    if match["per_node"] is None:
        return shape.to_cluster(gpu, count)
    per_node = _positive(text, match["per_node"])
    _check_node_size(text, shape, per_node)
    return shape.resized(per_node).to_cluster(gpu, count * per_node)


def _positive(text: str, digits: str) -> int:
    if len(digits) > len(str(MOST_GPUS)) or not 1 <= int(digits) <= MOST_GPUS:
        shown = digits if len(digits) < 20 else f"a number of {len(digits)} digits"
        raise HardwareError(
            f"{text!r}: {shown} is not a number of GPUs; give one from 1 to {MOST_GPUS:,}"
        )
    return int(digits)


def _check_node_size(text: str, shape: ClusterShape, per_node: int) -> None:
    largest = int(max(shape.gpus_per_node.value, shape.scale_up_domain.value))
    if per_node > largest:
        raise HardwareError(
            f"{text!r}: {shape.title or shape.name} has at most {largest} GPUs per node, but "
            f"{per_node} were given; describe other nodes in a file and pass it with --cluster "
            "FILE.toml"
        )


def _reject_text(text: str) -> NoReturn:
    """Raise the error for text in another form, with the nearest fix."""
    turned = re.match(r"^\s*(.+?)\s*[:x*×]\s*([0-9]+)\s*$", text)
    bare = re.match(r"^\s*([0-9]+)[\s:-]*(.+?)\s*$", text)
    count, name = turned.group(2, 1) if turned else bare.group(1, 2) if bare else ("", "")
    if _SEVERAL.search(text):
        fix = _APART
    elif _shape_of(text) is not None and not (turned and _shape_of(name)):
        fix = f"how many? Write for example 8x{text.strip()}"
    elif count and _shape_of(name) is not None:
        fix = f"did you mean {count}x{name}?"
    else:
        fix = _EXAMPLES
    raise HardwareError(f"{text!r} names no GPUs: {fix} ({WHERE_TO_LOOK})")


def load_cluster_file(path: Path) -> Cluster:
    """A cluster from a user's TOML file; see `load_shape_file`."""
    return load_shape_file(path)[1]


def load_shape_file(path: Path) -> tuple[ClusterShape, Cluster]:
    """A node shape, every number with its source, and the cluster of such nodes, from a user's
    TOML file.

    Required: `num_gpus`, and one of `gpu` and `like`. Everything else has a default::

        name = "our-cluster"            # default: the file's name
        num_gpus = 256
        gpu = "H100-SXM5-80GB"          # catalogue name, or a table [gpu] (below)
        like = "dgx-h100"               # shape that fills what is not stated; default: the GPU's
        gpus_per_node = 8
        scale_up_domain = 8             # GPUs that reach each other over NVLink or xGMI
        scale_up_link = "450 GB/s"      # per GPU and direction
        nics_per_node = 8
        nic_rate = "400 Gbit/s"         # one NIC, per direction
        fabric = "infiniband"           # roce, ethernet (TCP), efa, efa-v1, efa-6400, tcpx, tcpxo,
                                        # slingshot, omni-path, none (one node, or one rack)
        rail_optimised = true
        oversubscription = 1.0
        leaf_nodes = 32                 # nodes among which nothing crosses the spine
        sharp = "v3"                    # switches that reduce: v2 HDR, v3 NDR, v4 XDR, or true
        host_memory = "2 TiB"           # of a node
        gpus_per_host_link = 1          # GPUs that share one link to host memory
        host_speed = 1.4                # of one CPU core, over a DGX A100's (EPYC 7742)
        host_launch_speed = 1.4         # of bare launches; default: host_speed

        [gpu]                           # instead of gpu = "...": fields of catalog/gpus/*.toml
        like = "H100-SXM5-80GB"         # optional: the GPU that fills what is not stated
        name = "H100 at 500 W"
        tdp = "500 W"
        peak.bf16 = "800 TFLOP/s"

    [calibration] is what `planner calibrate` learnt from runs (`hardware.calibration`).
    A number may also be a table `{ value = 450, unit = "GB/s", source = "..." }`.
    HardwareError names the file and the field at fault.
    """
    table = toml_content(read_text(path), str(path))
    num_gpus = table.pop("num_gpus", None)
    counted = isinstance(num_gpus, int) and not isinstance(num_gpus, bool)
    if not counted or not 1 <= num_gpus <= MOST_GPUS:
        raise HardwareError(
            f"{path}: field 'num_gpus' must be a whole number from 1 to {MOST_GPUS:,}, "
            f"not {num_gpus!r}"
        )
    like = _name_of_like(str(path), table)
    if "gpu" not in table and like is None:
        raise HardwareError(f"{path}: field 'gpu' is missing: a catalogue name or a table [gpu]")
    gpu = _user_gpu(path, table.get("gpu", like))
    calibration = _calibration(path, table.pop("calibration", None))
    base = _base_shape(path, like or gpu.default_cluster, table)
    fields = {"name": path.stem, **base, **table, "gpu": gpu.name}
    try:
        shape = ClusterShape.model_validate(fields)
        cluster = shape.to_cluster(gpu, num_gpus)
    except ValidationError as error:
        raise invalid_file(str(path), error, ClusterShape.model_fields) from None
    except HardwareError as error:
        raise HardwareError(f"{path}: {error}") from None
    return shape, cluster.model_copy(update={"calibration": calibration})


def _calibration(path: Path, given: Any) -> Calibration | None:
    if given is None:
        return None
    try:
        return Calibration.model_validate(given)
    except ValidationError as error:
        raise invalid_file(f"{path}, table [calibration]", error) from None


def _user_gpu(path: Path, given: Any) -> Gpu:
    """The GPU that a user's file names or describes. `given`: a name or a table."""
    if isinstance(given, str):
        shape = _shape_of(given)
        try:
            return load_gpu(given) if shape is None else _gpu_of(given, shape)
        except HardwareError as error:
            raise HardwareError(f"{path}: {error}") from None
    if not isinstance(given, dict):
        raise HardwareError(f"{path}: field 'gpu' is neither a catalogue name nor a table [gpu]")
    table = dict(given)
    like = _name_of_like(f"{path}, table [gpu]", table)
    base = {} if like is None else _base_gpu(path, like)
    if isinstance(table.get("peak"), dict) and "peak" in base:
        table["peak"] = {**base["peak"], **table["peak"]}
    try:
        return GpuRecord.model_validate({**base, **table}).to_gpu()
    except ValidationError as error:
        raise invalid_file(f"{path}, table [gpu]", error, GpuRecord.model_fields) from None


def _name_of_like(origin: str, table: dict[str, Any]) -> str | None:
    """Remove `like = "dgx-h100"` from a user's table and return it. HardwareError if it is not a
    name."""
    like = table.pop("like", None)
    if like is not None and (not isinstance(like, str) or not like.strip()):
        raise HardwareError(f"{origin}: field 'like' must be a catalogue name, not {like!r}")
    return like


def _base_gpu(path: Path, like: str) -> dict[str, Any]:
    try:
        return as_table(load_gpu_record(like))
    except HardwareError as error:
        raise HardwareError(f"{path}, table [gpu]: {error}") from None


def _base_shape(path: Path, like: str, table: dict[str, Any]) -> dict[str, Any]:
    """Fields of the shape that completes a user's file; empty if there is none."""
    if not like:
        return {}
    shape = _shape_of(like)
    if shape is None:
        raise HardwareError(
            f"{path}: {unknown_name('cluster', like, _folder('clusters').spellings)}"
        )
    per_node = table.get("gpus_per_node")
    if isinstance(per_node, dict):
        per_node = per_node.get("value")
    if isinstance(per_node, int) and per_node > 0:
        shape = shape.resized(per_node)
    inherited = as_table(shape)
    return {name: inherited[name] for name in inherited if name not in _ENTRY_FIELDS}


_IRRELEVANT = {
    "nvidia", "amd", "tesla", "geforce", "instinct", "gpu", "oam", "hbm2", "hbm2e", "hbm3", "hbm3e",
}  # fmt: skip
_SEPARATORS = re.compile(r"[^a-z0-9.]+")
_FORM_FACTOR = re.compile(r"(sxm|pcie)\d?|(nvl\d*)|rtx")
_MEMORY = re.compile(r"(?<![a-z0-9])(\d{2,3})\s*(?:gib|gb|g)?(?![a-z0-9])")
_SIZE = re.compile(r"\d{2,3}gb")

Key = tuple[str, ...]


def name_key(name: str) -> Key:
    """Sorted words of a name in normal spelling: `H100-80GB-SXM5` -> (80gb, h100, sxm)."""
    text = _FORM_FACTOR.sub(lambda match: f" {match[1] or match[2] or ''} ", name.lower())
    text = _MEMORY.sub(r"\1gb", _SEPARATORS.sub(" ", text))
    return tuple(sorted(set(text.split()) - _IRRELEVANT))


def without_memory(key: Key) -> tuple[Key, float | None]:
    """The key without its memory size, and that size as written, in GB or GiB."""
    sizes = [word for word in key if _SIZE.fullmatch(word)]
    if len(sizes) != 1:
        return key, None
    return tuple(word for word in key if word != sizes[0]), float(sizes[0].removesuffix("gb"))


class Fact(Quantity):
    """A number as the catalogue prints it."""

    name: str

    @property
    def assumption(self) -> bool:
        """Whether the number is an assumption, because no figure was published."""
        return self.source == ASSUMPTION


def gpu_facts(name: str) -> tuple[Fact, ...]:
    """All numbers of a GPU with unit and source. HardwareError for an unknown name."""
    return facts(load_gpu_record(name).quantities())


def cluster_facts(name: str) -> tuple[Fact, ...]:
    """All numbers of a node shape with unit and source. HardwareError for an unknown name."""
    return facts(load_cluster_shape(name).quantities())


def facts(quantities: dict[str, Quantity]) -> tuple[Fact, ...]:
    """Numbers of a record by name."""
    return tuple(Fact(name=name, **dict(one)) for name, one in quantities.items())
