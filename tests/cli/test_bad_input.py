"""Every way to ask wrongly: exit status, and a text that says what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.errors import ExitStatus, refusal
from planner.job.errors import NothingFitsError
from planner.predict.plan import PLAN_FILE_VERSION
from tests.cli.conftest import MAIN, SMALL, Run, refused


def changed(*arguments: str) -> tuple[str, ...]:
    """The main job with options replaced: `changed("--gpus", "65xH100")`."""
    options = dict(zip(MAIN[::2], MAIN[1::2], strict=True))
    options |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    return tuple(part for pair in options.items() for part in pair)


WRONG: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (changed("--model", "lama-3-70b"), ("'lama-3-70b'", "llama-3-70b", "planner models")),
    (changed("--model", "missing/config.json"), ("missing/config.json", "does not exist")),
    (changed("--gpus", "64xH10O"), ("'H10O'", "'h100'", "planner hardware")),
    (changed("--gpus", "H100"), ("how many", "8xH100")),
    (changed("--gpus", "0xH100"), ("from 1 to",)),
    (changed("--gpus", "-8xH100"), ("from 1 to",)),
    (changed("--gbs-tokens", "4Q"), ("'4Q'", "4M", "4Mi")),
    (changed("--gbs-tokens", "4096"), ("less than one sequence of 8,192",)),
    ((*MAIN, "--gbs", "4M"), ("'4M'", "only digits", "--gbs-tokens")),
    ((*MAIN, "--gbs", "512"), ("--gbs-tokens 4M, or --gbs 512",)),
    (("--model", "70b", "--gpus", "64xH100"), ("--gbs-tokens 4M, or --gbs 512",)),
    (("--model", "70b", "--gbs", "512"), ("--gpus 64xH100, or --cluster FILE.toml",)),
    ((*MAIN, "--cluster", "x.toml"), ("--gpus 64xH100, or --cluster FILE.toml",)),
    (("--gpus", "64xH100", "--gbs", "512"), ("Missing option '--model'",)),
    ((*MAIN, "--framework", "megatrom"), ("'megatrom'", "'megatron'", "planner frameworks")),
    ((*MAIN, "--precision", "fp4"), ("fp4", "bf16")),
    (changed("--gpus", "64xA100", "--precision", "fp8"), ("no fp8", "bf16")),
    ((*MAIN, "--optimizer", "adamv"), ("'adamv'", "'adamw'")),
    ((*MAIN, "--recompute", "some"), ("'some'", "none", "full")),
    ((*MAIN, "--hbm-reserve", "5"), ("'5'", "5GiB")),
    ((*MAIN, "--hbm-reserve", "100GiB"), ("--hbm-reserve",)),
    ((*MAIN, "--tp", "8..2"), ("empty", "2..8")),
    ((*MAIN, "--tp", "four"), ("'four'", "1,2,4,8")),
    ((*MAIN, "--tp", "0"), ("at least 1",)),
    ((*MAIN, "--tp", "3"), ("you asked for tp = 3",)),
    ((*MAIN, "--tp", "8", "--pp", "16"), ("you asked for tp = 8", "you asked for pp = 16")),
    ((*MAIN, "--seq", "0"), ("--seq",)),
    ((*MAIN, "--gbs-tolerance", "1.5"), ("--gbs-tolerance",)),
    ((*MAIN, "--top", "0"), ("--top",)),
    ((*MAIN, "--sort", "beauty"), ("--sort",)),
    ((*MAIN, "--tp", "99999999999999999999"), ("at most 1,048,576",)),
    ((*MAIN, "--tp", "9" * 10_000), ("at most 1,048,576",)),
    (changed("--gbs-tokens", "9999999999T"), ("more than 10^18 tokens",)),
    ((*MAIN, "--time-limit", "0"), ("--time-limit", "is not in the range 0<x")),
    ((*MAIN, "--time-limit", "-1"), ("is not in the range 0<x",)),
    ((*MAIN, "--time-limit", "nan"), ("is not in the range 0<x",)),
    ((*MAIN, "--require", ""), ("--require", "the condition is empty", '"pp <= 4"')),
    ((*MAIN, "--require", "tq<=4"), ("unknown name 'tq'", "'tp'", "    tq<=4\n    ^\n", "gbs")),
    ((*MAIN, "--forbid", "zero=3"), ("--forbid", "write ==", "    zero=3\n        ^")),
    ((*MAIN, "--fix", "mbs"), ("--fix", "NAME=NUMBER", "mbs=4")),
    ((*MAIN, "--require", "gbs // shard > 1"), ("divides by zero if shard = 0", "guard it")),
    (
        (*MAIN, "--require", "pp<=4", "--require", "pp>=8"),
        ("you require pp<=4", "you require pp>=8", 'without --require "pp<=4": '),
    ),
    (
        (*MAIN, "--require", "tp*cp == 24"),
        ("none of the", "tp * cp is 1, 2, 4, 8, 16, 32 or 64 in them"),
    ),
    ((*MAIN, "--fix", "tp=4", "--tp", "8"), ("you fix tp=4", "you asked for tp = 8")),
    ((*MAIN, "--json", "--csv"), ("--json or --csv",)),
    ((*MAIN, "-o", "no-such-folder/plans.json"), ("no-such-folder", "does not exist")),
    (
        ("--model", "llama-3-8b", "--gpus", "24xH100", "--gbs", "7", "--dp", "3"),
        ("global batch of 7", "you asked for dp = 3", "6 or 9 sequences"),
    ),
]


@pytest.mark.parametrize(("arguments", "texts"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_wrong_input_says_what_to_do(
    run: Run, arguments: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    result = run("search", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr


def test_65_gpus_are_planned_on_64(run: Run) -> None:
    result = run("search", *changed("--gpus", "65xH100"))
    assert result.exit_code == 0, result.stderr
    assert "64 of 65 GPUs used" in result.stdout
    assert "planned on 64 of the 65 GPUs" in " ".join(result.stdout.split())


def test_what_cannot_fit_exits_1_with_a_fix(run: Run) -> None:
    result = run("search", *changed("--gpus", "8xH100"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "GiB" in result.stderr
    assert "fits" in result.stderr


def test_nothing_fits_is_a_failure_and_not_wrong_input() -> None:
    shown = refusal(NothingFitsError("too large"))
    assert (shown.exit_code, shown.message) == (1, "too large")


def test_interruption_exits_130() -> None:
    shown = refusal(KeyboardInterrupt("interrupted (solving layouts, 3 of 24)"))
    assert (shown.exit_code, shown.message) == (130, "interrupted (solving layouts, 3 of 24)")


def test_a_bug_is_not_passed_off_as_wrong_input() -> None:
    assert refusal(ValueError("inner")).exit_code == ExitStatus.CRASH


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("{", ("config.json",)),
        ("[]", ("config.json",)),
        ("{}", ("config.json", "model_type")),
        ('{"model_type": "bert"}', ("bert", "my-model.md")),
        (
            '{"model_type": "llama", "hidden_size": "wide", "num_hidden_layers": 2, '
            '"num_attention_heads": 4, "intermediate_size": 8, "vocab_size": 16}',
            ("config.json", "hidden_size"),
        ),
    ],
    ids=["cut off", "a list", "empty", "bert", "a word for a number"],
)
def test_malformed_config_names_file_and_field(
    run: Run, tmp_path: Path, content: str, texts: tuple[str, ...]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    result = run("search", *changed("--model", str(path)))
    assert result.exit_code == 2, result.output
    for text in texts:
        assert text in result.stderr


def test_cluster_file_errors_name_file_and_field(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('gpu = "H100"\n', encoding="utf-8")
    result = run("search", "--model", "70b", "--cluster", str(path), "--gbs", "512")
    assert result.exit_code == 2
    assert "ours.toml" in result.stderr
    assert "'num_gpus'" in result.stderr


def test_existing_output_is_refused_before_the_search(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text("precious", encoding="utf-8")
    refused(run("search", *SMALL, "-o", str(path)), "--force")
    assert path.read_text(encoding="utf-8") == "precious"
    forced = run("search", *SMALL, "-o", str(path), "--force")
    assert forced.exit_code == 0, forced.stderr
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == PLAN_FILE_VERSION
    assert [entry.name for entry in tmp_path.iterdir()] == ["plans.json"]


def test_a_failed_search_leaves_no_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    result = run("search", *changed("--gpus", "8xH100"), "-o", str(path))
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc does, which calls itself writable."""

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("planner.job.written.os.fsync", refuse)
    path = tmp_path / "plans.json"
    result = run(
        "search", "--model", "gpt2", "--gpus", "1xH100", "--gbs", "8", "-o", str(path)
    )  # fmt: skip
    assert result.exit_code == ExitStatus.FILE_TROUBLE
    assert f"{path}: Read-only file system" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "--gpus", "8xH100"),
        ("search", "--gpus", "8xH100", "--gbs", "8"),
        ("evaluate", "--gpus", "8xH100", "--gbs", "8"),
        ("memory", "--gpus", "8xH100", "--gbs", "8"),
        ("compare", "--gpus", "8xH100", "--gpus", "8xA100", "--gbs", "8", "--tokens", "1B"),
        ("buy", "--gbs", "8", "--tokens", "1B"),
    ],
)
def test_sequences_beyond_learned_positions(run: Run, words: tuple[str, ...]) -> None:
    name, *rest = words
    for more in (("--seq", "4096"), ("--lengths", "4096")):
        result = run(name, "--model", "gpt2", *rest, *more, "-q")
        message = " ".join(result.stderr.split())
        assert result.exit_code == 2 and "1,024" in message and "give --seq 1024" in message
