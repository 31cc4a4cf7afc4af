"""What a search says of padding and packing, and the packs that it chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.request import Request
from planner.launch.plans import job_launch_note
from planner.predict.command_line import search_command
from planner.search.limit_results import Effort
from planner.search.sample_rules import pack_note, rule_notes, with_pack_length
from planner.search.search import find_plans

TUNED = Request(
    model="llama-3.2-1b", gpus="4xH100", gbs=64, framework="hf-transformers",
    lengths="lognormal:median=200,p95=900,max=4096", limits={"zero": (3,), "tp": (1,)},
)  # fmt: skip


def test_a_search_says_what_padding_costs_and_how_sure_that_is() -> None:
    result = find_plans(TUNED, top=1)
    [packed] = [note for note in result.notes if "--packing pack-varlen" in note]
    assert "times as fast (" in packed and "tokens that count" in packed
    [grouped] = [note for note in result.notes if "longest --balance tokens" in note]
    assert result.plans[0].samples is not None
    assert result.plans[0].time.unequal_s > 0.0
    assert result.notes.index(packed) < result.notes.index(grouped)


def test_the_fastest_rule_has_nothing_to_gain() -> None:
    request = TUNED.model_copy(
        update={"packing": "pack-varlen", "seq": 4096, "gbs": 16, "framework": "torchtune"}
    )
    result = find_plans(request, top=1, fastest_only=True)
    notes = list(rule_notes(request, request.resolve(), result.plans[0], Effort()))
    assert not any("times as fast" in note for note in notes)
    # Torchtune's packs are filled in the order of the samples.
    assert notes == [note for note in notes if note.startswith("Padding is ")] != []


def test_pretraining_and_given_packs_are_left_alone() -> None:
    plain = TUNED.model_copy(update={"lengths": None})
    assert with_pack_length(plain, Effort()) is plain
    assert not list(rule_notes(plain, plain.resolve(), find_plans(plain, top=1).plans[0], Effort()))
    given = TUNED.model_copy(update={"packing": "pack-varlen", "seq": 4096})
    assert with_pack_length(given, Effort()) is given
    assert with_pack_length(TUNED, Effort()) is TUNED


def test_longer_packs_are_taken_where_they_waste_less() -> None:
    """Torchtune opens a pack for each sample that does not fit: short packs are half empty."""
    request = TUNED.model_copy(
        update={"packing": "pack-varlen", "framework": "torchtune", "lengths": "900:1,1300:1"}
    )
    taken = with_pack_length(request, Effort())
    [note] = pack_note(request, taken)
    assert f"Packs of {taken.resolve().seq:,} tokens" in note and "8,192, 16,384" in note
    assert not list(pack_note(TUNED, TUNED)) and not list(pack_note(taken, taken))
    assert request.resolve().seq == 8192 or taken.seq is not None
    short = request.model_copy(update={"seq": 2048}).resolve()
    assert taken.resolve().row_tokens / taken.resolve().seq > 1.2 * short.row_tokens / short.seq
    assert taken.resolve().batch.sequences * taken.resolve().row_tokens == pytest.approx(
        request.resolve().batch.sequences * request.resolve().row_tokens, rel=0.1
    )


def test_launch_files_of_other_targets_say_nothing_of_samples() -> None:
    """A plan of padded or packed samples is not written as one of pretraining; TRL's files say what
    becomes of them."""
    packed = TUNED.model_copy(update={"framework": "torchtitan", "packing": "pack"})
    packed = packed.model_copy(update={"train": "full"})
    note = job_launch_note(packed.resolve())
    assert note is not None and "not for samples under --packing pack" in note
    assert (
        job_launch_note(packed.model_copy(update={"lengths": None, "packing": None}).resolve())
        is None
    )
    assert job_launch_note(TUNED.model_copy(update={"framework": "deepspeed"}).resolve()) is None


def test_a_plan_file_holds_the_samples(tmp_path: Path) -> None:
    from planner.search.plan_file import read_plan_file, to_json

    result = find_plans(TUNED, top=1, fastest_only=True)
    path = tmp_path / "plans.json"
    path.write_text(to_json(result))
    read = read_plan_file(path)
    assert read.plans[0].samples == result.plans[0].samples
    assert read.request.lengths == TUNED.lengths
    assert "--lengths" in search_command(read.request)
