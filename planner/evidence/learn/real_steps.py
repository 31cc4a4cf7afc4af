"""Train GPT-2 for a few real steps on this machine, to measure its memory.

Small and medium GPT-2 as nanoGPT trains them on one GPU, in plain torch: autocast to bf16, or on a
GPU without it to fp16 with scaled losses, fused AdamW on fp32 weights, torch's attention. The
largest batch is 16 sequences of 1,024 tokens, about 20 GiB.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from hardware.schema import Gpu
from planner.evidence.learn.probe import Progress, usual_cells
from planner.job.quantities import GIB
from planner.predict.cost_tables import half_precision

# Layers, width, heads, and micro-batches in sequences.
_MODELS = ((12, 768, 12, (1, 4, 16)), (24, 1024, 16, (1, 4)))
_VOCAB, _SEQ = 50257, 1024
_WARM, _TIMED = 3, 5
Cells = dict[str, str]


def real_steps(torch: Any, gpu: Gpu, progress: Progress) -> list[Cells]:
    """A measured run for each model and micro-batch that fits on the GPU."""
    half = half_precision(gpu)
    tried = [
        (layers, width, heads, mbs) for layers, width, heads, batches in _MODELS for mbs in batches
    ]
    found = []
    for number, (layers, width, heads, mbs) in enumerate(tried):
        progress(f"training {layers} layers of {width}", number, len(tried))
        try:
            seconds, held = _measured(torch, layers, width, heads, mbs, half)
        except torch.cuda.OutOfMemoryError:
            continue
        found.append(_cells(gpu, layers, width, heads, mbs, seconds, held))
    return found


def _cells(
    gpu: Gpu, layers: int, width: int, heads: int, mbs: int, seconds: float, held: float
) -> Cells:
    """A row in the columns of `docs/measured_runs.md`."""
    return usual_cells("gpt2", half_precision(gpu)) | {
        "layers": str(layers), "hidden": str(width), "ffn": str(4 * width), "heads": str(heads),
        "kv_heads": str(heads), "gpu": gpu.name, "mbs": str(mbs), "gbs": str(mbs),
        "step_time_s": f"{seconds:.6g}", "peak_mem_gib": f"{held / GIB:.4f}",
    }  # fmt: skip


def _measured(
    torch: Any, layers: int, width: int, heads: int, mbs: int, half: str
) -> tuple[float, float]:
    """(Median seconds of a step, bytes in use on the whole GPU after the last one.)"""
    # Memory that benchmarks or the previous model left in reference cycles would count as this
    # one's.
    gc.collect()
    torch.cuda.empty_cache()
    model = gpt(torch, layers, width, heads).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    seconds = list(_steps(torch, model, optimizer, mbs, half))
    free, whole = torch.cuda.mem_get_info()
    return median(seconds[_WARM:]), float(whole - free)


def _steps(torch: Any, model: Any, optimizer: Any, mbs: int, half: str) -> Iterator[float]:
    """Seconds of each step."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[half]
    scaler = torch.amp.GradScaler("cuda", enabled=half == "fp16")
    ids = torch.randint(0, _VOCAB, (mbs, _SEQ + 1), device="cuda")
    for _ in range(_WARM + _TIMED):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=dtype):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, _VOCAB), ids[:, 1:].reshape(-1)
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        yield time.perf_counter() - start


def gpt(torch: Any, layers: int, width: int, heads: int) -> Any:
    """A decoder with GPT-2's shape as a torch module: token ids [batch, seq] to logits."""
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(_VOCAB, width), nn.Embedding(_SEQ, width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
            self.norm = nn.LayerNorm(width)

        def forward(self, ids: Any) -> Any:
            places = torch.arange(ids.shape[1], device=ids.device)
            x = self.tokens(ids) + self.places(places)
            later = nn.Transformer.generate_square_subsequent_mask(len(places), device=x.device)
            for block in self.blocks:
                x = block(x, later, is_causal=True)
            return nn.functional.linear(self.norm(x), self.tokens.weight)

    return Model()
