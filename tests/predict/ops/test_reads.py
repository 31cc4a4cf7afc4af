"""Rows of models that a step only reads: no backward, nothing kept, weights where copied."""

from __future__ import annotations

import pytest

from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.predict.cost_tables import job_pieces, piece_totals
from planner.predict.ops.rows import Op
from planner.predict.ops.table import parameter_count

MODEL = "qwen2.5-0.5b"


def rows_of(
    objective: str, train: str = "full", model: str = MODEL, framework: str = "hf"
) -> dict[Op, int]:
    """Every row of the job, with how many the model has."""
    request = Request(
        model=model, gpus="1xH100", gbs=8, seq=512, framework=framework, objective=objective,
        train=train,
    )  # fmt: skip
    job = request.resolve()
    pieces = job_pieces(job)
    totals = piece_totals(job.model, len(pieces))
    return {op: int(count) for piece, count in zip(pieces, totals, strict=True) for op in piece.ops}


def read_rows(objective: str, name: str, train: str = "full", model: str = MODEL) -> list[Op]:
    return [op for op in rows_of(objective, train, model) if op.name.startswith(f"{name}/")]


@pytest.mark.parametrize("model", [MODEL, "qwen3-30b-a3b"])
def test_reading_keeps_nothing_and_returns_nothing(model: str) -> None:
    found = read_rows("dpo", "reference", model=model)
    assert found
    for op in found:
        assert not (op.saved or op.returns or op.trains or op.backward_kernels or op.rerun_with)
        assert all(one.backward == 0.0 for one in op.collectives)


def test_a_copy_has_the_weights_of_the_model_once() -> None:
    """KTO reads the reference twice, and the policy once, which has its weights already."""
    for objective in ("dpo", "kto"):
        every = rows_of(objective)
        copied = sum(n * op.parameter_count for op, n in every.items() if op.only_read)
        assert copied == parameter_count(load_model(MODEL).spec).total
    assert not any(op.parameters for op in read_rows("kto", "policy"))


def test_experts_of_a_copy_are_shared_as_experts_are() -> None:
    classes = {op.parameter_class for op in read_rows("dpo", "reference", model="qwen3-30b-a3b")}
    assert classes == {"read", "read-expert"}


def test_adapters_off_reads_the_base_alone() -> None:
    found = read_rows("dpo", "reference", train="qlora")
    assert not any(op.parameters or "lora" in op.name for op in found)
    # Packed weights are unpacked for this pass too.
    assert any(op.packed for op in found)


def test_a_teacher_is_read_whole() -> None:
    every = rows_of("distill:teacher=qwen2.5-1.5b")
    taught = sum(n * op.parameter_count for op, n in every.items() if op.only_read)
    assert taught == parameter_count(load_model("qwen2.5-1.5b").spec).total


def test_a_reward_model_has_a_score_for_a_vocabulary() -> None:
    names = {op.name for op in rows_of("reward")}
    assert "head/score" in names
    assert not names & {"head/logits", "head/loss"}
    plain = load_model("llama-3-8b").spec
    lost = parameter_count(plain).total - parameter_count(plain.with_scores()).total
    assert lost == plain.hidden * (plain.vocab - 1)


def test_the_score_is_trained_beside_adapters() -> None:
    score = next(op for op in rows_of("reward", train="lora") if op.name == "head/score")
    assert score.trains
