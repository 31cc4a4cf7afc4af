"""Scripts read without running them."""

from __future__ import annotations

import pytest

from planner.launch.languages.shell import (
    Around,
    Script,
    Scripts,
    Starters,
    evaluate_arithmetic,
    read_scripts,
)
from planner.launch.languages.text import SourceFile, Span, Text


def shell_of(text: str, **given: str) -> Scripts:
    """What a script does."""
    around = Around(given=given, starters=Starters(counts=("srun",)))
    return read_scripts([Script(SourceFile("x.sh", text).as_text())], around)


def words_of(text: str, **given: str) -> list[str]:
    """Words of a script's last command; unknown ones as `?`."""
    command = shell_of(text, **given).commands[-1]
    return [word.text.value if not word.text.unknown else "?" for word in command.words]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("TP=8\nrun --tp $TP", ["run", "--tp", "8"]),
        ("run --tp ${TP:-4}", ["run", "--tp", "4"]),
        ("TP=2; run --tp ${TP:-4}", ["run", "--tp", "2"]),
        ("run ${X:=5} $X", ["run", "5", "5"]),
        ("TP=8\nrun ${TP:+--sequence-parallel}", ["run", "--sequence-parallel"]),
        ("A=(--x 1\n  # a note\n --y '2 3')\nrun \"${A[@]}\"", ["run", "--x", "1", "--y", "2 3"]),
        ("A=('--x 1')\nrun ${A[@]}", ["run", "--x", "1"]),
        ("A=('--x 1')\nrun \"${A[@]}\"", ["run", "--x 1"]),
        ("A=('--p ${PWD}/x')\nB=(\"--p ${PWD}/x\")\nrun ${B[@]}", ["run", "--p", "$PWD/x"]),
        ('A=1; B=2\nC="--a ${A} ${B}  $A end"\nrun $C', ["run", "--a", "1", "2", "1", "end"]),
        ('A=1; B=2\nrun "${A} ${B:-3} ${C:-4}"', ["run", "1 2 4"]),
        ("A=(--x)\nA+=(--y 1)\nrun ${A[@]}", ["run", "--x", "--y", "1"]),
        ('A="--x 1 \\\n --y 2"\nrun $A', ["run", "--x", "1", "--y", "2"]),
        ('A="--x 1"\nA="$A --y 2"\nrun $A', ["run", "--x", "1", "--y", "2"]),
        ("A='a b'\nrun \"$A\"", ["run", "a b"]),
        ("N=4; G=8\nrun $((N * G / 2 + 1)) $[N-1]", ["run", "17", "3"]),
        ("run \\\n  --a 1 \\\n  --b 2", ["run", "--a", "1", "--b", "2"]),
        ("P=4\nif [ $P -gt 1 ]; then A=--pp; else A=--no; fi\nrun $A", ["run", "--pp"]),
        ("P=1\nif [[ $P == 2 ]]; then A=x; elif (( P == 1 )); then A=y; fi\nrun $A", ["run", "y"]),
        ("if [ -z \"$UNSET\" ]; then A=1; fi\nrun $A", ["run", "1"]),
        ("M=70b\ncase $M in 8b) L=32;; 70b|72b) L=80;; esac\nrun $L", ["run", "80"]),
        ("A=1 && B=2\n[ $A = 1 ] && C=3\n[ $A = 1 ] || C=4\nrun $B $C", ["run", "2", "3"]),
        ("f() { A=7; }\nf\nrun $A", ["run", "7"]),
        ("eval \"run --a 1\"", ["run", "--a", "1"]),
        ("A=3\nsrun -N 2 bash -c \"run --a $A\"", ["srun", "-N", "2", "run", "--a", "3"]),
        ("CMD=\"run --a\"\n$CMD 1 2>&1 | cat > log &", ["cat"]),
        ("run \"a\\\"b\" c\\ d", ["run", 'a"b', "c d"]),
        # What a loop that is not followed sets is not known after it.
        ("A=1\nB=2\nfor x in \"${NONE[@]}\"; do A=$x; done\nrun $A $B", ["run", "?", "2"]),
        ("A=()\nwhile read -r x; do if [ $x ]; then A+=($x); fi; done\nrun ${A[@]} 1",
         ["run", "?", "1"]),
        ("A=1\nfor ((i=0; i<4; i++)); do A=$((A+i)); done\nrun $A", ["run", "?"]),
        ("run --n $(wc -l < hosts) $UNSET", ["run", "--n", "?", "?"]),
        ("for x in 1 2; do A=$x; done\nrun ${A:-none}", ["run", "1"]),
        ("C=deep.yaml\n[[ $C == *\"fsdp\"* ]] && A=1\n[[ $C == *'deep'* ]] && B=2\nrun $A $B",
         ["run", "?", "2"]),
        ("C='run\n --a 1'\nbash -c \"$(echo \"$C\" | tr '\\n' ' ')\"", ["run", "--a", "1"]),
        ("local B=2\nexport A=é\nrun $A $B", ["run", "é", "2"]),
    ],
)  # fmt: skip
def test_words(script: str, words: list[str]) -> None:
    assert words_of(script) == words


def test_given_variables_win() -> None:
    assert words_of("TP=8\nrun $TP $SLURM_NNODES", TP="2", SLURM_NNODES="16") == ["run", "2", "16"]


def test_what_the_caller_knows_around_a_script() -> None:
    around = Around(
        machine={"NODES": "4", "GPUS": "8"},
        directives=lambda script: {"QUEUE": Text.made("long")} if "#Q" in script.value else {},
        counted_by=lambda command: ("NODES",) if "hosts" in command else (),
        open_file=lambda name, _: Text.made("run --b $1") if name.endswith("b.sh") else None,
        starters=Starters(submits={"submit": "#Q"}, counts=("start",)),
    )
    text = (
        "#Q\nGPUS=2\nrun $NODES $GPUS $QUEUE $(wc -l < hosts)\nstart -n 2 ./b.sh 3\nsubmit -x b.sh"
    )
    scripts = read_scripts([Script(Text.made(text))], around)
    words = [[word.text.value for word in command.words] for command in scripts.commands]
    assert words[0] == ["run", "4", "2", "long", "4"]
    assert words[1] == ["start", "-n", "2", "run", "--b", "3"]
    assert [one.value for one in scripts.submitted] == ["run --b $1\n#Q -x\n"]


def test_a_branch_that_reading_cannot_decide_is_taken_as_chosen() -> None:
    text = SourceFile("x.sh", "if [ $A = 1 ]; then B=2; else B=3; fi\nrun $B").as_text()
    scripts = read_scripts([Script(text)], Around(option="-v"))
    (site, undecided), *_ = scripts.undecided.items()
    assert scripts.commands[-1].words[1].text.value == "3"
    assert (undecided.place, undecided.taken, undecided.advice) == ("x.sh:1", 0, ("-v A=1",))
    again = read_scripts([Script(text)], Around(), {site: 1})
    assert again.commands[-1].words[1].text.value == "2"


def test_environment_of_a_command() -> None:
    command = shell_of("export A=1\nB=2\nC=3 run x").commands[-1]
    assert {name: item.value for name, item in command.environment.items()} == {"A": "1", "C": "3"}


def test_places_are_those_of_the_definition() -> None:
    text = "# é\nTP=8\nARGS=(--tp $TP)\nrun ${ARGS[@]}\n"
    shell = shell_of(text)
    word = shell.commands[-1].words[2]
    start = text.index("8")
    span = word.text.span()
    assert span == Span(SourceFile("x.sh", text), start, start + 1)
    assert span is not None
    assert span.line == 2


def test_here_document_is_a_file() -> None:
    written = shell_of('S=2\ncat <<EOF > ds.json\n{"stage": $S}\nEOF\n').written
    assert written["ds.json"].value == '{"stage": 2}\n'
    quoted = shell_of("cat <<'EOF' > a.json\n{$S}\nEOF\n").written
    assert quoted["a.json"].value == "{$S}\n"


def test_undecided_tests_are_named() -> None:
    shell = shell_of("if [ -f x ]; then A=1; fi\nrun ${A:-0}")
    assert shell.commands[-1].words[1].text.value == "0"
    assert "line 1" in shell.notes[0]


def test_endless_recursion_ends() -> None:
    assert shell_of("f() { f; }\nf\nrun x").commands[-1].words[1].text.value == "x"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*3+1", 7), ("$A/2", 4), ("-7/2", -3), ("7%4", 3), ("2**10", 1024), ("A > 9", 0),
        ("A == 9 && 1", 1), ("!A", 0), ("(1+2)*3", 9), ("1/0", None), ("2**999999", 0),
        ("2**63", -(2**63)),
        ("(9**64)**64 % 7", 6),
        ("__import__('os')", None), ("A.real", None), ("1 +", None),
    ],
)  # fmt: skip
def test_arithmetic(text: str, value: int | None) -> None:
    assert evaluate_arithmetic(text, {"A": "9"}) == value
