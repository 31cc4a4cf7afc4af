"""Attention on GB300 against cuDNN's published benchmark (NVIDIA/cudnn-frontend,
benchmark/sdpa_benchmark_training/results; two sequences, causal mask, cuDNN 9.22 and 9.23)."""

from __future__ import annotations

import pytest

from hardware.load import load_gpu
from planner.cost import compute
from planner.predict.cost_tables import gpu_inputs

GB300 = gpu_inputs(load_gpu("GB300"), "bf16", "auto")


def milliseconds(seq: int, heads: int, qk: float, v: float) -> tuple[float, float]:
    args = (2.0, seq, seq, heads, qk, v, 1.0, 0.0, GB300)
    forward = compute.attention_forward_time_s(*args)
    return 1e3 * forward, 1e3 * compute.attention_backward_time_s(*args)


@pytest.mark.parametrize(
    ("seq", "forward", "backward"), [(4096, 0.323, 1.101), (8192, 1.185, 3.832)]
)
def test_heads_of_one_width(seq: int, forward: float, backward: float) -> None:
    assert milliseconds(seq, 64, 128.0, 128.0) == pytest.approx((forward, backward), rel=0.03)


@pytest.mark.parametrize(
    ("seq", "forward", "backward"), [(4096, 0.813, 3.115), (8192, 2.886, 11.062)]
)
def test_latent_heads_were_not_fitted(seq: int, forward: float, backward: float) -> None:
    """Padded to one width they would be 13 to 20 % slower than this, on both sides."""
    assert milliseconds(seq, 128, 192.0, 128.0) == pytest.approx((forward, backward), rel=0.11)


def test_a_kernel_of_one_width_pads_the_narrower() -> None:
    padding = GB300._replace(attention_padding=1.0)
    args = (2.0, 4096.0, 4096.0, 128.0)
    rest = (1.0, 0.0, padding)
    wide = compute.attention_forward_time_s(*args, 192.0, 192.0, *rest)
    assert compute.attention_forward_time_s(*args, 192.0, 128.0, *rest) == pytest.approx(wide)
    shares = [
        time_s(*args, 192.0, 128.0, 1.0, 0.0, GB300) / time_s(*args, 192.0, 128.0, *rest)
        for time_s in (compute.attention_forward_time_s, compute.attention_backward_time_s)
    ]
    assert shares == pytest.approx([320 / 384, 832 / 960], rel=0.01)
