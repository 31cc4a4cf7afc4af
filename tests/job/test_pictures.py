"""Images of samples: columns of a lengths file, videos, and images beside lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.job.images import image_count, video_count
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.job.vision import VisionSpec
from planner.predict.evaluate import Proposal
from planner.predict.pictures import held_pictures, timed_pictures
from planner.predict.plan import Degrees, Plan

ONE = Degrees(dp=8, tp=1, pp=1, cp=1, ep=1, vpp=1, zero=0, mbs=2, grad_acc=1)


def vision_of(name: str) -> VisionSpec:
    vision = load_model(name).with_vision().spec.vision
    assert vision is not None
    return vision


def request(**changes: object) -> Request:
    given = {"model": "qwen2.5-vl-3b", "gpus": "8xH100", "framework": "hf-transformers", "gbs": 16}
    return Request.model_validate(given | changes)


def plan(**changes: object) -> Plan:
    return Proposal(request(**changes), ONE).plan()


def written(folder: Path, text: str, name: str = "data.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_tokens_of_images_count_beside_those_of_text(tmp_path: Path) -> None:
    file = written(
        tmp_path, "text_tokens,images,width,height\n100,1,1024,768\n300,0,,\n50,2,448,448\n"
    )
    job = request(lengths=file).resolve()
    lengths = job.samples.lengths
    assert lengths is not None
    # 1,001 and twice 258 tokens.
    assert lengths.tokens == (300.0, 50.0 + 2 * 258, 100.0 + 1001)
    assert lengths.patches == (0.0, 2 * 32.0**2, 3996.0)
    assert lengths.most_patches == 3996.0
    mean = (300 + 566 + 1101) / 3
    assert job.model.images.patches == pytest.approx((2048 + 3996) / 3 / mean)
    assert job.model.images.tokens == pytest.approx((1001 + 516) / (3 * mean))


def test_lengths_of_whole_samples_have_their_images(tmp_path: Path) -> None:
    lines = '{"length": 1200, "image_tokens": 1000}\n{"length": 200, "image_tokens": null}\n'
    job = request(lengths=written(tmp_path, lines, "data.jsonl")).resolve()
    assert job.samples.lengths is not None
    assert job.samples.lengths.tokens == (200.0, 1200.0)
    assert job.samples.lengths.patches == (0.0, 4000.0)


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("length,width\n5,3\n", {}, "column width but no column height"),
        ("length,width,height,image_tokens\n5,3,3,3\n", {}, "keep one of them"),
        ("length,image_tokens\n100,400\n", {}, "call the column text_tokens"),
        ("text_tokens,image_tokens\n100,many\n", {}, "not a whole number"),
        ("text_tokens,images,width,height\n100,2,,\n", {}, "2 images but no width"),
        ("text_tokens,image_tokens\n100,4000\n", {"seq": 2048}, "--seq 4000 or more"),
        ("text_tokens,image_tokens\n100,40\n", {"images": "1x10x10"}, "leave --images 1x10x10 out"),
        ("text_tokens,image_tokens\n100,40\n", {"model": "qwen2.5-3b"}, "reads only text"),
        ("text_tokens,width,height\n100,10,9000\n", {}, "differ more than 200-fold"),
    ],
)
def test_columns_that_say_too_little_or_too_much(
    tmp_path: Path, text: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        request(**{"lengths": written(tmp_path, text)} | changes).resolve()


def test_columns_of_images_take_up_a_tower_beside_the_language_model(tmp_path: Path) -> None:
    file = written(tmp_path, "text_tokens,width,height\n100,800,600\n")
    assert request(model="gemma-3-4b", lengths=file).resolve().model.vision is not None


def test_padding_has_no_images_and_ranks_wait_for_them(tmp_path: Path) -> None:
    rows = "".join(f"1000,{number},448,448\n" for number in (0, 0, 0, 8))
    uneven = written(tmp_path, f"text_tokens,images,width,height\n{rows}")
    even = written(tmp_path, "text_tokens,images,width,height\n1000,2,448,448\n", "even.csv")
    seen, alike = request(lengths=uneven).resolve(), request(lengths=even).resolve()
    assert held_pictures(alike, 2) == timed_pictures(alike, 2) == 1.0
    # The fullest micro-batch has a sample with eight images and one with two on average; padding
    # to the longest of two adds tokens and no image.
    longest = 1000 + 8 * 258
    assert held_pictures(seen, 2) == pytest.approx(
        (8 * 1024 + 2 * 1024) / 2 / (seen.model.images.patches * longest)
    )
    assert timed_pictures(seen, 2) < 1.0
    assert plan(lengths=uneven).time.unequal_s > plan(lengths=even).time.unequal_s == 0.0
    assert plan(lengths=uneven).allocated_bytes > plan(lengths=even).allocated_bytes


def test_images_beside_lengths_count_in_them() -> None:
    """Every sample has as many; whoever is shorter is as long as its images."""
    job = request(images="1x1024x768", lengths="500:1,1500:1").resolve()
    assert job.samples.lengths is not None
    assert job.samples.lengths.tokens == (1001.0, 1500.0)
    assert job.samples.lengths.patches == (3996.0, 3996.0)
    assert job.samples.raised == 0.5
    notes = plan(images="1x1024x768", lengths="500:1,1500:1").assumptions
    assert any("includes their 1,001 tokens; 50.0 % of the samples" in text for text in notes)
    with pytest.raises(UsageError, match="whole samples"):
        request(images="2x1024x768", lengths="500:1,1500:1").resolve()


def test_a_tower_does_as_much_for_padded_samples() -> None:
    """Limits twice as long pad the language model's rows alone."""
    given = {"images": "1x1024x768", "lengths": "1200", "packing": "limit", "train": "lora"}
    text = {"images": "none", "lengths": "1200", "packing": "limit", "train": "lora"}
    short, long = (
        plan(**given, seq=seq).time.compute_s - plan(**text, seq=seq).time.compute_s
        for seq in (1200, 2400)
    )
    assert long == pytest.approx(short, rel=0.1)


def test_videos() -> None:
    """Frames in pairs (Qwen), pooled (LLaVA-OneVision), tiles (InternVL), chunks (Kimi)."""
    two = video_count(vision_of("qwen2.5-vl-7b"), 8, 640, 480)
    frame = image_count(vision_of("qwen2.5-vl-7b"), 640, 480)
    assert (two.patches, two.span) == (4 * frame.patches, frame.patches)
    assert two.tokens == 4 * (frame.tokens - 2) + 2
    assert video_count(vision_of("llava-onevision-7b"), 16, 640, 480).tokens == 16 * 196 + 1
    assert video_count(vision_of("internvl3-8b"), 4, 640, 480).patches == 4 * 1025
    chunk = video_count(vision_of("kimi-k2.5"), 8, 640, 480)
    assert chunk.span == chunk.patches // 2
    with pytest.raises(UsageError, match="8x640x480@video: videos of the family llava are not"):
        request(model="llava-1.5-7b", images="8x640x480@video").resolve()


def test_a_video_is_read_and_its_frames_are_not_images(tmp_path: Path) -> None:
    video = request(images="8x448x448@video", seq=4096).resolve().model.images
    images = request(images="8x448x448", seq=4096).resolve().model.images
    assert video.tokens < 0.6 * images.tokens
    file = written(tmp_path, "length,frames,width,height\n4096,8,448,448\n")
    assert request(lengths=file).resolve().model.images == video
