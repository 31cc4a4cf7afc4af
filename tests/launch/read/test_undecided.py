"""A reader says no more than it read: branches, options and values that are not known."""

from __future__ import annotations

import re

import pytest

from planner.launch.read.found import Found
from tests.launch.check.conftest import SMALL
from tests.launch.read.conftest import ReadFolder, judged

_RUN = "torchrun --nproc_per_node 8 pretrain_gpt.py"
_MODEL = (
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 32 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 32"
)
_OTHER = _MODEL.replace("--num-layers 16", "--num-layers 24")
_REST = "--bf16 --train-iters 20 --lr 1e-4 --mock-data --vocab-size 50000"
# Scripts whose model stands in a branch that reading cannot decide.
_BRANCHES = {
    "if": f'S=$1\nif [[ $S == "1B" ]]; then\nM=({_MODEL})\nfi\n{_RUN} ${{M[@]}} {_REST}\n',
    "if and else": f'S=$1\nif [ "$S" = 1B ]; then\nM="{_MODEL}"\nelse\nM="{_OTHER}"\nfi\n'
    f"{_RUN} $M {_REST}\n",
    "elif": f'S=$1\nif [ "$S" = x ]; then\nM=\nelif [ "$S" = 1B ]; then\nM="{_MODEL}"\nfi\n'
    f"{_RUN} $M {_REST}\n",
    "case": f'S=$1\ncase $S in\n1B) M="{_MODEL}" ;;\n2B) M="{_OTHER}" ;;\nesac\n'
    f"{_RUN} $M {_REST}\n",
    "and": f'S=$1\n[[ $S == 1B ]] && M="{_MODEL}"\n{_RUN} $M {_REST}\n',
    "function": f'choose() {{\nif [ "$1" = 1B ]; then M="{_MODEL}"; fi\n}}\nS=$1\nchoose $S\n'
    f"{_RUN} $M {_REST}\n",
    "output of a program": f'S=$(hostname)\nif [ "$S" = 1B ]; then\nM="{_MODEL}"\nfi\n'
    f"{_RUN} $M {_REST}\n",
    "file": f'if [ -f big.txt ]; then\nM="{_MODEL}"\nelse\nM="{_OTHER}"\nfi\n{_RUN} $M {_REST}\n',
    "programs": f'S=$1\nif [ "$S" = gpt ]; then\n{_RUN} {_MODEL} {_REST}\nelse\n'
    f"torchrun --nproc_per_node 8 pretrain_t5.py {_MODEL} {_REST}\nfi\n",
    "array": f'read -r -a M < <(flags x.yaml)\n{_RUN} "${{M[@]}}" {_REST}\n',
    "arguments": f'{_RUN} {_REST} "$@"\n',
    "template": f"{_RUN} {_MODEL} {_REST} --tensor-model-parallel-size {{{{ TP }}}}\n",
    "marks": f"{_RUN} {_MODEL} {_REST} --tensor-model-parallel-size __TP__\n",
}


def _advice(found: Found) -> dict[str, str]:
    """What `--env NAME=VALUE` of the first thing that is missing says, values that it leaves open
    as a user would fill them in."""
    fixes = [item.fix for item in judged(found).problems if item.severity == "missing"]
    given = dict(re.findall(r"--env (\w+|@)=(\S+)", fixes[0]))
    usual = {"M": _MODEL, "@": _MODEL, "TP": "2"}
    return {name: usual[name] if value == "VALUE" else value for name, value in given.items()}


@pytest.mark.parametrize("kind", _BRANCHES)
def test_following_the_advice_works(folder: ReadFolder, kind: str) -> None:
    """What is not known leaves the verdict open; what the advice names tells it."""
    text = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" + _BRANCHES[kind]
    found = folder({"train.sh": text})
    assert judged(found).verdict == "cannot tell"
    told = folder({"train.sh": text}, environment=_advice(found))
    assert judged(told).plan is not None, judged(told).problems


def test_a_branch_is_named_with_its_line(folder: ReadFolder) -> None:
    found = folder({"train.sh": _BRANCHES["if"]})
    said = next(item for item in found.problems if item.rule == "undecided-branch")
    assert said.places[0].endswith("train.sh:2") and said.fix == "--env S=1B"
    assert "--num-layers" in said.text and "$1" in said.text
    programs = folder({"train.sh": _BRANCHES["programs"]})
    said = next(item for item in programs.problems if item.rule == "undecided-branch")
    assert "pretrain_gpt.py" in said.text and "pretrain_t5.py" in said.text
    # Not what one of the programs trains.
    assert judged(programs).unpredictable[0].rule == "undecided-branch"


@pytest.mark.parametrize(
    "test",
    [
        'if [ "$RANK" == 0 ]; then mkdir -p out; fi',
        "if [ -f checkpoint ]; then LOAD='--load checkpoint'; fi",
        'if [ -z "$(ls data)" ]; then echo no data; exit 1; fi',
        "command -v nvidia-smi && nvidia-smi",
        'case "$HOSTNAME" in *gpu*) module load cuda ;; esac',
    ],
)
def test_a_branch_that_changes_nothing_is_not_asked_for(folder: ReadFolder, test: str) -> None:
    found = folder({"train.sh": f"{test}\n{_RUN} {_MODEL} {_REST} $LOAD\n"})
    assert "undecided-branch" not in {problem.rule for problem in found.problems}
    assert judged(found).plan is not None


def test_a_variable_of_the_environment_is_taken_as_unset_and_said_to_be(folder: ReadFolder) -> None:
    text = f'if [ "$BIG" = 1 ]; then M="{_OTHER}"; else M="{_MODEL}"; fi\n{_RUN} $M {_REST}\n'
    found = folder({"train.sh": text})
    said = next(item for item in found.problems if item.rule == "undecided-branch")
    assert (said.severity, said.fix) == ("warning", "--env BIG=1")
    assert found.shape is not None and found.shape.layers == 16
    told = folder({"train.sh": text}, environment={"BIG": "1"})
    assert told.shape is not None and told.shape.layers == 24


def test_what_is_wrong_in_every_branch_is_wrong(folder: ReadFolder) -> None:
    text = _BRANCHES["if and else"].replace("--bf16", "--bf16 --recompute-granularty full")
    assert judged(folder({"train.sh": text})).verdict == "will not run"


_FILES = {
    "opts.yaml": "num-layers: 16\nhidden_size: 2048\nnum-attention-heads: 32\nseq_length: 2048\n"
    "max-position-embeddings: 2048\nmicro-batch-size: 2\nglobal-batch-size: 32\n",
    "opts.json": '{"num_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, '
    '"seq_length": 2048, "max_position_embeddings": 2048, "micro_batch_size": 2, '
    '"global_batch_size": 32}',
    "opts.txt": _MODEL.replace(" --", "\n--"),
}


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("form", ["--config {}", "--config-file={}", "@{}", "$(cat {})"])
def test_options_in_a_file(folder: ReadFolder, name: str, form: str) -> None:
    """Read where the file is there; else the verdict is open, and the file is named."""
    if form.startswith("$") and not name.endswith("txt"):
        form = "--args_file {}"
    text = f"{_RUN} {form.format(name)} {_REST}\n"
    without = judged(folder({"a.sh": text}))
    assert without.verdict == "cannot tell"
    assert any(name in f"{item.text} {item.fix}" for item in without.problems)
    assert judged(folder({"a.sh": text, name: _FILES[name]})).plan is not None


@pytest.mark.parametrize("name", ["--deepspeed_config ds.json", "--tp-comm-overlap-cfg x.yaml"])
def test_files_of_other_kinds_hold_no_options(folder: ReadFolder, name: str) -> None:
    found = folder({"a.sh": f"{_RUN} {_MODEL} {_REST} {name}\n"})
    assert not any("file of options" in problem.text for problem in found.problems)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_options_of_a_fork_are_one_notion(folder: ReadFolder, count: int) -> None:
    """However many there are, each is listed, and none keeps the launch from running."""
    more = " ".join(f"--expert-dist-log-{name} x" for name in "abc"[:count])
    found = folder({"a.sh": f"{_RUN} {_MODEL} {_REST} {more}\n"})
    assert judged(found).verdict == "runs and fits"
    assert [item.severity for item in found.problems if item.rule == "unknown-option"] == [
        "warning"
    ] * count


@pytest.mark.parametrize("value", ["TODO", "XX", "your_batch", "<SIZE>", "???"])
def test_a_value_to_fill_in_is_no_error(folder: ReadFolder, value: str) -> None:
    text = f"{_RUN} {_MODEL.replace('size 2 ', f'size {value!r} ')} {_REST}\n"
    assert judged(folder({"a.sh": text})).verdict == "cannot tell"


_HF = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model"


@pytest.mark.parametrize(
    ("tokenizer", "verdict"),
    [
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model bigscience/bloom", "cannot tell"),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model $T", "cannot tell"),
        (
            "--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B",
            "runs and fits",
        ),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file v.json", "runs and fits"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model t.model", "runs and fits"),
    ],
)
def test_a_tokenizer_says_the_vocabulary(folder: ReadFolder, tokenizer: str, verdict: str) -> None:
    text = f"{_RUN} {_MODEL} {_REST.replace('--vocab-size 50000', tokenizer)}\n"
    assert judged(folder({"a.sh": text})).verdict == verdict
    told = judged(folder({"a.sh": text}, vocab=250_880))
    assert told.verdict == "runs and fits"


def test_a_file_that_stands_beside_the_script_is_there(folder: ReadFolder) -> None:
    """So a test for it is decided, and the model that it sets is read."""
    text = f'take() {{\nif [[ -f "$1" ]]; then source "$1"; fi\n}}\ntake m.sh\n{_RUN} $M {_REST}\n'
    found = folder({"train.sh": text, "m.sh": f'M="{_MODEL}"\n'})
    assert "undecided-branch" not in {problem.rule for problem in found.problems}
    assert judged(found).plan is not None


@pytest.mark.parametrize("program", ["pretrain_gpt.py", "finetune.py"])
def test_options_that_a_fork_spells_with_underscores(folder: ReadFolder, program: str) -> None:
    """As Megatron-LLM does: they mean what core's do."""
    options = f"{_MODEL} {_REST} --tensor-model-parallel-size 2".replace("-", "_")
    options = options.replace("__", "--").replace("1e_4", "1e-4")
    found = folder({"a.sh": f"torchrun --nproc_per_node 8 {program} {options}\n"})
    assert (found.tp, found.mbs, found.shape and found.shape.layers) == (2, 2, 16)
    assert judged(found).plan is not None


@pytest.mark.parametrize("test", ['[ "$KIND" = a ]', "[[ $KIND == a ]]", '[ "$1" = a ]'])
def test_what_a_branch_sets_is_not_asked_for_beside_it(folder: ReadFolder, test: str) -> None:
    """Its own value would hide the branch; the answer to the branch is enough."""
    words, precision = SMALL.replace("--bf16", ""), "--bf16"
    text = f"if {test}; then\nMORE='{precision}'\nfi\ntorchrun pretrain_gpt.py {words} $MORE\n"
    asked = [item for item in folder({"a.sh": text}).problems if item.severity == "missing"]
    assert [item.rule for item in asked] == ["undecided-branch"]
    assert not any("MORE" in item.fix for item in asked)
    name, _, value = asked[0].fix.removeprefix("--env ").partition("=")
    answered = folder({"a.sh": text}, environment={name: value})
    assert not [item for item in answered.problems if item.severity in ("missing", "error")]
