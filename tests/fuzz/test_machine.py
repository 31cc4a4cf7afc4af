"""What the machine does to a command: full disks, closed pipes, odd files, errors of the system."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.errors import ExitStatus, refusal
from planner.job.errors import UsageError
from planner.job.written import write_text
from tests.fuzz.command_line import BASES
from tests.fuzz.material import write_all
from tests.fuzz.properties import plan_file
from tests.fuzz.test_found import tried


def planner(command: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """`planner` in a shell of its own; PLANNER in the command stands for it."""
    words = command.replace("PLANNER", f"{sys.executable} -m planner")
    return subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, check=False, timeout=timeout
    )


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("PLANNER models > /dev/full", ExitStatus.FILE_TROUBLE, "No space left on device"),
        ("PLANNER --help > /dev/full", ExitStatus.FILE_TROUBLE, "No space left on device"),
        ("PLANNER models | true; exit ${PIPESTATUS[0]}", None, ""),
        ("PLANNER models gpt2 >&-", ExitStatus.FILE_TROUBLE, "the output: Bad file descriptor"),
        ("PLANNER models gpt2 2>&- >/dev/null", ExitStatus.DONE, ""),
        ("COLUMNS=abc PLANNER models gpt2", ExitStatus.DONE, ""),
        ("PLANNER models nothing 2> /dev/full", ExitStatus.FILE_TROUBLE, ""),
        ("PLANNER models nothing 2>&-", ExitStatus.WRONG_INPUT, ""),
        ("PLANNER explain /dev/stdin < /dev/zero", ExitStatus.WRONG_INPUT, "too large"),
        ("PLANNER explain $'\\xff'", ExitStatus.WRONG_INPUT, "UTF-8"),
    ],
)
def test_disks_pipes_and_terminals(command: str, status: ExitStatus | None, said: str) -> None:
    done = planner(command)
    assert done.returncode == status if status is not None else done.returncode in (0, 74)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if not said:
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", "pipe"), "named pipe"),
        (("trace", "pipe"), "named pipe"),
        (("explain", "/dev/zero"), "is a device"),
        # Made by the kernel while it is read, which waits for the next message.
        (("trace", "/proc/kmsg"), "is empty"),
        (("explain", "/proc/kmsg"), "not valid JSON"),
        (("check", "/proc/kmsg"), "/proc/kmsg"),
        (("calibrate", "--from", "/proc/kmsg", "--gpus", "8xH100", "-o", "new.toml"), "/proc/kmsg"),
        (("evaluate", "--model", "pipe", *BASES["evaluate"][2:]), "is neither a file"),
        (("explain", "~nobody-here/x"), "no such user"),
        (("report", "plans.json", "--force", "-o", "pipe"), "a device or a pipe"),
        (("report", "plans.json", "-o", "link"), "is a link to link"),
    ],
    ids=str,
)
def test_no_ordinary_files(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("link")
    found = tried(tmp_path, *arguments)
    assert (found.status, said in found.stderr) == (ExitStatus.WRONG_INPUT, True), found.describe()
    assert (tmp_path / "pipe").is_fifo()


def test_a_disk_that_fills_under_a_folder(tmp_path: Path) -> None:
    write_all(tmp_path, plan_file("one cluster"))
    done = planner(f"cd {tmp_path}; ulimit -f 1; PLANNER launch plans.json 1 -o new")
    assert (done.returncode, "new: File too large" in done.stderr) == (74, True), done.stderr


def test_what_a_link_points_to_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(UsageError, match="is a link to file"):
        write_text(tmp_path / "link", "text", force=True)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOSPC, ExitStatus.FILE_TROUBLE), (errno.EACCES, ExitStatus.FILE_TROUBLE),
        (errno.EIO, ExitStatus.FILE_TROUBLE), (errno.EROFS, ExitStatus.FILE_TROUBLE),
        (errno.ENOENT, ExitStatus.WRONG_INPUT), (errno.ENAMETOOLONG, ExitStatus.WRONG_INPUT),
        (errno.EISDIR, ExitStatus.WRONG_INPUT),
    ],
)  # fmt: skip
def test_trouble_with_files_names_the_path(number: int, status: ExitStatus) -> None:
    found = refusal(OSError(number, "no such luck", "/some/where"))
    assert (found.exit_code, "/some/where" in found.message) == (status, True)
