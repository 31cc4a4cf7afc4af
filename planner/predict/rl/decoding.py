"""Seconds of one decoding step of an engine, and of reading one token of a prompt.

A step gives every running sequence one token. Its products read the weights once, whatever the
number of sequences, until arithmetic takes longer; attention reads the keys and values of all
sequences; experts are read only if some token is sent to them. Rates come from
`planner.cost.compute` and `planner.cost.communication`, as in training.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hardware.curves import load_compute_curves
from hardware.schema import Cluster
from planner.cost.codes import OpKind, Shard
from planner.cost.compute import gemm_time_s, memory_bound_time_s
from planner.job.specs import LayerKind
from planner.predict.cost_tables import gpu_inputs, half_precision
from planner.predict.memory.serving.deployment import Deployment, layer_piece
from planner.predict.memory.serving.formats import NATIVE
from planner.predict.memory.serving.stage import layer_state_bytes, layer_token_bytes
from planner.predict.memory.serving.weights import op_weights
from planner.predict.ops.rows import Op
from planner.predict.rl.batching import Floats
from planner.predict.rl.exchange import layer_exchange_s, logits_gather_s

# HBM bytes of sampling for each logit: fp32 copy, temperature, softmax, noise and division,
# argmax, log-softmax (vLLM, v1/sample/sampler.py, topk_topp_sampler.py).
_SAMPLING_BYTES = 50.0
_SAMPLING_KERNELS = 12.0
# Kernels of attention beside its products: cache update, attention, sum of partial results.
_ATTENTION_KERNELS = 3.0
# Kernels between the router and the experts: top-k and its weights, sorting; and kernel launches
# there, with allocations and casts, if Python issues each (vLLM, fused_moe.py).
_ROUTING_KERNELS = 4.0
_ROUTING_LAUNCHES = 8.0
# Further kernels of MLA, whose up-projections are absorbed into its products: two batched products,
# joining the queries, transposing the outputs.
_LATENT_KERNELS = 4.0
# Number of rows to which a product's tokens are padded (the narrowest side of the tensor cores'
# tile, which contains all tokens if they are few), and the number of rows from which training's
# tiles apply.
_FEW_ROWS = 8.0
_MANY_ROWS = 64.0
# Rows of a tile of attention's products, to which the queries of a group are padded: in
# FlashAttention-2 and MLA's kernels, and in FlashAttention-3 (sgl-project/sglang issue 5630: 64
# sequences of 13,000 tokens of a 32B model take 70 ms a step on 4 H20 with it, where 128 rows make
# 79; and 32 ms with a decoding kernel).
_QUERY_ROWS = 64.0
_FLASH3_ROWS = 128.0
_FLASH3 = "flash3_or_cudnn"
# Length of a chunk at which the cost of reading prompts is evaluated, tokens.
_PREFILL_TOKENS = 4096.0
# Rows of a tile of the experts' kernels at few tokens an expert (vLLM, fused_moe: BLOCK_SIZE_M).
_EXPERT_ROWS = 16.0
_ELEMENT = 2.0
_GRID = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


@dataclass(frozen=True)
class DecodeCosts:
    """Seconds of a decoding step of one engine, by the number of sequences on each of its dp ranks.

    `grid`: the numbers of sequences for which the next five fields state seconds: `weights` for
    reading the weights, `products` for arithmetic beyond that, `exchange` among ranks, `kernels`
    for small kernels and launches, `sampling`. `token_s`, `window_token_s`: seconds per cached
    token, in layers without and with a window; `state_s`: seconds per sequence, for recurrent
    states; `launches`: number of kernels of a step; `prefill_token_s`: seconds per prompt token
    that is read; `prefill_square_s`: seconds per pair of tokens of a prompt.
    """

    grid: tuple[float, ...]
    weights: tuple[float, ...]
    products: tuple[float, ...]
    exchange: tuple[float, ...]
    kernels: tuple[float, ...]
    sampling: tuple[float, ...]
    token_s: float
    window_token_s: float
    state_s: float
    launches: float
    prefill_token_s: float
    prefill_square_s: float

    def terms(self, sequences: Floats, tokens: Floats, windowed: Floats) -> Mapping[str, Floats]:
        """Seconds of steps by cause: those of the grid, interpolated, and `kv` for reading cache
        and states. Each argument has one value per step: `sequences` on a rank, `tokens` that they
        have cached together, and `windowed`, those of them within the window."""
        found = {name: np.interp(sequences, self.grid, getattr(self, name)) for name in _CAUSES}
        read = tokens * self.token_s + windowed * self.window_token_s
        return {**found, "kv": read + sequences * self.state_s}


def decode_costs(deployment: Deployment, cluster: Cluster) -> DecodeCosts:
    """Costs of a deployment on GPUs with a cluster's links."""
    # Settings that only affect memory share a table.
    usual: dict[str, Any] = {
        one.name: one.default for one in fields(Deployment) if one.name in _OF_MEMORY
    }
    return _decode_costs(replace(deployment, **usual), cluster)


_OF_MEMORY = ("utilization", "chunk", "sequences", "engine", "context")
_CAUSES = ("weights", "products", "exchange", "kernels", "sampling")


@lru_cache(maxsize=512)
def _decode_costs(deployment: Deployment, cluster: Cluster) -> DecodeCosts:
    return _Coster(deployment, cluster).costs()


class _Coster:
    """Adds up the rows of the op table for one deployment."""

    def __init__(self, deployment: Deployment, cluster: Cluster) -> None:
        gpu = deployment.gpu
        self.deployment, self.cluster = deployment, cluster
        half = gpu_inputs(gpu, half_precision(gpu), "auto")
        self.gpu = half._replace(gemm_hbm_efficiency=half.hbm_efficiency)
        native = deployment.weights.name in NATIVE and _low_type(deployment) is not None
        low = gpu_inputs(gpu, _low_type(deployment) or "bf16", "auto") if native else half
        self.low = low._replace(gemm_hbm_efficiency=half.hbm_efficiency)
        self.counts = Counter(deployment.model.kind_sequence)
        self.heads = tuple(deployment.table["head"].ops)
        self._weights: dict[int, float] = {}

    def costs(self) -> DecodeCosts:
        """The costs of the deployment."""
        each = [self._step(sequences / self.deployment.pp) for sequences in _GRID]
        columns = {name: tuple(step[name] for step in each) for name in _CAUSES}
        token_s, window_token_s = self._cached_token_s()
        return DecodeCosts(
            grid=tuple(map(float, _GRID)),
            **columns,
            token_s=token_s,
            window_token_s=window_token_s,
            state_s=self._state_s(),
            launches=self._launches(),
            prefill_token_s=self._prefill(),
            prefill_square_s=self._prefill_square(),
        )

    def _step(self, tokens: float) -> Mapping[str, float]:
        """Seconds by cause of a step of `tokens` sequences, all stages in turn."""
        total: defaultdict[str, float] = defaultdict(float)
        for kind, count in self.counts.items():
            for name, seconds in self._layer(kind, tokens).items():
                total[name] += count * seconds
        for name, seconds in self._ops(self.heads, tokens).items():
            total[name] += seconds
        total["exchange"] += logits_gather_s(self.deployment, self.cluster, tokens)
        # The sampler reads the logits several times; every rank has all of them.
        moved = tokens * self.deployment.padded_vocabulary * _SAMPLING_BYTES
        total["sampling"] += memory_bound_time_s(moved, _SAMPLING_KERNELS, self.gpu)
        return total

    def _layer(self, kind: LayerKind, tokens: float) -> defaultdict[str, float]:
        found = self._ops(layer_piece(self.deployment, kind).ops, tokens)
        found["exchange"] += layer_exchange_s(self.deployment, self.cluster, kind, tokens)
        return found

    def _ops(self, ops: tuple[Op, ...], tokens: float) -> defaultdict[str, float]:
        total: defaultdict[str, float] = defaultdict(float)
        for op in ops:
            if op.is_product:
                grouped = op.kind is OpKind.GROUPED_GEMM
                read, whole = (self._experts if grouped else self._product)(op, tokens)
                total["weights"] += read
                total["products"] += whole - read
            else:
                total["kernels"] += self._small(op, tokens)
        return total

    def _product(self, op: Op, tokens: float) -> tuple[float, float]:
        """(seconds to read the product's weights, seconds of the product)."""
        gpu = self.low if self._is_low(op) else self.gpu
        read = self._bytes(op) / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
        read += gpu.kernel_floor_s
        quantising = gpu.kernel_floor_s if self._is_low(op) else 0.0
        width, depth = self._shape(op)
        rows = max(_MANY_ROWS, tokens)
        arithmetic = gemm_time_s(
            rows, width, depth, 1.0, gpu.matmul_flop_per_s, gpu.gemm_max_efficiency,
            _ELEMENT, gpu._replace(hbm_bytes_per_s=math.inf),
        )  # fmt: skip
        padded = _FEW_ROWS * math.ceil(tokens / _FEW_ROWS)
        few = min(1.0, padded / rows)
        return read, quantising + max(read, gpu.kernel_floor_s + few * arithmetic)

    def _experts(self, op: Op, tokens: float) -> tuple[float, float]:
        """(seconds to read the experts' weights, seconds of their products), as in `_product`. Only
        the rank's experts that get a token are read. `tokens`: on each dp rank."""
        deployment, gpu = self.deployment, self.low if self._is_low(op) else self.gpu
        moe = deployment.model.moe
        if moe is None:
            return 0.0, 0.0
        sent = tokens * deployment.dp
        held = moe.experts / deployment.ep
        touched = held * (1.0 - (1.0 - moe.top_k / moe.experts) ** sent)
        share = touched / held
        rate = gpu.hbm_bytes_per_s * gpu.grouped_hbm_efficiency
        read = gpu.kernel_floor_s + share * self._bytes(op) / rate
        each = sent * moe.top_k / moe.experts / max(share, 1e-9)
        rows = touched * _EXPERT_ROWS * math.ceil(each / _EXPERT_ROWS)
        width, depth = self._shape(op)
        flop_per_s = gpu.matmul_flop_per_s * gpu.gemm_max_efficiency * gpu.grouped_efficiency_share
        return read, max(read, 2.0 * rows * width * depth / flop_per_s)

    def _bytes(self, op: Op) -> float:
        """Bytes on a rank of the weights of one row of the op table."""
        if id(op) not in self._weights:
            self._weights[id(op)] = op_weights(self.deployment, op).total
        return self._weights[id(op)]

    def _shape(self, op: Op) -> tuple[float, float]:
        """(elements per token that a product writes, elements that it reads) on the rank."""
        out = op.out_width * self.deployment.share(op.out_shard)
        kv_out = op.kv_out_width * self.deployment.share(Shard.KV)
        return out + kv_out, op.in_width * self.deployment.share(op.in_shard)

    def _is_low(self, op: Op) -> bool:
        low = self.deployment.weights.quantised and op.low_precision
        return low and op_weights(self.deployment, op).matrices > 0.0

    def _small(self, op: Op, tokens: float) -> float:
        """Seconds of kernels that are not products. Residual additions take none, because norm
        kernels include them."""
        if op.kind is OpKind.ATTENTION:
            latent = _LATENT_KERNELS if self.deployment.model.mla else 0.0
            return (_ATTENTION_KERNELS + latent) * self.gpu.kernel_floor_s
        if op.name.endswith("/residual") or op.name in ("head/loss", "moe/dispatch"):
            return 0.0
        routing = op.name == "moe/routing"
        kernels = _ROUTING_KERNELS if routing else 1.0
        width = op.forward_bytes * op.tokens_factor * self.deployment.share(op.tokens)
        if op.kind is OpKind.SCAN:
            width = 0.0  # what a step reads and writes is the state
        return memory_bound_time_s(tokens * width, kernels, self.gpu)

    def _cached_token_s(self) -> tuple[float, float]:
        """Seconds per cached token: (in all layers without a window, in all with one). With a
        pipeline each stage has part of the layers and works on part of the sequences, and the
        stages take turns."""
        each = self._layer_token_s() / self.deployment.pp
        kinds = self.deployment.model.kind_sequence
        full = sum(kind.attention in ("full", "both") for kind in kinds)
        windowed = sum(kind.attention == "sliding" for kind in kinds)
        if not self.deployment.window_cache:
            full, windowed = full + windowed, 0
        return each * full, each * windowed

    def _layer_token_s(self) -> float:
        """Seconds of attention per cached token in one layer: the time to read the token's keys and
        values, or that of the products with padded queries if it is longer."""
        deployment, gpu = self.deployment, self.gpu
        read = layer_token_bytes(deployment) / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
        model = deployment.model
        if model.mla:
            groups, width = 1, 2 * model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
            queries = model.heads / deployment.tp
        else:
            groups, width = max(1, model.kv_heads // deployment.tp), 2 * model.head_dim
            queries = model.heads / model.kv_heads
        curves = load_compute_curves(deployment.gpu).curves
        flash3 = not model.mla and curves.default_attention == _FLASH3
        tile = _FLASH3_ROWS if flash3 else _QUERY_ROWS
        rows = groups * tile * math.ceil(queries / tile)
        return max(read, 2.0 * rows * width / self._attention_flop_per_s())

    def _attention_flop_per_s(self) -> float:
        """FLOP/s of attention with the cache: those of 8 bits if the cache has 8 bits and the GPU
        supports it."""
        gpu, peaks = self.gpu, self.deployment.gpu.peak_flop_per_s
        narrow = self.deployment.kv.element_bytes <= 1.0 and "fp8" in peaks
        peak = peaks["fp8"] if narrow else gpu.matmul16_flop_per_s
        return peak * gpu.attention_forward_efficiency

    def _state_s(self) -> float:
        """Seconds per sequence to read and write its recurrent states."""
        kinds = self.deployment.model.kind_sequence
        layers = sum(kind.attention in ("state", "both") for kind in kinds)
        moved = 2.0 * layers * layer_state_bytes(self.deployment)
        rate = self.gpu.hbm_bytes_per_s * self.gpu.hbm_efficiency
        return moved / rate / self.deployment.pp

    def _launches(self) -> float:
        """Number of kernels of a step on one rank, all stages."""
        floor = self.gpu.kernel_floor_s
        total = _SAMPLING_KERNELS
        for kind, count in self.counts.items():
            ops = layer_piece(self.deployment, kind).ops
            products = sum(op.is_product for op in ops)
            small = sum(self._small(op, 0.0) for op in ops if not op.is_product) / floor
            reduced = 2.0 if self.deployment.tp > 1 else 0.0
            routed = _ROUTING_LAUNCHES - _ROUTING_KERNELS if kind.ffn == "moe" else 0.0
            total += count * (products + small + reduced + routed)
        return total

    def _prefill(self) -> float:
        """Seconds per token to read a long chunk of a prompt, all layers; the head runs only for
        the last token."""
        seconds = 0.0
        for kind, count in self.counts.items():
            seconds += count * sum(self._layer(kind, _PREFILL_TOKENS).values())
        return seconds / _PREFILL_TOKENS

    def _prefill_square(self) -> float:
        """Seconds of attention per pair of tokens of a prompt; only half of the pairs are
        computed."""
        deployment, model, gpu = self.deployment, self.deployment.model, self.gpu
        if model.mla:
            mla = model.mla
            width = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
        else:
            width = 2 * model.head_dim
        layers = sum(kind.attention in ("full", "both") for kind in model.kind_sequence)
        flop = layers * model.heads / deployment.tp * width  # 2 of a product, half of the pairs
        return flop / (gpu.matmul16_flop_per_s * gpu.attention_forward_efficiency)


def _low_type(deployment: Deployment) -> str | None:
    """The 8-bit type (`int8` or `fp8`) in which products of quantised weights are computed; None if
    the GPU does not have it."""
    name = "int8" if deployment.weights.name == "int8" else "fp8"
    return name if name in deployment.gpu.peak_flop_per_s else None
