"""Lengths of samples: what their texts and files mean, and the rows that packing makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.job.errors import UsageError
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.length_text import read_lengths
from planner.job.request import Request
from planner.job.sample_rows import Row, row_of
from planner.job.samples import Lengths, Packing, Samples, lengths_of, offered_by
from planner.job.sampling import samples_of

NORMAL = "lognormal:median=600,p95=2500,max=8192"


def rows(text: str, packing: Packing, seq: int, mbs: int = 1, **more: Any) -> Row:
    return row_of(Samples(read_lengths(text), packing, **more), seq, mbs)


def test_a_lognormal_has_the_figures_that_were_given() -> None:
    lengths = read_lengths(NORMAL)
    assert lengths.quantile(0.5) == pytest.approx(600, rel=0.01)
    assert lengths.quantile(0.95) == pytest.approx(2500, rel=0.02)
    assert lengths.longest == 8192
    sigma = log(2500 / 600) / 1.6449
    plain = read_lengths("lognormal:median=600,p95=2500")
    assert plain.mean == pytest.approx(600 * exp(sigma**2 / 2), rel=1e-3)
    assert plain.squared == pytest.approx(600**2 * exp(2 * sigma**2), rel=0.01)
    by_mean = read_lengths(f"lognormal:mean={round(plain.mean)},sigma={sigma}")
    assert by_mean.quantile(0.5) == pytest.approx(600, rel=0.01)


def test_a_bare_mean_leaves_the_spread_open() -> None:
    lengths = read_lengths("mean=450")
    assert lengths.mean == pytest.approx(450, rel=1e-3)
    narrow, wide = lengths.unstated
    assert narrow.attended < lengths.attended < wide.attended
    assert "usual spread" in lengths.origin
    assert not read_lengths("450").unstated


def test_a_histogram_is_the_same_whatever_its_shares_add_up_to() -> None:
    one, other = read_lengths("256:0.5,1024:0.5"), read_lengths("1024:7, 256:7")
    assert (one.tokens, one.shares) == (other.tokens, other.shares) == ((256, 1024), (0.5, 0.5))
    assert (one.mean, one.above(256)) == (640, 0.5)
    assert one.cut(512).tokens == (256, 512)


def test_many_lengths_are_joined_without_a_change_of_their_mean() -> None:
    lengths = lengths_of(((float(n), 1.0) for n in range(1, 5001)), "all")
    assert len(lengths.tokens) <= 1024 and lengths.longest == 5000
    assert lengths.mean == pytest.approx(2500.5)
    assert lengths.squared == pytest.approx(5001 * 10001 / 6, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "is not a length"),
        ("mean=0", "is not a length"),
        ("nan", "is not a length"),
        ("", "is not a length"),
        ("200M", "lengths are 1 to"),
        ("lognormal:median=600", "p95 or sigma"),
        ("lognormal:median=600,p95=300", "larger p95"),
        ("lognormal:mean=100,p95=900", "above 387"),
        ("lognormal:median=600,sigma=nan", "give 0 to 3"),
        ("lognormal:median=600,p95=2500,max=8", "below the median"),
        ("lognormal:medium=600,p95=2500", "is not one of"),
        ("256:nan,512:1", "is not a share"),
        ("256:0", "above 0"),
        ("256:-1", "is not a share"),
        ("nowhere.csv", "does not exist"),
        ("data.json", "JSON lines"),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_lengths(text)


def parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet as files

    files.write_table(pa.table(columns), path)


FILES: dict[str, Callable[[Path], object]] = {
    "a.csv": lambda path: path.write_text("text,length\nx,100\ny,300\n"),
    "b.csv": lambda path: path.write_text("length,samples\n100,2\n300,2\n"),
    "c.csv": lambda path: path.write_text("100\n300\n"),
    "d.tsv": lambda path: path.write_text("id\tNum_Tokens\n1\t100\n2\t300\n"),
    "e.jsonl": lambda path: path.write_text(
        "\n".join(json.dumps({"input_ids": [1] * n}) for n in (100, 300))
    ),
    "f.parquet": lambda path: parquet(path, {"length": [100, 300]}),
    "g.parquet": lambda path: parquet(path, {"input_ids": [[1] * 100, [1] * 300]}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_column_of_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FILES[name](path)
    lengths = read_lengths(str(path))
    assert (lengths.tokens, lengths.shares) == ((100, 300), (0.5, 0.5))


def test_another_column_is_named_behind_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,size\n1,64\n2,64\n")
    assert read_lengths(f"{path}:size").tokens == (64,)
    with pytest.raises(UsageError, match=r"it has id, size. Write .*a.csv:id"):
        read_lengths(str(path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "length\n", "contains no sample"),
        ("a.csv", "length\n0\n", "lengths are 1 to"),
        ("a.csv", "length\nnan\n", "is not a length"),
        ("a.csv", "length\n1.5\n", "is not a length"),
        ("a.csv", "length\n-4\n", "is not a length"),
        ("a.csv", "length,samples\n4,-1\n", "is not a number of samples"),
        ("a.csv", "id,length\n7\n", "has 1 cells"),
        ("a.jsonl", "[1]\n", "one object per line"),
        ("a.jsonl", '{"length": 4}\n{"len": 4}\n', "has no 'length'"),
        ("a.jsonl", '{"length": true}\n', "is not a length"),
        ("a.jsonl", "{\n", "is not JSON"),
        ("a.parquet", "PAR0", "is not Parquet"),
    ],
)
def test_what_a_file_cannot_hold(name: str, content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises((UsageError, ValueError), match=said):
        read_lengths(str(path))


def test_rows_padded_to_the_limit_and_to_the_longest() -> None:
    """Of two equal lengths the longer of n draws is the long one but once in 2^n."""
    limit = rows("100:1,300:1", "limit", 1024, mbs=8)
    assert limit == Row(200, 1024, 1024, 1, 1024)
    two = rows("100:1,300:1", "longest", 1024, mbs=2)
    assert two.computed == pytest.approx(0.25 * 100 + 0.75 * 300)
    assert two.attended == pytest.approx((0.25 * 100**2 + 0.75 * 300**2) / two.computed)
    assert rows("100:1,300:1", "longest", 1024, balance="tokens", mbs=8).computed < 210


def test_the_longest_of_a_microbatch_is_that_of_draws() -> None:
    lengths = read_lengths(NORMAL)
    draws = np.random.default_rng(1).choice(lengths.tokens, (200_000, 6), p=lengths.shares)
    longest = draws.max(axis=1)
    row = rows(NORMAL, "longest", 8192, mbs=6)
    assert row.computed == pytest.approx(longest.mean(), rel=0.01)
    assert row.attended == pytest.approx((longest**2).mean() / longest.mean(), rel=0.01)


def test_packs() -> None:
    """Packs of one length hold as many as fit; texts that are cut fill every pack; the best fit
    wastes less than the next fit, and attention within samples takes their squares."""
    whole = rows("300", "pack", 1024, packer="next-fit")
    assert whole[:5] == pytest.approx((900, 1024, 1024, 3, 1024))
    within = rows("300", "pack-varlen", 1024, packer="best-fit")
    assert within.attended == pytest.approx(3 * 300**2 / 1024, rel=0.01)
    cut, following, best = (
        rows(NORMAL, "pack-varlen", 8192, packer=packer)
        for packer in ("cut", "next-fit", "best-fit")
    )
    assert following.counted < 0.95 * best.counted < best.counted <= cut.counted == 8192
    assert best.attended == pytest.approx(read_lengths(NORMAL).attended, rel=0.03)
    assert cut.attended < best.attended


def sampled(**more: Any) -> tuple[Samples, int]:
    request = Request(**{"model": "8b", "gpus": "8xH100", "gbs": 64, **more})
    return samples_of(request, request.find_framework(), request.find_model().spec)


def test_rules_of_the_framework_and_limits() -> None:
    samples, seq = sampled(lengths=NORMAL, framework="hf-transformers")
    assert (samples.packing, samples.balance, seq) == ("longest", "none", 8192)
    samples, seq = sampled(lengths="mean=450", framework="torchtune", packing="pack-varlen")
    assert (samples.packer, seq) == ("next-fit", 8192)
    # Of a spread without a longest sample the tools' usual cut is the limit.
    assert sampled(lengths="mean=450", framework="deepspeed")[1] == 2048
    assert sampled(lengths=NORMAL, framework="deepspeed")[1] == 8192
    samples, seq = sampled(lengths=NORMAL, framework="hf-transformers", seq=2048)
    assert seq == 2048 and samples.cut == pytest.approx(0.08, abs=0.01)
    assert sampled() == (Samples(), 8192)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"packing": "longest"}, "give those too"),
        ({"balance": "flop"}, "give those too"),
        ({"lengths": NORMAL, "packing": "longest"}, "megatron-core has pack, pack-varlen"),
        ({"lengths": NORMAL, "balance": "tokens"}, "megatron-core has none, hybrid-cp"),
        ({"lengths": NORMAL, "balance": "hybrid-cp"}, "needs --packing pack-varlen"),
        ({"lengths": NORMAL, "balance": "flop"}, "frameworks that have it: textbook"),
        ({"lengths": "9000", "model": "gpt2"}, "give --seq 1024, which cuts 100.0 %"),
        ({"lengths": "2048", "seq": 4096, "model": "gpt2"}, "gpt2 has only 1,024 positions"),
        (
            {"lengths": NORMAL, "framework": "hf-transformers", "packing": "pack-varlen",
             "attention": "eager"},
            "fused attention kernels",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_nearest_fix(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sampled(**more)


@pytest.mark.parametrize("framework", ["hf-transformers", "deepspeed", "unsloth", "torchtune"])
@pytest.mark.parametrize("objective", ["dpo", "orpo", "reward"])
def test_answers_are_padded(framework: str, objective: str) -> None:
    """TRL's trainers for preferences and rewards have no packing."""
    asked = Request(
        model="llama-3.2-1b", gpus="1xH100", gbs=4, framework=framework, lengths=NORMAL,
        objective="dpo" if framework == "torchtune" else objective,
    )  # fmt: skip
    assert asked.resolve().samples.packing == "longest"
    packed = asked.model_copy(update={"packing": "pack-varlen"})
    with pytest.raises(UsageError, match="instead of joining them; give --packing longest"):
        packed.resolve()
    assert packed.model_copy(update={"objective": "lm"}).resolve().samples.is_packed


def test_every_framework_says_what_it_does_with_samples() -> None:
    for name in framework_names():
        offered = offered_by(name, load_framework(name).family)
        assert offered.packings and offered.balances[0] == "none" and offered.source


def test_lengths_cut_keep_what_is_open() -> None:
    assert all(other.longest == 512 for other in read_lengths("mean=450").cut(512).unstated)
    assert isinstance(read_lengths("mean=450").cut(512), Lengths)
