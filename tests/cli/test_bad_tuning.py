"""Wrong input of fine-tuning: refused by every command that takes it, with what was given and the
nearest fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

MODEL = ("--model", "llama-3.2-1b")
COMMANDS = {
    "fit": ("--gpus", "1xRTX4090"),
    "search": ("--gpus", "2xH100", "--gbs", "8"),
    "evaluate": ("--gpus", "2xH100", "--gbs", "8", "--mbs", "1"),
    "memory": ("--gpus", "2xH100", "--gbs", "8", "--mbs", "1"),
    "compare": ("--gpus", "1xH100", "--gpus", "2xA100", "--gbs", "8", "--tokens", "1M"),
    "buy": ("--gpus", "1xH100", "--gpus", "2xA100", "--gbs", "8", "--tokens", "1M"),
}
WRONG = [
    # Ranks above the width, or none.
    (("--train", "lora:rank=100000"), ("rank=100000", "512 wide", "give rank=512 or less")),
    (("--train", "lora:rank=0"), ("rank=0", "of at least 1")),
    # Targets that no layer has.
    (("--train", "lora:targets=experts"), ("no layer experts", "it has q, k")),
    (("--train", "lora:targets=quary"), ("quary", "known are")),
    # Nothing to train.
    (("--freeze", "layers:16,embeddings,head,norms"), ("leaves nothing", "leave a module out")),
    (("--freeze", "layers:99"), ("layers:99", "layers:15 or fewer")),
    # A base that the library does not split.
    (("--train", "qlora:base=nf4", "--tp", "2"), ("base=nf4", "tp == 1")),
    (("--train", "qlora:base=nf5"), ("nf5", "Did you mean 'nf4'")),
    # Lengths of zero, beyond the positions, of no use.
    (("--lengths", "0"), ("0", "mean=450")),
    (("--lengths", "zero.csv"), ("zero.csv, line 2", "0 tokens", "1 to")),
    (("--lengths", "9999999"), ("9,999,999", "131,072", "give --seq 131072")),
    (("--lengths", "missing.csv"), ("missing.csv", "does not exist")),
    (("--packing", "longest"), ("--packing longest", "--lengths mean=450")),
    (("--balance", "hybrid-cp"), ("--balance hybrid-cp", "--lengths mean=450")),
    (
        ("--lengths", "450", "--balance", "hybrid-cp", "--framework", "torchtune"),
        ("torchtune has none", "megatron-core"),
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda item: " ".join(item)[:40])
def test_every_command_refuses_it(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    words: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.csv").write_text("length\n0\n")
    result = run(command, *MODEL, *COMMANDS[command], *words, "-q")
    told = " ".join(f"{result.output} {result.stderr}".split())
    assert result.exit_code == 2, told
    for text in said:
        assert text in told


@pytest.mark.parametrize(
    ("value", "said"),
    [("0", "give a whole number of at least 1"), ("-3", "give a whole number of at least 1"),
     ("many", "valid integer"), ("9999999", "give --seq")],
)  # fmt: skip
def test_image_tokens_are_a_number_that_fits_a_sample(run: Run, value: str, said: str) -> None:
    job = ("--model", "qwen2.5-vl-7b", "--gpus", "1xH100", "--framework", "hf-transformers")
    result = run("evaluate", *job, "--gbs", "16", f"--image-tokens={value}")
    assert result.exit_code == 2
    assert "--image-tokens" in result.output and said in " ".join(result.output.split())
