"""`planner probe`: without a GPU it says so; its files are made from recorded measurements."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hardware.load import load_cluster_file, load_gpu, parse_gpus
from hardware.schema import Gpu
from planner.cli.program import planner_command
from planner.evidence.learn import probe, real_steps
from planner.evidence.learn.benches import Bench, bench_inputs, predicted_s, read_table
from planner.evidence.learn.inputs import plan_configuration
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import MeasuredRow
from tests.cli.conftest import refused

TRUE = {"gemm_rate": 0.9, "hbm_rate": 0.8}


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(
        planner_command, ["probe", *map(str, arguments), "-q"]
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = "evaluate --model llama-3-8b --gpus 8xH100 --gbs 64 --tp 2 --mbs 1 -o"
    CliRunner().invoke(planner_command, [*words.split(), str(path)])
    return path


def without_gpu() -> types.SimpleNamespace:
    return types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False))


def test_without_a_gpu(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", _importing({"torch": without_gpu()}))
    result = invoke("--plan-file", plan, "-o", tmp_path / "a.toml")
    assert result.exit_code == 3
    assert "no GPU that torch sees" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_torch(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", _importing({"torch": None}))
    result = invoke("--plan-file", plan, "-o", tmp_path / "a.toml")
    assert result.exit_code == 3
    assert "pip install 'trainplan[probe]'" in result.stderr


def _importing(given: dict[str, object]):
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> object:
        if name not in given:
            return real(name, package)
        if given[name] is None:
            raise ImportError(name)
        return given[name]

    return import_module


def test_what_a_plan_needs(plan: Path) -> None:
    mapped = plan_configuration(plan)
    benches = probe.wanted(mapped, 8, 1)
    products = {
        (one.sizes["m"], one.sizes["n"], one.sizes["k"]) for one in benches if one.kind == "gemm"
    }
    # Llama 3 8B at tp 2: the output projection is 8192 x 4096 x 2048, the head 8192 x 64128 x 4096.
    assert (8192.0, 4096.0, 2048.0) in products
    assert (8192.0, 64128.0, 4096.0) in products
    assert {one.kind for one in benches} >= {"attention", "copy", "all_reduce", "all_to_all"}
    assert not any(one.kind == "all_reduce" for one in probe.wanted(mapped, 1, 1))


def named(gpu: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_name=lambda: gpu))


def test_without_a_plan_the_machine_itself_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(_torch: object, benches: list[Bench], _progress: object) -> list[Bench]:
        gpu, links = bench_inputs(parse_gpus("1xA100"), TRUE)
        return [Bench(one.kind, one.sizes, predicted_s(one, gpu, links)) for one in benches]

    monkeypatch.setattr(probe, "load_torch", lambda: named("NVIDIA A100-SXM4-80GB"))
    monkeypatch.setattr(real_steps, "real_steps", lambda *_: [])
    monkeypatch.setattr(probe, "run_benches", recorded)
    result = invoke("-o", tmp_path / "a.toml")
    assert result.exit_code == 0, result.output
    cluster = load_cluster_file(tmp_path / "a.toml")
    assert (cluster.gpu.name, cluster.num_gpus) == ("A100-SXM4-80GB", 1)
    assert cluster.calibration.of("any")["hbm_rate"] < 0.95
    monkeypatch.setattr(probe, "load_torch", lambda: named("NVIDIA K80"))
    refused(invoke("-o", tmp_path / "b.toml"), "no K80: give --plan-file")


@pytest.mark.parametrize(("name", "half"), [("V100", "fp16"), ("T4", "fp16"), ("A100", "bf16")])
def test_a_gpu_is_measured_in_the_16_bits_that_it_has(name: str, half: str) -> None:
    assert probe.usual_configuration(named(name), 1).job.precision == half
    cells = real_steps._cells(load_gpu(name), 12, 768, 12, 1, 0.1, 2.0**33)
    assert cells["precision"] == f"{half} autocast"
    assert map_row(MeasuredRow("steps.csv", 2, cells)).job.precision == half


def test_files_from_recorded_measurements(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording of a GPU with products at 90 % and memory at 80 % of the catalogue's rates, on
    which every small model holds 1 GiB more than predicted."""

    def recorded(_torch: object, benches: list[Bench], _progress: object) -> list[Bench]:
        gpu, links = bench_inputs(parse_gpus("8xH100"), TRUE)
        return [Bench(one.kind, one.sizes, predicted_s(one, gpu, links)) for one in benches]

    def trained(_torch: object, gpu: Gpu, _progress: object) -> list[dict[str, str]]:
        cells = [real_steps._cells(gpu, 12, 768, 12, mbs, 0.1, 2.0**33) for mbs in (1, 4, 16)]
        runs = predict_rows(MeasuredRow("", 1, one) for one in cells)
        return [
            one | {"peak_mem_gib": str(run.memory_bytes() / 2**30 + 1.0)}
            for one, run in zip(cells, runs, strict=True)
        ]

    monkeypatch.setattr(probe, "load_torch", without_gpu)
    monkeypatch.setattr(real_steps, "real_steps", trained)
    monkeypatch.setattr(probe, "run_benches", recorded)
    target = tmp_path / "ours.toml"
    result = invoke("--plan-file", plan, "-o", target)
    assert result.exit_code == 0, result.output
    learnt = load_cluster_file(target).calibration
    assert learnt.memory.runs == 3
    assert learnt.memory.error_left_out < learnt.memory.error_before
    factors = {one.name: one for one in learnt.factors}
    for name, value in TRUE.items():
        assert factors[name].low <= value <= factors[name].high, name
    raw = read_table(tmp_path / "ours.toml.csv")
    assert {one.kind for one in raw} == {"gemm", "attention", "copy", "optimizer"}
    again = CliRunner().invoke(
        planner_command,
        ["calibrate", "-q", "--from", f"{target}.csv", "--gpus", "8xH100", "--json"],
    )
    assert again.exit_code == 0, again.output
    ran = CliRunner().invoke(
        planner_command,
        ["calibrate", "-q", "--from", f"{target}.steps.csv", "--json", "--accept-worse"],
    )
    assert ran.exit_code == 0, ran.output
    refused(invoke("--plan-file", plan, "-o", target), "--force")


@pytest.mark.parametrize(
    ("layers", "width", "mbs", "gib"),
    [(12, 768, 1, 3.44), (12, 768, 4, 6.73), (12, 768, 16, 19.01), (24, 1024, 1, 6.90),
     (24, 1024, 4, 11.36)],
)  # fmt: skip
def test_small_models_on_an_h200(layers: int, width: int, mbs: int, gib: float) -> None:
    """What nvidia-smi would show after their steps (torch 2.11, CUDA 13)."""
    cells = real_steps._cells(load_gpu("H200"), layers, width, width // 64, mbs, 0.1, gib * 2**30)
    (run,) = predict_rows([MeasuredRow("", 1, cells)])
    assert run.memory_bytes() / 2**30 == pytest.approx(gib, rel=0.2)
