"""Every option of every command that writes a file: nothing that a user had is lost.

The table of commands is scanned, so that no writer can be missed.
"""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import planner
from planner.cli.declared import command, commands
from planner.cli.program import planner_command
from tests.evidence.traces.made_up import trace, write

JOB = "--model gpt2 --gpus 1xH100 --gbs 8 --seq 1024"
SEARCH = f"{JOB} --recompute none --mbs 8"
RUN = f"{JOB} --tokens 1G --recompute none --mbs 8"
# (command, option) -> words with which it writes a file of that ending. PLAN, RUNS, LOG, SCRIPT:
# files of the fixture.
WRITERS = {
    ("search", "output"): (f"search {SEARCH}", "-o", ".json"),
    ("search", "plot"): (f"search {SEARCH}", "--plot", ".svg"),
    ("evaluate", "output"): (f"evaluate {JOB}", "-o", ".json"),
    ("evaluate", "plot"): (f"evaluate {JOB}", "--plot", ".svg"),
    ("memory", "output"): (f"memory {JOB}", "-o", ".json"),
    ("memory", "plot"): (f"memory {JOB}", "--plot", ".svg"),
    ("check", "output"): ("check SCRIPT --gpus 8xH100 --fix", "-o", ".sh"),
    ("check", "plot"): ("check SCRIPT --gpus 8xH100", "--plot", ".svg"),
    ("explain", "plot"): ("explain PLAN", "--plot", ".svg"),
    ("explain", "trace"): ("explain PLAN", "--trace", ".json"),
    ("compare", "output"): (f"compare {RUN}", "-o", ".json"),
    ("compare", "plot"): (f"compare {RUN}", "--plot", ".svg"),
    ("buy", "output"): (f"buy {RUN} --deadline 90d", "-o", ".json"),
    ("buy", "plot"): (f"buy {RUN} --deadline 90d", "--plot", ".svg"),
    ("budget", "output"): ("budget --flops 1e20", "-o", ".json"),
    ("budget", "plot"): ("budget --flops 1e20", "--plot", ".svg"),
    ("budget", "save_model"): ("budget --flops 1e20", "--save-model", ".toml"),
    ("scale", "output"): (f"scale {RUN} --gpus H100 --from 1 --to 2", "-o", ".json"),
    ("scale", "plot"): (f"scale {RUN} --gpus H100 --from 1 --to 2", "--plot", ".svg"),
    ("report", "output"): ("report PLAN", "-o", ".html"),
    ("validate", "plot"): ("validate --data RUNS", "--plot", ".svg"),
    ("trace", "plot"): ("trace TRACE", "--plot", ".svg"),
    ("calibrate", "output"): ("calibrate --from RUNS --gpus 8xH100 --accept-worse", "-o", ".toml"),
    ("lengths", "output"): ("lengths LENGTHS", "-o", ".csv"),
    ("lengths", "plot"): ("lengths LENGTHS", "--plot", ".svg"),
    # It measures a GPU: what it writes stands in tests/cli/test_probe.py.
    ("probe", "output"): ("probe --plan-file PLAN", "-o", ".toml"),
}
FOLDERS = {("launch", "output"), ("sweep", "output")}
# It makes a folder that is not there, and overwrites nothing: tests/tune/test_journal.py.
MAKES_NEW = ("tune",)
# One of each kind of file, and of what makes it: all go through the one module that writes.
KINDS_OF_FILE = [
    ("budget", "output"), ("budget", "plot"), ("budget", "save_model"), ("check", "output"),
    ("evaluate", "output"), ("explain", "trace"), ("report", "output"),
]  # fmt: skip

RUNS = """source,model,layers,hidden,ffn,heads,kv_heads,vocab,act,seq,gpu,num_gpus,framework,\
precision,tp,pp,zero,mbs,gbs,recompute,step_time_s
mine,llama-3-8b,32,4096,14336,32,8,128256,swiglu,8192,H100,8,megatron-core,bf16,2,1,1,1,64,none,9.0
"""
SCRIPT = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 \
--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 \
--global-batch-size 64 --bf16 --recompute-granularity full --recompute-method uniform \
--recompute-num-layers 1 --train-iters 10 --lr 1e-4 --vocab-size 50257
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that commands read."""
    folder = tmp_path_factory.mktemp("given")
    files = {
        name: folder / f"{name.lower()}{ending}"
        for name, ending in (
            ("PLAN", ".json"),
            ("RUNS", ".csv"),
            ("SCRIPT", ".sh"),
            ("LENGTHS", ".csv"),
        )
    }
    files["RUNS"].write_text(RUNS)
    files["SCRIPT"].write_text(SCRIPT)
    files["LENGTHS"].write_text("length,samples\n100,3\n900,1\n")
    assert run(f"evaluate {JOB}", "-o", files["PLAN"]).exit_code == 0
    return files | {"TRACE": write(folder / "trace.json", trace())}


def run(words: str, *more: object, given: dict[str, Path] | None = None) -> Result:
    spelled = [str((given or {}).get(word, word)) for word in words.split()]
    return CliRunner().invoke(planner_command, [*spelled, *map(str, more)])


def test_every_option_that_writes_is_tried() -> None:
    """A command that may overwrite has --force, and options that take a file which it makes."""
    found = set()
    for name in commands():
        options = {str(one.name): one for one in command(name).params}
        if "force" in options:
            found |= {
                (name, option)
                for option in ("output", "plot", "save_model", "trace")
                if option in options
            }
        else:
            writes = {"output", "plot", "save_model"} & options.keys()
            assert not writes or name in MAKES_NEW, name
    assert found == set(WRITERS) | FOLDERS


# What writes to disk without asking. In `warmup` it is the standard streams of a process.
_WRITING = {
    "write_text", "write_bytes", "mkdir", "rename", "replace", "unlink", "rmdir", "rmtree", "touch",
    "symlink_to", "hardlink_to", "chmod", "mkstemp", "mkdtemp", "NamedTemporaryFile", "to_csv",
    "to_json", "to_parquet", "save", "savefig",
}  # fmt: skip
_ONE_PLACE = {
    "planner/job/written.py", "planner/job/written_folder.py", "planner/cost/_private_folder.py",
    "planner/cost/_machine_code.py", "planner/compare/sweep/journal.py",
    "planner/tune/journal.py", "planner/cost/build_core.py",
}  # fmt: skip


def _writes(path: Path) -> Iterator[str]:
    """Calls of a module that write to disk, past those of `planner.job.written`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr="replace", value=_) if len(node.args) != 1:
                continue  # of a text
            case ast.Attribute(attr="to_csv" | "to_json") if not node.args:
                continue  # to a text
            case ast.Attribute(attr=name) if name in _WRITING:
                yield f"{path.name}:{node.lineno} {name}"
            case ast.Attribute(attr="open") | ast.Name(id="open"):
                words = [arg.value for arg in (*node.args, *(one.value for one in node.keywords))
                         if isinstance(arg, ast.Constant)]  # fmt: skip
                if any(isinstance(word, str) and set(word) & set("wax+") and len(word) < 4
                       for word in words):  # fmt: skip
                    yield f"{path.name}:{node.lineno} open"


def test_one_module_writes() -> None:
    root = Path(planner.__file__).parents[1]
    found = [
        text
        for package in ("planner", "constraints", "hardware")
        for path in sorted((root / package).rglob("*.py"))
        if path.relative_to(root).as_posix() not in _ONE_PLACE
        for text in _writes(path)
    ]
    assert found == []


@pytest.mark.parametrize("key", WRITERS, ids="-".join)
def test_what_a_user_had_stays(
    key: tuple[str, str], given: dict[str, Path], tmp_path: Path
) -> None:
    """Without --force a file; with it a link, where it points to, and a folder."""
    words, option, ending = WRITERS[key]
    mine = tmp_path / f"mine{ending}"
    mine.write_text("years of work")
    link, dangling, folder = (tmp_path / f"{name}{ending}" for name in ("link", "lost", "folder"))
    link.symlink_to(mine)
    dangling.symlink_to(tmp_path / "nowhere")
    folder.mkdir()
    (folder / "checkpoint.pt").write_text("weights")
    tries = ((mine, ()), (link, ("--force",)), (dangling, ("--force",)), (folder, ("--force",)))
    for target, force in tries:
        result = run(words, option, target, *force, given=given)
        assert result.exit_code == 2, (target, result.output)
        assert target.name in result.stderr
    assert mine.read_text() == (link.read_text()) == "years of work"
    assert link.is_symlink() and dangling.is_symlink()
    assert (folder / "checkpoint.pt").read_text() == "weights"
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("key", KINDS_OF_FILE, ids="-".join)
def test_a_full_disk_leaves_what_was_there(
    key: tuple[str, str], given: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, option, ending = WRITERS[key]
    mine = tmp_path / f"mine{ending}"
    mine.write_text("years of work")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        result = run(words, option, mine, "--force", given=given)
    assert (result.exit_code, mine.read_text()) == (74, "years of work"), result.output
    assert f"{mine}: No space left" in result.stderr.replace("\n", "")
    assert [*tmp_path.iterdir()] == [mine]


def test_a_file_that_came_to_be_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two searches into one file: the second to end does not overwrite the first."""
    from planner.cli import output

    target = tmp_path / "plans.json"
    real: Any = output.refuse_to_overwrite

    def checked(path: Path, force: bool, option: str = "-o") -> None:
        real(path, force, option)
        path.write_text("of the other")

    monkeypatch.setattr(output, "refuse_to_overwrite", checked)
    result = run(f"evaluate {JOB}", "-o", target)
    assert (result.exit_code, target.read_text()) == (2, "of the other")
