"""Phases of a step, the tensors that they keep, and their words: one small pipeline by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import Degrees, Request
from planner.predict.memory.account import Footprint, footprint_of
from planner.predict.memory.terms import (
    KeptTensor,
    Part,
    _activation_parts,
    _pooled,
    kept_tensors,
    label,
    part_of,
    peak_parts,
    peak_row,
    peak_tensors,
    phase_rows,
)
from planner.predict.ops.table import parameter_count
from tests.configurations import configure, memory_footprint

MIB = 2**20


@pytest.fixture(scope="module")
def footprint() -> Footprint:
    """Llama-3-8B on four stages of 8 layers, 8 micro-batches of one sequence of 4,096 tokens."""
    degrees = Degrees(pp=4, grad_acc=8)
    request = Request(model="llama-3-8b", gpus="4xH100", gbs=8, seq=4096)
    return memory_footprint(request, degrees)


def test_phases_of_every_stage(footprint: Footprint) -> None:
    for account in footprint.stages:
        count = 4 - account.stage
        rows = phase_rows(account)
        assert [row.step for row in rows] == ["first"] * (5 + count) + ["later"] * (5 + count)
        forward = [f"forward {index}/{count}" for index in range(1, count + 1)]
        names = [*(forward if count > 1 else ["forward"]), "forward end", "backward"]
        wanted = ["start", *names, "gradient reduction", "optimizer"]
        assert [row.phase.name for row in rows] == wanted * 2
        flights = [0, *range(1, count + 1), count, count, 0, 0]
        assert [row.phase.in_flight for row in rows] == flights * 2
        last = account.stage == 3
        places = {"backward": "loss" if last else "layer[full,dense]"}
        places |= {"forward": "loss"} if last else {}
        assert {row.phase.name: row.phase.at for row in rows if row.phase.at} == places
        for first, later in zip(account.first_step[:-1], account.later_steps[:-1], strict=True):
            state = later.terms["optimizer state"]
            assert first.terms == {**later.terms, "optimizer state": 0.0}
            assert first.total_bytes == later.total_bytes - state
        assert account.first_step[-1] is account.later_steps[-1]
        assert peak_row(account).phase is account.peak


def test_tensors_at_the_peak(footprint: Footprint) -> None:
    """4 micro-batches of 8 layers: 32 copies of 4,096 tokens, hidden 4,096, FFN 14,336, 2 bytes;
    token numbers of 8 bytes before the first layer."""
    kept = {one.name: one for one in peak_tensors(footprint, footprint.stages[0])}
    wide, one, narrow = 14336 * 4096 * 2, 4096 * 4096 * 2, 1024 * 4096 * 2
    sizes = {
        "mlp/activation_input": 2 * wide, "mlp/down/input": wide, "attention/norm/input": one,
        "attention/qkv/input": one, "attention/q": one, "attention/output": one,
        "ffn/norm/input": one, "mlp/up/input": one, "attention/k": narrow, "attention/v": narrow,
        "attention/lse": 32 * 4096 * 4 + 32, "attention/norm/statistics": 4096 * 4,
        "ffn/norm/statistics": 4096 * 4,
    }  # fmt: skip
    ids = KeptTensor("embedding/ids", 4 * 8 * 4096, 4.0)
    assert kept.pop("embedding/ids") == ids
    assert {name: one.copies for name, one in kept.items()} == dict.fromkeys(sizes, 32.0)
    for name, size in sizes.items():
        assert kept[name].size_bytes == pytest.approx(32 * size, rel=1e-4), name


def test_parts_of_the_peak(footprint: Footprint) -> None:
    account = footprint.stages[0]
    parts = peak_parts(footprint, account)
    kept = [part for part in parts if part.of == "activations"]
    assert [part.label for part in kept] == ["kept: feed-forward", "kept: attention", "kept: norms"]
    assert [round(part.size_bytes / MIB) for part in kept] == [32 * 368, 32 * 112 + 16, 32 * 64 + 1]
    outside = [part for part in parts if part.where == "outside"]
    assert [part.name for part in outside] == list(account.outside)
    assert all(part.size_bytes for part in outside)
    (other,) = (part for part in parts if part.name == "other")
    # Token numbers kept for backward, and those of the micro-batch that runs.
    assert other.size_bytes == 4 * 8 * 4096 + 8 * 4096
    assert parts.index(other) == len(parts) - len(outside) - 1
    assert sum(part.size_bytes for part in parts) == pytest.approx(account.total_bytes)


def test_small_terms_are_shown_together() -> None:
    parts = [Part(name, name, size, "tensors") for name, size in (("a", 5), ("b", 1), ("c", 2))]
    assert _pooled(parts, 2.0) == [parts[0], parts[2], Part("other", "other tensors", 1, "tensors")]
    assert _pooled(parts, 0.5) == parts
    assert _pooled(parts, 9.0) == [Part("other", "other tensors", 8, "tensors")]


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        ("attention/norm/input", "norms"), ("attention/q", "attention"),
        ("state/x", "state spaces"),
        ("moe/router/input", "router and experts"), ("shared_experts/x", "router and experts"),
        ("ffn/x", "feed-forward"), ("mlp/up/input", "feed-forward"), ("checkpoint", "checkpoints"),
        ("head/loss", "logits for the loss"), ("head/input", "head"),
        ("embedding/ids", "embedding"),
        ("mtp/x", "multi-token prediction"), ("rotary", "tables shared by layers"),
    ],
)  # fmt: skip
def test_tensors_belong_to_blocks_of_the_model(tensor: str, part: str) -> None:
    assert part_of(tensor) == part


def test_blocks_are_added_up_and_sorted() -> None:
    kept = (KeptTensor("mlp/a", 3.0, 1.0), KeptTensor("attention/q", 4.0, 1.0),
            KeptTensor("ffn/x", 2.0, 1.0))  # fmt: skip
    assert _activation_parts(kept) == [
        Part("activations/feed-forward", "kept: feed-forward", 5.0, "tensors", "activations"),
        Part("activations/attention", "kept: attention", 4.0, "tensors", "activations"),
    ]


def test_words_of_a_term() -> None:
    assert label("communicator pp") == "NCCL buffers, pp group"
    assert label("context") == "CUDA context, libraries"
    assert label("unheard of") == "unheard of"


def test_a_footprint_asks_its_job(footprint: Footprint) -> None:
    """Limits are those of the GPU; the probability falls where the limit does."""
    job = footprint.configuration.job
    assert footprint.usable_bytes == job.cluster.gpu.hbm_usable_bytes
    assert footprint.limit_bytes == job.hbm_limit_bytes
    assert footprint.configuration.recompute == "none"
    assert footprint.fits and footprint.fit_probability > 0.8
    assert footprint.interval.low < footprint.total_bytes < footprint.interval.high
    heavy = configure(replace(job, seq=4096), Degrees(pp=4, mbs=8, grad_acc=1))
    assert not footprint_of(heavy).fits


def _small(degrees: Degrees, **words: str) -> Footprint:
    request = {"model": "llama-3-8b", "gpus": f"{degrees.gpus}xH100", "gbs": degrees.gbs}
    return memory_footprint(Request.model_validate(request | {"seq": 2048} | words), degrees)


def test_later_micro_batches_accumulate() -> None:
    """Where gradients come with the first backward: a second pass that finds them."""
    first, last = _small(Degrees(pp=2, dp=2, grad_acc=4), framework="torchtitan").stages
    passes = [["forward 2/2", "forward end", "backward"], ["forward", "forward end", "backward"]]
    for account, names, early in ((first, passes[0], ["forward 1/2"]), (last, passes[1], [])):
        again = [f"{name} (accumulating)" for name in names]
        wanted = ["start", *early, *names, *again, "gradient reduction", "optimizer"]
        assert [phase.name for phase in account.later_steps] == wanted
        assert account.phase("start").terms["gradients"] == 0.0
    assert first.phase("backward").at == "embedding"
    assert last.phase("backward (accumulating)").at == "head"
    assert first.outside.keys() == {
        "fragmentation", "context", "communicator dp", "communicator pp", "communicator embedding"
    }  # fmt: skip


def test_a_backward_is_at_the_kind_of_layer_that_holds_most() -> None:
    """DeepSeek-V2-Lite: one dense layer, then mixtures, also on the first stage."""
    stages = _small(Degrees(pp=2, grad_acc=4), model="deepseek-v2-lite").stages
    assert [stage.layers for stage in stages] == [14, 13]
    assert {stage.phase("backward").at for stage in stages} == {"layer[full,moe]"}


@pytest.mark.parametrize(
    ("degrees", "words", "stage", "name", "part"),
    [
        (Degrees(pp=2, grad_acc=4), {"framework": "zero-bubble", "schedule": "zb-h1"}, 1,
         "deferred weight gradients", "waiting for weight gradients"),
        (Degrees(tp=2, grad_acc=4), {"activation_offload": "all"}, 0,
         "offloaded, on their way", "on the way to and from the host"),
    ],
)  # fmt: skip
def test_what_waits_or_is_on_its_way_counts_once(
    degrees: Degrees, words: dict[str, str], stage: int, name: str, part: str
) -> None:
    account = _small(degrees, **words).stages[stage]
    job = _small(degrees, **words).configuration.job
    (found,) = (
        tensor
        for tensor in kept_tensors(job, account.core, account.phase("backward"))
        if tensor.name == name
    )
    assert (found.copies, part_of(found.name)) == (1.0, part)
    assert found.size_bytes > 0
    buffers = account.outside.get("overlapped tensor-parallel exchanges")
    assert (buffers is not None) == (degrees.tp > 1)
    assert account.reserved_bytes == account.allocated_bytes + account.outside["fragmentation"]


def test_blocks_of_deepspeeds_update_are_a_term_until_it_runs() -> None:
    """A quarter of the parameters at six bytes, beside a pass that holds more than the update."""
    footprint = _small(Degrees(dp=4, zero=2, mbs=2), framework="deepspeed")
    (account,) = footprint.stages
    blocks = 6 * parameter_count(footprint.configuration.job.model).total / 4
    assert account.outside["blocks of the update"] == blocks
    assert account.phase("optimizer").terms["optimizer temporaries"] == blocks
    beside = account.outside["fragmentation"] + account.outside["blocks of the update"]
    assert account.reserved_bytes == account.allocated_bytes + beside
