"""`planner check` as a user types it: exit codes, --fix, JSON and CSV, bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from planner.report.check import verdict
from tests.cli.conftest import lines_are_short, run_cli
from tests.launch.check.conftest import OVERLAPPED, SMALL, Write, script
from tests.launch.check.test_configurations import accelerate, deepspeed, nanotron
from tests.launch.check.test_torchtitan import titan

GPUS = ("--gpus", "8xH100")
GOOD = script(f"{SMALL} {OVERLAPPED}")


def check(path: Path | str, *arguments: str) -> Result:
    """Run `planner check`."""
    return run_cli("check", str(path), "-q", *arguments)


def document(path: Path, *arguments: str) -> dict[str, object]:
    """What --json prints."""
    result: dict[str, object] = json.loads(check(path, *arguments, "--json").stdout)
    return result


def test_a_good_launch(write: Write) -> None:
    result = check(write("good.sh", GOOD), *GPUS)
    assert result.exit_code == 0, result.output
    assert lines_are_short(result.stdout)
    for words in ("runs and fits", "80 % interval", "Memory by pipeline stage", "MFU", "±"):
        assert words in result.stdout


def test_a_wrong_launch(write: Write) -> None:
    result = check(write("bad.sh", script(f"{SMALL} --global-batch-sise 12")), *GPUS)
    assert result.exit_code == 1
    assert "WILL NOT RUN" in result.stdout
    assert "--global-batch-size" in result.stdout
    assert "[unknown-option]" in result.stdout
    assert "bad.sh:3" in result.stdout


def test_a_launch_that_does_not_fit(write: Write) -> None:
    text = script(f"{SMALL} {OVERLAPPED}").replace("--micro-batch-size 1", "--micro-batch-size 8")
    result = check(write("big.sh", text), "--gpus", "8xA10")
    assert result.exit_code == 1
    assert "WILL NOT FIT" in result.stdout
    assert "Changes that make it fit" in result.stdout
    # After the verdict comes the largest term and what shrinks it.
    lines = result.stdout.splitlines()
    assert lines[0].startswith("verdict")
    assert lines[1].startswith("largest")


@pytest.mark.parametrize(
    ("told", "probability", "said"),
    [
        ("runs and fits", 0.97, "runs and fits (probability 97 %)"),
        ("runs and fits", 0.74, "runs, PROBABLY FITS (probability to fit 74 %)"),
        ("cannot tell", 0.54, "runs, CANNOT TELL whether it fits (probability to fit 54 %)"),
        ("will not fit", 0.35, "PROBABLY WILL NOT FIT (probability to fit 35 %)"),
        ("will not fit", 0.05, "WILL NOT FIT (probability to fit 5 %)"),
        ("cannot tell", 0.05, "CANNOT TELL whether it fits (probability to fit 5 % as predicted): "
         "the prediction leaves out something that saves memory; see Problems"),
        ("cannot tell", 0.51, "CANNOT TELL whether it fits (probability to fit 51 % as predicted): "
         "the prediction leaves out something that saves memory; see Problems"),
    ],
)  # fmt: skip
def test_a_verdict_is_as_sure_as_the_prediction(told: str, probability: float, said: str) -> None:
    plan = SimpleNamespace(fits=told == "runs and fits", fit_probability=probability)
    assessed: Any = SimpleNamespace(
        verdict=told,
        plan=plan,
        errors=(),
        problems=(),
        unpredictable=(),
        leaves_out_memory="leaves out" in said,
        rl=None,
    )
    assert verdict(assessed) == said


@pytest.mark.parametrize(
    ("probability", "said"),
    [(0.97, "; mended, it would fit"), (0.51, "; mended, CANNOT TELL whether it fits"),
     (0.05, ", and would not fit")],
)  # fmt: skip
def test_what_breaks_a_rule_is_said_to_fit_by_the_same_probability(
    probability: float, said: str
) -> None:
    broken: Any = SimpleNamespace(
        plan=SimpleNamespace(fits=probability > 0.5, fit_probability=probability),
        errors=(SimpleNamespace(places=()),),
    )
    assert verdict(broken) == f"WILL NOT RUN: 1 error{said}"


def test_json_and_csv(write: Write) -> None:
    path = write("slow.sh", script(f"{SMALL} --use-distributed-optimizer --lr 1"))
    found = document(path, *GPUS)
    assert found["passes"] is True
    assert {"settings", "unknown", "without_effect", "problems", "plan", "changes"} <= found.keys()
    settings = {entry["key"]: entry for entry in found["settings"]}  # type: ignore[union-attr, index]
    assert settings["--lr"]["line"] == 3
    rows = list(csv.DictReader(io.StringIO(check(path, *GPUS, "--csv").stdout)))
    assert rows[0]["change"] == "as it is"
    changes = found["changes"]
    assert [row["change"] for row in rows[1:]] == [c["change"] for c in changes]  # type: ignore
    # The best changes are faster, each more than the next.
    rates = [float(row["tokens_per_s"]) for row in rows]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert min(rates[1:]) > rates[0]


FIXABLE = {
    "missing switch": ("a.sh", script(f"{SMALL} --overlap-param-gather"), ()),
    "misspelt": ("b.sh", script(f"{SMALL} {OVERLAPPED} --recompute-granularty selective"), ()),
    "experts": ("c.sh", script(
        f"{SMALL} {OVERLAPPED} --num-experts 4 --moe-ffn-hidden-size 512 --moe-grouped-gemm "
        "--expert-model-parallel-size 2 --tensor-model-parallel-size 2"), ()),
    "batch": ("d.sh", script(SMALL.replace("64", "60") + f" {OVERLAPPED}"), ()),
    "schedule": ("e.toml", titan('pipeline_parallel_schedule = "1F1Bb"'), ()),
    "deepspeed": ("f.json", deepspeed(more='"train_batch_size": 12'),
                  ("--model", "llama-3.2-1b")),
    "accelerate": ("g.yaml", accelerate("num_proceses: 8").replace("num_processes: 8\n", ""),
                   ("--model", "llama-3.2-1b", "--mbs", "1")),
    "nanotron": ("h.yaml", nanotron().replace("REDUCE_SCATTER", "REDUCE_SCATER"), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXABLE)
def test_fix_makes_it_run(write: Write, name: str) -> None:
    """A fixed file passes, and differs from the original only where it must."""
    file, text, more = FIXABLE[name]
    path = write(file, text)
    assert check(path, *GPUS, *more).exit_code == 1
    result = check(path, *GPUS, *more, "--fix")
    fixed = path.with_name(f"{file}.fixed")
    assert fixed.exists(), result.output
    assert path.read_text() == text
    # A reader looks at the content; endings help it.
    again = write(f"fixed-{file}", fixed.read_text())
    found = document(again, *GPUS, *more)
    assert [p for p in found["problems"] if p["severity"] == "error"] == []  # type: ignore[union-attr, index]
    kept = [line for line in text.splitlines() if line in fixed.read_text().splitlines()]
    assert len(kept) >= len(text.splitlines()) - 5


@pytest.mark.parametrize(
    ("file", "text", "more"),
    [
        ("a.sh", script(f"{SMALL} --use-distributed-optimizer"), ()),
        ("b.sh", "TP=4\nARGS=(--tensor-model-parallel-size $TP --sequence-parallel)  # mine\n"
         f"export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc_per_node 8 pretrain_gpt.py "
         f"${{ARGS[@]}} {SMALL} {OVERLAPPED}\n", ()),
        ("c.toml", titan(), ()),
        # Too long to be sure of the memory: half the micro-batch helps.
        ("d.json", deepspeed(),
         ("--model", "llama-3.2-1b", "--seq", "12288", "--recompute", "none")),
        ("e.yaml", nanotron(), ()),
    ],
)  # fmt: skip
def test_fixed_file_reads_as_the_change(
    write: Write, file: str, text: str, more: tuple[str, ...]
) -> None:
    """Round trip: the file that --fix writes is the configuration that was promised."""
    path = write(file, text)
    before = document(path, *GPUS, *more)
    output = path.with_name(f"better-{file}")
    result = check(path, *GPUS, *more, "--fix", "-o", str(output))
    changes = {change["change"]: change for change in before["changes"]}  # type: ignore[union-attr, index]
    assert output.exists(), result.output
    made = result.stderr.splitlines()[0].rpartition(": ")[2]
    after = document(output, *GPUS, *more)
    assert after["configuration"] == changes[made]["configuration"]
    assert after["plan"] == changes[made]["plan"]


def test_fix_edits_the_definition_and_keeps_comments(write: Write) -> None:
    text = (
        "#!/bin/bash\n# tensor parallel\nTP=4   # try 8\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f'OPTS="--tensor-model-parallel-size $TP --sequence-parallel {SMALL} {OVERLAPPED}"\n'
        "torchrun --nproc_per_node 8 pretrain_gpt.py $OPTS\n"
    )
    path = write("a.sh", text)
    result = check(path, *GPUS, "--fix")
    fixed = path.with_name("a.sh.fixed").read_text()
    assert "tp 2" in result.stderr or "tp 1" in result.stderr
    assert "TP=4   #" not in fixed
    assert "   # try 8" in fixed
    assert fixed.splitlines()[-1] == text.splitlines()[-1]


def test_fix_never_overwrites(write: Write) -> None:
    path = write("a.sh", script(f"{SMALL} --use-distributed-optimizer"))
    assert check(path, *GPUS, "--fix").exit_code == 0
    again = check(path, *GPUS, "--fix")
    assert again.exit_code == 2
    assert "--force" in again.output
    assert check(path, *GPUS, "--fix", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("a.sh", b"", "is empty"),
        ("a.sh", b"\x00\x01\x02\xff", "not a text file"),
        ("a.txt", b"Dear all,\nsee you tomorrow.\n", "no launch file"),
        ("a.json", b'{"a": 1}', "no configuration that is read"),
        ("a.json", b'{"a": \n 1,,}', "line 2"),
        ("a.toml", b"[training\nx = 1", "line 1"),
        ("a.yaml", b"num_processes: 8\n  bad: [1\n", "line"),
        ("a.yaml", b"hello: world\n", "settings of none that is read"),
    ],
)
def test_not_a_launch_file(tmp_path: Path, file: str, content: bytes, words: str) -> None:
    path = tmp_path / file
    path.write_bytes(content)
    result = check(path, *GPUS)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/bash\necho hi\n", "no command"),
        (b"if [ x\ntorchrun pretrain_gpt.py --num-layers 4\n", "a.sh:1: syntax"),
        (b"python other.py --x 1\n", "no framework"),
        (b"torchrun train.py --config-file gone.yaml\n", "gone.yaml"),
        (b"#!/bin/bash\nbash train.sh\n", "train.sh, which was not given; give it too"),
    ],
)
def test_a_script_that_does_not_say_enough(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.sh"
    path.write_bytes(content)
    result = check(path, *GPUS)
    assert result.exit_code == 3, result.output
    assert words in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--env", "X"), "NAME=VALUE"),
        (("--measured-mfu", "fast"), "0.41 or 41%"),
        (("--measured-step-time", "-1"), "-1.0 is not in the range 0<x"),
        (("--gbs", "8", "--grad-acc", "2"), "not both"),
        (("-o", "x"), "--fix"),
        (("--json", "--csv"), "not both"),
    ],
)
def test_wrong_use(write: Write, arguments: tuple[str, ...], words: str) -> None:
    result = check(write("a.sh", GOOD), *GPUS, *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output


def test_gpus_are_needed(write: Write) -> None:
    result = check(write("a.sh", GOOD))
    assert result.exit_code == 3
    assert "--gpus" in result.output


def test_plan_file_is_the_same_plan(tmp_path: Path) -> None:
    """A plan that was evaluated is checked as that plan: same memory, same time."""
    path = tmp_path / "plan.json"
    options = (
        "--model llama-3.2-1b --gpus 8xH100 --gbs 64 --tp 2 --mbs 2 --recompute full --seq 4096 "
        "--with bf16-gradients"
    )
    run_cli("evaluate", *options.split(), "-o", str(path), "-q")
    planned = json.loads(path.read_text())["plans"][0]
    assert document(path)["plan"] == planned
    said = check(str(path)).stdout
    assert "bf16-gradients" in said and "without:" not in said


def test_the_recommended_plan_of_a_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    options = "--model 8b --gpus 8xH100 --gbs 16 --seq 4096 --fit-probability 0.5"
    run_cli("search", *options.split(), "-o", str(path), "-q")
    found = json.loads(path.read_text())
    taken = found["plans"][found["recommended"] - 1]
    assert document(str(path))["plan"]["degrees"] == taken["degrees"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--measured-step-time", "0.5"), "above the 80 % interval"),
        (("--measured-memory", "75"), "peak memory"),
        (("--measured-mfu", "20%"), "Meaning of the stated MFU"),
    ],
)
def test_measured(write: Write, arguments: tuple[str, ...], words: str) -> None:
    path = write("a.sh", GOOD.replace("--global-batch-size 64", "--global-batch-size 16"))
    result = check(path, *GPUS, *arguments)
    assert result.exit_code == 0, result.output
    assert words in result.stdout
    assert lines_are_short(result.stdout)


@pytest.mark.parametrize(
    ("text", "status", "verdict"),
    [("python prepare.py --config nowhere.yaml", 3, "cannot tell"), ("echo", 2, "wrong input")],
)
def test_json_is_printed_where_nothing_can_be_read(
    write: Write, text: str, status: int, verdict: str
) -> None:
    result = check(write("run.sh", f"{text}\n"), *GPUS, "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["verdict"], said["passes"]) == (status, verdict, False)
    assert said["error"] and said["error"] in result.stderr
