"""Values of a type that no setting has: every key that a reader asks for is given each of them,
alone and beside each switch turned over. The reader refuses them or reads on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.job.errors import UsageError
from planner.launch.read.document import Document
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from tests.fuzz.material import ACCELERATE, AXOLOTL, DEEPSPEED, NANOTRON, TORCHTITAN

FILES = {
    "titan.toml": (TORCHTITAN, None),
    "nanotron.yaml": (NANOTRON, None),
    "axolotl.yaml": (AXOLOTL, None),
    "ds.json": (json.dumps(DEEPSPEED), "gpt2"),
    "accelerate.yaml": (ACCELERATE, "gpt2"),
}
WRONG: tuple[Any, ...] = (3.7, "x", [1], {"a": 1}, 10**30, float("nan"))


class Asked:
    """A reader's questions, some of which get other answers than the file's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path, hints: Hints) -> None:
        self.file, self.hints = file, hints
        self.answers: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        of_file = Document.get

        def answer(document: Document, key: str, default: Any = None) -> Any:
            self.defaults[key] = default
            return self.answers[key] if key in self.answers else of_file(document, key, default)

        monkeypatch.setattr(Document, "get", answer)

    def about(self, answers: dict[str, Any]) -> dict[str, Any]:
        """The keys that are asked for where these have other values, with their defaults."""
        self.answers, self.defaults = answers, {}
        try:
            read_launch([self.file], self.hints)
        except UsageError as error:
            assert str(error), "a refusal says why"
        return self.defaults


def _turned(asked: Asked) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Nothing changed, and each switch turned over; with the keys that are then asked for."""
    usual = asked.about({})
    yield {}, usual
    for key, default in usual.items():
        if isinstance(default, bool):
            changed = {key: not default}
            yield changed, asked.about(changed)


@pytest.mark.parametrize("name", FILES)
def test_values_of_a_wrong_type_are_refused_or_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    text, model = FILES[name]
    file = tmp_path / name
    file.write_text(text)
    asked = Asked(monkeypatch, file, Hints(gpus=8, gpus_per_node=8, model=model))
    turned = list(_turned(asked))
    assert turned[0][1]
    for changed, keys in turned:
        for key in keys:
            for value in WRONG:
                asked.about({**changed, key: value})


def test_components_that_are_no_list_are_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "titan.toml"
    file.write_text(TORCHTITAN + "[compile]\nenable = true\ncomponents = 3\n")
    found = read_launch([file], Hints(gpus=8, gpus_per_node=8))
    assert [problem.text for problem in found.problems if "components" in problem.text] == [
        "compile.components: 3 is not a list"
    ]
