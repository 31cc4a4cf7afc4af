"""Error bars: where they lie, the family they name, the probability of fitting."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, hypot, log
from statistics import NormalDist

import numpy as np
import pytest

from hardware.curves import load_compute_curves
from planner.cost import fields as f
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.predict.ops.table import least_flop_per_token
from planner.predict.plan import Degrees
from planner.predict.uncertainty import intervals as uncertainty
from planner.predict.uncertainty.families import Family
from planner.predict.uncertainty.intervals import (
    family_of,
    family_text,
    fit_probability,
    least_step_s,
    peak_interval,
    spread_of,
    step_time_interval,
    widened,
    widest_interval,
)
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.residuals import (
    Further,
    Spread,
)
from tests.configurations import evaluate_job
from tests.cost.jobs import make_job

Z = NormalDist().inv_cdf(0.9)
JOB = make_job("llama-3-70b", "64xH100")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make all bars reach so far down and up, in ln."""

    def replace(low: float, high: float) -> None:
        spread = Spread(low, high, family_of(JOB), 11, 11)
        monkeypatch.setattr(uncertainty, "shipped_spread", lambda *_: spread)
        monkeypatch.setattr(uncertainty, "shipped_further", lambda *_: Further())

    return replace


def test_an_interval_names_the_family_it_comes_from() -> None:
    interval = step_time_interval(JOB, 10.0)
    assert interval.low < 10.0 < interval.high
    assert (
        "dense models with megatron-core on Hopper GPUs, across NVLink domains" in interval.family
    )


def test_runs_on_its_architecture_say_little_of_a_gpu_that_nobody_measured() -> None:
    known, guessed = (
        step_time_interval(make_job("llama-3-70b", cluster), 10.0)
        for cluster in ("64xH200", "64xH20")
    )
    assert guessed.low < known.low
    assert guessed.high > known.high
    assert guessed.beyond == ("no kernel measured on H20-96GB",)
    assert known.beyond == ()


def test_bars_reach_further_to_the_side_on_which_runs_err(only: Callable[..., None]) -> None:
    only(-0.014, 0.074)
    interval = step_time_interval(JOB, 10.0)
    assert interval.low == pytest.approx(10.0 * exp(-0.014))
    assert interval.high == pytest.approx(10.0 * exp(0.074))


def test_a_further_error_adds_in_squares(only: Callable[..., None]) -> None:
    only(-0.02, 0.08)
    near, _ = spread_of(JOB, "time")
    far = widened(near, 0.15, "time")
    assert far.high == pytest.approx(hypot(near.high, Z * 0.15))
    assert -far.low == pytest.approx(hypot(near.low, Z * 0.15))
    assert widened(near, 0.0, "time") == near


def test_a_step_that_waits_for_its_network_has_a_wider_bar() -> None:
    """The same compute beside it. Upwards: networks are slower than predicted, seldom faster."""
    busy, exposed = (
        step_time_interval(JOB, 10.0, at=Conditions(overhead=overhead, least=0.8 / overhead))
        for overhead in (1.0, 1.6)
    )
    assert exposed.high > 1.1 * busy.high
    assert exposed.low >= 0.97 * busy.low


def test_a_family_without_the_architecture_says_so() -> None:
    far = Spread(-0.1, 0.1, family_of(JOB)._replace(architecture="", scale=""), 11, 99)
    assert family_text(far) == (
        "99 measured runs, 11 of them of dense models with megatron-core on other GPUs"
    )
    assert family_text(Spread(-0.1, 0.1, Family(), 99, 99)) == (
        "all 99 measured runs, as none is much like this one"
    )


def test_what_was_never_measured_widens_the_interval_and_is_named(
    only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(-0.014, 0.074)
    usual = step_time_interval(JOB, 10.0)
    monkeypatch.setattr(uncertainty, "shipped_further", lambda *_: Further(0.2, ("9 GPUs",)))
    wide = step_time_interval(JOB, 10.0)
    assert wide.low < usual.low
    assert wide.high > usual.high
    assert (usual.beyond, wide.beyond) == ((), ("9 GPUs",))
    assert wide.basis == f"{usual.family}; wider because nothing like it was measured: 9 GPUs"
    assert usual.basis == usual.family


def test_the_shipped_tables_widen_far_outside_on_every_axis() -> None:
    far = Conditions(1e9, 1e9, 8, 1, 100.0, 16)
    usual, wide = step_time_interval(JOB, 10.0), step_time_interval(JOB, 10.0, at=far)
    assert wide.beyond
    assert wide.high / wide.low > 1.2 * usual.high / usual.low


def test_fit_probability_has_the_tails_of_student(only: Callable[..., None]) -> None:
    only(-0.014, 0.074)
    limit = JOB.hbm_limit_bytes
    found, _ = spread_of(JOB, "memory")
    # t of three degrees of freedom at 2 and 3 times its 90 % quantile of 1.6377 (tables: 0.9767,
    # 0.9919).
    at = {0.5: 0.0, 0.9: found.high, 0.1: found.low, 0.9767: 2 * found.high, 0.9919: 3 * found.high}
    for probability, log_ratio in at.items():
        stated = fit_probability(JOB, limit / exp(log_ratio), limit)
        assert stated == pytest.approx(probability, abs=2e-4)
    assert fit_probability(JOB, limit, 0.0) == 0.0
    assert log(peak_interval(JOB, limit).high / limit) == pytest.approx(found.high)


def test_less_memory_is_likelier_to_fit() -> None:
    limit = JOB.hbm_limit_bytes
    shares = [fit_probability(JOB, limit * part, limit) for part in (1.2, 1.0, 0.9, 0.7, 0.4)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < shares[-1]


@pytest.mark.parametrize(
    ("model", "gpus", "mbs", "precision"),
    [
        ("tinyllama-1.1b", "2xRTX3090", 2, "bf16"),
        ("tinyllama-1.1b", "2xRTX3090", 4, "bf16"),
        ("llama-3.2-1b", "1xRTX4090", 2, "bf16"),
        ("llama-3.2-1b", "1xRTX5090", 2, "bf16"),
        ("llama-3.2-1b", "8xH20", 4, "bf16"),
        ("llama-3-8b", "8xH100", 2, "fp8"),
        ("llama-3-8b", "8xMI300X", 2, "bf16"),
    ],
)
def test_no_interval_reaches_beyond_what_a_gpu_can_do(
    model: str, gpus: str, mbs: int, precision: str
) -> None:
    """At the low end the model's FLOP, counted once, are done below the printed peak and no faster
    than any published run had them done."""
    dp = int(gpus.partition("x")[0])
    request = Request(model=model, gpus=gpus, gbs=8 * mbs * dp, seq=2048, precision=precision)
    job, degrees = request.resolve(), Degrees(dp=dp, zero=int(dp > 1), mbs=mbs, grad_acc=8)
    plan = evaluate_job(job, degrees)
    assert plan.step_time.low >= min(plan.step_time_s, least_step_s(job, degrees))
    gpu = job.cluster.gpu
    causal = plan.mfu_causal * gpu.peak("bf16") / gpu.peak(precision)
    fastest = max(causal, 0.85 * min(1.0, load_compute_curves(gpu).max_share(precision)))
    assert causal * plan.step_time_s / plan.step_time.low <= fastest + 1e-9
    assert fastest < 1.0


def test_attention_and_head_are_no_faster_in_8_bits() -> None:
    """Of an 8 B model with 32,768 tokens a third of the FLOP is attention, and 7 % the head's."""
    least = {}
    for precision in ("bf16", "fp8"):
        request = Request(model="llama-3-8b", gpus="8xH100", gbs=8, seq=32768, precision=precision)
        least[precision] = least_step_s(request.resolve(), Degrees(dp=8, zero=1))
    low, wide = least_flop_per_token(load_model("llama-3-8b").spec, 32768)
    curves = load_compute_curves(JOB.cluster.gpu)
    gpu = JOB.cluster.gpu
    faster = gpu.peak("fp8") * curves.max_share("fp8")
    faster /= gpu.peak("bf16") * curves.max_share("bf16")
    expected = (low / faster + wide) / (low + wide)
    assert least["fp8"] / least["bf16"] == pytest.approx(expected, rel=1e-3)
    assert 0.6 < expected < 0.8


def test_backward_attention_computes_its_scores_again() -> None:
    """12 layers of h 768: 72 h² + 6 h s/2 · 7/6 a layer and token, as the head 6 h v."""
    model = load_model("gpt2").spec
    low, wide = least_flop_per_token(model, 1024)
    assert low == pytest.approx(12 * 72 * 768**2)
    assert wide == pytest.approx(12 * 6 * 768 * 1024 * 7 / 6 + 6 * 768 * model.vocab)


def test_a_mixture_ends_where_its_fastest_gpus_would() -> None:
    request = Request(model="llama-3-8b", gpus="8xH100+8xA100", gbs=64, seq=4096)
    job, degrees = request.resolve(), Degrees(pp=2, dp=8, zero=1, mbs=1, grad_acc=8)
    least = min(least_step_s(machine, degrees) for machine in job.machines)
    for step_time_s in (1.02 * least, 4.0 * least):
        step = np.zeros(f.STEP_COLUMNS)
        step[f.STEP_TIME] = step_time_s
        interval = widest_interval(job.machines, degrees, step)
        assert least * (1.0 - 1e-9) <= interval.low < step_time_s
