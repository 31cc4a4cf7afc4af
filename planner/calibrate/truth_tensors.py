"""Saved tensors of one layer against the rows of the op table, term by term.

PyTorch saved-tensor hooks name the module that saved each tensor, its shape, type and storage.
`RULES` says which row of the op table stands for which tensors: mostly one for one; several
tensors where one row sums them (the steps of an activation), several rows where one storage
holds them (fused queries, keys and values). Every tensor and every row belongs to one term.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.calibrate.truth import Compared, Row, label, single_device
from planner.memory.rank import RankShape, saved_bytes, weight_elements
from planner.ops.context import OpContext
from planner.ops.table import pieces

# Rows of the op table that a comparison takes together.
Term = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One saved tensor; `module` is its path inside the layer, `size` the bytes of its storage."""

    module: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    is_cast: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors of the modules that `module` matches in full stand for `rows`: in this order, the
    last row taking those that remain, or, if `joint`, for all of them together.

    `trailing`: only shapes that end so, in the letters of `_sizes`; `dtype`: only this type;
    `is_cast`: only low-precision copies of weights, which autocast makes.
    """

    module: str
    rows: Term
    trailing: str = ""
    dtype: str = ""
    is_cast: bool = False
    joint: bool = False

    def fits(self, tensor: Tensor, context: OpContext) -> bool:
        """Whether the rule is about this tensor."""
        sizes = _sizes(context)
        ends = tuple(sizes[letter] for letter in self.trailing)
        return (
            tensor.is_cast == self.is_cast
            and re.fullmatch(self.module, tensor.module) is not None
            and self.dtype in ("", tensor.dtype)
            and (not ends or tensor.shape[-len(ends) :] == ends)
        )


def _sizes(context: OpContext) -> dict[str, int]:
    """Letters of shapes: a heads, e experts, f their width, h hidden, k choices of the router,
    s the sequence, 1 one."""
    model = context.model
    moe = model.moe
    return {
        "a": model.heads,
        "h": model.hidden,
        "s": context.seq,
        "1": 1,
        "e": moe.experts if moe else 0,
        "f": moe.ffn if moe else 0,
        "k": moe.top_k if moe else 0,
    }


def _norm(module: str, row: str) -> tuple[Rule, Rule]:
    """fp32 statistics of each token or head, then the input and, unfused, the normalised one."""
    return (
        Rule(module, (f"{row}/statistics",), "1"),
        Rule(module, (f"{row}/input", f"{row}/normalised")),
    )


def _cast(module: str, *products: str) -> Rule:
    """The copy of the weights that make these products."""
    rows = tuple(f"cast of {product}" for product in products)
    return Rule(module, rows, is_cast=True, joint=True)


_QUERY_KEY_VALUE = ("attention/q", "attention/k", "attention/v")
# The first rule that fits decides.
RULES = (
    _cast(r"attn\.c_attn|self_attn\.(q|k|v|qkv)_proj", "attention/qkv"),
    _cast(r"attn\.c_proj|self_attn\.o_proj", "attention/out_proj"),
    _cast(r"mlp\.c_fc|mlp\.up_proj", "mlp/up"),
    _cast(r"mlp\.gate_proj", "mlp/gate"),
    _cast(r"mlp\.gate_up_proj", "mlp/gate", "mlp/up"),
    _cast(r"mlp\.c_proj|mlp\.down_proj", "mlp/down"),
    *_norm(r"ln_1|input_layernorm", "attention/norm"),
    *_norm(r"ln_2|post_attention_layernorm", "ffn/norm"),
    *_norm(r"self_attn\.q_norm", "attention/q_norm"),
    *_norm(r"self_attn\.k_norm", "attention/k_norm"),
    Rule(r"attn\.c_attn|self_attn\.(q|k|v|qkv)_proj", ("attention/qkv/input",)),
    Rule(r"attn\.c_proj|self_attn\.o_proj", ("attention/output",)),
    Rule(r"attn\.resid_dropout", ("attention/residual/dropout_mask",)),
    # Scores, their masks and copies: squares of the sequence.
    Rule(r"attn\.attn_dropout|attn|self_attn", ("attention/scores",), "ss"),
    # Log-sum-exp, and the seeds of the random state.
    Rule(r"attn|self_attn", ("attention/lse",), "as"),
    Rule(r"attn|self_attn", ("attention/lse",), dtype="uint64"),
    Rule(r"attn|self_attn", _QUERY_KEY_VALUE, joint=True),
    Rule(r"mlp\.c_fc|mlp\.(gate|up|gate_up)_proj", ("mlp/up/input",)),
    Rule(r"mlp\.c_proj|mlp\.down_proj", ("mlp/down/input",)),
    Rule(r"mlp\.dropout", ("ffn/residual/dropout_mask",)),
    Rule(r"mlp|mlp\.(act|act_fn|activation_fn|gelu)", ("mlp/activation_input",)),
    Rule(r"mlp\.gate", ("moe/router/input",), "h"),
    # Scores of all experts and the sum that normalises the chosen ones ...
    Rule(r"mlp\.gate", ("moe/routing",), "e"),
    Rule(r"mlp\.gate", ("moe/routing",), "1"),
    # ... and what is kept per routed copy: weights, and indices of several kinds.
    Rule(r"mlp\.gate", ("moe/permutation",), "k"),
    Rule(r"mlp\.experts", ("moe/permutation",), "1"),
    Rule(r"mlp\.experts", ("moe/permutation",), dtype="int64"),
    # Where each expert's copies begin, 4 bytes an expert: the op table leaves them out.
    Rule(r"mlp\.experts", ("moe/permutation",), dtype="int32"),
    Rule(r"mlp\.experts", ("moe/experts_up/input", "moe/expert_output"), "h"),
    Rule(r"mlp\.experts\.act_fn", ("moe/activation_input",)),
    Rule(r"mlp\.experts", ("moe/activation_input", "moe/experts_down/input"), "f"),
)


def saved_runs(rows: Sequence[Row]) -> list[tuple[Row, list[Tensor]]]:
    """The tensors of each counted run, in the order in which they were saved."""
    keys = ("model", "variant", "seq", "mbs", "mode", "attention")
    runs: dict[Term, list[Row]] = defaultdict(list)
    for row in rows:
        runs[tuple(row[key] for key in keys)].append(row)
    return [(members[0], [_tensor(row) for row in members]) for members in runs.values()]


def _tensor(row: Row) -> Tensor:
    return Tensor(
        re.sub(r"^(transformer\.|model\.)?(h|layers)\.\d+\.", "", row["module"]),
        tuple(int(size) for size in row["shape"].split("x") if size),
        row["dtype"],
        int(row["bytes"]),
        row["weight_cast"] == "1",
    )


def compare_tensors(run: Row, tensors: Sequence[Tensor]) -> Iterator[Compared]:
    """Bytes of each term of a layer: its tensors against its rows.

    A row without a tensor comes out with 0 counted, a tensor that no rule fits as a term of its
    own with 0 predicted.
    """
    context, shape = single_device(run)
    rows = _rows_of_layer(context, shape)
    counted: dict[Term, float] = defaultdict(float)
    for term, bytes_held in _by_term(tensors, context, rows):
        counted[term] += bytes_held
    known = {row for term in counted for row in term}
    counted |= {(row,): 0.0 for row in rows if row not in known}
    for term, size in counted.items():
        predicted = sum(rows.get(row, 0.0) for row in term)
        yield Compared(label(run), " + ".join(term), size, predicted)


def _rows_of_layer(context: OpContext, shape: RankShape) -> dict[str, float]:
    """Bytes by row of the first kind of layer: saved tensors, and casts of weights by product.

    Keys and values copied for every query head stand in for the projected ones.
    """
    sizes: dict[str, float] = defaultdict(float)
    for op in pieces(context)[0].ops:
        for row in op.saved:
            if row.kept_under(shape.recompute):
                sizes[row.name.removesuffix("_expanded")] += saved_bytes(row, context, shape)
        if cast := context.saved.weight_cast_bytes * weight_elements(op, shape):
            sizes[f"cast of {op.name}"] += cast
    return dict(sizes)


def _by_term(
    tensors: Sequence[Tensor], context: OpContext, rows: Mapping[str, float]
) -> Iterator[tuple[Term, int]]:
    """Each tensor's term and bytes."""
    taken: Counter[Rule] = Counter()
    projected: list[int] = []
    for tensor in tensors:
        rule = next((rule for rule in RULES if rule.fits(tensor, context)), None)
        if rule is None:
            yield (f"{tensor.module} {tensor.shape} {tensor.dtype}",), tensor.size
        elif rule.rows == _QUERY_KEY_VALUE:
            projected.append(tensor.size)
        elif rule.joint:
            yield rule.rows, tensor.size
        else:
            yield (rule.rows[min(taken[rule], len(rule.rows) - 1)],), tensor.size
            taken[rule] += 1
    if context.attention == "flash":
        # Flash attention saves its output last.
        yield ("attention/output",), projected.pop()
    yield from _query_key_value(projected, rows)


def _query_key_value(sizes: Sequence[int], rows: Mapping[str, float]) -> Iterator[tuple[Term, int]]:
    """Queries, keys and values: one storage, or one each, paired with the rows by size."""
    if len(sizes) != len(_QUERY_KEY_VALUE):
        yield from ((_QUERY_KEY_VALUE, size) for size in sizes)
        return
    names = sorted(_QUERY_KEY_VALUE, key=lambda row: rows[row])
    for name, size in zip(names, sorted(sizes), strict=True):
        yield (name,), size
