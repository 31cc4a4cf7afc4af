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

from planner.cost.keys import weight_elements
from planner.job.recompute import Module
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import pieces
from planner.predict.saved import Key, saved_bytes
from tests.truth.predicted import Compared, Row, label, single_device

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

    `trailing`: only shapes that end so, in the letters of `_sizes`; `dimensions`: only shapes of
    so many; `dtype`: only this type; `family`: only such models; `is_cast`: only low-precision
    copies of weights, which autocast makes; `once`: only the first tensor that fits.
    """

    module: str
    rows: Term
    trailing: str = ""
    dtype: str = ""
    is_cast: bool = False
    joint: bool = False
    dimensions: int = 0
    once: bool = False
    family: str = ""

    def fits(self, tensor: Tensor, context: OpContext) -> bool:
        """Whether the rule is about this tensor."""
        sizes = _sizes(context)
        vocab_layers = tuple(sizes[letter] for letter in self.trailing)
        return (
            tensor.is_cast == self.is_cast
            and re.fullmatch(self.module, tensor.module) is not None
            and self.dtype in ("", tensor.dtype)
            and self.family in ("", context.model.family)
            and self.dimensions in (0, len(tensor.shape))
            and (not vocab_layers or tensor.shape[-len(vocab_layers) :] == vocab_layers)
        )


def _sizes(context: OpContext) -> dict[str, int]:
    """Letters of shapes: a heads, e experts, f their width (x: if it is h), h hidden, k choices of
    the router, r what rotary positions turn, s the sequence, t one more, 1 one."""
    model = context.model
    moe = model.moe
    return {
        "a": model.heads,
        "h": model.hidden,
        "r": model.rotary_width,
        "s": context.seq,
        "t": context.seq + 1,
        "1": 1,
        "e": moe.experts if moe else 0,
        "f": moe.ffn if moe else 0,
        "x": moe.ffn if moe and moe.ffn == model.hidden else 0,
        "k": moe.top_k if moe else 0,
    }


def _norm(module: str, *rows: str, family: str = "") -> tuple[Rule, ...]:
    """fp32 statistics of each token or head, then the input and, unfused, the normalised one, and
    copies of the weights; `rows` name the norm, the first that the layer has."""
    return tuple(
        rule
        for row in rows
        for rule in (
            Rule(module, (f"{row}/statistics",), "1", family=family),
            Rule(module, (f"{row}/weight",), dimensions=1, family=family),
            Rule(module, (f"{row}/weight",), is_cast=True, family=family),
            Rule(module, (f"{row}/input", f"{row}/normalised"), family=family),
            Rule(module, (f"{row}/normalised",), family=family),
        )
    )


def _cast(module: str, *products: str) -> Rule:
    """The copy of the weights that make these products."""
    rows = tuple(f"cast of {product}" for product in products)
    return Rule(module, rows, is_cast=True, joint=True)


def _mlp(module: str, row: str) -> tuple[Rule, ...]:
    """A dense block: casts of its weights, inputs of its products, what its activation keeps."""
    first, both = rf"{module}\.(c_fc|fc1|dense_h_to_4h|up_proj)", rf"{module}\.gate_up_proj"
    last = rf"{module}\.(c_proj|fc2|dense_4h_to_h|down_proj)"
    return (
        _cast(first, f"{row}/up"),
        _cast(rf"{module}\.gate_proj", f"{row}/gate"),
        _cast(both, f"{row}/gate", f"{row}/up"),
        _cast(last, f"{row}/down"),
        Rule(rf"{first}|{both}|{module}\.gate_proj", (f"{row}/up/input",)),
        Rule(last, (f"{row}/down/input",)),
        Rule(rf"{module}|{module}\.(act|act_fn|activation_fn|gelu)", (f"{row}/activation_input",)),
    )


_ATTENTION = r"(?:attn|self_attn|attention|self_attention)"
_QKV = rf"{_ATTENTION}\.(c_attn|q_proj|k_proj|v_proj|qkv_proj|query_key_value)"
_OUT = rf"{_ATTENTION}\.(c_proj|o_proj|out_proj|dense)"
_ROUTER = r"mlp\.(gate|router)|feed_forward\.router"
_EXPERTS = r"mlp\.experts|feed_forward|feed_forward\.experts"
_SHARED = r"(?:mlp|feed_forward)\.shared_experts?"
_QUERY_KEY_VALUE = ("attention/q", "attention/k", "attention/v")
_EXPERT_TENSORS = (
    "moe/experts_up/input",
    "moe/activation_input",
    "moe/experts_down/input",
    "moe/expert_output",
)
_SCORES = ("attention/scores", "attention/sink")
# The first rule that fits, and of whose rows the layer has one, decides.
RULES = (
    _cast(rf"{_ATTENTION}\.q_proj", "attention/q"),
    _cast(_QKV, "attention/qkv"),
    _cast(_OUT, "attention/out_proj"),
    *(
        _cast(rf"self_attn\.{name}", f"attention/{row}")
        for name, row in (
            ("q_a_proj", "q_down"),
            ("q_b_proj", "q_up"),
            ("kv_a_proj_with_mqa", "kv_down"),
            ("kv_b_proj", "kv_up"),
        )
    ),
    _cast(_ROUTER, "moe/router"),
    _cast(_EXPERTS, "moe/experts_up", "moe/experts_down"),
    _cast(r"mlp\.shared_expert_gate", "shared_experts/gate"),
    *_norm(r"ln_1|ln_attn|input_layernorm|self_attn_layer_norm", "attention/norm"),
    *_norm(r"pre_feedforward_layernorm|ln_2|ln_mlp|final_layer_norm", "ffn/norm"),
    *_norm(r"post_feedforward_layernorm|post_mlp_layernorm", "ffn/post_norm"),
    *_norm(r"post_self_attn_layernorm", "attention/post_norm"),
    *_norm(r"post_attention_layernorm", "ffn/norm", family="glm4"),
    *_norm(r"post_attention_layernorm", "attention/post_norm", "ffn/norm"),
    *_norm(r"self_attn\.(q_norm|q_a_layernorm|query_layernorm)", "attention/q_norm"),
    *_norm(r"self_attn\.(k_norm|qk_norm|key_layernorm)", "attention/k_norm"),
    *_norm(r"self_attn\.kv_a_layernorm", "attention/kv_norm"),
    Rule(r"self_attn\.(q_proj|kv_a_proj_with_mqa)", ("attention/q/input",)),
    Rule(r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)", ("attention/q_down/input",)),
    Rule(r"self_attn\.q_b_proj", ("attention/q_up/input",)),
    Rule(r"self_attn\.kv_b_proj", ("attention/kv_up/input",)),
    Rule(_QKV, ("attention/qkv/input",)),
    # What flash attention pads or reorders is copied for the projection.
    Rule(_OUT, ("attention/output_copied",)),
    Rule(_OUT, ("attention/output",)),
    Rule(_ATTENTION, ("attention/rotary",), "1sr"),
    Rule(r"attn\.resid_dropout", ("attention/residual/dropout_mask",)),
    # Scores, their masks and copies: squares of the sequence, or with a column for the sink.
    Rule(rf"attn\.attn_dropout|{_ATTENTION}", ("attention/capped_scores",), "ss", once=True),
    Rule(_ATTENTION, _SCORES, "ss", joint=True),
    Rule(_ATTENTION, _SCORES, "st", joint=True),
    Rule(rf"attn\.attn_dropout|{_ATTENTION}", ("attention/scores",), "ss"),
    Rule(_ATTENTION, _SCORES, "s1", dtype="int64", joint=True),
    # Log-sum-exp, and the seeds of the random state.
    Rule(_ATTENTION, ("attention/lse",), "as"),
    Rule(_ATTENTION, ("attention/lse",), dtype="uint64"),
    Rule(_ATTENTION, _QUERY_KEY_VALUE, joint=True),
    *_mlp(_SHARED, "shared_experts"),
    *_mlp("mlp", "mlp"),
    *_mlp("feed_forward", "mlp"),
    # OPT's block is no module, and its activation saves what the second product reads.
    _cast("fc1", "mlp/up"),
    _cast("fc2", "mlp/down"),
    Rule("fc1", ("mlp/up/input",)),
    Rule("activation_fn|fc2", ("mlp/down/input",)),
    Rule(r"mlp\.dropout", ("ffn/residual/dropout_mask",)),
    Rule(_ROUTER, ("moe/router/weight",), "he", once=True),
    Rule(_ROUTER, ("moe/router/input",), "h"),
    # Scores of all experts and the sum that normalises the chosen ones ...
    Rule(_ROUTER, ("moe/routing",), "e"),
    Rule(_ROUTER, ("moe/routing",), "1"),
    # ... and what is kept per routed copy: weights, and indices of several kinds.
    Rule(_ROUTER, ("moe/permutation",), "k"),
    Rule(_ROUTER, ("moe/routing",)),
    Rule(_EXPERTS, ("moe/permutation",), "1"),
    Rule(_EXPERTS, ("moe/permutation",), dtype="int64"),
    # Where each expert's copies begin.
    Rule(_EXPERTS, ("moe/permutation",), dtype="int32"),
    Rule(r"mlp\.shared_expert_gate", ("shared_experts/gate/input",)),
    Rule(r"mlp", ("shared_experts/gated",)),
    # One tensor for the router and the shared experts, named by whoever reads it first.
    Rule(rf"{_SHARED}\.(gate|up)_proj", ("moe/router/input",)),
    Rule(_EXPERTS, _EXPERT_TENSORS, "x", joint=True),
    Rule(r"feed_forward", ("moe/scaled_input",), "h"),
    Rule(_EXPERTS, ("moe/experts_up/input", "moe/expert_output"), "h"),
    Rule(r"(mlp|feed_forward)\.experts\.act_fn", ("moe/activation_input",)),
    Rule(_EXPERTS, ("moe/activation_input", "moe/experts_down/input"), "f"),
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
        re.sub(r"^(.*\.)?(h|layers)\.\d+\.", "", row["module"]).replace("block_sparse_moe", "mlp"),
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
    context, key = single_device(run)
    rows = rows_of_layer(context, key, _layer_number(run))
    counted: dict[Term, float] = defaultdict(float)
    for term, bytes_held in terms_of(tensors, context, rows):
        counted[term] += bytes_held
    known = {row for term in counted for row in term}
    counted |= {(row,): 0.0 for row in rows if row not in known}
    for term, size in counted.items():
        predicted = sum(rows.get(row, 0.0) for row in term)
        yield Compared(label(run), " + ".join(term), size, predicted)


def _layer_number(run: Row) -> int:
    """Number of the layer that a run's tensors are of."""
    found = re.search(r"(?:h|layers)\.(\d+)\.", run["module"])
    return int(found[1]) if found else 0


def rows_of_layer(context: OpContext, key: Key, layer: int) -> dict[str, float]:
    """Bytes by row of a layer: saved tensors, and casts of weights by product.

    Keys and values copied for every query head stand in for the projected ones.
    """
    sizes: dict[str, float] = defaultdict(float)
    kinds = context.model.kind_indices
    for op in pieces(context)[kinds[min(layer, len(kinds) - 1)]].ops:
        for row in op.saved:
            if row.kept_under(Module(key.modules)):
                sizes[row.name.removesuffix("_expanded")] += saved_bytes(row, context, key)
        cast = context.saved.weight_cast_bytes * weight_elements(op, key) * op.autocasts
        if cast:
            sizes[f"cast of {op.name}"] += cast
    return dict(sizes)


def terms_of(
    tensors: Sequence[Tensor], context: OpContext, rows: Mapping[str, float]
) -> Iterator[tuple[Term, int]]:
    """Each tensor's term and bytes."""
    taken: Counter[Rule] = Counter()
    projected: list[int] = []
    for tensor in tensors:
        rule = _rule(tensor, context, rows, taken)
        if rule is None:
            yield (f"{tensor.module} {tensor.shape} {tensor.dtype}",), tensor.size
        elif rule.rows == _QUERY_KEY_VALUE:
            projected.append(tensor.size)
        elif rule.joint:
            yield rule.rows, tensor.size
        else:
            present = [row for row in rule.rows if row in rows]
            yield (present[min(taken[rule], len(present) - 1)],), tensor.size
            taken[rule] += 1
    if context.attention == "flash":
        # Flash attention saves its output last.
        yield ("attention/output",), projected.pop()
    yield from _query_key_value(projected, rows)


def _rule(
    tensor: Tensor, context: OpContext, rows: Mapping[str, float], taken: Counter[Rule]
) -> Rule | None:
    """The first rule that fits and has a row in the layer."""
    for rule in RULES:
        used_up = rule.once and taken[rule]
        enough = all if rule.joint else any
        if not used_up and rule.fits(tensor, context) and enough(row in rows for row in rule.rows):
            return rule
    return None


def _query_key_value(sizes: Sequence[int], rows: Mapping[str, float]) -> Iterator[tuple[Term, int]]:
    """Queries, keys and values: one storage, or one each, paired with the rows by size."""
    if len(sizes) != len(_QUERY_KEY_VALUE):
        yield from ((_QUERY_KEY_VALUE, size) for size in sizes)
        return
    names = sorted(_QUERY_KEY_VALUE, key=lambda row: rows[row])
    for name, size in zip(names, sorted(sizes), strict=True):
        yield (name,), size
