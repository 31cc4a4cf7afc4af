"""What validate_args and TransformerConfig of Megatron refuse, each held against megatron-core
0.19.2's own parser (2026-11), and what they take."""

from __future__ import annotations

import pytest

from tests.launch.check.conftest import SMALL, Read, rules, script

_ITERS, _SAMPLES = "--train-iters 2000", "--train-samples 10000"
_SELECTIVE = f"{_ITERS} --recompute-granularity selective"
_FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
_MOE = f"{_ITERS} --num-experts 8 --moe-grouped-gemm"
_DELAYED = "--fp8-format hybrid --fp8-recipe delayed"
# Refused by every Megatron since 2021, also beside options of an older one.
_EVERYWHERE = [
    (f"{_ITERS} {_SAMPLES}", "training-length"),
    (f"{_ITERS} --lr-decay-samples 5", "training-length"),
    (f"{_ITERS} --lr-warmup-samples 5", "training-length"),
    (f"{_SAMPLES} --lr-decay-iters 5", "training-length"),
    (f"{_SAMPLES} --lr-warmup-iters 5", "training-length"),
    (f"{_ITERS} --lr-warmup-iters 5 --lr-warmup-fraction .1", "warmup-twice"),
    (f"{_SAMPLES} --lr-warmup-samples 5 --lr-warmup-fraction .1", "warmup-twice"),
    (f"{_ITERS} --lr 1e-4 --min-lr 1e-3", "learning-rate"),
    (f"{_ITERS} --encoder-num-layers 16", "sizes-twice"),
    (f"{_ITERS} --encoder-seq-length 4096", "sizes-twice"),
]
_REFUSED = [
    *_EVERYWHERE,
    (f"{_ITERS} --lr-warmup-iters 2000", "learning-rate"),
    (f"{_ITERS} --start-weight-decay .1 --end-weight-decay .2", "weight-decay"),
    (f"{_ITERS} --weight-decay-incr-style linear", "weight-decay"),
    (f"{_ITERS} --weight-decay-incr-style linear --start-weight-decay .1", "weight-decay"),
    (f"{_ITERS} --save x", "save-interval"),
    (f"{_ITERS} --mock-data --data-path d", "data-twice"),
    (f"{_ITERS} --batch-size 3", "gone"),
    (f"{_ITERS} --warmup 3", "gone"),
    (f"{_ITERS} --model-parallel-size 2", "gone"),
    (f"{_ITERS} --checkpoint-activations", "gone"),
    (f"{_ITERS} --distribute-saved-activations {_FULL}", "stored-activations"),
    (f"{_SELECTIVE} --recompute-num-layers 1", "recompute-method"),
    (f"{_SELECTIVE} --recompute-modules mla_up_proj", "recompute-modules"),
    (f"{_SELECTIVE} --num-experts 8 --recompute-modules moe_act", "recompute-modules"),
    (f"{_SELECTIVE} {_DELAYED} --recompute-modules layernorm", "recompute-modules"),
    (f"{_ITERS} {_DELAYED} --first-last-layers-bf16", "fp8-layers"),
    (f"{_ITERS} --expert-model-parallel-size 2", "experts-without-experts"),
    (f"{_ITERS} --moe-ffn-hidden-size 512", "experts-without-experts"),
    (f"{_MOE} --moe-enable-deepep --moe-token-dispatcher-type alltoall", "dispatcher"),
    (
        f"{_MOE} --moe-shared-expert-intermediate-size 512 --moe-shared-expert-overlap",
        "dispatcher",
    ),
    (f"{_MOE} --moe-pad-expert-input-to-capacity", "dispatcher"),
    (f"{_ITERS} --ckpt-format fsdp_dtensor", "checkpoint-kind"),
    (f"{_ITERS} --ckpt-format torch_dcp", "checkpoint-kind"),
    (f"{_ITERS} --load-main-params-from-ckpt", "checkpoint-kind"),
    (f"{_ITERS} --fp16-lm-cross-entropy", "fp16-cross-entropy"),
    (f"{_ITERS} --fp4-param-gather", "fp4-param-gather"),
    (f"{_ITERS} --fp8-param-gather --use-distributed-optimizer", "fp8-param-gather"),
    ("--train-iters 2e3", "option-value"),
    (f"{_ITERS} --lr-decay-iters 5.0", "option-value"),
    (f"{_ITERS} --weight-decay 0,1", "option-value"),
    (f"{_ITERS} --rampup-batch-size 16 16 1e3", "option-value"),
]
_TAKEN = [
    _ITERS,
    f"{_ITERS} --lr-warmup-iters 0 --lr-warmup-fraction .1",
    f"{_ITERS} --lr-warmup-samples 0",
    f"{_ITERS} --weight-decay-incr-style cosine --start-weight-decay .1 --end-weight-decay .2",
    f"{_ITERS} --save x --save-interval 10",
    f"{_ITERS} --lr-decay-iters 1_000",
    f"{_ITERS} --lr 1e-3 --min-lr 1e-3",
    f"{_SAMPLES} --rampup-batch-size 16 16 1_000",
    f"{_SAMPLES} --lr-warmup-fraction .1 --lr-decay-samples 1000",
    _SELECTIVE,
]


@pytest.mark.parametrize(("options", "rule"), _REFUSED)
def test_refused(read: Read, options: str, rule: str) -> None:
    assert rule in rules(read(script(f"{SMALL} {options}")))


@pytest.mark.parametrize("options", _TAKEN)
def test_taken(read: Read, options: str) -> None:
    assert not rules(read(script(f"{SMALL} {options}")))


@pytest.mark.parametrize(("options", "rule"), _EVERYWHERE)
@pytest.mark.parametrize("others", ["--DDP-impl local", "--deepspeed --zero-stage 1", "--my-own 3"])
def test_refused_by_every_megatron(read: Read, options: str, rule: str, others: str) -> None:
    assert rule in rules(read(script(f"{SMALL} {others} {options}")))
