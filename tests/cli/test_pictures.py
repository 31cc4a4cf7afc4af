"""`--plot` of every command that has something to see, and `planner serve` before it serves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from planner.cli import pages
from planner.cli.program import planner_command
from planner.job.errors import UsageError, demand_installed

JOB = ("--model", "llama-3.2-1b", "--gpus", "8xH100", "--gbs", "64")
SCRIPT = Path(__file__).parents[2] / "examples" / "05_check_a_script" / "pretrain_moe.sh"
# Command -> what its picture says.
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "search": (("search", *JOB), "tokens/s of a GPU"),
    "clusters": (("search", *JOB, "--gpus", "4xH100", "--top", "2"), "on 2 clusters"),
    "evaluate": (("evaluate", *JOB, "--tp", "2", "--pp", "2"), "Schedule of the pipeline"),
    "compare": (("compare", *JOB[:2], "--gpus", "8xH100", "--tokens", "1B"), "Cost against time"),
    "budget": (("budget", "--flops", "1e22"), "Loss of the same FLOP"),
}


def _run(*words: str) -> Result:
    return CliRunner().invoke(planner_command, [*words, "--quiet"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_picture_is_drawn_and_not_overwritten(name: str, tmp_path: Path) -> None:
    words, said = COMMANDS[name]
    path = tmp_path / "picture.svg"
    done = _run(*words, "--plot", str(path))
    assert done.exit_code == 0, done.output
    drawing = path.read_text(encoding="utf-8")
    assert drawing.startswith("<svg") and said in drawing
    again = _run(*words, "--plot", str(path))
    assert again.exit_code == 2 and "give another name to --plot" in again.output


def test_a_plan_is_drawn_as_a_picture_and_as_a_page_that_opens_with_it(tmp_path: Path) -> None:
    plans, png, page = (tmp_path / name for name in ("plans.json", "plan.png", "plan.html"))
    assert _run("search", *JOB, "--time-limit", "10", "-o", str(plans)).exit_code == 0
    explain = ("explain", str(plans), "2", "--no-neighbours", "--plot")
    assert _run(*explain, str(png)).exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert _run(*explain, str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert '<option value="2" selected>' in text and f"planner launch {plans} 2" in text


def test_what_is_checked_is_drawn_where_there_is_a_prediction(tmp_path: Path) -> None:
    plans, path = tmp_path / "plans.json", tmp_path / "checked.svg"
    assert _run("evaluate", *JOB, "--tp", "2", "-o", str(plans)).exit_code == 0
    assert _run("check", str(plans), "--plot", str(path)).exit_code == 0
    assert "Memory of each pipeline stage" in path.read_text(encoding="utf-8")
    nothing = _run("check", str(SCRIPT), "--gpus", "32xH100", "--plot", str(tmp_path / "no.svg"))
    assert nothing.exit_code == 1 and "there is no prediction to draw" in nothing.output


@pytest.mark.parametrize("name", ["picture.gif", "picture", ".svg"])
def test_other_kinds_of_files_are_refused(name: str, tmp_path: Path) -> None:
    done = _run("search", *JOB, "--plot", str(tmp_path / name))
    assert done.exit_code == 2 and "must end in .html, .svg, .png" in done.output


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "one.html")
    done = _run("evaluate", *JOB, "-o", path, "--plot", path)
    assert done.exit_code == 2 and "give --plot a file of its own" in done.output


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_is_a_number_that_ports_have(port: str) -> None:
    assert _run("serve", "--port", port).exit_code == 2


def test_a_port_that_another_program_has_is_said() -> None:
    with socket.socket() as taken:
        taken.bind((pages.HOST, 0))
        taken.listen()
        done = _run("serve", "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 2 and "give another one, or 0 for any" in done.output


def test_a_missing_library_is_named() -> None:
    with pytest.raises(UsageError, match=r"no_such_library.*pip install 'trainplan\[serve\]'"):
        demand_installed("planner serve needs", "serve", "json", "no_such_library")


def test_serving_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    def stopped(_server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        assert sockets[0].getsockname()[0] == "127.0.0.1"
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", stopped)
    done = _run("serve", "--port", "0")
    assert done.exit_code == 0
    assert "Open http://127.0.0.1:" in done.output and done.output.endswith("ended\n")
