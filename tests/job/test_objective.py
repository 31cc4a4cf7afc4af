"""What `--objective` says, and what is refused."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.objective import KINDS, NEXT_TOKEN, Objective, objective_rules, read_objective


def test_every_kind_has_rules() -> None:
    assert set(objective_rules()) == set(KINDS)
    assert read_objective("lm") == NEXT_TOKEN == read_objective("sft")


def test_the_usual_reference_follows_what_is_trained() -> None:
    assert read_objective("dpo").reference == "copied"
    assert read_objective("dpo", adapters=True).reference == "adapters-off"
    assert read_objective("simpo", adapters=True).reference == "none"


def test_libraries_words_are_known() -> None:
    assert read_objective("rm") == Objective("reward")
    assert read_objective("kto:reference=precompute").reference == "precomputed"
    assert read_objective("gkd:teacher=70b") == Objective("distill", teacher="70b")


@pytest.mark.parametrize(
    ("text", "adapters"),
    [
        ("dpo:reference=copied", False),
        ("kto:reference=adapters-off", True),
        ("orpo", False),
        ("distill:teacher=llama-3-70b", False),
    ],
)
def test_an_objective_reads_as_it_is_written(text: str, adapters: bool) -> None:
    assert str(read_objective(text, adapters=adapters)) == text


def test_the_same_objective_with_less_in_memory() -> None:
    assert [str(one) for one in read_objective("dpo").lighter()] == [
        "dpo:reference=precomputed",
        "dpo:reference=copied,logits=chunked",
        "dpo:reference=precomputed,logits=chunked",
    ]
    assert [str(one) for one in read_objective("simpo").lighter()] == ["simpo:logits=chunked"]
    assert not NEXT_TOKEN.lighter()
    assert not read_objective("reward").lighter()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dpoo", "Did you mean 'dpo'"),
        ("dpo:referenc=copied", "Did you mean 'reference'"),
        ("dpo:reference", "reference is given no value; give one"),
        ("dpo:reference=", "reference is given no value; give one"),
        ("dpo:reference=copied,reference=copied", "given twice"),
        ("dpo:reference=none", "simpo or orpo"),
        ("dpo:reference=copyed", "Did you mean 'copied'"),
        ("dpo:reference=adapters-off", "--train lora"),
        ("simpo:reference=copied", "does not use a reference"),
        ("distill", "distill:teacher=70b"),
        ("dpo:teacher=70b", "distill:teacher=70b"),
        ("dpo:logits=fp16", "known are full, fp32, chunked"),
        ("reward:logits=chunked", "computes no logits"),
        ("lm:logits=fp32", "the framework decides"),
    ],
)
def test_bad_objectives_are_refused_with_the_nearest_fix(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_objective(text)
