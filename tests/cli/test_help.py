"""Help, version, unknown commands, and what start-up imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner._version import __version__
from planner.cli.errors import ExitStatus
from planner.cli.main import COMMANDS
from tests.cli.conftest import Run, lines_are_short

HEAVY = ("numba", "pandas", "ortools", "altair", "vl_convert", "jinja2")


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("models",), ("models", "70b"), ("hardware",), ("frameworks",)],
)
def test_quick_commands_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from planner.cli import main\n"
        f"sys.argv = ['planner', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules])\n"
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
    result = run("serach")
    assert result.exit_code == 2
    assert "unknown command 'serach'. Did you mean 'search'?" in result.stderr


def test_unknown_option_is_met_with_the_nearest(run: Run) -> None:
    result = run("search", "--modle", "70b")
    assert result.exit_code == 2
    assert "'--model'" in result.stderr


def test_a_bug_is_told_in_three_lines_and_traced_on_demand() -> None:
    code = (
        "import sys\n"
        "from planner.cli import main, main as entry\n"
        "import planner.cli.models as models\n"
        "def broken(**_): raise KeyError('inner')\n"
        "models.command.callback = broken\n"
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
