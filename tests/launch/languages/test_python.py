"""Python files read without running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.launch.languages.limits import LimitError
from planner.launch.languages.python import Neighbours, PythonError, Reader, Record, evaluated


def called(text: str, name: str = "f", **more: Any) -> Any:
    """What a function of a file returns."""
    return Reader(**more).read(text, "x.py").functions()[name].call()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * 3 + 1", 7), ("[0] * 3 + [1] * 2", [0, 0, 0, 1, 1]), ("'a' + 'b'", "ab"),
        ("[1, 2][1]", 2), ("{'a': 1, **{'b': 2}}", {"a": 1, "b": 2}), ("max(3, len('ab'))", 3),
        ("[x * 2 for x in range(4) if x > 1]", [4, 6]), ("1 if 2 > 3 else 'no'", "no"),
        ("'A-b'.lower().replace('-', '_')", "a_b"), ("not []", True), ("'' or 5", 5),
        ("{'a': 1}.get('b', 2)", 2), ("3 in [1, 2]", False),
    ],
)  # fmt: skip
def test_expressions(text: str, value: object) -> None:
    assert evaluated(text) == value


@pytest.mark.parametrize(
    "text", ["f(1)", "x", "1 / 0", "'a' * 999999", "2 ** 8", "''.split('')", "len(range(9**30))"]
)
def test_what_is_not_known(text: str) -> None:
    found = evaluated(text)
    assert isinstance(found, Record)


def test_a_function_is_followed() -> None:
    text = (
        "SIZES = {'s': 4}\n"
        "def half(n, by=2):\n    return n // by\n"
        "def f():\n"
        "    config = Made(size=half(SIZES['s']), **{'x': 1})\n"
        "    if config.size > 1:\n        config.inner.depth = 3\n"
        "    for i in [1, 2]:\n        config.total = i\n"
        "    return config\n"
    )
    made = called(text)
    assert (made.name, made.get("size"), made.get("x")) == ("Made", 2, 1)
    assert (made.get("inner.depth"), made.get("total"), made.get("y", "none")) == (3, 2, "none")


def test_a_dataclass_has_its_defaults_and_those_of_its_bases() -> None:
    text = (
        "class A:\n    one: int = 1\n    listed: list = field(default_factory=list)\n"
        "class B(A):\n    two: int = field(default=2)\n"
        "def f():\n    return B(three=3)\n"
    )
    made = called(text)
    assert {name: made.get(name) for name in ("one", "two", "three")} == {
        "one": 1, "two": 2, "three": 3,
    }  # fmt: skip


def test_a_module_beside_is_followed(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("WIDTH = 8\ndef wide(n):\n    return n * WIDTH\n")
    beside = Neighbours(text=lambda path: path.read_text())
    text = "from .sizes import wide\ndef f():\n    return wide(2)\n"
    reader = Reader(around=beside)
    assert reader.read(text, str(tmp_path / "x.py")).functions()["f"].call() == 16
    assert reader.read(text, "elsewhere/x.py").functions()["f"].call().name == ".sizes.wide"


def test_what_a_caller_knows_of_functions() -> None:
    text = "def f():\n    return Partial(Made, a=read('A'))\n"
    made = called(text, special={"read": lambda name: f"${name}"}, partials=("Partial",))
    assert (made.name, made.get("a")) == ("Made", "$A")


def test_reading_ends() -> None:
    with pytest.raises(LimitError, match="calls deep"):
        called("def f():\n    return f()\n")
    with pytest.raises(PythonError, match="line 2"):
        Reader().read("x = 1\ny = = 2\n", "x.py")
