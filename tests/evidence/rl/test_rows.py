"""What the cells of a measured run count, and what they are read as."""

from pathlib import Path

import pytest

from planner.evidence.rl.lengths import usual_mean
from planner.evidence.rl.mapping import map_rl
from planner.evidence.rl.rows import is_bounds_table, is_rl_table, read_rl_rows
from planner.evidence.runs.model import UnpredictableRowError
from planner.job.errors import UsageError
from tests.evidence.rl.cases import COLOCATED, SEPARATE, row

LISTED = ("framework", "model", "num_gpus", "rollout_tp", "generation_s", "step_s")


def figures(**changed: str) -> dict[str, tuple[float, tuple[str, ...]]]:
    return {one.figure: (one.seconds, one.phases) for one in row(COLOCATED, **changed).timed()}


def test_times_of_a_synchronous_run() -> None:
    found = figures()
    assert found["step"] == (60.0, ())
    assert found["training"][0] == 20.0
    assert found["transfer"] == (2.0, ("transfer",))
    assert found["logprobs"] == (5.0, ("old_logprobs",))
    assert "generation" in found["generation"][1]
    assert "transfer" in found["generation"][1], "verl's timer holds the hand-over"


def test_notes_say_what_a_time_of_generation_holds() -> None:
    whole = "rollout phase incl. weight resharding/wake 95 s, generation_s is pure generate time"
    pure = figures(notes=whole)
    assert pure["generation"] == (30.0, ("generation",))
    inside = figures(notes="pure generate 25.5 s inside gen; reshard inside gen")
    assert inside["generation"] == (25.5, ("generation",))
    several = figures(notes=f"{whole}; step covers several generation batches")
    assert several["generation"][0] == 95.0
    old = figures(notes="gen includes old logprob in this version")
    assert "old_logprobs" in old["generation"][1]


def test_an_asynchronous_run_states_its_wait_and_no_generation() -> None:
    found = {one.figure for one in row(SEPARATE).timed()}
    assert "generation" not in found
    assert "step" in found


def test_a_time_below_0_is_refused() -> None:
    with pytest.raises(UsageError, match="column train_s: -3 is not above 0"):
        figures(train_s="-3")


def test_nemo_counts_reference_and_policy_together() -> None:
    found = figures(framework="NeMo-RL", train_backend="megatron")
    assert found["logprobs"][1] == ("old_logprobs", "reference")


def test_a_row_becomes_a_job_and_its_layout() -> None:
    mapped = map_rl(row(COLOCATED))
    assert mapped.job.policy.name == "qwen3-0.6b"
    assert (mapped.job.rollout.samples, mapped.job.minibatches) == (512, 4)
    assert mapped.layout.engine.replicas == 8
    assert mapped.layout.trainer.degrees.dp == 8
    assert mapped.layout.staleness == 0
    assert not mapped.layout.trainer_leaves
    assert mapped.job.rollout.response.mean == pytest.approx(400.0, rel=0.02)


def test_separate_runs_have_gpus_of_their_own_and_older_samples() -> None:
    mapped = map_rl(row(SEPARATE))
    assert (mapped.layout.trainer_gpus, mapped.layout.engine.gpus) == (4, 4)
    assert mapped.layout.staleness == 1
    assert mapped.layout.streams
    assert not mapped.job.old_logprobs


def test_tokens_a_second_count_the_answers_of_a_row_that_does_not_state_them() -> None:
    mean = 550 * 512 / (8 * 60.0)
    mapped = map_rl(row(COLOCATED, response_len_mean="", tokens_per_s_per_gpu=f"{mean:.3f}"))
    assert mapped.lengths.counted == "counted"
    assert mapped.lengths.response == 550 - mapped.lengths.prompt


def test_answers_of_which_only_the_limit_is_known_have_the_usual_mean() -> None:
    mapped = map_rl(row(COLOCATED, response_len_mean=""))
    assert mapped.lengths.counted == "open"
    assert mapped.lengths.response == round(usual_mean(2048))
    assert any("on average" in text for text in mapped.assumed)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"framework": "a loop of our own"}, "not modelled"),
        ({"model": "7B"}, "cannot be identified"),
        ({"prompts_per_step": ""}, "prompts_per_step"),
        ({"gpu": "Ascend A3"}, "not in the catalogue"),
        ({"train_backend": "megatron"}, "tp and pp"),
        ({"response_len_mean": "", "response_len_max": ""}, "neither a length"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(changed: dict[str, str], reason: str) -> None:
    with pytest.raises(UnpredictableRowError, match=reason):
        map_rl(row(COLOCATED, **changed))


def test_tables_are_known_by_their_columns(tmp_path: Path) -> None:
    runs, bounds, other = (tmp_path / name for name in ("a.csv", "b.csv", "c.csv"))
    runs.write_text(",".join(LISTED) + "\nverl,qwen3-0.6b,8,1,30,60\n", encoding="utf-8")
    bounds.write_text(
        "model,step_s_bound,mem_gb_bound,rollout_tp\nqwen3-0.6b,<30,,1\n", encoding="utf-8"
    )
    other.write_text("layers,hidden\n1,2\n", encoding="utf-8")
    assert [is_rl_table(path) for path in (runs, bounds, other)] == [True, True, False]
    assert [is_bounds_table(path) for path in (runs, bounds)] == [False, True]
    assert read_rl_rows(runs)[0].number("step_s") == 60.0
    runs.write_text(",".join(LISTED) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no run below"):
        read_rl_rows(runs)
