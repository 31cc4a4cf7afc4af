"""The model that is served, its GPUs and settings, and the rules that a deployment must obey."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from hardware.schema import Gpu
from planner.cost.codes import Shard
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.specs import LayerKind, ModelSpec
from planner.predict.memory.serving.engine import ENGINES, ServingEngine
from planner.predict.memory.serving.formats import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    KvFormat,
    WeightFormat,
)
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Piece
from planner.predict.ops.table import pieces

# vLLM pads the vocabulary of all tensor-parallel ranks together to a multiple of this
# (VocabParallelEmbedding).
VOCABULARY_MULTIPLE = 64
# Largest accepted values: far beyond any machine, and small enough for exact arithmetic.
MAX_BATCH = 1_000_000
MAX_TOKENS = 100_000_000
_MAX_DEGREE = 4096
_RANGES = {
    "--batch": ("batch", MAX_BATCH),
    "--context": ("context", MAX_TOKENS),
    "--max-num-batched-tokens": ("chunk", MAX_TOKENS),
    "--max-num-seqs": ("sequences", MAX_BATCH),
    "--block-size": ("block", _MAX_DEGREE),
    **{f"--{degree}": (degree, _MAX_DEGREE) for degree in ("tp", "pp", "ep", "dp")},
}


@dataclass(frozen=True)
class Deployment:
    """One model served by dp·tp·pp GPUs.

    `batch`: sequences served at once by all dp replicas together; `context`: tokens of each, prompt
    and answer; `chunk`: tokens of one prefill step; `sequences`: number of sequences for which the
    engine reserves sampling memory. `dp`: data-parallel attention, with dense weights once per
    replica and experts shared by all replicas. `ep` of a stage's dp·tp ranks hold whole experts;
    the other factor splits each expert. `window_cache`: sliding-window layers drop tokens that left
    the window.
    """

    model: ModelSpec
    gpu: Gpu
    batch: int = 1
    context: int = 4096
    weights: WeightFormat = WEIGHT_FORMATS["bf16"]
    kv: KvFormat = KV_FORMATS["bf16"]
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    utilization: float = 0.9
    block: int = 16
    chunk: int = 8192
    sequences: int = 256
    all_logits: bool = False
    graphs: bool = True
    window_cache: bool = True
    engine: ServingEngine = ENGINES["vllm"]

    @property
    def gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Number of ranks over which each single expert is split."""
        return self.tp * self.dp // self.ep

    @property
    def replica_batch(self) -> int:
        """Sequences on the fullest of the dp replicas."""
        return math.ceil(self.batch / self.dp)

    @property
    def sampled(self) -> int:
        """Sequences for which a replica reserves logits: `sequences`, but at most one per token of
        a chunk, and at least the replica's batch."""
        return max(min(self.sequences, self.chunk), self.replica_batch)

    @property
    def padded_vocabulary(self) -> int:
        """Vocabulary after padding, over all tp ranks."""
        unit = math.lcm(VOCABULARY_MULTIPLE, self.tp)
        return math.ceil(self.model.vocab / unit) * unit

    def share(self, shard: Shard) -> float:
        """Share of a tensor's width that a rank holds. `shard`: the way in which that width is
        split; 1 if it is not. Serving does not split sequences, so every rank holds each token's
        whole hidden state."""
        match shard:
            case Shard.TP | Shard.ROUTED_TP:
                return 1.0 / self.tp
            case Shard.KV:
                return 1.0 / min(self.tp, self.model.kv_heads)
            case Shard.EXPERT_TP:
                return 1.0 / self.expert_tp
        return 1.0

    @property
    def table(self) -> dict[str, Piece]:
        """The op table: layer kinds, embedding and head by name."""
        return _table(self.model)

    @cached_property
    def stages(self) -> tuple[tuple[LayerKind, ...], ...]:
        """Layers of each pipeline stage, split as in vLLM: layers beyond an even split go to the
        stages before the last, because the last has the head."""
        counts = [self.model.layers // self.pp] * self.pp
        for index in range(self.model.layers % self.pp):
            counts[-2 - index] += 1
        kinds = iter(self.model.kind_sequence)
        return tuple(tuple(next(kinds) for _ in range(count)) for count in counts)


@cache
def _table(model: ModelSpec) -> dict[str, Piece]:
    """Pieces by name; parameters and widths do not depend on the framework profile."""
    context = OpContext(model, load_framework("megatron-core"), model.pretraining_seq)
    return {piece.name: piece for piece in pieces(context)}


def layer_piece(deployment: Deployment, kind: LayerKind) -> Piece:
    """The op rows of a layer of this kind."""
    return deployment.table[f"layer[{kind.attention},{kind.ffn}]"]


def check_deployment(deployment: Deployment) -> None:
    """Raise UsageError for settings that no engine accepts, naming the nearest ones that work."""
    for problem in _problems(deployment):
        raise UsageError(problem)


def _problems(deployment: Deployment) -> Iterator[str]:
    model = deployment.model
    if not model.has_attention:
        yield (
            f"{model.name} has no attention and so no KV cache to size; `planner memory` without "
            "--inference sizes its training"
        )
    for option, (name, largest) in _RANGES.items():
        value = getattr(deployment, name)
        if not 1 <= value <= largest:
            yield f"{option} {value:,} is not between 1 and {largest:,}"
    if not 0 < deployment.utilization <= 1:
        yield (
            f"--gpu-memory-utilization {deployment.utilization:g} is not between 0 and 1; vLLM's "
            "usual value is 0.9"
        )
    yield from _tensor_problems(model, deployment.tp)
    yield from _expert_problems(deployment)
    if deployment.pp > model.layers:
        yield (
            f"--pp {deployment.pp} exceeds the {model.layers} layers of {model.name}; every stage "
            "holds at least one layer"
        )


def _tensor_problems(model: ModelSpec, tp: int) -> Iterator[str]:
    heads = f"nearest: {_nearest_divisors(model.heads, tp)}"
    if model.heads % tp:
        of_heads = f"the {model.heads} attention heads of {model.name}"
        yield f"--tp {tp} does not divide {of_heads}; {heads}"
    if model.mla is None and model.kv_heads % tp and tp % model.kv_heads:
        yield (
            f"--tp {tp} neither divides the {model.kv_heads} kv heads of {model.name} nor is a "
            f"multiple of them; {heads}"
        )
    dense = any(kind.ffn == "dense" for kind in model.kinds)
    if dense and model.ffn % tp:
        yield (
            f"--tp {tp} does not divide the FFN width {model.ffn:,} of {model.name}; "
            f"nearest: {_nearest_divisors(math.gcd(model.ffn, model.heads), tp)}"
        )


def _expert_problems(deployment: Deployment) -> Iterator[str]:
    model, ep, ranks = deployment.model, deployment.ep, deployment.tp * deployment.dp
    if model.moe is None:
        if ep > 1:
            yield f"--ep {ep}: {model.name} has no experts; leave --ep out"
    elif ranks % ep:
        yield (
            f"--ep {ep} does not divide tp·dp = {ranks} ranks of a stage; "
            f"nearest: {_nearest_divisors(ranks, ep)}"
        )
    elif ep > model.moe.experts:
        yield f"--ep {ep} exceeds the {model.moe.experts} experts of {model.name}"
    elif model.moe.ffn % deployment.expert_tp:
        yield (
            f"tp·dp/ep = {deployment.expert_tp} does not divide the experts' width "
            f"{model.moe.ffn:,}; give --ep {ranks} so that every rank holds whole experts"
        )


def _nearest_divisors(number: int, given: int) -> str:
    """The divisors of `number` next to `given`, at most one below (or equal) and one above it, in
    words: `4 or 8`."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = max((d for d in divisors if d <= given), default=None)
    above = min((d for d in divisors if d > given), default=None)
    return " or ".join(str(d) for d in (below, above) if d is not None)
