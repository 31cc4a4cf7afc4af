"""Rows that contradict themselves, words that nobody knows, and rows with one cell changed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache

import pytest

from planner.evidence.runs.contradictions import in_known_words
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.open_facts import open_facts
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, grouped, read_rows, words_of
from tests.evidence.runs.rows_for_tests import KORTHIKANTI_175B, row

PIPELINE = {"tp": "1", "pp": "8", "vpp": "", "layers": "96", "num_gpus": "8"}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"dp": "2"}, "dp·tp·pp·cp = 2·8·8·1 = 128, but num_gpus is 64"),
        ({"pp": "1", "vpp": "3"}, "vpp is 3 without pipeline stages; give pp, or vpp 1"),
        ({"head_stage": "8"}, "head_stage 8 is not one of the stages 0 to 7"),
        (
            {"num_gpus": "128", "gbs": "4", "mbs": "4"},
            "gbs is 4, less than one micro-batch of mbs 4 for each of dp 2",
        ),
        ({"pipeline_runs": "0"}, "pipeline_runs is 0, but must be 1 or more"),
        ({"pipeline_runs": "65"}, "gbs 64 is less than pipeline_runs 65 of mbs·dp 1"),
        (
            {"moe": "8 experts top2", "ep": "8", "etp": "2"},
            "ep·etp = 8·2 = 16 does not divide the 8 GPUs of a stage",
        ),
        (
            {"precision": "fp32", "state_precision": "bf16"},
            "precision fp32 with state_precision bf16: 32-bit products need 32-bit weights; "
            "write precision bf16, or state_precision fp32",
        ),
        ({"recompute_share": "1.5"}, "recompute_share is 1.5, but must be 0 to 1"),
        (
            {"recompute": "none", "recompute_share": "0.5"},
            "recompute_share is 0.5 with recompute none",
        ),
        ({"tuning": "odd"}, "tuning 'odd' is not modelled"),
        ({"block": "encoder-decoder"}, "block 'encoder-decoder' is not modelled"),
        ({"compile": "y", "variant": "eager"}, "compile is y, and variant says eager"),
        (
            PIPELINE | {"layers_per_stage": "24x4"},
            "layers_per_stage lists 4 blocks, but pp·vpp = 8·1 = 8; list one for each stage and "
            "chunk, or leave vpp out",
        ),
        (
            PIPELINE | {"vpp": "3", "layers_per_stage": "12x8"},
            "layers_per_stage lists 8 blocks, but pp·vpp = 8·3 = 24; list one for each stage and "
            "chunk, or leave vpp out",
        ),
        (
            {"fabric": "infiniband 0x200Gbps"},
            "fabric 'infiniband 0x200Gbps' has no rate; leave the column empty",
        ),
    ],
)  # fmt: skip
def test_a_row_that_contradicts_itself_is_refused_by_the_cells_that_do(
    cells: dict[str, str], reason: str
) -> None:
    (found,) = predict_rows([row(**cells)])
    assert found.error == reason


def test_a_source_that_doubts_its_layout_is_believed_in_its_degrees() -> None:
    (found,) = predict_rows([row(dp="2", doubt="layout: the product is not the GPU count")])
    assert found.error is None


@pytest.mark.parametrize("overlap", ["tp pp dp", ""])
@pytest.mark.parametrize(("listed", "chunks"), [("11/12x6/13", 1), ("5/6x14/7", 2)])
def test_a_list_of_layers_says_how_many_chunks_a_stage_has(
    overlap: str, listed: str, chunks: int
) -> None:
    """Overlapped sends mean interleaving only where nothing says how many blocks there are."""
    (found,) = predict_rows([row(**PIPELINE | {"layers_per_stage": listed, "overlap": overlap})])
    assert found.error is None
    assert found.configured.degrees.vpp == found.configured.layout.vpp == chunks


@pytest.mark.parametrize(
    ("column", "text", "read"),
    [
        ("compile", "True", "y"),
        ("seq_parallel", "yes", "y"),
        ("tied", "0", "n"),
        ("seq_parallel", "y (with tp)", "y"),
        ("cuda_graphs", "no", "none"),
        ("cuda_graphs", "enabled", "y"),
        ("overlap", "no-tp grad_reduce", "no-tp grad_reduce"),
    ],
)
def test_yes_and_no_in_any_spelling(column: str, text: str, read: str) -> None:
    known, unknown = in_known_words(row(**{column: text}))
    assert (known.text(column), unknown) == (read, ())


def test_unknown_words_are_as_if_nothing_were_stated_and_are_named() -> None:
    strange = {"loss": "magic", "cp_comm": "pigeons", "position": "clock", "overlap": "some"}
    mapped, plain = map_row(row(**strange)), map_row(row())
    assert mapped.job == plain.job
    assert [text.partition(" not stated")[0] for text in mapped.assumed] == [
        column for column in words_of("known") if column in strange
    ]
    assert all(repr(text) in " ".join(mapped.assumed) for text in strange.values())


def test_a_fact_in_unknown_words_is_open() -> None:
    cells = {"framework": "HF Trainer", "pp": "1", "vpp": "1", "tp": "1", "zero": "3", "gbs": "64"}
    plain, strange, stated = (
        open_facts(one) or ()
        for one in predict_rows(row(**cells, loss=text) for text in ("", "magic", "plain"))
    )
    assert "loss" in plain and strange == plain and "loss" not in stated


@cache
def _published() -> tuple[MeasuredRow, ...]:
    return tuple(read_rows(PUBLISHED))


def test_every_word_of_the_published_runs_is_known() -> None:
    for column, pattern in words_of("known").items():
        words = {(one.text(column) or "").lower() for one in _published()} - {""}
        assert [word for word in words if not re.fullmatch(pattern, word)] == [], column


# Of what a run was, not where it is from or what was measured.
_OF_THE_RUN = (
    *(name for name in KORTHIKANTI_175B if name not in ("source", "model", "step_time_s", "oom")),
    *words_of("known"), "layers_per_stage", "head_stage", "schedule", "pipeline_runs", "zero_group",
    "recompute_share", "optimizer", "kernel", "variant", "mixer", "moe", "mla", "mtp_layers",
    "head_dim", "etp", "fabric", "power_w", "software", "dp", "gbs_tokens", "gpu_mem_gb",
)  # fmt: skip


def _with_one_cell_changed(seed: int) -> Iterator[MeasuredRow]:
    """Of each kind of published run one, and for each column one with another value of that column
    that some run has, or none."""
    random_state = random.Random(seed)
    kinds = grouped(_published(), _kind)
    seen = {
        name: sorted({one.text(name) or "" for one in _published()} | {""}) for name in _OF_THE_RUN
    }
    for members in kinds.values():
        base = random_state.choice(members)
        for name, values in seen.items():
            changed = base.cells | {name: random_state.choice(values)}
            yield MeasuredRow(base.file, base.line, changed)


def _kind(one: MeasuredRow) -> tuple[bool, ...]:
    several = ((one.integer(name) or 1) > 1 for name in ("pp", "vpp"))
    stated = (one.text(name) is not None for name in ("moe", "layers_per_stage"))
    return *several, *stated


def test_a_row_with_one_cell_changed_is_predicted_or_refused_in_a_line() -> None:
    """No exception, no empty reason, no figure that is none."""
    for found in predict_rows(_with_one_cell_changed(seed=44)):
        if found.error is not None:
            assert found.error and "\n" not in found.error
            continue
        seconds = found.step_time_s
        assert seconds is None or 0.0 < seconds < float("inf"), found.row.cells
        held = found.memory_bytes()
        assert held is None or 0.0 < held < float("inf"), found.row.cells
