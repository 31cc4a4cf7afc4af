"""The tokenizers library itself, under `planner lengths`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.job.length_count import count_lengths

pytestmark = pytest.mark.frameworks


def test_lengths_are_the_tokenizers(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "a b c"}\n{"text": "a"}\n')
    found = count_lengths(data, tmp_path, (), 5, lambda *_: None)
    assert found == Counter({3: 1, 1: 1})
    data.rename(tmp_path / "tokenizer.json")
    data.write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match=r"is no tokenizer\.json"):
        count_lengths(data, tmp_path, (), 5, lambda *_: None)
