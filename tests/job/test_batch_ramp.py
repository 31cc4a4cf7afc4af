"""Batch ramps: what their texts mean, and what a job makes of them."""

from __future__ import annotations

import pytest

from planner.job.batch_ramp import read_ramp
from planner.job.errors import UsageError
from planner.job.request import Request


def numbers(text: str, gbs: int | None = None) -> tuple[list[int], tuple[int, ...]]:
    ramp = read_ramp(text, gbs)
    return [batch.number for batch in ramp.batches], ramp.until


def test_the_forms_that_people_write() -> None:
    """DeepSeek-V3, Llama 3, Megatron's example (126 increments of 8 over 300,000 samples)."""
    batches, ends = numbers("3072..15360/469B")
    assert batches == [3072, 6144, 9216, 12288, 15360]
    assert ends == tuple(469 * 10**9 * part // 4 for part in (1, 2, 3, 4))
    assert numbers("3072..15360+6144/469B")[0] == [3072, 9216, 15360]
    llama = read_ramp("4M:252M,8M:2.87T,16M")
    assert str(llama.batches[0]) == "4,000,000 tokens"
    assert llama.until == (252 * 10**6, 287 * 10**10)
    batches, ends = numbers("16 8 300000", gbs=1024)
    assert (len(batches), batches[0], batches[-1], ends[-1]) == (127, 16, 1024, 300000)
    assert read_ramp("16 8 300000", 1024).until_tokens(2048)[-1] == 300000 * 2048


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3072..15360+5000/469B", "multiple of the increment"),
        ("512..64/1B", "multiple of the increment"),
        ("64..64/1B", "multiple of the increment"),
        ("1..2000/1B", "increments"),
        ("64:2B,128:1B,256", "must grow"),
        ("128:1B,64", "must grow"),
        ("4M:1B,512", "all batches in sequences, or all in tokens"),
        ("64", "write 3072"),
        ("64:1B,128:2B", "write 3072"),
        ("nan:1B,64", "is not a number"),
        ("64:inf,128", "is not a number"),
        ("0..4/1B", "is not a number"),
        ("16 8 300000", "--gbs 1024"),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_ramp(text)


def test_a_ramp_says_the_batch() -> None:
    base = Request(model="llama-3.2-1b", gpus="8xH100", seq=4096)
    job = base.model_copy(update={"batch_ramp": "16..64/1B"}).resolve()
    assert job.batch.exact and job.batch.sequences == 64
    assert [entry.batch.sequences for entry in job.ramp] == [16, 32, 48]
    in_tokens = base.model_copy(update={"batch_ramp": "256Ki:1B,1Mi"}).resolve()
    assert not in_tokens.batch.exact and in_tokens.batch.sequences == 256
    for other in ({"gbs": 32}, {"gbs_tokens": 4096}):
        with pytest.raises(UsageError, match="but --gbs"):
            base.model_copy(update={"batch_ramp": "16..64/1B", **other}).resolve()


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--lengths", {"lengths": "mean=450"}),
        ("--train", {"train": "lora", "framework": "megatron-bridge"}),
        ("--freeze", {"freeze": ("embeddings",)}),
        ("--objective", {"objective": "dpo"}),
    ],
)
def test_a_ramp_is_known_of_pretraining_alone(option: str, given: dict[str, object]) -> None:
    base = Request(model="llama-3.2-1b", gpus="8xH100", seq=4096, batch_ramp="16..64/1B")
    with pytest.raises(UsageError, match=f"with {option}: growing batches.*give one batch"):
        base.model_copy(update=given).resolve()
