"""Scaling: the knee in closed form, counts, and a small study end to end."""

from __future__ import annotations

import pytest

from planner.compare.comparison import batch_limit, knee, scale
from planner.compare.laws import price_of
from planner.compare.results import ScalePoint, Scaling
from planner.compare.settings import Settings
from planner.evidence.runs.rows import grouped
from planner.job.errors import UsageError
from planner.job.pool import counts_between
from planner.job.request import Request
from planner.report.charts.curves import scaling_figure
from planner.report.studies import scaling_report
from planner.report.study_words import runs_note

BASE = Request(model="llama-3.2-1b", gbs=32)


@pytest.fixture(scope="module")
def study() -> Scaling:
    """8 to 64 GPUs with 32 sequences, and with up to 256."""
    return scale(BASE, "H100", (8, 16, 64), 10**11, Settings())


def test_doublings_and_the_last() -> None:
    assert counts_between(512, 16384) == (512, 1024, 2048, 4096, 8192, 16384)
    assert counts_between(8, 48) == (8, 16, 32, 48)
    assert counts_between(8, 8) == (8,)
    with pytest.raises(UsageError, match="smaller number of GPUs first"):
        counts_between(16, 8)


def _amdahl(serial: float, counts: tuple[int, ...]) -> tuple[ScalePoint, ...]:
    speedups = [1.0 / (serial + (1.0 - serial) / n) for n in counts]
    return tuple(
        ScalePoint(batch="fixed", num_gpus=n, gbs_tokens=1, speedup=s, efficiency=s / n)
        for n, s in zip(counts, speedups, strict=True)
    )


def test_the_knee_of_amdahls_law() -> None:
    """Efficiency times speedup S²/n is largest at n = (1 - f) / f."""
    counts = tuple(range(1, 101))
    assert knee(_amdahl(1 / 17, counts)) == 16
    assert knee(_amdahl(1 / 65, counts)) == 64
    assert knee(_amdahl(1e-4, counts)) is None
    assert knee(_amdahl(0.5, (4,))) is None


def test_each_series_starts_alike(study: Scaling) -> None:
    fixed, scaled = study.series("fixed"), study.series("scaled")
    assert [point.num_gpus for point in fixed] == [8, 16, 64]
    assert fixed[0].run is not None and scaled[0].run is not None
    assert fixed[0].run.plan == scaled[0].run.plan
    assert fixed[0].speedup == fixed[0].efficiency == 1.0
    for point in scaled:
        assert point.gbs_tokens == 32 * point.num_gpus // 8 * 8192


def test_a_small_batch_limits_many_gpus(study: Scaling) -> None:
    """64 GPUs have 32 sequences: half of a sequence each."""
    fixed, scaled = study.series("fixed"), study.series("scaled")
    assert (fixed[-1].efficiency or 0.0) < (scaled[-1].efficiency or 0.0)
    assert study.batch_limit == batch_limit(fixed, scaled) == 64


def test_the_report_and_the_frame(study: Scaling) -> None:
    text = "\n".join(str(block) for block in scaling_report(study).blocks)
    assert "The batch is a limit from 64 GPUs on" in text
    assert "Strong scaling" in text and "Weak scaling" in text
    frame = study.to_frame()
    assert list(frame["num_gpus"]) == [8, 16, 64] * 2
    assert (frame["days"] > 0).all()


def test_a_batch_past_the_critical_one_is_said_with_its_price(study: Scaling) -> None:
    """Once, for the largest; what it costs stands in the table anyway."""
    run = study.points[0].run
    assert run is not None and run.batch_price is not None
    assert run.batch_price.batch == 32 * 8192 < run.batch_price.critical.value
    assert list(runs_note([run], study.tokens)) == []
    large = run.model_copy(update={"batch_price": price_of(3e7, 30_000_000, study.tokens)})
    (note,) = runs_note([run, large], study.tokens)
    assert "30.00 M tokens exceeds the critical batch, about 2.55 M" in note
    assert "extrapolated" in note and "235 % (" in note
    text = "\n".join(str(block) for block in scaling_report(study).blocks)
    assert "more tokens" in text and "the critical batch, about" not in text
    assert {"critical_batch_tokens_low", "extra_tokens_share"} <= set(study.to_frame())


def test_a_ramp_says_the_batch_of_every_point() -> None:
    ramp = BASE.model_copy(update={"gbs": None, "batch_ramp": "8..32/1B"})
    with pytest.raises(UsageError, match="only --batch fixed"):
        scale(ramp, "H100", (8,), 10**11)
    plain, ramped = (
        scale(base, "H100", (8,), 10**10, batches=("fixed",)).points[0].run for base in (BASE, ramp)
    )
    assert plain is not None and ramped is not None
    assert [batch.gbs for batch in ramped.plan.ramp] == [8, 16, 24]
    assert ramped.days.value > plain.days.value
    assert "the batch ramp, 8 to 32 sequences" in next(runs_note([ramped], 10**10))
    assert plain.batch_price is not None and ramped.batch_price is not None
    assert ramped.batch_price.extra.value < plain.batch_price.extra.value


def test_the_picture_holds_every_point(study: Scaling) -> None:
    days, mfu, *_ = scaling_figure(study).panels
    for panel in (days, mfu):
        by_series = grouped(panel.points, lambda point: point.series)
        assert [[point.x for point in one] for one in by_series.values()] == [[8, 16, 64]] * 2
    first = days.points[0]
    assert first.low < first.y < first.high
    assert days.ideal[-1] == (64, pytest.approx(first.y / 8))


def test_wrong_input() -> None:
    with pytest.raises(UsageError, match="give the kind of GPU alone, as H100"):
        scale(BASE, "8xH100", (8,), 1)
    with pytest.raises(UsageError, match="ascending order"):
        scale(BASE, "H100", (16, 8), 1)
    with pytest.raises(UsageError, match="tokens to train on"):
        scale(BASE, "H100", (8,), 0)
