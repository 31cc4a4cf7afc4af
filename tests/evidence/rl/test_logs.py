"""Logs of steps as frameworks write them: seconds of each phase, and lengths."""

from pathlib import Path

import pytest

from planner.evidence.rl.logs import RlLog, pairs_of, read_rl_log
from planner.job.errors import UsageError

LOGS = Path(__file__).parent / "logs"


def log(name: str) -> RlLog:
    found = read_rl_log(LOGS / name)
    assert found is not None
    return found


def seconds(found: RlLog) -> dict[tuple[str, ...], float]:
    return {one.phases: one.seconds for one in found.timed}


def test_verl_on_the_console_without_its_first_step() -> None:
    found = log("verl.log")
    assert (found.framework, found.steps) == ("verl", 4)
    times = seconds(found)
    assert times[()] == pytest.approx(80.6)
    assert times[("generation",)] == pytest.approx(32.05)
    assert ("transfer", "wake", "generation", "sleep") not in times, "the pure time is the better"
    assert times[("return", "update", "critic_update", "leave")] == pytest.approx(25.95)
    assert times[("old_logprobs",)] == pytest.approx(8.05)
    assert times[("reference",)] == pytest.approx(7.5)
    assert found.lengths["response_mean"] == pytest.approx(410.5)
    assert found.lengths["response_max"] == 2048.0


def test_verl_as_json_lines_with_a_critic() -> None:
    times = seconds(log("verl.jsonl"))
    assert times[("transfer", "wake", "generation", "sleep")] == pytest.approx(36.6)
    assert times[("return", "update", "critic_update", "leave")] == pytest.approx(42.05)
    assert times[("transfer",)] == pytest.approx(2.15)


@pytest.mark.parametrize(
    ("name", "framework", "step", "generation", "mean"),
    [
        ("nemo.log", "nemo-rl", 95.25, 40.66, 908.1),
        ("openrlhf.log", "openrlhf", 129.4, 52.2, 519.0),
        ("trl.log", "trl", 18.1, 8.8, 236.8),
        ("slime.log", "slime", 65.55, 30.75, 812.2),
    ],
)
def test_other_frameworks(
    name: str, framework: str, step: float, generation: float, mean: float
) -> None:
    found = log(name)
    assert found.framework == framework
    assert next(one.seconds for one in found.timed if one.figure == "step") == pytest.approx(step)
    time = next(one.seconds for one in found.timed if one.figure == "generation")
    assert time == pytest.approx(generation)
    assert found.lengths["response_mean"] == pytest.approx(mean, rel=1e-3)


def test_a_name_ends_where_its_number_begins() -> None:
    line = "step:3 - timing_s/gen:1.5 - a/b:-2e-05 - c:np.float64(4.25)"
    assert dict(pairs_of(line)) == {"step": 3.0, "timing_s/gen": 1.5, "a/b": -2e-05, "c": 4.25}


def test_other_files_are_no_such_logs(tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text("iteration 10/100 | elapsed time per iteration (ms): 12\n", encoding="utf-8")
    assert read_rl_log(path) is None
    path.write_text("perf 3: {'perf/rollout_time': 0.0}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no step"):
        read_rl_log(path)
