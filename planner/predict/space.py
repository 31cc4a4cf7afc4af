"""Degrees of parallelism as integer columns: enumerate the shapes, keep the legal ones.

Enumeration leaves a value out only if it is useless (the bounds below) or if no split of the GPUs
has it. *Forbidden* values are left to the rules, so that a conflict can name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from constraints.axes import AXES, EXPERTS, product_of
from constraints.batch import accumulation
from constraints.context import RuleContext
from constraints.numbers import DEGREES, ClusterNumbers, Columns, IntArray, Mask
from constraints.pipeline import most_chunks
from constraints.registry import rules_of
from constraints.rule import ShapeRule

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
# A shorter slice of a sequence per rank makes GEMMs too thin for a larger cp to pay.
LEAST_TOKENS_PER_RANK = 1024
# With more tokens per rank of tp·cp a micro-batch fills every GPU and only costs memory.
MOST_TOKENS_PER_RANK = 65_536
# Widest tensor parallelism tried across scale-up domains, if the user allows that.
MOST_TENSOR_ACROSS_NODES = 64
# With more chunks per stage, interleaving is tried only if all chunks are equal.
MOST_UNEVEN_CHUNKS = 4
# `largest_usable` tries this many node counts one by one, then only powers of two.
NODE_COUNTS_TRIED = 64

# Sizes of shard groups, in scale-up domains, if ZeRO shards more than the state. As negative
# numbers they are placeholders until the sizes in ranks are known.
SHARD_DOMAINS = (1, 2, 4, 8, 16)

Shape = dict[str, IntArray]


@dataclass(frozen=True)
class Shapes:
    """Candidate shapes: each row of degrees with each of `modes` recompute modes.

    `degrees`: int64 columns, one for each of DEGREES.
    """

    degrees: Shape
    modes: int = 1

    @cached_property
    def columns(self) -> Shape:
        """One int64 column for each name in SHAPE_COLUMNS, equally long."""
        return _cross(self.degrees, "recompute", range(self.modes))

    @property
    def considered(self) -> int:
        """Number of candidates."""
        return len(self.degrees["tp"]) * self.modes


@dataclass(frozen=True)
class LegalityReport:
    """Numbers of candidates: `considered`, and `legal`. `removed`: by rule, in the order of the
    registry, the number of candidates that this rule was the first to reject; they add up to
    considered - legal."""

    considered: int
    legal: int
    removed: Mapping[str, int]


def enumerate_shapes(ctx: RuleContext) -> Shapes:
    """Every candidate shape, legal or not, without duplicates.

    Degrees tried: tp any divisor of the GPUs inside a scale-up domain; pp any divisor of the GPUs;
    cp powers of two that leave LEAST_TOKENS_PER_RANK; ep any divisor of the experts; etp 1 or tp;
    vpp with equal chunks (with or without embedding and head counted as layers), or up to
    MOST_UNEVEN_CHUNKS if the framework takes any layout; MICRO_BATCHES up to MOST_TOKENS_PER_RANK.
    dp and grad_acc follow. Any number in a limit that the user gives is tried as well, even if it
    cannot work: the rules then state the reason.
    """
    shape = _parallel_degrees(ctx)
    shape = _interleaving(ctx, shape)
    shape = _expert_degrees(ctx, shape)
    shape = _cross(shape, "zero", {*ctx.framework.zero_stages, *ctx.named("zero")})
    shape = _shards(ctx, shape)
    shape = _batches(ctx, shape)
    for name in DEGREES:
        if name not in shape:
            shape = _cross(shape, name, {AXES[name].least, *ctx.named(name)})
    return Shapes({name: shape[name] for name in DEGREES}, ctx.recompute_modes)


def legal_shapes(
    ctx: RuleContext, shapes: Shapes, rules: Sequence[ShapeRule] | None = None
) -> tuple[Shape, LegalityReport]:
    """The shapes that obey every rule (None: all of `ctx`), and how many each rule removed. No rule
    reads the recompute mode, so each row of degrees is judged once for all modes."""
    columns, removed = shapes.degrees, {}
    for rule in rules_of(ctx) if rules is None else rules:
        before = len(columns["tp"])
        mask = rule.mask(columns, ctx)
        if not mask.all():
            columns = _keep(columns, mask)
        removed[rule.name] = (before - len(columns["tp"])) * shapes.modes
    legal = Shapes(columns, shapes.modes)
    return legal.columns, LegalityReport(shapes.considered, legal.considered, removed)


def largest_usable(ctx: RuleContext) -> int:
    """Most GPUs, not above those given, for which some shape is legal; 0 if there are none. Tries
    one node less at a time, at most NODE_COUNTS_TRIED times, then powers of two."""
    single_mode = replace(ctx, recompute_modes=1)
    for num_gpus in _gpu_counts(ctx.cluster):
        smaller = replace(single_mode, cluster=replace(ctx.cluster, num_gpus=num_gpus))
        _, report = legal_shapes(smaller, enumerate_shapes(smaller))
        if report.legal:
            return num_gpus
    return 0


def _gpu_counts(cluster: ClusterNumbers) -> list[int]:
    """Numbers of GPUs to try, in descending order: all that were given, then whole nodes (the
    largest counts and powers of two), then each number below one node."""
    nodes = cluster.num_gpus // cluster.gpus_per_node
    tried = set(range(max(1, nodes - NODE_COUNTS_TRIED + 1), nodes + 1))
    tried |= {1 << power for power in range(nodes.bit_length())}
    counts = {cluster.num_gpus} | {count * cluster.gpus_per_node for count in tried if nodes}
    counts |= set(range(1, min(cluster.num_gpus, cluster.gpus_per_node - 1) + 1))
    return sorted(counts, reverse=True)


# --- growing the table, one column at a time ----------------------------------------------------


def _parallel_degrees(ctx: RuleContext) -> Shape:
    """Columns tp, pp, cp, dp: splits of the GPUs, and values in the user's limits."""
    gpus = ctx.cluster.num_gpus
    widest = ctx.cluster.scale_up_domain
    if ctx.allow_tp_across_nodes:
        widest = max(widest, MOST_TENSOR_ACROSS_NODES)
    longest = max(1, min(ctx.model.seq // LEAST_TOKENS_PER_RANK, gpus))
    powers = [1 << power for power in range(longest.bit_length())]
    shape: Shape = {"tp": _values({*_divisors(gpus, widest), *ctx.named("tp")})}
    shape = _cross(shape, "pp", {*_divisors(gpus, ctx.model.layers), *ctx.named("pp")})
    shape = _cross(shape, "cp", {*powers, *ctx.named("cp")})
    replica = shape["tp"] * shape["pp"] * shape["cp"]
    shape = _keep(shape, (gpus % replica == 0) | _names_any(ctx, shape, ("tp", "pp", "cp")))
    replica = shape["tp"] * shape["pp"] * shape["cp"]
    shape["dp"] = np.maximum(1, gpus // replica)
    return _with_missing(ctx, shape, "dp")


def _interleaving(ctx: RuleContext, shape: Shape) -> Shape:
    """Column vpp (chunks per stage): 1, and further counts that divide the layers evenly, also with
    embedding and head counted as a layer each, or any small number if the framework takes any
    layout."""
    layers = ctx.model.layers
    shape = _cross(shape, "vpp", {*range(1, max(1, layers // 2) + 1), *ctx.named("vpp")})
    chunks = shape["pp"] * shape["vpp"]
    # Embedding and head may count as a layer each: 126 + 2 = 128 (Llama 3.1 405B).
    useful = (layers % chunks == 0) | ((layers + 2) % chunks == 0)
    if ctx.framework.layouts == "any":
        useful |= shape["vpp"] <= MOST_UNEVEN_CHUNKS
    useful &= (shape["pp"] > 1) & (chunks <= most_chunks(ctx))
    return _keep(shape, (shape["vpp"] == 1) | useful | _names_any(ctx, shape, ("vpp",)))


def _expert_degrees(ctx: RuleContext, shape: Shape) -> Shape:
    """Columns ep and etp: splits of a stage's GPUs over the experts."""
    experts = ctx.model.experts
    shape = _cross(shape, "ep", {*_divisors(experts or 1, experts or 1), *ctx.named("ep")})
    # 0 means "as tp"; with tp 1 that would repeat 1.
    shape = _cross(shape, "etp", {1, *([0] if experts else []), *ctx.named("etp")})
    as_tp = shape["etp"] == 0
    listed = np.isin(shape["tp"], _values({1, *ctx.named("etp")}))
    shape = _keep(shape, ~(as_tp & listed))
    shape["etp"] = np.where(shape["etp"] == 0, shape["tp"], shape["etp"])
    stage = shape["dp"] * shape["cp"] * shape["tp"]
    fills = stage % product_of(EXPERTS, shape) == 0
    return _keep(shape, fills | _names_any(ctx, shape, EXPERTS))


def _shards(ctx: RuleContext, shape: Shape) -> Shape:
    """Column shard: all of dp·cp (0), the ranks of a stage in SHARD_DOMAINS domains, sizes in the
    user's limits.

    Smaller groups help only if ZeRO gathers weights or scatters gradients at every micro-batch
    (stages 2 and 3); for a single reduction per step they cost memory and save nothing.
    """
    limit = ctx.limits.get("shard")
    named = ctx.named("shard")
    tried = {size for size in named if limit is None or limit.allows_value(size)}
    least = ctx.framework.hybrid_least_zero
    domains = SHARD_DOMAINS if least <= 3 else ()
    shape = _cross(shape, "shard", {0, *(-count for count in domains), *tried})
    inside = -shape["shard"] * np.maximum(1, ctx.cluster.scale_up_domain // shape["tp"])
    ranks = shape["dp"] * shape["cp"]
    is_inside = shape["shard"] < 0
    useful = (inside > 1) & (inside < ranks) & (shape["zero"] >= max(2, least))
    useful &= (ranks % np.maximum(1, inside) == 0) & ~np.isin(inside, _values(tried))
    shape["shard"] = np.where(is_inside, inside, shape["shard"])
    # The number dp·cp means the same as 0, so it is dropped unless the user's limit names it.
    repeated = (shape["shard"] == ranks) & ((not named) | (0 in tried))
    return _keep(shape, (~is_inside | useful) & ~repeated)


def _batches(ctx: RuleContext, shape: Shape) -> Shape:
    """Columns mbs, grad_acc, gbs: each shape's own global batch, nearest to the goal."""
    goal = ctx.batch.sequences
    shape = _cross(shape, "mbs", {*MICRO_BATCHES, *ctx.named("mbs")})
    tokens = shape["mbs"] * ctx.model.seq // (shape["cp"] * shape["tp"])
    useful = tokens <= MOST_TOKENS_PER_RANK
    useful &= shape["mbs"] * shape["dp"] <= goal + ctx.batch.largest_difference
    # Keep the smallest micro-batch, so that the rule on the batch can state the problem.
    shape = _keep(shape, useful | (shape["mbs"] == 1) | _names_any(ctx, shape, ("mbs",)))
    shape["grad_acc"] = accumulation(shape, ctx)
    shape = _with_missing(ctx, shape, "grad_acc")
    shape["gbs"] = shape["mbs"] * shape["grad_acc"] * shape["dp"]
    return shape


def _with_missing(ctx: RuleContext, shape: Shape, name: str) -> Shape:
    """The rows, followed by further rows for each value of degree `name` that the user's limits
    name and no row has; these are all rows combined with the missing values."""
    missing = sorted({*ctx.named(name)} - set(shape[name].tolist()))
    if not missing:
        return shape
    forced = _cross({key: column for key, column in shape.items() if key != name}, name, missing)
    return {key: np.concatenate((column, forced[key])) for key, column in shape.items()}


def _names_any(ctx: RuleContext, shape: Shape, degrees: Iterable[str]) -> Mask:
    """Mask of the rows in which at least one of `degrees` has a value that the user's limits
    name."""
    masks = [np.isin(shape[degree], _values(ctx.named(degree))) for degree in degrees]
    mask: Mask = np.logical_or.reduce(masks)
    return mask


def _divisors(number: int, largest: int) -> list[int]:
    """Divisors of `number` up to `largest`, ascending."""
    return [divisor for divisor in range(1, min(number, largest) + 1) if number % divisor == 0]


def _values(values: Iterable[int]) -> IntArray:
    return np.array(sorted(values), dtype=np.int64)


def _cross(shape: Columns, name: str, values: Iterable[int]) -> Shape:
    """Every row with every value of a new column."""
    column = _values(values)
    rows = len(next(iter(shape.values())))
    crossed = {key: np.repeat(old, len(column)) for key, old in shape.items()}
    crossed[name] = np.tile(column, rows)
    return crossed


def _keep(shape: Columns, mask: Mask) -> Shape:
    return {key: column[mask] for key, column in shape.items()}
