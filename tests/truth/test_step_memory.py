"""Whole-step peaks against steps counted in PyTorch: one device, and a rank under FSDP2.

Live bytes of tensors under AdamW, transformers 5.23 and a nanoGPT-like module, fake tensors.
"""

from __future__ import annotations

import pytest

from planner.frameworks import load_framework
from planner.frameworks.profile import DataParallelBuckets
from planner.memory.rank import RankShape
from planner.memory.timeline import MemoryTimeline, StepSettings, memory_timeline
from planner.modules import Module
from planner.ops.context import OpContext
from tests.truth.models import reference_model

# model layers seq mbs attention checkpointing mode grad-acc AdamW-kernel | end of forward and
# peak of backward above weights and optimizer state | peak, and the phase in which it falls.
ONE_DEVICE = """
nanogpt-124m - 1024 12 flash none amp 1 foreach 8098979848 10571522064 12064105788 backward
nanogpt-124m - 1024 12 flash full amp 1 foreach 4295794696 6768336912 8260920636 backward
nanogpt-124m - 1024 12 flash none bf16 1 foreach 4906213380 7378755588 8125096752 backward
nanogpt-124m - 1024 12 flash full bf16 1 foreach 1500569604 3973111812 4719452976 backward
nanogpt-124m - 1024 12 eager none fp32 1 foreach 17058603016 22003687432 23546602804 backward
nanogpt-124m - 1024 12 eager full fp32 1 foreach 3001131016 7946215432 9489130804 backward
gpt2 - 1024 8 flash none amp 1 foreach 8279852552 11573429768 13066773592 backward
gpt2 - 1024 8 flash full amp 1 foreach 2063894024 5357471240 6850815064 backward
gpt2 - 1024 8 flash none bf16 1 foreach 5905457160 9199034376 9945739352 backward
gpt2 - 1024 8 flash full bf16 1 foreach 1823088648 5116665864 5863370840 backward
gpt2 - 1024 8 eager none fp32 1 foreach 14986420232 18279997448 19773341272 backward
gpt2 - 1024 8 eager full fp32 1 foreach 2032836616 5326413832 6819757656 backward
llama-7b - 2048 1 flash none amp 1 foreach 28469387280 28993658888 134768330380 optimizer
llama-7b - 2048 1 flash full amp 1 foreach 1684054032 26987216904 134768330380 optimizer
llama-7b - 2048 1 flash none bf16 1 foreach 12553052176 13493608456 67384174220 optimizer
llama-7b - 2048 1 flash full bf16 1 foreach 867213328 13493608456 67384174220 optimizer
llama-7b - 2048 1 eager none fp32 1 foreach 39825465360 41207488520 134768330380 optimizer
llama-7b - 2048 1 eager full fp32 1 foreach 1455464464 28092424200 134768330380 optimizer
nanogpt-124m - 1024 12 flash none amp 4 foreach 8098979848 10571522064 12561600828 backward
nanogpt-124m - 1024 12 flash none amp 1 fused 8098979848 10571522064 12064105788 backward
nanogpt-124m - 1024 12 flash none amp 1 forloop 8098979848 10571522064 12064105788 backward
nanogpt-124m - 1024 12 eager none amp 1 foreach 18976120840 21448663056 22991578428 backward
nanogpt-124m - 1024 12 flash none bf16 4 foreach 4906213380 7378755588 8373844272 backward
nanogpt-124m - 1024 12 flash none bf16 1 fused 4906213380 7378755588 8125096752 backward
nanogpt-124m - 1024 12 flash none bf16 1 forloop 4906213380 7378755588 8125096752 backward
nanogpt-124m - 1024 12 eager none bf16 1 foreach 8535597060 11008139268 11779646256 backward
gpt2 - 1024 8 flash none amp 4 foreach 8279852552 11573429768 13564532824 backward
gpt2 - 1024 8 flash none amp 1 fused 8279852552 11573429768 13066773592 backward
gpt2 - 1024 8 flash none amp 1 forloop 8279852552 11573429768 13066773592 backward
gpt2 - 1024 8 eager none amp 1 foreach 15522891272 18816468488 20309812312 backward
gpt2 - 1024 8 flash none bf16 4 foreach 5905457160 9199034376 10194618968 backward
gpt2 - 1024 8 flash none bf16 1 fused 5905457160 9199034376 9945739352 backward
gpt2 - 1024 8 flash none bf16 1 forloop 5905457160 9199034376 9945739352 backward
gpt2 - 1024 8 eager none bf16 1 foreach 8316657672 11610234888 12356939864 backward
llama-3-8b 8 4096 1 flash none bf16 1 foreach 8818835472 13021495304 29794968372 backward
llama-3-8b 8 4096 1 flash none amp 1 foreach 14736998416 18939658248 55911498540 optimizer
llama-3-8b 8 4096 1 flash full bf16 1 foreach 2506178576 6708838408 27955766060 optimizer
llama-3-8b 8 4096 1 flash full amp 1 foreach 3860938768 11249401864 55911498540 optimizer
qwen3-8b 8 4096 1 flash none bf16 1 foreach 9681813520 14660419592 31389864820 backward
qwen3-8b 8 4096 1 flash none amp 1 foreach 15391309840 20369915912 55764738924 optimizer
qwen3-8b 8 4096 1 flash full bf16 1 foreach 2894151696 7872757768 27882386284 optimizer
qwen3-8b 8 4096 1 flash full amp 1 foreach 4442898448 11220049928 55764738924 optimizer
llama-3-8b - 4096 1 flash none bf16 1 foreach 28562210832 32764870664 80946472596 backward
llama-3-8b - 4096 1 flash full bf16 1 foreach 3311484944 16094076936 80302646924 optimizer
llama-3-8b - 4096 1 flash none amp 1 foreach 48975888400 53178548232 160605259404 optimizer
"""

# model layers seq mbs checkpointing world zero grad-acc sync-every AdamW-kernel | peak, phase.
FSDP2 = """
llama-3-8b - 4096 1 none 8 3 1 True foreach 47347875476 backward
llama-3-8b - 4096 1 full 8 3 1 True foreach 22097149588 backward
llama-3-8b - 4096 1 none 8 2 1 True foreach 60870819476 backward
llama-3-8b - 4096 1 full 8 2 1 True foreach 35620093588 backward
llama-3-8b - 4096 1 none 8 3 1 True foreach 47347875476 backward
llama-3-8b - 4096 1 none 64 3 1 True foreach 36808157588 backward
llama-3-8b - 4096 1 full 64 3 1 True foreach 11557431700 backward
llama-3-8b - 4096 1 full 16 3 1 True foreach 16074453652 backward
llama-3-8b - 4096 1 full 32 3 1 True foreach 13063105684 backward
llama-3-8b - 4096 1 full 8 3 4 True foreach 26112280212 backward
llama-3-8b - 4096 1 full 8 3 4 False foreach 54218194580 backward
llama-3-8b - 4096 1 none 8 3 1 True fused 47347875476 backward
llama-3-8b - 4096 2 none 8 3 1 True foreach 80110681748 backward
llama-3-8b - 4096 2 full 8 3 1 True foreach 29609197204 backward
llama-3-8b - 8192 1 full 8 3 1 True foreach 29611327124 backward
llama-3-8b 8 4096 1 none 8 3 1 True foreach 19752467252 backward
llama-3-8b 8 4096 1 full 8 3 1 True foreach 13439810356 backward
llama-3-8b 16 4096 1 full 8 3 1 True foreach 16325590100 backward
llama-7b - 2048 1 none 8 3 1 True foreach 24697335444 backward
llama-7b - 2048 1 none 8 2 1 True foreach 36935507612 forward
llama-7b - 2048 1 full 8 3 1 True foreach 16846057100 optimizer
llama-7b - 2048 1 full 8 2 1 True foreach 25496874644 backward
llama-3-70b - 4096 1 full 64 3 1 True foreach 34437584724 backward
"""

MODULES = {"none": Module.NOTHING, "full": Module.FULL}


def number(text: str) -> int | None:
    return None if text == "-" else int(text)


def phase_name(timeline: MemoryTimeline) -> str:
    return timeline.peak.name.removesuffix(" (accumulating)")


@pytest.mark.parametrize("line", ONE_DEVICE.strip().splitlines())
def test_one_device(line: str) -> None:
    row = line.split()
    name, layers, seq, mbs, attention, checkpointing, mode, grad_acc, kernel = row[:9]
    profile = load_framework("nanogpt" if name.startswith("nanogpt") else "hf-transformers")
    context = OpContext(
        reference_model(name, number(layers)),
        profile,
        int(seq),
        attention="eager" if attention == "eager" else "flash",
        mode="bf16" if mode == "bf16" else "amp" if mode == "amp" else "fp32",
        one_sequence=mbs == "1",
    )
    kernels = {"foreach": "foreach", "fused": "fused", "forloop": "forloop"}
    settings = StepSettings(grad_acc=int(grad_acc), optimizer_kernel=kernels[kernel])  # type: ignore[arg-type]
    timeline = memory_timeline(
        context, RankShape(mbs=int(mbs), recompute=MODULES[checkpointing]), settings
    )
    assert timeline.peak.total_bytes == pytest.approx(float(row[11]), rel=2e-3)
    assert phase_name(timeline) == row[12]
    start = timeline.phase("start").total_bytes
    end = timeline.phase("forward end").total_bytes - start
    assert end == pytest.approx(float(row[9]), rel=2e-3)
    backward = timeline.phase("backward").total_bytes - start
    assert backward == pytest.approx(float(row[10]), rel=0.025)


@pytest.mark.parametrize("line", FSDP2.strip().splitlines())
def test_fsdp2(line: str) -> None:
    name, layers, seq, mbs, checkpointing, world, zero, grad_acc, sync, kernel, peak, phase = (
        line.split()
    )
    context = OpContext(
        reference_model(name, number(layers)),
        load_framework("hf-fsdp2"),
        int(seq),
        one_sequence=mbs == "1",
    )
    shape = RankShape(
        shards=int(world), zero=int(zero), mbs=int(mbs), recompute=MODULES[checkpointing]
    )
    settings = StepSettings(
        grad_acc=int(grad_acc),
        optimizer_kernel="fused" if kernel == "fused" else "foreach",
        reduce_every_microbatch=sync == "True",
    )
    timeline = memory_timeline(context, shape, settings)
    assert timeline.peak.total_bytes == pytest.approx(float(peak), rel=0.01)
    assert phase_name(timeline) == phase


@pytest.mark.parametrize(
    ("view", "set_to_none", "in_step", "between"),
    [(False, True, 2, 1), (False, False, 2, 2), (True, True, 1, 1), (True, False, 1, 1)],
)
def test_ddp_buckets(view: bool, set_to_none: bool, in_step: int, between: int) -> None:
    """DistributedDataParallel, counted: copies of the gradients at the peak and between steps."""
    buckets = DataParallelBuckets(view=view, set_to_none=set_to_none)
    assert buckets.copies(in_step=True) == in_step
    assert buckets.copies(in_step=False) == between


@pytest.mark.parametrize(("view", "copies"), [(False, 2), (True, 1)])
def test_ddp_in_the_timeline(view: bool, copies: int) -> None:
    context = OpContext(reference_model("llama-7b"), load_framework("hf-transformers"), 2048)
    settings = StepSettings(ddp=DataParallelBuckets(view=view))
    phase = memory_timeline(context, RankShape(shards=8), settings).phase("gradient sync")
    gradients = phase.terms["gradients"] + phase.terms["gradient buckets"]
    assert gradients == pytest.approx(copies * 2 * 6738415616)


def test_first_step_has_no_optimizer_state_until_its_end() -> None:
    context = OpContext(reference_model("gpt2"), load_framework("hf-transformers"), 1024)
    timeline = memory_timeline(context, RankShape(mbs=8))
    states = [phase.terms["optimizer state"] for phase in timeline.first_step]
    assert states[:-1] == [0.0] * (len(states) - 1)
    assert states[-1] == timeline.phase("start").terms["optimizer state"] > 0
