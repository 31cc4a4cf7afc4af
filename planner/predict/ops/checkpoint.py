"""How a framework's checkpointing changes the rows of a layer: where recomputation stops, and the
tensors that torch's memory budget drops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product

from planner.cost.codes import OpKind
from planner.job.recompute import Module
from planner.predict.ops.context import WHOLE_LAYER
from planner.predict.ops.rows import Op, Piece, Saved

# FLOP that take as long as moving one byte, a ratio that torch's run-time estimator uses. H100: 989
# TFLOP/s over 3.35 TB/s; the choice depends on it only between cheap elementwise rows.
FLOP_PER_BYTE = 295.0
# Mean number of keys to which a query of a causal layer attends, if the row does not state it: half
# of a sequence of 8,192. At any length beyond a few hundred, attention takes the most time per byte
# kept.
ATTENTION_SPAN = 4096.0
# Rows whose input does not come from the preceding row.
_INPUT_FROM: Mapping[str, str] = {
    "shared_experts/up": "ffn/norm",
    "shared_experts/gate": "ffn/norm",
    "attention/kv_norm": "attention/kv_down",
}
# Tensors that a row computes itself and keeps instead of its input.
_OUTPUTS = (
    "lse", "statistics", "normalised", "scores", "capped_scores", "sink", "dropout_mask", "routing",
    "permutation",
)  # fmt: skip
# With more distinct choices than this, they are chosen greedily in the order of their gain.
_EXACT_CHOICES = 14


def stop_early(piece: Piece) -> Piece:
    """The piece as a non-reentrant checkpoint recomputes it.

    Autograd stops as soon as the last tensor that backward needs is recomputed. A row's inputs are
    kept before it runs, so the last row that keeps any, and those after it, do not run again
    (torch.utils.checkpoint, `set_checkpoint_early_stop`).
    """
    keeping = [index for index, op in enumerate(piece.ops) if _keeps(op)]
    if not keeping:
        return piece
    last = keeping[-1]
    makes_output = any(_is_made_here(row) for row in piece.ops[last].saved if _is_dropped(row))
    start = last + 1 if makes_output else last
    again = tuple(_rerun(op, lambda modules: modules & ~WHOLE_LAYER) for op in piece.ops[start:])
    return replace(piece, ops=(*piece.ops[:start], *again))


def _is_dropped(row: Saved) -> bool:
    return bool(row.freed_by & Module.FULL) and not row.only_with


def _keeps(op: Op) -> bool:
    return any(_is_dropped(row) for row in op.saved)


def _rerun(op: Op, changed: Callable[[Module], Module], *, backward: bool = True) -> Op:
    """The row with `changed` applied to the recompute modes under which it and its collectives run
    again. Without `backward`, collectives that occur only in backward are left as they are."""
    collectives = tuple(
        replace(collective, rerun_with=changed(collective.rerun_with))
        if collective.forward or backward
        else collective
        for collective in op.collectives
    )
    return replace(op, rerun_with=changed(op.rerun_with), collectives=collectives)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Tensors that are recomputed together by running some rows: bytes per token, and the time of
    the rows in bytes moved per token."""

    names: tuple[str, ...]
    rows: tuple[str, ...]
    size: float
    time: float


def with_budget(piece: Piece, budget: float) -> Piece:
    """The piece under torch's memory budget: dropped tensors and the rows that recompute them are
    marked with `Module.BUDGET`.

    Budget 0 keeps only the layer's input, like full recomputation, and 1 everything that is kept
    without recomputation. In between, of the sets of tensors within the budget, the one that saves
    most recomputation time is kept (torch._functorch.config.activation_memory_budget: a 0-1
    knapsack).
    """
    choices = _choices(piece)
    budget_bytes = budget * sum(choice.size for choice in choices)
    kept = _best(choices, budget_bytes)
    dropped = [choice for choice, keep in zip(choices, kept, strict=True) if not keep]
    names = {name for choice in dropped for name in choice.names}
    rows = {name for choice in dropped for name in choice.rows}
    return replace(piece, ops=tuple(_marked(op, names, op.name in rows) for op in piece.ops))


def _marked(op: Op, names: set[str], again: bool) -> Op:
    saved = tuple(
        replace(row, freed_by=row.freed_by | Module.BUDGET) if row.name in names else row
        for row in op.saved
    )
    op = replace(op, saved=saved)
    return _rerun(op, lambda modules: modules | Module.BUDGET, backward=False) if again else op


def _choices(piece: Piece) -> list[_Choice]:
    """Kept tensors of a layer, grouped by the rows that make them; the layer's input is not a
    choice."""
    sizes: dict[tuple[str, ...], float] = {}
    names: dict[tuple[str, ...], list[str]] = {}
    order = {op.name: index for index, op in enumerate(piece.ops)}
    for index, op in enumerate(piece.ops):
        for row in op.saved:
            if not _is_dropped(row) or not row.bytes_per_token:
                continue
            makers = (op.name,) if _is_made_here(row) else _makers(piece.ops, index, order)
            if not makers:
                continue
            sizes[makers] = sizes.get(makers, 0.0) + row.bytes_per_token
            names.setdefault(makers, []).append(row.name)
    times = {op.name: _time(op) for op in piece.ops}
    return [
        _Choice(tuple(names[makers]), makers, size, sum(times[name] for name in makers))
        for makers, size in sizes.items()
    ]


def _is_made_here(row: Saved) -> bool:
    return row.name.rsplit("/", 1)[-1] in _OUTPUTS


def _makers(ops: Sequence[Op], index: int, order: Mapping[str, int]) -> tuple[str, ...]:
    """Names of the rows that must run again to make the input of row `index`: from the last earlier
    row that keeps an input up to the row before `index`, or the one row that `_INPUT_FROM` names.
    Empty if no earlier row keeps an input."""
    given = _INPUT_FROM.get(ops[index].name)
    if given is not None and given in order:
        return (given,)
    start = index
    while start > 0:
        start -= 1
        if _keeps(ops[start]):
            return tuple(op.name for op in ops[start:index])
    return ()


def _time(op: Op) -> float:
    """Forward time of a row, in bytes moved per token."""
    if op.is_product:
        flop = 2.0 * op.tokens_factor * (op.out_width + op.kv_out_width) * op.in_width
        return flop / FLOP_PER_BYTE
    if op.kind is OpKind.ATTENTION:
        span = op.window or ATTENTION_SPAN
        return 2.0 * op.heads * (op.qk_head_dim + op.v_head_dim) * span / FLOP_PER_BYTE
    products = 2.0 * op.in_width * op.out_width * op.groups / FLOP_PER_BYTE
    return op.tokens_factor * op.forward_bytes + (products if op.kind is OpKind.SCAN else 0.0)


def _best(choices: Sequence[_Choice], budget_bytes: float) -> list[bool]:
    """For each choice, whether to keep it, so that the kept ones need at most `budget_bytes` per
    token and save as much recomputation time as possible. Tries all combinations, or uses `_greedy`
    if there are too many."""
    slack = budget_bytes * (1.0 + 1e-12)
    if len(choices) > _EXACT_CHOICES:
        return _greedy(choices, slack)
    best, best_key = [False] * len(choices), (-1.0, 0.0)
    for keep in product((False, True), repeat=len(choices)):
        size = sum(choice.size for choice in compress(choices, keep))
        key = (sum(choice.time for choice in compress(choices, keep)), -size)
        if size <= slack and key > best_key:
            best, best_key = list(keep), key
    return best


def _greedy(choices: Sequence[_Choice], budget_bytes: float) -> list[bool]:
    """Choices to keep in the order of time per byte, used if there are too many combinations to
    try."""
    kept = [False] * len(choices)
    ranked = sorted(range(len(choices)), key=lambda i: -choices[i].time / choices[i].size)
    for index in ranked:
        if choices[index].size <= budget_bytes:
            kept[index] = True
            budget_bytes -= choices[index].size
    return kept
