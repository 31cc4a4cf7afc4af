"""Saved tensors of one layer with adapters against the rows of the op table, term by term."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planner.predict.ops.context import OpContext
from tests.truth.predicted import Compared, Row
from tests.truth.predicted_tensors import Tensor, Term, rows_of_layer, terms_of
from tests.truth.predicted_tuning import tuned_context
from tests.truth.tuning_counts import TENSORS, tuning_counts, tuning_label

# Modules of transformers -> adapters of the op table.
_ADAPTERS: Mapping[str, str] = {
    "q_proj": "attention/qkv/q",
    "k_proj": "attention/qkv/k",
    "v_proj": "attention/qkv/v",
    "qkv_proj": "attention/qkv/qkv",
    "query_key_value": "attention/qkv/qkv",
    "o_proj": "attention/out_proj/o",
    "dense": "attention/out_proj/o",
    "gate_proj": "mlp/gate/gate",
    "gate_up_proj": "mlp/gate/gate-up",
    "up_proj": "mlp/up/up",
    "fc1": "mlp/up/up",
    "dense_h_to_4h": "mlp/up/up",
    "down_proj": "mlp/down/down",
    "fc2": "mlp/down/down",
    "dense_4h_to_h": "mlp/down/down",
}
_PARTS: Mapping[tuple[str, bool], str] = {
    ("lora_dropout", False): "input",
    ("lora_A", False): "input",
    ("lora_B", False): "projected",
    ("lora_A", True): "lora_a/cast",
    ("lora_B", True): "lora_b/cast",
    ("lora_magnitude_vector", False): "scaled",
}
_INSIDE = re.compile(r"(.*\.)?(?P<layer>\w+)\.(?P<part>lora_\w+)\.default")


def tuned_runs() -> list[tuple[Row, list[Tensor]]]:
    """The tensors of each counted run, in the order in which they were saved."""
    runs: dict[Term, list[Row]] = defaultdict(list)
    for row in tuning_counts(TENSORS):
        runs[(row["model"], tuning_label(row))].append(row)
    return [(rows[0], [_tensor(row) for row in rows]) for rows in runs.values()]


def _tensor(row: Row) -> Tensor:
    shape = tuple(int(size) for size in row["shape"].split("x") if size)
    module = re.sub(r"(\.base_layer)+(?=$|\.act_fn$)", "", row["module"])
    module = module.replace("block_sparse_moe", "mlp")
    return Tensor(module, shape, row["dtype"], int(row["bytes"]), row["weight_cast"] == "1")


def compare_tuned_tensors(run: Row, tensors: Sequence[Tensor]) -> Iterator[Compared]:
    """Bytes of each term of a layer: its tensors against its rows, as `compare_tensors` has it."""
    context, key = tuned_context(run)
    rows = rows_of_layer(context, key, context.model.layers - 1)
    counted: dict[Term, float] = defaultdict(float)
    plain = []
    for tensor in tensors:
        row = _adapter_row(tensor) or _merged_row(tensor, context)
        if row in rows:
            counted[(row,)] += tensor.size
        else:
            plain.append(_of_product(tensor))
    for term, size in terms_of(plain, context, rows):
        counted[term] += size
    known = {row for term in counted for row in term}
    counted |= {(row,): 0.0 for row in rows if row not in known}
    for term, size in counted.items():
        predicted = sum(rows.get(row, 0.0) for row in term)
        yield Compared(tuning_label(run), " + ".join(term), size, predicted)


def _adapter_row(tensor: Tensor) -> str:
    """The row of the adapter that saved a tensor; empty if none did."""
    found = _INSIDE.fullmatch(tensor.module)
    if found is None:
        return ""
    return f"{_ADAPTERS[found['layer']]}/{_PARTS[found['part'], tensor.is_cast]}"


def _merged_row(tensor: Tensor, context: OpContext) -> str:
    """The row of adapters that peft merges with a tensor of experts or a router's weights; empty if
    the tensor is another."""
    model, moe, shape = context.model, context.model.moe, tensor.shape
    block, _, layer = tensor.module.partition(".")
    if block != "mlp" or moe is None or not tensor.dtype.startswith(("bfloat", "float")):
        return ""
    kind = "cast" if tensor.is_cast else "merged"
    if layer == "gate":
        sizes = {moe.experts, model.hidden}
        is_sum = set(shape) == sizes and tensor.dtype == "bfloat16"
        return f"moe/router/{'router/' * tensor.is_cast}{kind}" if tensor.is_cast or is_sum else ""
    if layer != "experts" or len(shape) != 3 or shape[0] != moe.experts:
        return ""
    # Gate and up are one tensor, whose adapters have twice the rank.
    up = bool({2 * moe.ffn, 2 * context.tuning.rank} & set(shape[1:]))
    product = "moe/experts_up" if up else "moe/experts_down"
    return f"{product}/{'experts/' * tensor.is_cast}{kind}"


def _of_product(tensor: Tensor) -> Tensor:
    """A tensor that an adapter shares, as one of the product beside it."""
    return replace(tensor, module=re.sub(r"\.lora_\w+\.default$", "", tensor.module))
