"""Scripts as people write them: what is not known in a word leaves the rest readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.errors import CannotTellError, UsageError
from planner.launch.check.given import folder_files
from planner.launch.check.world import stated_gpus
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from planner.report.check import verdict
from tests.launch.check.conftest import OVERLAPPED, SMALL
from tests.launch.read.conftest import ReadFolder, judged, refusals

ARGS = f"{SMALL} {OVERLAPPED}"


@pytest.mark.parametrize(
    "script",
    [
        f'CMD="`pwd`/pretrain_gpt.py {ARGS} --save $HOME_OF_RUNS/x"\n'
        'LAUNCHER="python -m torch.distributed.run --nproc_per_node 8 --master_addr $(hostname)"\n'
        "srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'",
        f'run_cmd="torchrun --nproc_per_node 8 $REPO/pretrain_gpt.py {ARGS}"\neval ${{run_cmd}}',
        f"train() {{ torchrun --nproc_per_node $1 pretrain_gpt.py ${{@:2}} {ARGS}; }}\ntrain 8",
        f'run() {{ "$@"; }}\nrun torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}',
        f"cat <<'EOF' | sbatch --parsable\n#!/bin/bash\ntorchrun --nproc_per_node 8 "
        f"pretrain_gpt.py {ARGS}\nEOF",
        "sbatch <<EOF\n#!/bin/bash\nsrun --container-image=/x.sqsh --nodes=1 bash -c "
        f'"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}"\nEOF',
        f'ARGS=$(echo "{ARGS}")\nG=$(expr 2 \\* 4)\n'
        "torchrun --nproc_per_node $G pretrain_gpt.py $ARGS",
        f'ARGS="{ARGS}"\nfor SEED in 1 2 3; do\n'
        "torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS --seed $SEED\ndone",
        f'ARGS=" {SMALL} \\\n  "\nMORE="{OVERLAPPED}"\n'
        'X="`pwd`/pretrain_gpt.py \\\n    $ARGS \\\n    $MORE"\ntorchrun --nproc_per_node 8 $X',
    ],
)  # fmt: skip
def test_commands_in_variables(folder: ReadFolder, script: str) -> None:
    found = folder({"train.sh": f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{script}\n"})
    assert (found.mbs, found.gbs, found.seq, found.world) == (1, 64, 4096, 8)
    assert found.zero == 1
    assert judged(found).plan is not None


RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}\n"


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("exit 0\n", "line 2: exit ends the script"),
        ("set -euo pipefail\nfalse\n", "line 3: false, under set -e, ends the script"),
        ("stop() {\n  exit 1\n}\nstop\n", "line 3: exit ends the script"),
    ],
)
def test_what_stands_below_the_end_is_never_reached(
    folder: ReadFolder, before: str, line: str
) -> None:
    with pytest.raises(CannotTellError, match=f"{line}; nothing below it is reached"):
        folder({"a.sh": f"#!/bin/bash\n{before}{RUN}"})


@pytest.mark.parametrize(
    "before",
    [
        '[ -d "$DATA" ] || exit 1\n',
        "cd /data || exit 1\n",
        'if [ -z "$DATA" ]; then echo usage; exit 1; fi\n',
        'case "$1" in "") exit 2;; esac\n',
        "(exit 0)\nbash -c 'exit 0'\nbash other.sh\n",
        "set -e\nset +e\nfalse\n",
        "set -e\nfalse || true\n! false\nfalse | cat\nbash -c false\n",
        "stop() { exit 1; }\ntrap stop INT\n",
    ],
)
def test_what_may_end_a_script_does_not(folder: ReadFolder, before: str) -> None:
    assert folder({"a.sh": f"{before}{RUN}exit 0\n", "other.sh": "exit 1\n"}).world == 8


def test_sbatch_says_more_than_the_script_that_it_submits(folder: ReadFolder) -> None:
    """Its options go before directives, also where the script counts by Slurm's variables."""
    found = folder(
        {
            "submit.sh": "N=4\nsbatch -p a --nodes=$N --export=ALL go.sbatch\nexit 0\n",
            "go.sbatch": "#SBATCH --nodes=1 --exclusive\n#SBATCH --gpus-per-node=8\n"
            "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 pretrain_gpt.py "
            f"--context-parallel-size $SLURM_NNODES {ARGS}\n",
        }
    )
    assert (stated_gpus(found), found.cp) == (32, 4)


def test_what_a_script_shows_is_not_run_besides(folder: ReadFolder) -> None:
    run = f'CMD="torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}"\necho $CMD\n'
    for script in (run, f"{run}eval $CMD\n"):
        found = folder({"train.sh": script})
        assert found.world == 8
        assert "several-commands" not in {problem.rule for problem in found.problems}


def test_the_same_note_of_several_lines_is_one(folder: ReadFolder) -> None:
    test = 'if [ -f "$(x)" ]; then :; fi\n'
    found = folder({"a.sh": f"{test * 2}torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}\n"})
    notes = [item.text for item in found.problems if item.rule == "shell-not-followed"]
    assert notes == ["lines 1, 2: a test that reading cannot decide; taken as not met"]


def test_what_would_tell_several_things_is_asked_for_once(folder: ReadFolder) -> None:
    said = verdict(judged(folder({"a.sh": "torchrun pretrain_gpt.py $ALL --bf16\n"})))
    assert said.count("--env ALL=VALUE") == 1
    assert "--micro-batch-size is missing. The model is not known" in said


def test_files_beside_are_read(folder: ReadFolder) -> None:
    """A sourced file and a script that is called, by a name whose start is not known."""
    found = folder(
        {
            "run/train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "source $ROOT/conf/model.sh\nbash launch/go.sh $MODEL_ARGS",
            "conf/model.sh": f'MODEL_ARGS="{ARGS}"\n',
            "launch/go.sh": 'torchrun --nproc_per_node 8 pretrain_gpt.py "$@"\n',
        }
    )
    assert (found.mbs, found.gbs, found.world) == (1, 64, 8)
    assert {Path(path).name for path in found.files} == {"train.sh", "model.sh", "go.sh"}


@pytest.mark.parametrize("end", ["\\", "\\\n", "\\ \n  \\\n\n"])
def test_a_last_line_that_goes_on_nowhere(folder: ReadFolder, end: str) -> None:
    found = folder({"a.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS} {end}"})
    assert (found.gbs, found.world) == (64, 8)
    assert not [item for item in found.problems if item.rule == "shell-syntax"]


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "9" * 30])
@pytest.mark.parametrize(
    "option",
    [
        "--window-size 9,0 --window-attn-skip-freq",
        "--num-experts 8 --moe-layer-freq",
        "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2",
        "--cp-comm-type a2a+p2p --context-parallel-size",
        "--pipeline-model-parallel-layout t*",
        "--pipeline-model-parallel-layout (t)*",
    ],
)
def test_numbers_that_are_none(folder: ReadFolder, option: str, number: str) -> None:
    """Digits that no integer has, and more of them than any setting: said, without a crash."""
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS} {option} {number}\n"
    found = folder({"a.sh": text.replace("* ", "*")})
    assert found.problems or judged(found).problems


def test_a_trainers_number_that_is_none(folder: ReadFolder) -> None:
    command = "torchrun --nproc_per_node 8 train.py --model_name_or_path gpt2 --output_dir x"
    batch = "--learning_rate 1e-5 --per_device_train_batch_size 2 --max_seq_length"
    assert folder({"a.sh": f"{command} {batch} {'9' * 5000}\n"}).mbs == 2


def test_an_option_of_any_spelling_is_no_pattern(folder: ReadFolder) -> None:
    parser = {"megatron/training/arguments.py": "group.add_argument('--of-ours')\n"}
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS} --global-batch-size[[tensor-m\n"
    found = folder({"a.sh": command} | parser)
    assert [item.key for item in found.unknown] == ["--global-batch-size[[tensor-m"]


def test_a_layout_of_layouts_is_no_memory(folder: ReadFolder) -> None:
    nested = "t" + ")*4000".join([""] * 6)
    words = f"--pipeline-model-parallel-layout '{'(' * 5}{nested}'"
    found = folder({"a.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS} {words}\n"})
    assert judged(found).problems


@pytest.mark.parametrize("order", ["job.sh train.sh", "train.sh job.sh", "."])
def test_a_script_that_another_starts_is_read_there(tmp_path: Path, order: str) -> None:
    """Once, and with the variables that it is given, whichever is named first; a folder, too."""
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nbash runs/train.sh 8  # train.sh\n"
    )
    (tmp_path / "train.sh").write_text(
        f"source ./sizes.sh\ntorchrun --nnodes 2 --nproc_per_node $1 pretrain_gpt.py $N {ARGS}\n"
    )
    (tmp_path / "sizes.sh").write_text("N='--tensor-model-parallel-size 2'\n")
    paths = [tmp_path / name for name in order.split()]
    given = folder_files(tmp_path).paths if order == "." else paths
    found = read_launch(given)
    assert (found.world, found.tp) == (16, 2)
    assert not [item for item in found.problems if item.rule == "several-commands"]


def test_options_in_a_file_that_was_not_read_are_asked_for(folder: ReadFolder) -> None:
    script = "source $WHERE/params.sh\npython pretrain_gpt.py ${ALL[@]}\n"
    found = judged(folder({"a.sh": script}))
    assert (
        "--env ALL=VALUE, or $WHERE/params.sh too" in verdict(found)
        and found.verdict == "cannot tell"
    )


def test_options_chosen_in_a_loop_that_is_not_followed_may_be_there(folder: ReadFolder) -> None:
    """The verdict is "cannot tell", not that the micro-batch is missing."""
    loop = 'source params.sh\nKEPT=()\nfor one in "${ALL[@]}"; do KEPT+=("$one"); done\n'
    found = folder({"a.sh": f'{loop}python pretrain_gpt.py --bf16 "${{KEPT[@]}}"\n'})
    assert not [one for one in judged(found).problems if one.severity == "error"]


@pytest.mark.parametrize("launcher", ["srun -N 2 --ntasks-per-node=8", "mpirun -np 16 -x A=1"])
def test_what_starts_a_script_counts_its_processes(folder: ReadFolder, launcher: str) -> None:
    found = folder(
        {"a.sh": f"{launcher} bash go.sh\n", "go.sh": f"python pretrain_gpt.py {ARGS}\n"}
    )
    (problem,) = [one for one in judged(found).problems if one.rule == "launched-processes"]
    assert "16 processes" in problem.text


def test_arguments_after_shift(folder: ReadFolder) -> None:
    """`--env 2=` is the script's second argument, wherever it is used; never a function's."""
    script = f"go() {{ torchrun --nproc_per_node $1 pretrain_gpt.py {ARGS} $2; }}\n"
    script += "A=$1; shift\nTP=$1; shift\ngo 8 --tensor-model-parallel-size=$TP\n"
    assert folder({"a.sh": script}, environment={"1": "x", "2": "4"}).tp == 4
    asked = folder({"a.sh": script})
    assert "--env 2=VALUE" in refusals(asked)


def test_what_a_missing_file_may_have_set(folder: ReadFolder) -> None:
    """Options are added to others that nobody can see: none of them is missing for sure."""
    found = folder(
        {
            "a.sh": "source $HERE/params.sh\nPARAMS+=(--use-distributed-optimizer)\n"
            "torchrun --nproc_per_node 8 pretrain_gpt.py ${PARAMS[@]}\n"
        }
    )
    assert judged(found).verdict == "cannot tell"
    assert any("params.sh: not read" in problem.text for problem in found.problems)


def test_another_program_with_micro_batches(folder: ReadFolder) -> None:
    """Named as Megatron names a few settings, with many that no Megatron has."""
    words = "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --lr 1e-5 --bf16"
    others = "--base-model x --low-cpu-fsdp --sharding-strategy FULL_SHARD --mixed-precision"
    script = f"mpirun -np 8 python examples/tune.py {words} {others} --checkpoint-type local\n"
    with pytest.raises(CannotTellError, match="no framework that can be read"):
        folder({"a.sh": script})
    script = (
        f"torchrun --nproc_per_node 8 mine.py {ARGS} --ours-a --ours-b --ours-c --ours-d --ours-e\n"
    )
    assert folder({"b.sh": script}).gbs == 64


def test_options_without_a_command(folder: ReadFolder) -> None:
    with pytest.raises(CannotTellError, match="give the script that does, too"):
        folder({"params.sh": f"PARAMS=({ARGS} --tensor-model-parallel-size 2)\n"})


def test_sourced_files_of_one_name(folder: ReadFolder) -> None:
    """Both are read, in their order."""
    run = f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS} $MORE\n"
    found = folder(
        {
            "a.sh": f"source cluster/env.sh\nsource model/env.sh\n{run}",
            "cluster/env.sh": "MORE=\n",
            "model/env.sh": "MORE='--tensor-model-parallel-size 4'\n",
        }
    )
    assert found.tp == 4


def test_only_what_may_say_something_is_missed(folder: ReadFolder) -> None:
    """Not a virtual environment that a script activates."""
    sourced = "source ~/titan/.venv/bin/activate\n. ~/.bashrc\nsource conf/gone.sh\n"
    found = folder({"train.sh": f"{sourced}torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}\n"})
    missed = [problem.text for problem in found.problems if problem.rule == "shell-not-followed"]
    assert len(missed) == 1 and "conf/gone.sh" in missed[0]


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "train.sh"
    path.write_text(
        f"touch {mark}\nX=$(touch {mark})\neval 'touch {mark}'\npython3 -c \"open('{mark}','w')\"\n"
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}\n"
    )
    read_launch([path])
    assert not mark.exists()


@pytest.mark.parametrize(
    "script",
    [
        "source ./train.sh\n",
        "bash train.sh\n",
        "f() { g; }\ng() { f; }\nf\n",
        "while true; do eval 'eval true'; done\n",
    ],
)
def test_what_calls_itself_ends(folder: ReadFolder, script: str) -> None:
    found = folder({"train.sh": f"{script}torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}\n"})
    assert found.gbs == 64


def test_an_argument_of_the_script_is_named(folder: ReadFolder) -> None:
    """As Pai-Megatron-Patch takes its sizes: told with --env, it is read."""
    script = "if [ $2 = 7B ]; then HIDDEN=2048; fi\n" + (
        f"TP=$1\ntorchrun --nproc_per_node 8 pretrain_gpt.py {ARGS} "
        "--tensor-model-parallel-size ${TP}"
    ).replace("--hidden-size 2048", "--hidden-size ${HIDDEN}")
    found = folder({"train.sh": script})
    assert judged(found).verdict == "cannot tell"
    assert "--env 1=VALUE" in " ".join(problem.text for problem in found.problems)
    told = folder({"train.sh": script}, environment={"1": "2", "2": "7B"})
    assert (told.tp, told.shape and told.shape.hidden) == (2, 2048)


def test_no_training_command(folder: ReadFolder) -> None:
    with pytest.raises(CannotTellError, match=r"runs serve\.py, which is no framework"):
        folder({"run.sh": "python serve.py --port 80\n"})


def test_a_program_in_a_variable_is_named(folder: ReadFolder) -> None:
    """As Google's recipes start NeMo; the test of an argument that nobody gives is decided."""
    script = 'if [[ ${1} != "slurm" ]]; then torchrun --nnodes 2 ${PROGRAM} --factory "f()"; fi\n'
    with pytest.raises(CannotTellError, match=r"line 1 starts is \$PROGRAM, which the files"):
        folder({"run.sh": script})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            'S=run_b.sh\ncmd="bash -c \'cd x; bash $S"\necho $cmd\neval $cmd" > log\'"',
            "it starts run_b.sh",
        ),
        ("torchrun --nnodes $N --standalone $(which own) run", r"is output of \$\(which own\)"),
        ("S=$(realpath -s own.py)\nmpirun python $S", "runs own.py, which is no framework"),
        ("torchrun train.py --job.config_file $A/$B", r"a file that is \$A, which the files"),
        ("#!/bin/fish\ntorchrun a.py", "a script of fish"),
    ],
)
def test_what_is_started_is_named_as_it_is(folder: ReadFolder, command: str, words: str) -> None:
    with pytest.raises((CannotTellError, UsageError), match=words):
        folder({"a.sh": f"{command}\n"})


def test_the_inner_launch_is_the_program(folder: ReadFolder) -> None:
    """`python submit.py --gpus 8 -- torchrun … pretrain_gpt.py`."""
    found = folder(
        {"x.sh": f"python submit.py --n 1 -- torchrun --nproc_per_node 8 pretrain_gpt.py {ARGS}"}
    )
    assert (found.format, found.world) == ("megatron", 8)


def test_hints_win_over_what_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "t.sh"
    text = ARGS.replace("--global-batch-size 64", "--global-batch-size $GBS")
    path.write_text(
        f"export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc_per_node 8 pretrain_gpt.py {text}"
    )
    assert judged(read_launch([path])).verdict == "cannot tell"
    assert judged(read_launch([path], Hints(gbs=64))).plan is not None
