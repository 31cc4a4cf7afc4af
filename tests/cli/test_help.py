"""Help, version, unknown commands, and what start-up imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from planner._version import __version__
from planner.cli import install
from planner.cli.declared import FIRST, GROUPS, OTHER
from planner.cli.errors import ExitStatus
from planner.cli.program import COMMANDS, planner_command
from tests.cli.conftest import Run, lines_are_short, refused

HEAVY = ("numba", "pandas", "ortools", "altair", "vl_convert", "jinja2")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("search", "--help"),
        ("models",),
        ("models", "70b"),
        ("hardware",),
        ("frameworks",),
    ],
)
def test_quick_commands_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    heavy = (*HEAVY, "numpy", "pydantic") if "--help" in arguments else HEAVY
    code = (
        "import sys\n"
        "from planner.cli import main\n"
        f"sys.argv = ['planner', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('loaded', [name for name in {heavy!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_help_names_every_command(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
    assert lines_are_short(result.output)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert f"Example: planner {name}" in result.output
    assert lines_are_short(result.output)


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"planner {__version__}\n")


def test_unknown_command_is_met_with_the_nearest(run: Run) -> None:
    refused(run("serach"), "unknown command 'serach'. Did you mean 'search'?")


def test_unknown_option_is_met_with_the_nearest(run: Run) -> None:
    refused(run("search", "--modle", "70b"), "'--model'")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("search", "-model", "70b"), "No such option '-model'. Did you mean '--model'?"),
        (("search", "-gpus=8xH100"), "No such option '-gpus'. Did you mean '--gpus'?"),
        (("search", "-modle", "70b"), "No such option '-modle'. Did you mean '--model'?"),
        # Not `-o utput`: a file of that name.
        (("search", "-output", "plans.json"), "No such option '-output'. Did you mean '--output'?"),
        (("completion", "-inf"), "No such option '-inf'."),
        (("--model", "70b"), "planner search --model ..."),
        (("-model", "70b"), "planner search -model ..."),
    ],
)
def test_one_dash_or_no_command_is_told_as_it_was_given(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    refused(run(*arguments), said)


def test_words_after_two_dashes_and_short_options_stay_as_they_are(run: Run) -> None:
    assert "-model does not exist" in run("check", "--", "-model").stderr
    assert "x.sh does not exist" in run("check", "-qq", "x.sh").stderr


def test_a_bug_is_told_in_three_lines_and_traced_on_demand() -> None:
    code = (
        "import sys\n"
        "from planner.cli import main, main as entry\n"
        "import planner.cli.catalogs as catalogs\n"
        "def broken(**_): raise KeyError('inner')\n"
        "catalogs.run_models = broken\n"
        "sys.argv = ['planner', *sys.argv[1:]]\n"
        "main()\n"
    )

    def stderr(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, "models"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 70
        return done.stderr

    short = stderr()
    assert "Traceback" not in short
    assert "This is a bug in trainplan" in short
    assert len(short.splitlines()) == 3
    assert "Traceback" in stderr("--debug")


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -c 'from planner.cli import main; main()' models | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("model")


def test_exit_statuses_are_told_where_people_look(run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "exit_status.md").read_text(encoding="utf-8")
    told = run("--help").output
    for status in ExitStatus:
        assert f"| {int(status)} | {status.meaning} |" in page
        assert f"{int(status):3d}  {status.meaning}" in told


MANY = ("search", "fit", "evaluate", "memory", "check", "compare", "buy", "scale")


@pytest.mark.parametrize("name", MANY)
def test_help_shows_few_options_and_help_all_every_one(run: Run, name: str) -> None:
    command = planner_command.get_command(click.Context(planner_command), name)
    assert command is not None
    short, whole = run(name, "--help").output, run(name, "--help-all")
    assert whole.exit_code == 0
    assert len(short.splitlines()) <= 75
    assert "--help-all" in short
    options = [param for param in command.params if isinstance(param, click.Option)]
    for option in options:
        assert option.opts[0] in whole.output
    assert f"\n{OTHER}:" not in whole.output
    assert "<=x" not in whole.output


def test_every_option_has_one_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert len(listed) == len(set(listed))
    declared = {
        param.name
        for name in COMMANDS
        for param in (
            planner_command.get_command(click.Context(planner_command), name) or click.Command("")
        ).params
    }
    assert set(listed) <= declared
    assert set(listed) >= FIRST & declared


@pytest.mark.parametrize(
    ("words", "start", "found"),
    [
        ((), "sea", "search"),
        (("search", "--model"), "llama-3-7", "llama-3-70b"),
        (("search", "--model"), "70", "70b"),
        (("search", "--gpus"), "64xH2", "64xH200-SXM-141GB"),
        (("evaluate", "--gpus"), "aws-p5", "aws-p5"),
        (("scale", "--gpus"), "B2", "B200-SXM-180GB"),
        (("launch", "plans.json", "--framework"), "torch", "torchtitan"),
        (("frameworks",), "nano", "nanotron"),
        (("hardware",), "dgx-h", "dgx-h100"),
        (("search",), "--gbs-tok", "--gbs-tokens"),
        (("budget", "--tokens"), "chin", "chinchilla"),
    ],
)
def test_shells_complete_names(words: tuple[str, ...], start: str, found: str) -> None:
    made = ShellComplete(planner_command, {}, "planner", "_PLANNER_COMPLETE")
    assert found in [item.value for item in made.get_completions(list(words), start)]


def test_files_are_left_to_the_shell() -> None:
    made = ShellComplete(planner_command, {}, "planner", "_PLANNER_COMPLETE")
    for words, start in ((["search", "--cluster"], "my"), (["search", "--model"], "./conf")):
        assert [item.type for item in made.get_completions(words, start)] == ["file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_PLANNER_COMPLETE" in result.output and "planner" in result.output


def test_doctor_tells_versions_extras_and_cache(run: Run) -> None:
    result = run("doctor")
    assert result.exit_code == 0
    for words in (
        __version__,
        "llvmlite",
        "numba",
        "Extras",
        "plot",
        "cost core",
        "All that a search needs",
    ):
        assert words in result.stdout


def test_doctor_names_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = install._version
    monkeypatch.setattr(install, "_version", lambda name: None if name == "numba" else real(name))
    result = run("doctor")
    assert result.exit_code == 1
    assert "numba MISSING" in result.stdout and "Missing: numba" in result.stdout


def test_doctor_says_how_the_core_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for way, words in install._WAYS.items():
        monkeypatch.setattr("planner.cost._entry.Entry.way", lambda _, way=way: way)
        assert f"cost core {words};" in " ".join(run("doctor").stdout.split())


def test_doctor_works_without_llvmlite(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = install._version
    monkeypatch.setattr(
        install, "_version", lambda name: real(name) if name[:4] != "llvm" else None
    )
    result = run("doctor")
    assert result.exit_code == 1
    assert "llvmlite MISSING" in result.stdout and "CANNOT RUN" in result.stdout
    monkeypatch.setattr("planner.cost._shipped.has", lambda _: True)
    assert "CANNOT RUN" not in run("doctor").stdout
