"""`planner fit` agrees with `search`, says what would fit, and finds the largest that does."""

from __future__ import annotations

import json
import shlex

import pytest

from planner.job.request import Request
from planner.predict.command_line import search_command
from planner.predict.memory.solve import bracket
from planner.search.fit import does_it_fit, fitting_plan
from planner.search.search import find_plans
from tests.cli.conftest import Run

SMALL = ("--model", "llama-3.2-1b", "--gpus", "2xH100", "--seq", "2048")


@pytest.mark.parametrize("start", range(9))
def test_a_bracket_ends_at_the_edge(start: int) -> None:
    for edge in range(-1, 9):
        asked: list[int] = []

        def fits(index: int, edge: int = edge, asked: list[int] = asked) -> bool:
            asked.append(index)
            return index <= edge

        assert bracket(fits, start, 9, lambda: False) == (edge, edge + 1)
        assert len(asked) == len(set(asked)) <= 7


def test_a_bracket_without_time_asks_nothing() -> None:
    def fits(_: int) -> bool:
        raise AssertionError

    assert bracket(fits, 3, 9, lambda: True) == (-1, 9)


def test_what_fits_is_what_search_recommends(run: Run) -> None:
    shown = run("fit", *SMALL, "--gbs", "16", "--json")
    assert shown.exit_code == 0
    answer = json.loads(shown.stdout)
    found = find_plans(Request(model="llama-3.2-1b", gpus="2xH100", seq=2048, gbs=16))
    assert answer["result"]["recommended"] == found.recommended
    assert [plan["degrees"] for plan in answer["result"]["plans"]] == [
        plan.degrees.model_dump() for plan in found.plans
    ]


def test_the_largest_fit_and_the_next_do_not() -> None:
    request = Request(model="llama-3.2-1b", gpus="1xRTX4090", framework="torchtune", gbs=8)
    longest, model = does_it_fit(request).largest
    assert (longest.what, model.what) == ("seq", "model")
    for item, field in ((longest, "seq"), (model, "model")):
        assert item.value is not None and item.plan is not None
        values = [text.replace(",", "") for text in (item.value, item.beyond)]
        tried = [
            fitting_plan(request.model_copy(update={field: int(v) if field == "seq" else v}))
            for v in values
        ]
        assert tried[0] is not None
        if field == "seq":
            assert tried[1] is None


def test_the_answer_is_no_with_what_would_help_and_status_1(run: Run) -> None:
    result = run("fit", "--model", "8b", "--gpus", "1xRTX4090", "--seq", "2048")
    assert result.exit_code == 1
    for words in (
        "NO, not as requested: none of",
        "Changes that would make it fit",
        "At most",
        "largest model",
        "8 a GPU",
    ):
        assert words in result.stdout


def test_the_search_that_tells_more_takes_the_same_request(run: Run) -> None:
    result = run("fit", *SMALL, "--tp", "1", "--require", "mbs <= 2", "--no-bias")
    assert result.exit_code == 0, result.stderr
    command = result.stdout.strip().splitlines()[-1].strip()
    words = shlex.split(command)
    assert words[:2] == ["planner", "search"]
    again = run(*words[1:], "--json")
    assert again.exit_code == 0
    for part in ("--tp 1", "--require 'mbs <= 2'", "--no-bias", "--gbs 16"):
        assert part in command


def test_a_request_without_options_has_the_shortest_command() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=64)
    assert search_command(request) == "planner search --model 8b --gpus 8xH100 --gbs 64"


def test_memory_without_degrees_names_a_plan_that_fits(run: Run) -> None:
    open_degrees = run("memory", "--model", "8b", "--gpus", "8xA100", "--mbs", "1")
    assert open_degrees.exit_code == 1
    assert "DOES NOT FIT" in open_degrees.stdout
    assert "as a search found: planner search --model 8b" in " ".join(open_degrees.stdout.split())
    stated = run("memory", "--model", "8b", "--gpus", "8xA100", "--mbs", "2", "--grad-acc", "3")
    assert "--gpus 8xA100 --gbs 48" in " ".join(stated.stdout.split())  # 2 x 3 x dp 8
    chosen = run("memory", "--model", "8b", "--gpus", "8xA100", "--mbs", "1", "--tp", "1")
    assert "as a search found" not in " ".join(chosen.stdout.split())


def test_adapters_are_another_training_where_all_weights_do_not_fit(run: Run) -> None:
    """Under the framework itself where it has them. 32 GB hold 20 GiB surely enough; in 24 GB only
    packed weights do."""
    epochs = ("--samples", "52k", "--epochs", "3")
    shown = run("fit", "--model", "8b", "--gpus", "1xRTX5090", "--seq", "2048", *epochs, "--json")
    assert shown.exit_code == 1
    record = json.loads(shown.stdout)
    assert " h; $" in record["trainings"]["--train lora"]
    other = record["other"]
    assert (other["request"]["train"], other["request"]["framework"]) == ("lora", "deepspeed")
    assert other["trained"] == 41_943_040
    assert other["plan"]["peak_bytes"] < other["plan"]["usable_bytes"]


def test_a_fitting_adapter_plan_says_how_many_weights_it_trains(run: Run) -> None:
    shown = run("fit", "--model", "8b", "--gpus", "1xRTX4090", "--seq", "2048", "--train", "qlora")
    assert shown.exit_code == 0
    for text in ("qlora:rank=16", "41.94 M parameters", "hf-transformers", "YES"):
        assert text in shown.stdout
    assert "As another training" not in shown.stdout


@pytest.mark.parametrize(
    ("gpus", "train", "more", "framework"),
    [
        ("1xH100", "lora", (), "hf-transformers"),
        ("2xH100", "qlora", (), "hf-fsdp2"),
        ("2xH100", "qlora:base=int8", (), "deepspeed"),
        ("2xH100", "lora", ("--tp", "2"), "megatron-bridge"),
    ],
)
def test_adapters_are_trained_with_what_people_use(
    run: Run, gpus: str, train: str, more: tuple[str, ...], framework: str
) -> None:
    size = ("--model", "llama-3.2-1b", "--seq", "512", "--gbs", "8", "--mbs", "1")
    shown = run("evaluate", *size, "--gpus", gpus, "--train", train, *more, "--json")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["request"]["framework"] == framework
