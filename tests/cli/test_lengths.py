"""`planner lengths`: tokens of texts and of conversations, in every kind of file; the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.job.length_text import read_lengths
from tests.cli.conftest import Run


class Words:
    """Stands for a tokenizer of the tokenizers library: a token a word, and one for the start."""

    @classmethod
    def from_str(cls, text: str) -> Words:
        json.loads(text)
        return cls()

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        start = [0] if add_special_tokens else []
        return [Ids([*start, *range(len(text.split()))]) for text in texts]


class Ids:
    """What a tokenizer makes of a text."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    library = ModuleType("tokenizers")
    library.Tokenizer = Words  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", library)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return str(path)


CHAT: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b c"}]}]},
    {"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b c d"}]},
]  # fmt: skip


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def counted(run: Run, *words: str) -> list[tuple[int, int]]:
    out = str(Path(words[0]).parent / "lengths.csv")
    result = run("lengths", *words, "-o", out, "--force", "-q")
    assert result.exit_code == 0, result.output
    header, *lines = Path(out).read_text().splitlines()
    assert header == "length,samples"
    lengths = read_lengths(out)
    pairs = [tuple(map(int, line.split(","))) for line in lines]
    assert [length for length, _ in pairs] == list(lengths.tokens)
    return [(length, number) for length, number in pairs]


def test_messages_count_with_what_the_template_adds(
    run: Run, tmp_path: Path, tokenizer: str
) -> None:
    data = written(tmp_path / "chat.jsonl", CHAT)
    assert counted(run, data, "--tokenizer", tokenizer) == [(8, 1), (13, 1), (14, 1)]
    plain = counted(run, data, "--tokenizer", tokenizer, "--message-tokens", "0")
    assert plain == [(3, 2), (4, 1)]
    folder = counted(run, data, "--tokenizer", str(Path(tokenizer).parent))
    assert folder[0] == (8, 1)


def test_texts_and_prompts_with_their_answers(run: Run, tmp_path: Path, tokenizer: str) -> None:
    texts = written(tmp_path / "a.jsonl", [{"text": "a b c"}, {"text": "a b c"}, {"text": ""}])
    assert counted(run, texts, "--tokenizer", tokenizer) == [(4, 2)]
    alpaca = [{"instruction": "a", "input": None, "output": "b c"}]
    assert counted(run, written(tmp_path / "b.jsonl", alpaca), "--tokenizer", tokenizer) == [(5, 1)]
    table = tmp_path / "c.csv"
    table.write_text('id,question,answer\n1,"a\n\nb",c\n')
    assert counted(run, str(table), "--tokenizer", tokenizer) == [(5, 1)]
    named = counted(run, str(table), "--tokenizer", tokenizer, "--column", "answer")
    assert named == [(2, 1)]


def test_parquet(run: Run, tmp_path: Path, tokenizer: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"conversations": [row["messages"] for row in CHAT[:1]]}), path)
    assert counted(run, str(path), "--tokenizer", tokenizer) == [(13, 1)]


def test_samples_without_a_token_are_left_out_and_said(
    run: Run, tmp_path: Path, tokenizer: str
) -> None:
    data = written(tmp_path / "a.jsonl", [{"text": "a b"}, {"text": None}])
    result = run("lengths", data, "--tokenizer", tokenizer, "-q")
    assert "1 samples hold no token" in " ".join(result.stdout.split())


def test_a_file_of_lengths_is_shown_and_drawn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("length,samples\n100,3\n900,1\n")
    figure, page = tmp_path / "l.svg", tmp_path / "l.html"
    result = run("lengths", str(path), "--plot", str(figure), "-q")
    words = " ".join(result.stdout.split())
    assert "300.0 of a sample on average; 100 to 900" in words
    assert "512 25.0 %" in words
    assert "share of all, %" in figure.read_text()
    assert run("lengths", str(path), "--plot", str(page), "-q").exit_code == 0
    assert "Lengths of samples" in page.read_text()
    record = json.loads(run("lengths", str(path), "--json").stdout)
    assert record["attended"] == pytest.approx((3 * 100**2 + 900**2) / 1200)


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([{"id": 1}], (), "has no column messages, text"),
        ([{"text": "a"}], ("--column", "body"), "has no column body"),
        ([{"text": ""}], (), "no sample holds a token"),
        ([{"text": 7}], (), "is a int; give a column of texts"),
        ([{"messages": ["a"]}], (), "does not contain messages"),
        ([], (), "is empty"),
    ],
)
def test_what_cannot_be_counted(
    rows: list[dict[str, Any]], more: tuple[str, ...], said: str, run: Run, tmp_path: Path,
    tokenizer: str,
) -> None:  # fmt: skip
    data = written(tmp_path / "a.jsonl", rows)
    result = run("lengths", data, "--tokenizer", tokenizer, "-q", *more)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_files_that_are_not_there(run: Run, tmp_path: Path, tokenizer: str) -> None:
    missing = run("lengths", str(tmp_path / "a.jsonl"), "--tokenizer", tokenizer)
    assert missing.exit_code == 2 and "does not exist" in missing.stderr
    data = written(tmp_path / "a.jsonl", [{"text": "a"}])
    other = run("lengths", data, "--tokenizer", str(tmp_path / "b.json"))
    assert other.exit_code == 2 and "give the tokenizer.json" in other.stderr
    plain = run("lengths", data)
    assert plain.exit_code == 2 and "planner lengths" in plain.stderr
    text = tmp_path / "a.txt"
    text.write_text("a")
    kind = run("lengths", str(text), "--tokenizer", tokenizer)
    assert kind.exit_code == 2 and "JSON lines" in kind.stderr


def test_without_the_library_the_extra_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    data = written(tmp_path / "a.jsonl", [{"text": "a"}])
    result = run("lengths", data, "--tokenizer", data)
    assert result.exit_code == 2 and "trainplan[lengths]" in result.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "length\n0\n"),
        ("a.csv", "length\n"),
        ("a.csv", "words\n3\n"),
        ("a.csv", "length,samples\n3\n"),
        ("a.jsonl", "{"),
        ("a.jsonl", '{"length": "three"}\n'),
        ("a.jsonl", "\x00\n"),
        ("a.json", "[3]"),
        ("a.parquet", "length"),
        ("missing.jsonl", None),
        ("missing.parquet", None),
    ],
)
def test_errors_name_the_argument_and_no_option(
    run: Run, tmp_path: Path, name: str, text: str | None
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    result = run("lengths", str(path), "-q")
    assert result.exit_code == 2 and str(path) in result.stderr.replace("\n", "")
    assert "--lengths" not in result.stderr
    option = run("fit", "--model", "8b", "--gpus", "8xH100", "--lengths", str(path), "-q")
    assert option.exit_code == 2 and f"--lengths {path}" in " ".join(option.stderr.split())
