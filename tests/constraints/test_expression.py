"""The language of conditions: what Python would say of each row, and nothing else gets in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constraints.condition import NAMES, shape_values, user_condition
from constraints.errors import ConstraintError
from constraints.expression import ExpressionError, condition_mask, parse_condition
from planner.predict.space import enumerate_shapes
from tests.constraints.shapes import DENSE, context, one_shape

KNOWN = ("tp", "pp", "cp")

atoms = st.one_of(st.sampled_from(KNOWN), st.integers(0, 9).map(str))
numbers = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda drawn: f"-({drawn})"),
    ),
    max_leaves=4,
)
operators = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
comparisons = st.one_of(
    st.tuples(numbers, operators, numbers).map(" ".join),
    st.tuples(numbers, operators, numbers, operators, numbers).map(" ".join),
    st.tuples(
        numbers, st.sampled_from(["in", "not in"]), st.lists(numbers, min_size=1, max_size=3)
    ).map(lambda parts: f"{parts[0]} {parts[1]} [{', '.join(parts[2])}]"),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda drawn: f"not ({drawn})"),
    ),
    max_leaves=4,
)
rows = st.lists(st.tuples(*[st.integers(-3, 300) for _ in KNOWN]), min_size=1, max_size=12)


def columns(table: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {
        name: np.array(column) for name, column in zip(KNOWN, zip(*table, strict=True), strict=True)
    }


def python_says(text: str, table: list[tuple[int, ...]]) -> list[bool] | None:
    """Python's own answer row by row; None if it divides by zero in some row."""
    try:
        return [
            bool(eval(text, {"__builtins__": {}}, dict(zip(KNOWN, row, strict=True))))
            for row in table
        ]
    except ZeroDivisionError:
        return None


@settings(max_examples=300, deadline=None)
@given(text=conditions, table=rows)
def test_equals_python_in_every_row(text: str, table: list[tuple[int, ...]]) -> None:
    condition = parse_condition(text, KNOWN)
    expected = python_says(text, table)
    if expected is None:
        with pytest.raises(ExpressionError, match="divides by zero"):
            condition_mask(condition, columns(table))
    else:
        assert condition_mask(condition, columns(table)).tolist() == expected


def test_a_guard_keeps_a_division_from_rows_that_it_excludes() -> None:
    table = [(1, 1, 1), (8, 3, 1), (8, 4, 1)]
    for text in ("pp > 1 and tp % (pp - 1) == 0", "not (pp == 1 or tp % (pp - 1) > 0)"):
        mask = condition_mask(parse_condition(text, KNOWN), columns(table))
        assert mask.tolist() == [False, True, False]
    for text, said in (("tp % (pp - 1) == 0", " if pp = 1; guard it: pp - 1 != 0 and ...\n"),
                       ("tp % (1 - 1) == 0", "\n")):  # fmt: skip
        with pytest.raises(ExpressionError) as caught:
            condition_mask(parse_condition(text, KNOWN), columns(table))
        assert str(caught.value).startswith("divides by zero" + said)


def test_products_are_exact_however_large() -> None:
    table = [(2**31, 2**31, 1), (2**31, 1, 2**31)]
    exact = parse_condition("tp*pp == 4611686018427387904", KNOWN)
    assert condition_mask(exact, columns(table)).tolist() == [True, False]
    mixed = parse_condition("tp*pp*cp == 4611686018427387904", KNOWN)
    assert condition_mask(mixed, columns(table)).tolist() == [True, True]
    beyond = parse_condition("tp*tp*pp > 9223372036854775807", KNOWN)
    assert condition_mask(beyond, columns(table)).tolist() == [True, False]


REFUSED = [
    ("", "empty", None),
    ("   ", "empty", None),
    ("tp", "tp is a number, not a condition; write for example tp == 8", 0),
    ("tp*pp", "tp \\* pp is a number", 0),
    ("tp=4", "single = does not compare; write ==", 2),
    ("tq <= 4", "unknown name 'tq'; did you mean 'tp'\\?", 0),
    ("tp <= 4 and qq > 1", "unknown name 'qq'", 12),
    ("tp < 3.5", "3.5 is not a whole number", 5),
    ("tp < True", "True is not a whole number", 5),
    ("tp == 'a'", "'a' is not a whole number", 6),
    ("max(tp, pp) < 4", "functions are not known", 0),
    ("__import__('os')", "functions are not known", 0),
    ("tp.real < 4", "has no parts", 0),
    ("tp[0] < 4", "has no parts", 0),
    ("tp / 2 == 1", "use //", 0),
    ("tp & 1 == 1", "use and", 0),
    ("tp && pp", "write 'and'", 3),
    ("tp ≤ 4", "write '<='", 3),
    ("tp is 4", "compare numbers with ==", 0),
    ("tp in (4)", "list of numbers must follow in: \\(4,\\)", 7),
    ("tp in ()", "the list is empty", 6),
    ("tp in (1, pp <= 2)", "a number is needed here", 10),
    ("1 < tp in (1, 2) < 4", "compared with a list", 10),
    ("(tp < 4) == (pp < 4)", "a number is needed here", 1),
    ("tp <= 4 and", "something is missing at the end", 11),
    ("tp <= 4)", "cannot read this", 7),
    ("9**9**9 > tp", "a power needs two written numbers", 0),
    ("2**99999999999 > tp", "a power needs two written numbers", 0),
    ("tp**2 > 4", "a power needs two written numbers", 0),
    ("99999999999999999999 > tp", "larger than 2\\^63 - 1", 0),
    ("9223372036854775808 > tp", "larger than 2\\^63 - 1", 0),
    ("(tp := 4) == 4", "nothing can be assigned", 1),
    ("lambda: tp", "functions are not known", 0),
    ("[tp for tp in (1, 2)]", "no meaning here", 0),
    ("tp if pp else cp", "no if", 0),
    ("-" * 60 + "tp < 3", "nested more than 40 deep", None),
    ("tp == 1 or " * 200 + "tp == 2", "characters", None),
    ("tp\0 < 4", "cannot", None),
]


@pytest.mark.parametrize(("text", "message", "column"), REFUSED, ids=lambda item: str(item)[:24])
def test_refusals_say_what_and_where(text: str, message: str, column: int | None) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        parse_condition(text, KNOWN)
    if column is None:
        return
    lines = str(caught.value).splitlines()
    assert lines[2] == " " * (4 + column) + "^"
    assert lines[1] == f"    {text}"


def test_unknown_names_list_the_known_ones_within_80_columns() -> None:
    with pytest.raises(ExpressionError) as caught:
        user_condition("require", "microbatches > 4")
    text = str(caught.value)
    assert "did you mean 'num_microbatches'?" in text
    assert all(name in text for name in NAMES)
    assert max(len(line) for line in text.splitlines()) <= 80


def test_every_name_has_a_column() -> None:
    ctx = context(gpus=16)
    shape = one_shape(tp=2, pp=2, dp=3, cp=2, ep=2, mbs=2, grad_acc=5, gbs=30, shard=3)
    values = {name: int(column[0]) for name, column in shape_values(shape, ctx).items()}
    assert tuple(values) != () and set(values) == set(NAMES)
    assert values["gpus"] == values["world"] == 24
    assert values["nodes"] == 3
    assert values["edp"] == 6
    assert values["num_microbatches"] == 5
    assert values["gbs_tokens"] == 30 * DENSE.seq
    assert (values["layers"], values["heads"], values["kv_heads"]) == (8, 12, 4)


@pytest.mark.parametrize(
    ("verb", "text", "obeys"),
    [
        ("require", "tp*cp <= 8", {"tp": 4, "cp": 2}),
        ("forbid", "zero == 3", {"zero": 1}),
        ("fix", "mbs=2", {"mbs": 2}),
        ("fix", " mbs == 2 ", {"mbs": 2}),
    ],
)
def test_verbs(verb: str, text: str, obeys: dict[str, int]) -> None:
    found = user_condition(verb, text)  # type: ignore[arg-type]
    breaks = {"tp": 16} if verb == "require" else {"zero": 3} if verb == "forbid" else {"mbs": 1}
    assert found.mask(one_shape(**obeys), context()).all()
    assert not found.mask(one_shape(**breaks), context()).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing is given"),
        ("mbs", "write NAME=NUMBER, for example mbs=4"),
        ("mbs=two", "write NAME=NUMBER"),
        ("mbz=2", "unknown name 'mbz'; did you mean 'mbs'"),
        ("recompute=full", "give --recompute instead"),
    ],
)
def test_fix_refused(text: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        user_condition("fix", text)


def test_values_of_a_comparison_that_nothing_obeys_are_listed() -> None:
    shapes = {name: np.repeat(column, 20) for name, column in one_shape(cp=2).items()}
    shapes["tp"] = np.arange(20)
    said = [
        user_condition("require", text).values_tried(shapes, context())
        for text in ("tp*cp > 99", "tp // 7 > 9", "cp > 9", "tp > 99", "2 > tp", "tp > cp > 9")
    ]
    many = "tp is 0 to 19 in them"
    some = "tp // 7 is 0, 1 or 2 in them"
    assert said == ["tp * cp is 0 to 38 in them", some, "cp is 2 in them", many, "", ""]


def test_numbers_that_are_wanted_are_tried_and_forbidden_ones_are_not() -> None:
    assert user_condition("require", "mbs in (3, 6) or 5 <= mbs").named("mbs") == (3, 6, 5)
    assert user_condition("require", "num_microbatches == 7").named("grad_acc") == (7,)
    assert user_condition("require", "mbs != 3").named("mbs") == ()
    assert user_condition("require", "mbs in (3, pp)").named("mbs") == (3,)
    assert user_condition("forbid", "mbs == 3").named("mbs") == ()
    ctx = context(gpus=8, conditions=[("fix", "mbs=3")])
    assert 3 in enumerate_shapes(ctx).columns["mbs"]
    plain = enumerate_shapes(context(gpus=8)).columns
    assert 3 not in plain["mbs"]
    assert not plain["recompute"].any()
