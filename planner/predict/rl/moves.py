"""How new weights are sent to the engine: bytes, seconds, and temporary memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hardware.files import shipped_toml
from hardware.frozen import Named
from hardware.schema import Cluster
from planner.job.rl.job import RlJob
from planner.job.specs import ModelSpec
from planner.predict.ops.table import parameter_count
from planner.predict.ops.trained import held_parameters
from planner.predict.rl.plan import EngineLayout

# Bytes/s of one GPU's copy to or from host memory that is not pinned, with all GPUs of a node at
# once, over PCIe 5: least absolute errors over verl's published reshard times with and without
# offloaded parameters. The driver stages such copies, so they run at 1/16 of the link's rate.
_UNPINNED_BYTES_PER_S = 4.0e9
_PCIE_BYTES_PER_S = 6.3e10
# Bytes/s at which a trainer compares its shard with a copy on the host and packs the changes:
# verl's delta_weight_sync.md, where 1.0 to 7.6 GB a rank took 2.2 to 11.4 s.
COMPARED_BYTES_PER_S = 0.8e9
# Seconds to convert a bf16 tensor to 8 bits with scales while loading: kernels and calls, whatever
# its size. NeMo-RL's docs/design-docs/refit.md, 30B-A3B (18,600 tensors): 2.9 s with and 0.74 s
# without; slime's docs, 355B: 100 s and 48 s (1.2 ms a tensor, in a trainer).
QUANTISED_TENSOR_S = 2.0e-4
# Bytes of an element that is sent individually: its value and its index.
_CHANGED_BYTES = 6.0
# Tensors of a published layer without its experts: attention, norms, and the FFN or router.
_LAYER_TENSORS = 12
_EXPERT_TENSORS = 3
_MODEL_TENSORS = 3


class Way(Named):
    """A way to send new weights; the fields are those of `transfer.toml`, which explains them."""

    name: str
    words: str
    source: str
    start_s: float
    tensor_s: float
    bytes_per_s: float
    sharded: bool = False
    changed: float = 1.0
    plain: bool = False
    trainers: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()

    def reaches(self, job: RlJob) -> bool:
        """Whether a job's trainer can send weights to its engine in this way."""
        trainer, engine = job.trainer.framework.name, job.engine
        plain = engine.weights in ("bf16", "fp16") or not self.plain
        matches = trainer in (self.trainers or (trainer,)) and engine.name in (
            self.engines or (engine.name,)
        )
        return plain and matches


@cache
def ways() -> Mapping[str, Way]:
    """Every way, by its name."""
    tables = shipped_toml("planner.predict.rl", "transfer.toml")
    return {name: Way(name=name, **row) for name, row in tables.items()}


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of new weights to the engines. `terms`: seconds by cause; `moved_bytes`: bytes
    of weights that are sent; `buffer_bytes`: temporary bytes on a GPU of each side during the
    transfer."""

    way: str
    terms: Mapping[str, float]
    moved_bytes: float
    buffer_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole transfer."""
        return sum(self.terms.values())


def transfer(job: RlJob, engine: EngineLayout, way: str, shard_bytes: float) -> Transfer:
    """The transfer of new weights to every engine. `way`: its name in `transfer.toml`;
    `shard_bytes`: bytes of weights on one GPU of the trainer."""
    rules = ways()[way]
    weights, tensors = moved_weights(job)
    terms = {
        "start": rules.start_s,
        "tensors": tensors * rules.tensor_s,
        "bytes": _travelling(rules, weights, engine) / rules.bytes_per_s,
    }
    if rules.changed < 1.0:
        terms["compare"] = shard_bytes / COMPARED_BYTES_PER_S
    if job.engine.weights not in ("bf16", "fp16"):
        terms["quantise"] = tensors * QUANTISED_TENSOR_S
    return Transfer(way, terms, weights * rules.changed, _buffers(job, weights, tensors))


def unpinned_bytes_per_s(cluster: Cluster) -> float:
    """Bytes/s of one GPU's copy to or from host memory that is not pinned. Over NVLink-C2C a GPU
    reads a host's pages itself; it is assumed to reach the same share of the link's rate as over
    PCIe."""
    link = cluster.gpu.host_link_bytes_per_s_per_direction
    return _UNPINNED_BYTES_PER_S * max(1.0, link / _PCIE_BYTES_PER_S)


def usual_way(job: RlJob, *, colocated: bool) -> str:
    """The name of the framework's default way to send weights, for engines on the trainer's GPUs
    (`colocated`) or on others."""
    framework = job.framework
    return framework.transfer_colocated if colocated else framework.transfer_separate[0]


def moved_weights(job: RlJob) -> tuple[float, int]:
    """(bytes in 16 bits, number of tensors as published) that engines need after an update. In a
    job with adapters these are only the trained ones, because engines serve adapters separately
    from the weights."""
    if not job.trainer.tuning.has_adapters:
        return _published(job.policy)
    held = held_parameters(job.trainer)
    layers = len(job.policy.kind_sequence)
    return 2.0 * held.trained, 2 * layers * max(1, len(job.trainer.tuning.targets))


@cache
def _published(model: ModelSpec) -> tuple[float, int]:
    return 2.0 * parameter_count(model).total, published_tensors(model)


def published_tensors(model: ModelSpec) -> int:
    """Tensors of a Hugging Face checkpoint, in which each expert's matrices are separate."""
    experts = model.moe.experts if model.moe else 0
    mixtures = sum(kind.ffn != "dense" for kind in model.kind_sequence)
    layers = _LAYER_TENSORS * len(model.kind_sequence)
    return _MODEL_TENSORS + layers + _EXPERT_TENSORS * experts * mixtures


def _travelling(rules: Way, weights: float, engine: EngineLayout) -> float:
    """Bytes that the slowest link carries: the slice of one rank if ranks fetch their own slices,
    otherwise the weights that are sent, or the changed ones of them."""
    if rules.sharded:
        return weights / (engine.tp * engine.pp * max(1, engine.ep // engine.tp))
    return weights * rules.changed * (_CHANGED_BYTES / 2.0 if rules.changed < 1.0 else 1.0)


def _buffers(job: RlJob, weights: float, tensors: int) -> float:
    """Bytes of two buckets of tensors on the way. Each is at least as large as the largest tensor
    (the embedding); together they take at most two copies of the weights. 0 if no tensor is sent.
    """
    bucket = job.framework.bucket_bytes
    largest = 2.0 * job.policy.vocab * job.policy.hidden
    return min(2.0 * max(bucket, largest), 2.0 * weights) if tensors else 0.0
