"""Rows of adapters and of frozen weights: parameters, tensors kept, FLOP, classes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from planner.cost.codes import ParamShard, Shard
from planner.job.job import Job
from planner.job.recompute import Module
from planner.job.request import Request
from planner.predict.cost_tables import job_pieces
from planner.predict.ops.rows import Op, Saved
from planner.predict.ops.table import flop_per_token
from planner.predict.ops.trained import held_parameters, trained_flop

HF = "hf-transformers"


def job(
    train: str, *freeze: str, model: str = "llama-3-8b", framework: str = HF, dtype: str = "bf16"
) -> Job:
    """A job on one GPU."""
    request = Request(
        model=model, gpus="1xH100", gbs=1, framework=framework, train=train, freeze=freeze,
        dtype=dtype,
    )  # fmt: skip
    return request.resolve()


def rows(one: Job, piece: int = 0) -> dict[str, Op]:
    """Rows of a piece by name, the first layer's unless told otherwise."""
    return {op.name: op for op in job_pieces(one)[piece].ops}


def kept(ops: Iterable[Op]) -> dict[str, float]:
    """Bytes a token that rows keep without recomputation."""
    saved: list[Saved] = [row for op in ops for row in op.saved]
    return {row.name: row.bytes_per_token for row in saved if row.kept_under(Module.NOTHING)}


# What peft's `print_trainable_parameters` says of these.
@pytest.mark.parametrize(
    ("model", "train", "trained"),
    [
        ("llama-3-8b", "lora:rank=16", 41_943_040),
        ("llama-3-8b", "lora:rank=8,targets=q,v", 3_407_872),
        ("mistral-7b", "lora:rank=16,targets=attention", 13_631_488),
        ("mistral-7b", "qlora:rank=16,targets=attention", 13_631_488),
        ("llama-2-7b", "lora:rank=8,targets=q+v", 4_194_304),
        ("phi-3-mini", "lora:rank=16", 25_165_824),
        ("mixtral-8x7b", "lora:rank=16,targets=attention", 13_631_488),
        ("mixtral-8x7b", "lora:rank=16,targets=all-linear+experts+router", 359_665_664),
        ("qwen3-30b-a3b", "lora:rank=16,targets=all-linear+experts+router", 996_507_648),
    ],
)
def test_adapters_have_as_many_parameters_as_peft_says(
    model: str, train: str, trained: int
) -> None:
    assert held_parameters(job(train, model=model)).trained == trained


def test_dora_has_a_magnitude_for_each_output() -> None:
    lora, dora = (held_parameters(job(name)).trained for name in ("lora", "dora"))
    outputs = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert dora - lora == 32 * outputs


def test_megatron_bridge_has_one_adapter_for_fused_layers() -> None:
    rank, hidden, ffn, layers = 16, 4096, 14336, 32
    widths = (hidden + 6144) + 2 * hidden + (hidden + 2 * ffn) + (ffn + hidden)
    found = held_parameters(job("lora", framework="megatron-bridge"))
    assert found.trained == layers * rank * widths


def test_megatron_bridge_has_one_adapter_for_all_experts_of_a_layer() -> None:
    rank, hidden, ffn, layers = 16, 4096, 14336, 32
    widths = (hidden + 6144) + 2 * hidden + (hidden + 2 * ffn) + (ffn + hidden)
    found = held_parameters(job("lora", model="mixtral-8x7b", framework="megatron-bridge"))
    assert found.trained == layers * rank * widths


def test_matrices_of_megatron_bridge_are_split_over_tensor_parallelism() -> None:
    """B by outputs beside every product, A as the product is; what row-parallel ones make is
    gathered, and the input of the others is kept gathered."""
    found = rows(job("lora", framework="megatron-bridge"))
    first, second = (found[f"attention/out_proj/o/lora_{name}"] for name in "ab")
    assert (first.in_shard, second.out_shard) == (Shard.TP, Shard.TP)
    assert [one.bytes_per_token for one in second.collectives] == [2 * 4096]
    inputs = found["attention/qkv"].saved[0]
    assert (inputs.name, inputs.shard) == ("attention/qkv/input", Shard.NONE)
    assert found["attention/qkv/qkv/lora_a"].out_shard is Shard.TP
    assert {shard for op in (first, second) for _, shard in op.parameters} == {ParamShard.TP}


def test_modules_trained_whole_are_beside_frozen_originals() -> None:
    plain, whole = job("lora"), job("lora:whole=head+embeddings")
    table = 128_256 * 4096
    assert held_parameters(whole).trained - held_parameters(plain).trained == 2 * table
    assert held_parameters(whole).total - held_parameters(plain).total == 2 * table


def test_frozen_modules_and_layers_are_not_trained() -> None:
    everything = held_parameters(job("full")).trained
    table = 128_256 * 4096
    assert everything - held_parameters(job("full", "embeddings")).trained == table
    half = held_parameters(job("full", "layers:16"))
    layers = everything - 2 * table - 4096
    assert everything - half.trained == layers // 2


def test_flop_of_frozen_products_have_no_weight_gradient() -> None:
    """Adapters on every layer: forward, and as much again for the gradients of inputs."""
    full, lora = job("full"), job("lora:rank=1,targets=q")
    assert trained_flop(full, full.seq).total == flop_per_token(full.model, full.seq)
    products = 2 * (held_parameters(full).trained - 128_256 * 4096)
    attention = flop_per_token(full.model, full.seq) - 3 * products
    # Norms have no products; the adapters of rank 1 are a thousandth.
    assert trained_flop(lora, lora.seq).total == pytest.approx(2 * products + attention, rel=2e-3)


def test_backward_ends_above_what_nothing_trains() -> None:
    """The lower half frozen with the embeddings runs forward alone; with trained embeddings, or
    with hooks that ask for gradients of inputs, backward passes through it."""
    stopped = job("full", "embeddings", "layers:16")
    assert [piece.ops[1].returns for piece in job_pieces(stopped)[:2]] == [False, True]
    assert not kept(job_pieces(stopped)[0].ops)
    through = job("full", "layers:16")
    assert job_pieces(through)[0].ops[1].returns
    assert trained_flop(stopped, stopped.seq).total < trained_flop(through, through.seq).total
    assert job_pieces(job("lora", "layers:16"))[0].ops[1].returns
    tuned = job("lora", "layers:16", framework="torchtune")
    assert [piece.ops[1].returns for piece in job_pieces(tuned)[:2]] == [False, True]
    tuned = job("lora", "layers:16", framework="torchtune")
    assert [piece.ops[1].returns for piece in job_pieces(tuned)[:2]] == [False, True]


def test_frozen_products_keep_no_input_but_for_adapters() -> None:
    nothing = kept(job_pieces(job("full", "attention", "mlp", "norms"))[0].ops)
    assert not {"attention/qkv/input", "mlp/up/input", "mlp/down/input"} & set(nothing)
    assert "attention/norm/normalised" not in nothing
    # Flash attention reads its own output in backward.
    assert "attention/output" in nothing


def test_each_adapter_keeps_a_cast_of_its_input_under_autocast() -> None:
    found = kept(job_pieces(job("lora:rank=8,targets=q,v"))[0].ops)
    assert found["attention/qkv/q/input"] == found["attention/qkv/v/input"] == 2 * 4096
    assert found["attention/qkv/q/projected"] == 2 * 8
    assert "attention/qkv/input" not in found
    dropped = kept(job_pieces(job("lora:rank=8,targets=q,dropout=0.1"))[0].ops)
    assert dropped["attention/qkv/q/input"] == (2 + 1) * 4096


def test_adapters_of_one_tensor_share_it_where_nothing_is_cast() -> None:
    found = kept(job_pieces(job("lora", framework="deepspeed"))[0].ops)
    assert found["attention/qkv/input"] == found["mlp/up/input"] == 2 * 4096
    assert found["mlp/down/input"] == 2 * 14336
    assert not [name for name in found if name.endswith(("q/input", "gate/input"))]
    alone = kept(job_pieces(job("lora:targets=o", framework="deepspeed"))[0].ops)
    assert not {"attention/qkv/input", "mlp/up/input", "mlp/down/input"} & set(alone)


def test_packed_weights_are_unpacked_before_each_use() -> None:
    found = rows(job("qlora"))
    held = (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert found["mlp/down"].parameter_class == "frozen/nf4-double"
    assert found["mlp/down"].unpacked == pytest.approx(held + 2.0)
    assert found["mlp/down"].transient == 2.0
    assert found["mlp/down/down/lora_a"].unpacked == 0.0
    assert rows(job("lora"))["mlp/down"].unpacked == 0.0


def test_preparation_makes_norms_embeddings_and_head_fp32_under_peft_alone() -> None:
    by_peft, by_deepspeed = job("qlora"), job("qlora", framework="deepspeed")
    assert rows(by_peft)["attention/norm"].parameter_class == "frozen/fp32"
    assert rows(by_peft, 1)["embedding"].parameter_class == "frozen/fp32"
    assert rows(by_deepspeed)["attention/norm"].parameter_class == "frozen"
    # The head's 16-bit cast stays for backward, and checkpoints are fp32.
    (cast,) = (row for row in rows(by_peft, 2)["head/logits"].saved if row.fixed_bytes)
    assert cast.fixed_bytes == 2 * 4096 * 128_256
    checkpoints = [
        next(row.bytes_per_token for row in rows(one)["attention/norm"].saved if row.only_with)
        for one in (by_peft, by_deepspeed)
    ]
    assert checkpoints == [4 * 4096, 2 * 4096]


def test_experts_in_one_tensor_are_neither_packed_nor_adapted_unless_named() -> None:
    plain = rows(job("qlora", model="qwen3-30b-a3b", framework="deepspeed"))
    assert plain["moe/experts_up"].parameter_class == "frozen-expert"
    assert not [name for name in plain if name.startswith("moe/") and "lora" in name]
    named = rows(job("lora:targets=experts", model="qwen3-30b-a3b", framework="unsloth"))
    assert named["moe/experts_up/experts/lora_a"].parameter_class == "adapter-expert/fp32"
    assert named["moe/experts_up/experts/lora_a"].groups == 128


def test_peft_merges_adapters_of_experts_with_them() -> None:
    """A copy of all experts that the graph keeps, and a gradient of it; gate and up are one tensor,
    whose adapters have twice the rank."""
    named = rows(job("lora:rank=16,targets=experts", model="qwen3-30b-a3b"))
    up, down = named["moe/experts_up"], named["moe/experts_down"]
    weights = 128 * 2048 * 768
    sums = {row.name: row.fixed_bytes for op in (up, down) for row in op.saved}
    assert sums["moe/experts_up/merged"] == 2 * 2 * weights
    assert sums["moe/experts_down/merged"] == 2 * weights
    assert not up.trains
    assert up.derives
    assert up.weight_traffic == 4.0
    matrices = named["moe/experts_up/experts/lora"]
    assert matrices.parameter_count == 128 * 32 * (2048 + 2 * 768)
    assert matrices.parameter_class == "adapter-expert/fp32"


def test_tied_tables_are_frozen_together_and_trained_as_copies() -> None:
    """peft's trained copies of a tied table are one for each of its uses."""
    tied = rows(job("lora", model="llama-3.2-1b"), 2)["head/logits"]
    assert not tied.trains
    both = rows(job("full", "embeddings", model="llama-3.2-1b"), 2)["head/logits"]
    assert not both.trains
    table = 128256 * 2048
    head = job("lora:whole=head", model="llama-3.2-1b")
    assert not rows(head, 1)["embedding"].trains
    assert rows(head, 2)["head/logits"].parameter_count == table
    ends = job("lora:whole=head+embeddings", model="llama-3.2-1b")
    assert rows(ends, 1)["embedding"].trains
    assert held_parameters(ends).trained == held_parameters(head).trained + table


def test_adapters_are_fused_only_without_dropout() -> None:
    """unsloth leaves adapters with dropout to peft's layers."""
    fused, dropped = (
        kept(job_pieces(job(train, framework="unsloth"))[0].ops)
        for train in ("lora", "lora:dropout=0.1")
    )
    assert not [name for name in fused if name.endswith("/projected")]
    assert "mlp/down/input" not in fused
    assert dropped["mlp/down/down/input"] > 2 * 14336
