"""What `--fix` writes runs and fits; where nothing mends a file, nothing is written."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from planner.launch.check.fix import edited
from planner.launch.read.found import Edit, Hints
from planner.launch.read.launch import read_launch
from tests.cli.conftest import run_cli
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, Write, script
from tests.launch.check.test_configurations import accelerate, nanotron
from tests.launch.check.test_torchtitan import titan

PIPELINE = (
    f"{SMALL} {OVERLAPPED} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
    "--sequence-parallel"
)


def lines(arguments: str) -> str:
    """A script with an option a line."""
    options = " \\\n    --".join(arguments.strip().removeprefix("--").split(" --"))
    return (
        "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f"torchrun --nproc_per_node 8 pretrain_gpt.py \\\n    --{options}\n"
    )


def fixed_text(path: Path, *arguments: str) -> str:
    """The file that --fix writes, which passes when it is checked."""
    result = run_cli("check", str(path), "-q", "--fix", *arguments)
    fixed = path.with_name(f"{path.name}.fixed")
    assert fixed.exists(), result.output
    again = path.with_name(f"again-{path.name}")
    again.write_text(fixed.read_text(), encoding="utf-8")
    checked = run_cli("check", str(again), "-q", *arguments)
    assert checked.exit_code == 0, checked.output
    return fixed.read_text()


# What was found to be written and still to fail; and the recompute setting beside a typo.
BROKEN = {
    "three chunks": (f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 3", "8xH100"),
    "layers of a chunk": (f"{PIPELINE} --num-layers-per-virtual-pipeline-stage 3", "8xH100"),
    "no micro-batch": (PIPELINE.replace("--micro-batch-size 1", "--micro-batch-size 0"), "8xH100"),
    "micro-batch missing": (PIPELINE.replace("--micro-batch-size 1", ""), "8xH100"),
    "tp of none": (PIPELINE.replace("tensor-model-parallel-size 2", "tensor-model-parallel-size 0"),
                   "8xH100"),
    "two precisions": (f"{PIPELINE} --fp16", "8xH100"),
    "82 layers over 8 stages": (
        PIPELINE.replace("--num-layers 16", "--num-layers 82").replace(
            "pipeline-model-parallel-size 4", "pipeline-model-parallel-size 8"
        ),
        "16xH100",
    ),
    "recompute beside a typo": (
        f"{PIPELINE} --recompute-granularity full --recompute-method uniform "
        "--recompute-numlayers 1 --log-interval 1", "8xH100"),
    "recompute after a typo": (
        f"{PIPELINE} --recompute-granularty full --recompute-method uniform "
        "--recompute-num-layers 1", "8xH100"),
}  # fmt: skip


@pytest.mark.parametrize("write_as", [script, lines], ids=["one line", "an option a line"])
@pytest.mark.parametrize("name", BROKEN)
def test_found_cases_are_mended(write: Write, name: str, write_as: object) -> None:
    arguments, gpus = BROKEN[name]
    text = write_as(arguments).replace("nproc_per_node 8", "nnodes 2 --nproc_per_node 8") if (  # type: ignore[operator]
        gpus == "16xH100") else write_as(arguments)  # type: ignore[operator]  # fmt: skip
    path = write("broken.sh", text)
    assert run_cli("check", str(path), "-q", "--gpus", gpus).exit_code == 1
    new = fixed_text(path, "--gpus", gpus)
    assert not any(line.strip() == "\\" for line in new.splitlines())
    assert not new.rstrip().endswith("\\")
    if "typo" in name:
        assert new.count("--recompute-num-layers 1") == 1
        assert "--recompute-granularity full" in new


def test_an_element_of_an_array_goes_with_its_quotes(write: Write) -> None:
    options = PIPELINE.replace("--num-layers 16", "--num-layers 17")
    layout = "--pipeline-model-parallel-layout 'Et*4|t*4|t*4|t*4L'"
    array = f"OPTIONS=(\n    {options}\n    {layout}\n)\n"
    text = script('"${OPTIONS[@]}"').replace("torchrun", f"{array}torchrun")
    new = fixed_text(write("array.sh", text), "--gpus", "8xH100")
    assert "'" not in new and "parallel-layout" not in new


def test_what_nothing_mends_is_not_written(write: Write) -> None:
    """13 attention heads over 4 groups: no option next to these makes a model of it."""
    broken = SMALL.replace("--num-attention-heads 32", "--num-attention-heads 13")
    path = write("broken.sh", script(f"{broken} --overlap-param-gather"))
    result = run_cli("check", str(path), "-q", "--gpus", "8xH100", "--fix")
    assert result.exit_code == 1
    assert [file.name for file in path.parent.iterdir()] == ["broken.sh"]
    assert "--fix: nothing to write" in result.stderr
    assert "will not run even so" in " ".join(result.stderr.split())


def test_what_would_not_fit_all_the_same_is_not_written(write: Write) -> None:
    big = SMALL.replace("--num-layers 16", "--num-layers 160").replace("2048", "16384")
    path = write("big.sh", script(f"{big} --overlap-param-gather"))
    result = run_cli("check", str(path), "-q", "--gpus", "8xA10", "--fix")
    assert result.exit_code == 1
    assert [file.name for file in path.parent.iterdir()] == ["big.sh"]


def test_an_ignored_rule_is_no_error_of_the_fixed_file(write: Write) -> None:
    text = script(f"{SMALL} {OVERLAPPED} --tensor-model-parallel-size 2")
    path = write("launch.sh", text.replace("MAX_CONNECTIONS=1", "MAX_CONNECTIONS=8"))
    ignored = ("--gpus", "8xH100", "--ignore", "cuda-device-max-connections")
    assert run_cli("check", str(path), "-q", *ignored, "--fix").exit_code == 0


# --- comments and formatting ----------------------------------------------------------------------

COMMENTED_TOML = """\
# My run: keep this line.
[job]
dump_folder = "./outputs"   # where it goes

[model]
name = "llama3"
flavor = '8B'

[training]
  seq_len = 8_192           # tokens
local_batch_size = 1    # sequences

[activation_checkpoint]
# full is slow
mode = "full" # for now
[parallelism]
data_parallel_shard_degree=-1
tensor_parallel_degree = 1

# The end.
"""
COMMENTED_YAML = """\
# A run of ours
general:
   project: 'debug'   # quoted
   run: "one"

parallelism:
   dp: 8
   pp: 1 # one
   tp: 1
   recompute_layer: true  # slow
   tp_mode: REDUCE_SCATTER

lists:
- a   # first
- b
long: {a: 1,  b: [1,2,  3]}
tokens:
   micro_batch_size: 1
   # micro-batches of a step
   batch_accumulation_per_replica: 8
   sequence_length: 2_048
# the end
"""


def changed_lines(old: str, new: str) -> list[str]:
    return [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[0] in "+-"]


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        (Edit("activation_checkpoint.mode", "none"),
         ['- mode = "full" # for now', '+ mode = "none" # for now']),
        (Edit("training.local_batch_size", "2"),
         ["- local_batch_size = 1    # sequences", "+ local_batch_size = 2    # sequences"]),
        (Edit("parallelism.pipeline_parallel_degree", "2"), ["+ pipeline_parallel_degree = 2"]),
        (Edit("parallelism.data_parallel_shard_degree", "4"),
         ["- data_parallel_shard_degree=-1", "+ data_parallel_shard_degree=4"]),
        (Edit("compile.enable", "true"), ["+ [compile]", "+ enable = true"]),
        (Edit("training.seq_len", None), ["-   seq_len = 8_192           # tokens"]),
    ],
)  # fmt: skip
def test_toml_keeps_comments_and_formatting(read: Read, edit: Edit, changed: list[str]) -> None:
    found = read(COMMENTED_TOML, "run.toml")
    ((_, new),) = edited(found, [edit]).items()
    assert [line for line in changed_lines(COMMENTED_TOML, new) if line[2:].strip()] == changed


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        (Edit("parallelism.recompute_layer", "false"),
         ["-    recompute_layer: true  # slow", "+    recompute_layer: false # slow"]),
        (Edit("tokens.micro_batch_size", "4"),
         ["-    micro_batch_size: 1", "+    micro_batch_size: 4"]),
        (Edit("parallelism.pp", "2"), ["-    pp: 1 # one", "+    pp: 2 # one"]),
        (Edit("optimizer.zero_stage", "1"), ["+ optimizer:", "+    zero_stage: 1"]),
    ],
)  # fmt: skip
def test_yaml_keeps_comments_and_formatting(read: Read, edit: Edit, changed: list[str]) -> None:
    found = read(COMMENTED_YAML, "run.yaml")
    ((_, new),) = edited(found, [edit]).items()
    made = [" ".join(line.split()) for line in changed_lines(COMMENTED_YAML, new)]
    assert made == [" ".join(line.split()) for line in changed]


@pytest.mark.parametrize(
    ("name", "text", "more"),
    [
        ("a.toml", titan("expert_parallel_degree = 1  # one"), ()),
        ("b.yaml", nanotron().replace("REDUCE_SCATTER", "REDUCE_SCATER  # a slip"), ()),
        ("c.yaml", accelerate("num_proceses: 8  # GPUs").replace("num_processes: 8\n", ""),
         ("--model", "llama-3.2-1b", "--mbs", "1")),
    ],
)  # fmt: skip
def test_comments_of_fixed_files_survive(
    write: Write, name: str, text: str, more: tuple[str, ...]
) -> None:
    new = fixed_text(write(name, text), "--gpus", "8xH100", *more)
    assert new != text
    for line in text.splitlines():
        assert line.partition("#")[2] in new


def test_a_configuration_inside_a_script(write: Write) -> None:
    """A here-document is edited where it stands."""
    text = (
        "#!/bin/bash\ncat > config.yaml <<'EOF'\n" + nanotron().rstrip("\n") + "\nEOF\n"
        "torchrun --nproc_per_node=8 run_train.py --config-file config.yaml\n"
    ).replace("REDUCE_SCATTER", "REDUCE_SCATER")
    path = write("run.sh", text)
    assert run_cli("check", str(path), "-q", "--gpus", "8xH100").exit_code == 1
    new = fixed_text(path, "--gpus", "8xH100")
    assert new.startswith("#!/bin/bash\ncat > config.yaml <<'EOF'\n")
    assert "REDUCE_SCATTER" in new


def test_a_value_that_is_a_variable_is_changed_where_that_is_set(write: Write) -> None:
    text = (
        "#!/bin/bash\nMODE=REDUCE_SCATTER\n"
        "cat > config.yaml <<EOF\n"
        + nanotron().rstrip("\n").replace("REDUCE_SCATTER", "${MODE}")
        + "\nEOF\ntorchrun --nproc_per_node=8 run_train.py --config-file config.yaml\n"
    )
    found = read_launch([write("run.sh", text)], Hints())
    ((_, new),) = edited(found, [Edit("parallelism.tp_mode", "ALL_REDUCE")]).items()
    assert "\nMODE=ALL_REDUCE\n" in new and "tp_mode: ${MODE}" in new
