"""`planner memory`: what it prints and writes, its exit status, and every error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner.cli import memory
from tests.cli.conftest import Run, lines_are_short, refused
from tests.report.reading import loads

GPT2 = ("--model", "gpt2", "--mbs", "12", "--seq", "1024", "--framework", "nanogpt")
PIPELINE = ("--model", "llama-3-8b", "--tp", "2", "--pp", "4", "--grad-acc", "8")
EXPERTS = ("--model", "mixtral-8x7b", "--tp", "2", "--pp", "2", "--ep", "4", "--seq", "4096")


def test_one_gpu_by_default(run: Run) -> None:
    result = run("memory", *GPT2)
    assert result.exit_code == 0, result.output
    assert "1 H100-SXM5-80GB" in result.stdout
    assert "autocast over fp32 weights" in result.stdout
    assert "◄ peak" in result.stdout
    for words in ("step 1\n", "step 2 and later", "CUDA context", "usable HBM", "80 % interval"):
        assert words in result.stdout
    assert lines_are_short(result.stdout)
    assert result.stderr == ""


def test_json_holds_everything_and_adds_up(run: Run) -> None:
    document = json.loads(run("memory", *PIPELINE, "--json").stdout)
    assert [stage["stage"] for stage in document["stages"]] == [0, 1, 2, 3]
    assert document["degrees"]["grad_acc"] == 8
    for stage in document["stages"]:
        assert sum(part["bytes"] for part in stage["peak_parts"]) == pytest.approx(
            stage["total_bytes"]
        )
        for phase in stage["phases"]:
            assert sum(phase["terms"].values()) == pytest.approx(phase["bytes"])
        steps = {phase["step"] for phase in stage["phases"]}
        assert steps == {"first", "later"}
    assert document["total_bytes"] == max(stage["total_bytes"] for stage in document["stages"])
    assert document["interval"]["low"] < document["total_bytes"] < document["interval"]["high"]


@pytest.mark.parametrize(("stage", "shown"), [("heaviest", 1), ("all", 4), ("3", 1)])
def test_stages_to_show(run: Run, stage: str, shown: int) -> None:
    result = run("memory", *PIPELINE, "--stage", stage)
    assert result.stdout.count("= total (nvidia-smi)") == shown
    assert "Every stage at its peak" in result.stdout
    assert lines_are_short(result.stdout)
    if stage == "3":
        assert "Stage 3 of 4" in result.stdout


def test_tensors_are_listed(run: Run) -> None:
    result = run("memory", *GPT2, "--without", "compile", "--tensors")
    # One fp32-upcast set of logits of 12 · 1024 tokens and 50,304 entries, 6 bytes each.
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("head/loss"))
    assert f"{12 * 1024 * 50304 * 6 / 2**20:,.1f}" in line
    assert lines_are_short(result.stdout)


def test_dropless_worst_case_of_experts(run: Run) -> None:
    result = run("memory", *EXPERTS)
    assert "dropless worst case" in result.stdout
    assert "4 times" in " ".join(result.stdout.split())
    document = json.loads(run("memory", *EXPERTS, "--json").stdout)
    worst = document["dropless_worst_case"]
    given = json.loads(run("memory", *EXPERTS, "--expert-imbalance", "4", "--json").stdout)
    assert worst["total_bytes"] == given["total_bytes"] > document["total_bytes"]
    assert given["dropless_worst_case"] is None


def test_experts_get_the_gpus_they_need(run: Run) -> None:
    document = json.loads(run("memory", *EXPERTS, "--etp", "1", "--json").stdout)
    # ep 4 · etp 1 over tp 2: two replicas.
    assert document["degrees"]["dp"] == 2
    assert document["request"]["gpus"] == "8xH100"
    # Megatron's etp is tp where nobody says it: 4 · 2 over 2.
    document = json.loads(run("memory", *EXPERTS, "--json").stdout)
    assert (document["degrees"]["etp"], document["degrees"]["dp"]) == (2, 4)


def test_a_gpu_without_a_number_is_counted_by_the_degrees(run: Run) -> None:
    document = json.loads(run("memory", *PIPELINE, "--gpus", "H200", "--json").stdout)
    assert document["request"]["gpus"] == "8xH200"
    assert document["usable_bytes"] > 100 * 2**30
    refused(run("memory", *PIPELINE, "--gpus", "H2000"), "H2000")


def test_dtypes_of_a_framework(run: Run) -> None:
    totals = {
        dtype: json.loads(run("memory", *GPT2, "--dtype", dtype, "--json").stdout)["total_bytes"]
        for dtype in ("bf16", "amp", "fp32")
    }
    usual = json.loads(run("memory", *GPT2, "--json").stdout)
    assert totals["bf16"] < totals["amp"] < totals["fp32"]
    assert (usual["dtype"], usual["total_bytes"]) == ("amp", totals["amp"])


def test_what_does_not_fit_exits_1(run: Run) -> None:
    result = run("memory", "--model", "70b")
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout
    assert lines_are_short(result.stdout)


@pytest.mark.parametrize("unknown", ["mbs", "seq", "layers"])
def test_solve_shows_both_sides(run: Run, unknown: str) -> None:
    arguments = ("memory", "--model", "llama-3.2-1b", "--recompute", "full", "--solve", unknown)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert f"--solve {unknown}" in result.stdout
    assert lines_are_short(result.stdout)
    solution = json.loads(run(*arguments, "--json").stdout)["solution"]
    for border, limit in (("safe", 0.8), ("even", 0.5)):
        largest, beyond = solution[border]["largest"], solution[border]["beyond"]
        assert largest["fit_probability"] >= limit > beyond["fit_probability"]


def test_nothing_to_solve_exits_1(run: Run) -> None:
    result = run("memory", "--model", "70b", "--solve", "mbs")
    assert result.exit_code == 1
    assert "none" in result.stdout


def test_advice_is_printed_with_its_uncertainty(run: Run) -> None:
    arguments = ("memory", "--model", "llama-3-8b", "--gpus", "8xH100", "--mbs", "4",
                 "--grad-acc", "4", "--zero", "0", "--seq", "4096", "--advise")  # fmt: skip
    result = run(*arguments)
    assert result.exit_code == 1
    assert "Changes that make it fit, easiest first" in result.stdout
    assert "--zero 1" in result.stdout
    assert "±" in result.stdout
    assert lines_are_short(result.stdout)
    advice = json.loads(run(*arguments, "--json").stdout)["advice"]
    assert advice["sufficient"]
    for move in advice["sufficient"]:
        assert move["fit_probability"] >= 0.8
        assert move["step_time"]["low"] < move["step_time_s"] < move["step_time"]["high"]


def test_svg_is_written_and_drawn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "step.svg"
    assert run("memory", *PIPELINE, "--stage", "all", "--plot", str(path)).exit_code == 0
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    assert any("HBM that may be used: 79.1 GiB" in text for text in texts)
    assert sum(text.startswith("Stage ") for text in texts) == 4


def test_html_needs_nothing_else(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "step.html"
    assert run("memory", *GPT2, "--plot", str(path)).exit_code == 0
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "HBM that may be used" in text
    assert loads(text) == []


def test_png_is_drawn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "step.png"
    result = run("memory", *PIPELINE, "--plot", str(path))
    assert result.exit_code == 0, result.output
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") > 1000


@pytest.mark.parametrize("library", ["altair", "vl_convert", "jinja2"])
@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_a_missing_library_names_the_extra(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    path = tmp_path / f"step.{kind}"
    refused(run("memory", *GPT2, "--plot", str(path)), "pip install 'trainplan[plot]'")
    assert not path.exists()


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_files_are_overwritten_only_by_force(run: Run, tmp_path: Path, option: str) -> None:
    path = tmp_path / "step.svg"
    path.write_text("mine", encoding="utf-8")
    refused(run("memory", *GPT2, option, str(path)), "--force")
    assert path.read_text(encoding="utf-8") == "mine"
    assert run("memory", *GPT2, option, str(path), "--force").exit_code == 0
    assert path.read_text(encoding="utf-8") != "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_the_document_that_is_written_is_the_one_that_is_printed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    printed = run("memory", *GPT2, "--json", "-o", str(path)).stdout
    assert path.read_text(encoding="utf-8") == printed


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("gpt2", "--framework", "nanogpt", "--zero", "3"), ("zero must be one of 0",)),
        (("llama-3-8b", "--ep", "2"), ("no experts",)),
        (("mixtral-8x7b", "--ep", "16"), ("ep must divide 8 experts",)),
        (
            ("llama-3-8b", "--framework", "torchtitan", "--tp", "16"),
            ("tp must divide 8 key/value heads",),
        ),
        (
            ("gpt2", "--framework", "nanogpt", "--recompute", "mlp"),
            ("--recompute mlp", "none, full"),
        ),
        (
            ("llama-3-8b", "--framework", "nanotron", "--dtype", "amp"),
            ("'amp'", "nanotron has: bf16"),
        ),
        (("llama-3-8b", "--mbs", "0"), ("1<=x<=1048576",)),
        (("llama-3-8b", "--mbs", "-4"), ("1<=x<=1048576",)),
        (("llama-3-8b", "--mbs", "1048577"), ("1<=x<=1048576",)),
        (("llama-3-8b", "--tp", "0"), ("1<=x<=1048576",)),
        (("llama-3-8b", "--grad-acc", "0"), ("1<=x<=4294967296",)),
        (("llama-3-8b", "--seq", "0"), ("1 to 134,217,728",)),
        (("llama-3-8b", "--seq", "-8"), ("1 to 134,217,728",)),
        (("llama-3-8b", "--seq", "1G"), ("1 to 134,217,728",)),
        (("llama-3-8b", "--expert-imbalance", "inf"), ("--expert-imbalance",)),
        (("llama-3-8b", "--tp", "2048", "--dp", "2048"), ("4,194,304 GPUs", "1,048,576")),
        (("llama-3-8b", "--stage", "1"), ("the only stage is 0",)),
        (("llama-3-8b", "--stage", "last"), ("'last'", "heaviest")),
        (("llama-3-8b", "--plot", "step.pdf"), (".html, .svg, .png",)),
        (("llama-3-8b", "--plot", "nowhere/step.svg"), ("does not exist",)),
        (("llama-3-8b", "--plot", "a.svg", "-o", "a.svg"), ("not that of another option",)),
        (("llama-3-8b", "--solve", "mbs", "--advise"), ("not both",)),
        (("llama-3-8b", "--solve", "batch"), ("--inference",)),
        (("llama-3-8b", "--inference", "--mbs", "3"), ("--mbs", "training")),
        (("llama-3-8b", "--inference", "--solve", "mbs"), ("batch, context",)),
        (("gpt2", "--framework", "nanogpt", "--dtype", "fp32", "--precision", "fp16"), ("fp32",)),
    ],
)
def test_wrong_input_names_the_rule(
    run: Run, arguments: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    result = run("memory", "--model", *arguments)
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    for text in texts:
        assert text in message
    assert "Traceback" not in result.output


def test_serving_is_handed_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def serve(options: dict[str, object]) -> int:
        seen.update(options)
        return 1

    monkeypatch.setattr(memory, "serving_memory", serve)
    result = run("memory", "--model", "70b", "--inference", "--gpus", "8xH100", "--pp", "2")
    assert result.exit_code == 1
    assert (seen["model"], seen["gpus"], seen["pp"]) == ("70b", "8xH100", 2)
    # Defaults of training are no choice of the user's.
    assert seen["tp"] is None
    assert seen["dp"] is None
