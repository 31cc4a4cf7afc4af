"""`planner calibrate`: from runs and logs to a cluster file that every command takes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hardware.calibration import Calibration
from hardware.load import load_cluster_file
from planner.cli.program import planner_command
from tests.cli.conftest import refused
from tests.evidence.learn import runs
from tests.evidence.learn.test_logs import MEGATRON, NANOTRON_2025, TITAN
from tests.evidence.traces import made_up

TRUE = {"gemm_rate": 0.9, "inside_rate": 0.7}


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(
        planner_command, [str(one) for one in arguments]
    )


def done(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "measured.csv"
    return runs.write(path, runs.predictions(TRUE, runs.VARIANTS[:8]))


def test_further_runs_are_predicted_by_what_earlier_ones_taught(
    calibrated: Path, tmp_path: Path
) -> None:
    later = runs.write(tmp_path / "later.csv", runs.predictions(TRUE, runs.VARIANTS[8:]))
    errors = []
    for more in ((), ("--cluster", calibrated)):
        result = done("validate", "-q", "--data", later, *more, "--json")
        errors.append(json.loads(result.stdout)["summary"]["time"]["mean"])
    assert errors[1] < 0.5 * errors[0]
    other = calibrated.with_name("other.toml")
    other.write_text(calibrated.read_text().replace("H100-SXM5-80GB", "A100-SXM4-80GB"))
    result = invoke("validate", "-q", "--data", later, "--cluster", other)
    assert (result.exit_code, "ran on A100-SXM4-80GB" in result.stderr) == (2, True)


@pytest.fixture(scope="module")
def calibrated(measured: Path) -> Path:
    path = measured.parent / "ours.toml"
    result = done("calibrate", "-q", "--from", measured, "-o", path)
    assert "Learnt factors" in result.stdout
    assert "The runs cannot determine: " in result.stdout
    return path


def evaluated(*machine: object) -> dict[str, Any]:
    result = invoke(
        "evaluate", "--model", "llama-2-7b", *machine, "--gbs", "64", "--tp", "4", "--mbs", "2",
        "--recompute", "none", "--json",
    )  # fmt: skip
    plan: dict[str, Any] = json.loads(result.stdout)["plans"][0]
    return plan


def loaded(path: Path) -> Calibration:
    calibration = load_cluster_file(path).calibration
    assert calibration is not None
    return calibration


def test_the_file_serves_other_commands_with_narrower_intervals(calibrated: Path) -> None:
    before, after = evaluated("--gpus", "8xH100"), evaluated("--cluster", calibrated)
    assert after["step_time_s"] > 1.05 * before["step_time_s"]
    wide, narrow = (
        plan["step_time"]["high"] / plan["step_time"]["low"] for plan in (before, after)
    )
    assert narrow < wide
    assert "of this cluster" in after["step_time"]["family"]
    assert evaluated("--gpus", f"8x{calibrated}")["step_time_s"] == after["step_time_s"]


def test_another_framework_takes_the_hardware_alone(calibrated: Path) -> None:
    calibration = loaded(calibrated)
    assert "gemm_rate" in calibration.of("torchtitan")
    assert "launch_time" not in calibration.of("torchtitan")


def test_the_file_is_dated_sourced_and_editable(calibrated: Path) -> None:
    table = tomllib.loads(calibrated.read_text())["calibration"]
    assert table["sources"] == ["measured.csv"]
    assert len(table["date"]) == 10
    assert table["frameworks"] == ["megatron-core"]
    assert {"value", "low", "high", "determined", "meaning"} <= set(table["factors"]["gemm_rate"])
    edited = calibrated.parent / "edited.toml"
    short = 'num_gpus = 8\ngpu = "H100"\n[calibration]\ndate = "2026-01-01"\nframeworks = []\n'
    edited.write_text(short + "[calibration.factors]\ngemm_rate = 0.5\n")
    assert loaded(edited).of("any") == {"gemm_rate": 0.5}


def test_a_base_file_is_kept_and_its_calibration_replaced(measured: Path) -> None:
    base = measured.parent / "base.toml"
    base.write_text('num_gpus = 16\ngpu = "H100"  # ours\nnic_rate = "200 Gbit/s"\n')
    target = measured.parent / "next.toml"
    done("calibrate", "-q", "--from", measured, "--cluster", base, "-o", target)
    assert 'gpu = "H100"  # ours' in target.read_text()
    done("calibrate", "-q", "--from", measured, "--cluster", target, "-o", target, "--force")
    assert target.read_text().count("[calibration]") == 1
    assert load_cluster_file(target).num_gpus == 16


def test_nothing_is_overwritten_without_force(measured: Path, calibrated: Path) -> None:
    refused(invoke("calibrate", "--from", measured, "-o", calibrated), "--force")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gemm_rate = nan", "nan is not a number"),
        ("gemm_rate = 0", "greater than or equal to 0.01"),
        ("gem_rate = 0.9", "Did you mean 'gemm_rate'"),
        ("gemm_rate = { value = 2.0, low = 0.5, high = 1.0 }", "outside its interval"),
        ('gemm_rate = "fast"', "valid number"),
    ],
)
def test_a_file_with_a_wrong_factor(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "a.toml"
    head = 'num_gpus = 8\ngpu = "H100"\n[calibration]\ndate = "2026-01-01"\nframeworks = []\n'
    path.write_text(f"{head}[calibration.factors]\n{line}\n")
    result = invoke("evaluate", "--model", "7b", "--cluster", path, "--gbs", "8", "--mbs", "1")
    assert result.exit_code == 2
    assert words in result.stderr
    assert str(path) in result.stderr


def test_runs_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    found = runs.predictions({}, runs.VARIANTS[:6])
    for index, one in enumerate(found):
        seconds = float(one.row.cells["step_time_s"]) * (2.0 if index % 2 else 0.5)
        one.row.cells.update(step_time_s=repr(seconds), peak_mem_gib="")
    path, target = runs.write(tmp_path / "odd.csv", found), tmp_path / "a.toml"
    result = invoke("calibrate", "-q", "--from", path, "-o", target)
    assert result.exit_code == 1
    assert "do not become more accurate" in result.stderr
    assert not target.exists()
    done("calibrate", "-q", "--from", path, "-o", target, "--accept-worse")
    assert target.exists()


@pytest.fixture(scope="module")
def plan_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    result = invoke(
        "evaluate", "--model", "llama-2-7b", "--gpus", "8xH100", "--gbs", "128", "--tp", "2",
        "--mbs", "1", "--recompute", "none", "-o", folder / "plan.json",
    )  # fmt: skip
    assert result.exit_code in (0, 1), result.output
    return folder


def test_a_log_beside_its_plan_file(plan_folder: Path) -> None:
    (plan_folder / "train.log").write_text(MEGATRON)
    result = done("calibrate", "-q", "--from", plan_folder, "--json")
    assert json.loads(result.stdout)["time"]["runs"] == 1
    report = invoke("calibrate", "-q", "--from", plan_folder).stdout
    assert "median of 3 steps" in report
    assert "1 of warm-up" in report


@pytest.mark.parametrize(("gbs", "status"), [(2048, 0), (2056, 2)])
def test_a_batch_in_tokens_to_three_places(tmp_path: Path, gbs: int, status: int) -> None:
    """2,048 sequences of 4,096 tokens are 8.39M, 2,056 are 8.42M."""
    made = invoke(
        "evaluate", "--model", "llama-2-7b", "--gpus", "8xH100", "--gbs", str(gbs), "--tp", "1",
        "--zero", "1", "--framework", "nanotron", "--mbs", "1", "-o", tmp_path / "plan.json",
    )  # fmt: skip
    assert made.exit_code in (0, 1), made.output
    log = NANOTRON_2025.replace("size: 1.05M", "size: 8.39M").replace("_ms: 995", "_ms: 99.5K")
    (tmp_path / "train.log").write_text(log)
    result = invoke("calibrate", "-q", "--from", tmp_path, "--json")
    assert result.exit_code == status, result.output
    assert status == 0 or "its global batch is 8,390,000, the configuration's 8,4" in result.stderr


def test_a_trace_beside_its_plan_file_is_a_run_too(plan_folder: Path, tmp_path: Path) -> None:
    """Its steps of 10 ms are a twentieth of one sequence's, a five-hundredth of the folder's."""
    made = invoke(
        "evaluate", "--model", "llama-2-7b", "--gpus", "8xH100", "--gbs", "8", "--tp", "1",
        "--zero", "1", "--mbs", "1", "--recompute", "none", "-o", tmp_path / "plan.json",
    )  # fmt: skip
    assert made.exit_code in (0, 1), made.output
    path = made_up.write(tmp_path / "rank0.pt.trace.json.gz", made_up.trace())
    result = done("calibrate", "-q", "--from", path, "--json")
    assert json.loads(result.stdout)["time"]["runs"] == 1
    # Ranks of one run are one run, whatever torch called their files.
    ranks = [made_up.write(tmp_path / f"{n}.json", made_up.trace(rank=n)) for n in (1, 2)]
    more = [one for rank in ranks for one in ("--from", rank)]
    result = invoke("calibrate", "-q", "--from", path, *more)
    assert "median of 2 steps ±0.0 %; dropped: 1 of warm-up, by 3 traces" in " ".join(
        result.stdout.split()
    )
    assert result.stdout.splitlines()[2].split()[:3] == ["step", "time", "1"]
    events = [one for one in made_up.trace()["traceEvents"] if "Step" not in one["name"]]
    unmarked = made_up.write(tmp_path / "unmarked.json", {"traceEvents": events})
    refused(invoke("calibrate", "-q", "--from", unmarked), "unmarked.json: no step is marked")
    other = made_up.write(plan_folder / path.name, made_up.trace())
    result = invoke("calibrate", "-q", "--from", other)
    assert result.exit_code == 2
    assert "over 100 times off what is predicted: correct its unit or its config" in result.stderr


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (TITAN, "a log of torchtitan, but the configuration is for megatron-core"),
        (MEGATRON.replace("size:   128", "size:   256"), "its global batch is 256, the confi"),
    ],
)
def test_a_log_of_another_run(plan_folder: Path, log: str, words: str) -> None:
    path = plan_folder / "other.txt"
    path.write_text(log)
    refused(invoke("calibrate", "-q", "--from", path), words)


def test_a_log_without_configuration(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(MEGATRON)
    refused(invoke("calibrate", "-q", "--from", path), "--launch", "--plan-file")


# What Megatron prints before it trains, each rank's launcher adding its tag.
ARGUMENTS = """\
0: [default0]:------------------------ arguments ------------------------
0: [default0]:  add_bias_linear ................................. False
0: [default0]:  attention_backend ............................... AttnBackend.auto
0: [default0]:  bf16 ............................................ True
0: [default0]:  exp_avg_dtype ................................... torch.float32
0: [default0]:  ffn_hidden_size ................................. 5632
0: [default0]:  global_batch_size ............................... 128
0: [default0]:  hidden_size ..................................... 2048
0: [default0]:  micro_batch_size ................................ 2
0: [default0]:  num_attention_heads ............................. 16
0: [default0]:  num_layers ...................................... 16
0: [default0]:  recompute_granularity ........................... {mode}
0: [default0]:  recompute_method ................................ {method}
0: [default0]:  recompute_num_layers ............................ 1
0: [default0]:  rl_parallel_generation_tasks .................... 512
0: [default0]:  seq_length ...................................... 4096
0: [default0]:  swiglu .......................................... True
0: [default0]:  world_size ...................................... 8
0: [default0]:-------------------- end of arguments ---------------------
 > padded vocab (size: 32000) with 0 dummy tokens (new size: 32000)
"""


def test_a_log_that_says_its_arguments(tmp_path: Path) -> None:
    """Megatron's own list of them is the configuration, recomputation included."""
    path, before = tmp_path / "train.log", {}
    for mode, method in (("None", "None"), ("full", "uniform")):
        path.write_text(ARGUMENTS.format(mode=mode, method=method) + MEGATRON)
        found = done("calibrate", "-q", "--from", path, "--gpus", "8xH100", "--json")
        before[mode] = json.loads(found.stdout)["memory"]["error_before"]
    # Held are 45 GiB: more than what runs nothing again needs, and less so where it does.
    assert before["full"] > before["None"] + 0.15
    for words, gpus in ((": --gpus 8xH100", ()), ("8 GPUs, not on 16", ("--gpus", "16xH100"))):
        refused(invoke("calibrate", "-q", "--from", path, *gpus), words)


def test_a_log_with_launch_files(plan_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done("launch", plan_folder / "plan.json", "-o", folder)
    path = tmp_path / "train.log"
    path.write_text(MEGATRON)
    result = done("calibrate", "-q", "--from", path, "--launch", folder, "--json")
    assert json.loads(result.stdout)["frameworks"] == ["megatron-core"]
    # A scheduler's name of a log; with --suggest the plan file is another thing than the log's.
    path = path.rename(tmp_path / "job.o1234")
    next_one = done(
        "calibrate", "-q", "--suggest", "--plan-file", plan_folder / "plan.json", "--from", path,
        "--launch", folder,
    )  # fmt: skip
    assert "1 of your runs" in " ".join(next_one.stdout.split())


def test_bad_measurements_name_their_cell(tmp_path: Path) -> None:
    found = runs.predictions({}, [{}])
    for value in ("0", "nan", "-1", "fast"):
        found[0].row.cells.update(step_time_s=value)
        path = runs.write(tmp_path / "bad.csv", found)
        result = invoke("calibrate", "-q", "--from", path)
        assert result.exit_code in (2, 3), value
        assert "column step_time_s" in result.stderr, value
        assert "Traceback" not in result.output


def test_learning_study_of_the_published_runs(tmp_path: Path) -> None:
    path = runs.write(tmp_path / "runs.csv", runs.predictions(TRUE))
    result = done("validate", "-q", "--data", path, "--learn", "3", "--json")
    [found] = json.loads(result.stdout)
    # 0.067 of 0.095 today: three runs of one cluster cannot settle all that TRUE changes.
    assert found["after"] < 0.8 * found["before"]
    # 0.062 where random ones leave 0.067 today.
    assert found["chosen"] < found["after"]
    wrong = invoke("validate", "-q", "--data", path, "--learn", "3", "--csv")
    assert wrong.exit_code == 2


def test_what_to_run_next(plan_folder: Path, measured: Path) -> None:
    result = done(
        "calibrate", "-q", "--suggest", "--plan-file", plan_folder / "plan.json", "--json"
    )
    found = json.loads(result.stdout)
    assert 1 <= len(found) <= 3
    assert all(one["after"] < one["before"] for one in found)
    assert [one["before"] for one in found[1:]] == [one["after"] for one in found[:-1]]
    assert found[0]["gpus"] <= 8
    assert found[0]["usd"] > 0
    # What runs taught already leaves less to learn.
    known = invoke(
        "calibrate", "-q", "--suggest", "--plan-file", plan_folder / "plan.json",
        "--from", measured, "--json",
    )  # fmt: skip
    assert all(one["before"] < found[0]["before"] for one in json.loads(known.stdout))
    assert (
        "Runs to make next"
        in invoke("calibrate", "-q", "--suggest", "--plan-file", plan_folder / "plan.json").stdout
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--suggest"], "--plan-file plans.json"),
        ([], "give the runs to learn from"),
        (["--from", "x.csv", "--gpus", "8xH100", "--cluster", "a.toml"], "give the GPUs by"),
        (["--from", "x.log", "--launch", "a.sh", "--plan-file", "b.json"], "give the conf"),
        (["--from", "none.csv"], "does not exist"),
    ],
)  # fmt: skip
def test_wrong_options(arguments: list[str], words: str) -> None:
    refused(invoke("calibrate", "-q", *arguments), words)


def test_memory_and_evaluate_agree_on_a_calibrated_cluster(tmp_path: Path) -> None:
    """The account of `planner memory` has the factors of the one memory model."""
    path = tmp_path / "a.toml"
    head = 'num_gpus = 8\ngpu = "H100"\n[calibration]\ndate = "2026-01-01"\n'
    path.write_text(
        f'{head}frameworks = ["megatron-core"]\n[calibration.factors]\n'
        "context = 1.5\ncommunicators = 3.0\nfragmentation = 2.0\n"
    )
    job = ("--model", "llama-2-7b", "--gbs", "64", "--tp", "2", "--mbs", "1", "--recompute", "none")
    options = (
        ("--gpus", "8xH100"), ("--cluster", path), ("--gpus", "8xH100", "--without", "tp-overlap")
    )  # fmt: skip
    plain, changed, bare = (
        json.loads(invoke("evaluate", *job, *given, "--json").stdout)["plans"][0]
        for given in options
    )
    before, after, communicators = (plan["stages"][0] for plan in (plain, changed, bare))
    # Buffers of overlapped exchanges are tensors of a known size: no factor is on them.
    buffers = before["communication"] - communicators["communication"]
    assert buffers > 0.0
    assert after["context"] == pytest.approx(1.5 * before["context"])
    assert after["fragmentation"] == pytest.approx(2.0 * before["fragmentation"])
    more = 2.0 * communicators["communication"]
    assert after["communication"] == pytest.approx(before["communication"] + more)
    account = json.loads(invoke("memory", *job, "--cluster", path, "-q", "--json").stdout)
    assert account["total_bytes"] == pytest.approx(changed["peak_bytes"])


@pytest.mark.parametrize(("rate", "unit"), [(40.0, "samples"), (40.0 * 4096, "tokens")])
def test_mlperf_throughput_counts_samples_or_tokens(
    plan_folder: Path, rate: float, unit: str
) -> None:
    event = {"key": "tracked_stats", "value": {"throughput": rate}, "metadata": {"step": 1}}
    path = plan_folder / "mlperf.txt"
    path.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for _ in range(3)))
    result = done("calibrate", "-q", "--from", path)
    assert f"taken to count {unit}" in result.stdout.replace("\n", " ")
    assert "mlperf.txt step time" in result.stdout
