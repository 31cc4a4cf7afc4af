"""Images of a sample, and a model that reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.job.errors import UsageError
from planner.job.image_rules import ImageCount
from planner.job.images import image_count, read_images
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.job.vision import NO_IMAGES
from planner.predict.cost_tables import job_pieces
from planner.predict.evaluate import Proposal, evaluated
from planner.predict.memory.terms import peak_parts
from planner.predict.ops.table import flop_per_token, parameter_count
from planner.predict.ops.trained import held_parameters
from planner.predict.plan import Degrees, Plan
from planner.search.search import find_plans
from tests.configurations import memory_footprint

MODEL = "qwen2.5-vl-7b"
EIGHT = Degrees(dp=8, tp=1, pp=1, cp=1, ep=1, vpp=1, zero=3, mbs=4, grad_acc=1)


def _request(**changes: object) -> Request:
    given = {"model": MODEL, "gpus": "8xH100", "framework": "deepspeed", "gbs": 32, "seq": 2048}
    return Request.model_validate(given | changes)


def _plan(recompute: str = "none", **changes: object) -> Plan:
    return Proposal(_request(**changes), EIGHT, recompute).plan()


def test_parameters_are_the_published_ones() -> None:
    found = load_model(MODEL)
    assert parameter_count(found.spec).total == found.exact_parameters


@pytest.mark.parametrize(
    ("width", "height", "count"),
    [
        # 37 x 27 squares of 28 pixels.
        (1024, 768, ImageCount(1001, 3996, 3996)),
        # The least area is a square of 56 pixels.
        (20, 20, ImageCount(6, 16, 16)),
    ],
)
def test_an_image_is_resized_to_whole_squares(width: int, height: int, count: ImageCount) -> None:
    vision = load_model(MODEL).spec.vision
    assert vision is not None
    assert image_count(vision, width, height) == count


@pytest.mark.parametrize(
    "text", ["", "1024", "0x10x10", "2x0x5", "axbxc", "9999x10x10", "1x1x9999999"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--images"):
        read_images(text)


def test_a_text_model_takes_no_images() -> None:
    with pytest.raises(UsageError, match="reads only text"):
        _request(model="qwen2.5-7b", images="1x1024x768").resolve()


def test_images_longer_than_a_sample_are_refused() -> None:
    with pytest.raises(UsageError, match="--seq 2002 or more"):
        _request(images="2x1024x768", seq=1024).resolve()


def test_images_take_time_and_memory() -> None:
    without, with_images = _plan(image_tokens=100), _plan(images="1x1024x768")
    assert with_images.step_time_s > without.step_time_s
    assert with_images.allocated_bytes > without.allocated_bytes
    model = _request(images="1x1024x768").resolve().model
    assert flop_per_token(model, 2048) > flop_per_token(model.language, 2048)


def test_a_frozen_tower_keeps_nothing_for_backward() -> None:
    images = {"images": "1x1024x768"}
    trained = _plan(**images)
    frozen = _plan(**images, freeze=("vision_tower",))
    both = _plan(**images, freeze=("vision_tower", "projector"))
    assert both.allocated_bytes <= frozen.allocated_bytes < trained.allocated_bytes
    assert both.step_time_s <= frozen.step_time_s < trained.step_time_s
    # Neither gradients nor states of the tower.
    job = _request(**images, freeze=("vision_tower",)).resolve()
    tower = parameter_count(job.model).total - parameter_count(job.model.language).total
    held = held_parameters(job)
    assert 0.9 * tower < held.total - held.trained < tower


def test_a_projector_alone_may_be_trained() -> None:
    job = _request(images="1x1024x768", freeze=("vision_tower", "language_model")).resolve()
    spec = load_model(MODEL).spec.vision
    assert spec is not None
    merged, inner, out = spec.projector.widths
    linear = inner * (merged + 1) + out * (inner + 1)
    assert held_parameters(job).trained == linear + spec.projector.norm_width


def test_nothing_is_left_to_train() -> None:
    parts = ("vision_tower", "projector", "language_model")
    with pytest.raises(UsageError, match="leaves nothing"):
        _request(freeze=parts).resolve()


def test_a_text_model_has_no_parts() -> None:
    with pytest.raises(UsageError, match="reads only text"):
        _request(model="qwen2.5-7b", freeze=("vision_tower",)).resolve()


def test_the_language_model_alone_costs_what_it_did() -> None:
    """A tower that reads no image takes memory for its weights and no compute."""
    job = _request().resolve()
    job = replace(job, model=job.model.model_copy(update={"images": NO_IMAGES}))
    with_tower = Proposal(_request(), EIGHT).of(job)
    alone = Proposal(_request(), EIGHT).of(replace(job, model=job.model.language))
    first, second = evaluated(with_tower), evaluated(alone)
    assert first.time.compute_s == pytest.approx(second.time.compute_s, rel=1e-6)


def test_without_a_word_a_sample_has_the_usual_image() -> None:
    plan = _plan()
    assert any("images not given: assumes one of 1120x896" in text for text in plan.assumptions)
    assert plan.step_time_s == pytest.approx(_plan(images="1x1120x896").step_time_s)
    # Of which a short sample has what it has room for.
    assert _request(seq=512).resolve().model.images.tokens == 1.0


@pytest.mark.parametrize("degree", ["tp", "pp", "cp"])
def test_a_tower_that_is_not_divided_is_said(degree: str) -> None:
    degrees = Degrees(dp=4, grad_acc=8, zero=3).model_copy(update={degree: 2})
    request = _request(framework="torchtitan")
    with pytest.raises(UsageError, match=f"tower of {MODEL} needs {degree} == 1") as refused:
        Proposal(request, degrees).plan()
    assert f"give --{degree} 1" in str(refused.value)
    assert "you gave" not in str(refused.value)


@pytest.mark.parametrize("changes", [{"tp": 2}, {"pp": 2}])
def test_a_search_for_a_divided_tower_does_not_leave_the_tower_out(changes: dict[str, int]) -> None:
    fixed = {"limits": {name: (degree,) for name, degree in changes.items()}}
    with pytest.raises(UsageError, match=r"needs [tp]p == 1") as refused:
        find_plans(_request(framework="torchtitan", **fixed))
    assert "without the vision tower" not in str(refused.value)


def test_blocks_hold_no_layer_of_a_tower_on_the_first_stage() -> None:
    """Megatron-Core recomputes some layers of a block, and the tower stands beside them."""
    found = find_plans(_request(model="smolvlm-2b", framework="megatron-core", gbs=64, seq=8192))
    assert found.proven
    layers = sum(found.plans[0].layout.block_layers)
    assert layers == load_model("smolvlm-2b").spec.layers


def test_a_tower_without_images_is_held_and_does_nothing() -> None:
    without: dict[str, Any] = {"images": "none", "freeze": ("vision_tower", "projector")}
    job = _request(**without).resolve()
    assert job.model.vision is not None
    assert job.model.images == NO_IMAGES
    few = _plan(image_tokens=100, freeze=("vision_tower", "projector"))
    assert _plan(**without).step_time_s < few.step_time_s
    with pytest.raises(UsageError, match="reads only text"):
        _request(model="qwen2.5-7b", images="none").resolve()


def test_a_tower_s_tensors_stand_apart() -> None:
    footprint = memory_footprint(_request(images="1x1024x768"), EIGHT)
    kept = {part.label for part in peak_parts(footprint, footprint.heaviest)}
    assert {"kept: vision tower", "kept: projector", "kept: attention"} <= kept


def test_a_search_that_shares_recomputation_has_a_tower_beside_its_blocks() -> None:
    request = _request(framework="megatron-core", gbs=64, gpus="8xH100", seq=8192)
    assert find_plans(request).plans


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(1024, 768, 1921), (768, 1024, 1933), (336, 336, 2509), (3000, 200, 2329), (500, 2999, 2557)],
)
def test_phi_3_vision_counts_tiles_as_its_processor(width: int, height: int, tokens: int) -> None:
    """image_processing_phi3_v.py, calc_num_image_tokens; the tower reads all 17 tiles."""
    vision = load_model("phi-3.5-vision").spec.vision
    assert vision is not None
    counted = image_count(vision, width, height)
    assert (counted.tokens, counted.patches) == (tokens, 17 * 577)
    # The projector reads what becomes tokens, no tile that only pads.
    assert counted.read * 17 * 576 == pytest.approx(4 * tokens)


def _llama_plan(recompute: str = "none", **changes: object) -> Plan:
    given = {"model": "llama-3.2-11b-vision", "framework": "deepspeed", "train": "lora"}
    return Proposal(_request(**given, **changes), EIGHT, recompute).plan()


def test_layers_attend_across_to_images_alone() -> None:
    """Samples of text pass by the layers that attend across, and images are one token of the row,
    however large they are."""
    text, one, two = (_llama_plan(images=size) for size in ("none", "1x560x560", "2x560x560"))
    assert text.step_time_s < one.step_time_s < two.step_time_s
    assert text.allocated_bytes < one.allocated_bytes < two.allocated_bytes
    images = _request(model="llama-3.2-11b-vision", images="2x1120x1120").resolve().model.images
    assert images.across == 2 * 4 * 1601
    assert images.tokens * 2048 == pytest.approx(2)
    # All images are padded to four tiles.
    smaller = _request(model="llama-3.2-11b-vision", images="2x100x100").resolve().model.images
    assert smaller == images


def test_a_hooked_frozen_tower_runs_again_and_backward() -> None:
    """transformers 5 hooks the patch embedding of CLIP, not that of Qwen3-VL: the latter's frozen
    tower runs forward once, whatever is recomputed."""
    frozen = {"images": "1x336x336", "train": "lora", "freeze": ("vision_tower", "projector")}

    def tower(model: str, recompute: str) -> float:
        """Seconds that images add."""
        seen, blind = (
            Proposal(_request(model=model, **(frozen | {"images": size})), EIGHT, recompute).plan()
            for size in ("1x336x336", "none")
        )
        return seen.step_time_s - blind.step_time_s

    assert tower("llava-1.5-7b", "full") > 1.8 * tower("llava-1.5-7b", "none")
    assert tower("qwen3-vl-8b", "full") == pytest.approx(tower("qwen3-vl-8b", "none"), rel=0.05)


def test_a_layer_that_nobody_reads_runs_once() -> None:
    """LLaVA takes what the last layer but one of CLIP makes: the last one keeps nothing and gets no
    gradient (transformers 5.23, counted: its parameters' gradients are None)."""
    job = _request(model="llava-1.5-7b", images="1x336x336").resolve()
    kinds = [kind for kind in job.model.piece_sequence if kind.module == "vision"]
    assert [kind.unread for kind in kinds] == [False] * 23 + [True]
    table = job_pieces(job)
    read, unread = (table[at] for at in (0, 1))
    assert not any(op.saved or op.returns or op.derives for op in unread.ops)
    assert unread.parameters == read.parameters
    assert any(op.derives for op in read.ops)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "1x100000x20"}, "differ more than 200-fold"),
        (
            {"model": "kimi-vl-a3b", "images": "1x90000x14"},
            "512 or more patches of 14 pixels per side",
        ),
        ({"images": "3x1024x768", "seq": 2048}, "3,003 tokens, but a sample has only 2,048"),
        ({"image_tokens": 0}, "give a whole number"),
        ({"train": "lora:targets=vision_tower"}, "give targets=all-linear"),
        (
            {"train": "lora:targets=vision_tower", "freeze": ("vision_tower",)},
            "--freeze freezes it as well",
        ),
        (
            {"train": "lora:whole=projector", "freeze": ("projector",)},
            "--freeze freezes it as well",
        ),
    ],
)
def test_images_and_parts_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _request(**changes).resolve()


def test_what_a_processor_shrinks_is_said() -> None:
    large = _plan(images="1x9000x9000", seq=32768)
    assert any("images 1x9000x9000: the family's processor" in text for text in large.assumptions)
    small = _plan(images="1x1024x768", seq=32768)
    assert not any("processor makes them smaller" in text for text in small.assumptions)
