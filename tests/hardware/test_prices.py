"""Price files and SkyPilot catalogues: columns by name, errors with line and column."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from hardware.errors import HardwareError
from hardware.facts import load_economics
from hardware.prices import Price, load_prices
from hardware.skypilot import load_skypilot

HEAD = "gpu,provider,kind,usd_per_gpu_hour\n"
LAMBDA_HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
)
GCP_HEAD = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,"
    "AvailabilityZone,Price,SpotPrice\n"
)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,provider,kind,usd_per_hour\n", r"line 1, column 4: unknown column 'usd_per_hour'"),
        ("gpu,kind,usd_per_gpu_hour\n", r"line 1, column 4: column 'provider' is missing"),
        ("gpu,gpu,kind,usd_per_gpu_hour\n", r"line 1, column 2: 'gpu' is given twice"),
        ("gpu,provider,kind\n", r"line 1: no price column"),
        ("gpu,provider,kind,price_per_gpu_hour\n", r"needs the column 'currency'"),
        (HEAD + "h100,x,spot,free\n", r"line 2, column 4: field 'usd_per_gpu_hour': 'free'"),
        (HEAD + "h100,x,spot,-1\n", r"line 2, column 4: .*greater than or equal to 0"),
        (HEAD + "h100,x,spot,\n", r"line 2, column 4: field 'usd_per_gpu_hour': is empty"),
        (HEAD + "h100,x,weekly,1\n", r"line 2, column 3: field 'kind': 'weekly'"),
        (HEAD + "h100,x,spot\n", r"line 2: 3 cells under 4 columns"),
        (
            HEAD.replace("\n", ",date\n") + "h100,x,spot,1,2126-01\n",
            r"line 2, column 5: field 'date': .*'2126-01': give the date on which the price",
        ),
        (HEAD + "h1000,x,spot,1\n", r"line 2: unknown GPU 'h1000'"),
        ("", r"line 1, column 1: column 'gpu' is missing"),
        (
            HEAD.replace("\n", ",currency\n") + "h100,x,spot,1,EUR\n",
            r"line 2, column 5: usd_per_gpu_hour is in USD, not in EUR",
        ),
    ],
)
def test_a_wrong_price_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = _write(tmp_path / "p.csv", text)
    with pytest.raises(HardwareError, match=message):
        load_prices(path)


def test_columns_in_any_order_and_another_currency(tmp_path: Path) -> None:
    text = "currency,price_per_gpu_hour,kind,gpu,provider,date\nEUR,2.5,spot,h100 sxm,ovh,2026-10\n"
    (price,) = load_prices(_write(tmp_path / "p.csv", text))
    assert (price.gpu, price.currency, price.price_per_gpu_hour) == ("H100-SXM5-80GB", "EUR", 2.5)
    with pytest.raises(HardwareError, match="priced in EUR, not USD"):
        _ = price.usd_per_gpu_hour


def test_ages() -> None:
    fields = {"gpu": "h100", "provider": "x", "kind": "spot", "price_per_gpu_hour": 1.0}
    today = date(2026, 11, 21)
    assert Price(**fields, date="2026-11-11").age_days(today) == 10
    assert Price(**fields, date="2026-10").age_days(today) == 51
    assert Price(**fields).age_days(today) is None


def test_skypilot_takes_whole_instances_and_the_cheapest_region(tmp_path: Path) -> None:
    _write(
        tmp_path / "lambda" / "vms.csv",
        LAMBDA_HEAD + "gpu_8x_h100,H100,8.0,208.0,1800.0,32.0,us-east-1,,\n"
        "gpu_8x_h100,H100,8.0,208.0,1800.0,24.0,us-west-1,,10.0\n"
        "cpu_4x,,,4.0,16.0,0.2,us-east-1,,\n"
        "gpu_1x_x,Mystery,1.0,4.0,16.0,0.2,us-east-1,,\n"
        "gpu_1x_a,A100,1.0,4.0,16.0,,us-east-1,,\n",
    )
    found = load_skypilot(tmp_path)
    by_kind = {price.kind: price for price in found.prices}
    assert by_kind["on_demand"].price_per_gpu_hour == pytest.approx(3.0)
    assert by_kind["on_demand"].instance_gpus == 8
    assert by_kind["on_demand"].note == "us-west-1"
    assert by_kind["spot"].price_per_gpu_hour == pytest.approx(1.25)
    assert by_kind["spot"].provider == "lambda"
    assert dict(found.skipped) == {"Mystery": 1, "A100": 1}


def test_skypilots_google_adds_the_host(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "gcp" / "vms.csv",
        GCP_HEAD + "a3-highgpu-8g,208,1872,,,,us-central1,us-central1-a,9.0,5.0\n"
        "a3-highgpu-8g,208,1872,,,,us-east4,us-east4-a,11.0,\n"
        ",,,H100,8,,us-central1,us-central1-a,79.0,27.0\n"
        ",,,H100,8,,europe-west4,europe-west4-b,60.0,20.0\n"
        ",,,A100,16,,us-central1,us-central1-a,40.0,10.0\n",
    )
    found = load_skypilot(path)
    by_kind = {price.kind: price for price in found.prices}
    # 79 + 9 in the one zone that lists both; the cheaper GPUs in Europe have no host there.
    assert by_kind["on_demand"].price_per_gpu_hour == pytest.approx(88.0 / 8)
    assert by_kind["spot"].price_per_gpu_hour == pytest.approx(32.0 / 8)
    assert by_kind["spot"].instance == "a3-highgpu-8g"
    assert dict(found.skipped) == {"H100": 1, "A100": 1}


def test_skypilots_errors_say_where(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="no SkyPilot catalogue there"):
        load_skypilot(tmp_path)
    path = _write(tmp_path / "x" / "vms.csv", "InstanceType,Price\na,1\n")
    with pytest.raises(HardwareError, match=r"line 1, column 3: column 'AcceleratorName'"):
        load_skypilot(path)
    _write(path, LAMBDA_HEAD + "a,H100,8,1,1,cheap,us,,\n")
    with pytest.raises(HardwareError, match=r"line 2, column 6: Price 'cheap' is not a number"):
        load_skypilot(path)
    for cell in ("nan", "inf", "1e999"):
        _write(path, LAMBDA_HEAD + f"a,H100,{cell},1,1,2,us,,\n")
        with pytest.raises(HardwareError, match=f"AcceleratorCount '{cell}' is not a number"):
            load_skypilot(path)
    _write(path, LAMBDA_HEAD + "a,H100,2147483648,1,1,2,us,,\n")
    with pytest.raises(HardwareError, match="line 2: field 'price_per_gpu_hour'"):
        load_skypilot(path)


def test_economics_agree_with_the_account_that_they_come_from() -> None:
    """Llama 3, table 5: 419 interruptions, 268 of them by GPUs, of 16,384 GPUs in 54 days."""
    figures = load_economics().figures
    hours = 54 * 24
    assert figures["gpu_mtbf"].value == pytest.approx(16384 * hours / 268, rel=1e-4)
    assert figures["node_mtbf"].value == pytest.approx(2048 * hours / 151, rel=1e-4)
    assert figures["failure_rate_by_hand"].value == pytest.approx(105 / (124 * 56) * 1000, rel=5e-3)
    for figure in figures.values():
        assert figure.value > 0
        assert figure.note or figure.source != "assumption"
