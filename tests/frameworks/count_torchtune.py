"""Counts what torchtune's recipe of distillation holds of the logits, in a process of its own.

    python -m tests.frameworks.count_torchtune

prints bytes a logit as JSON: kept as backward begins, and the most that is alive. The order is that
of recipes/knowledge_distillation_single_device.py, without compile.
"""

from __future__ import annotations

import json

import torch
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.loss.kd_losses import ForwardKLWithChunkedOutputLoss

from tests.frameworks.live_bytes import LiveBytes

TOKENS, VOCABULARY, WIDTH, CHUNKS = 256, 4096, 8, 8
LOGITS = TOKENS * VOCABULARY


def counted() -> dict[str, float]:
    """Bytes a logit of 16 bits."""
    hidden = torch.randn(1, TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.bfloat16)
    labels = torch.randint(0, VOCABULARY, (1, TOKENS))
    live = LiveBytes(lambda tensor: tensor.numel() >= LOGITS / (2 * CHUNKS))
    with live:
        student = [part @ weight.T for part in hidden.chunk(CHUNKS, dim=1)]
        with torch.no_grad():
            teacher = [part @ weight.T for part in hidden.chunk(CHUNKS, dim=1)]
        divergence = ForwardKLWithChunkedOutputLoss()(student, teacher, labels)
        loss = 0.5 * CEWithChunkedOutputLoss()(student, labels) + 0.5 * divergence
        del student, teacher
        kept = live.live
        loss.backward()
    return {"kept": kept / LOGITS, "peak": live.peak / LOGITS}


if __name__ == "__main__":
    print(json.dumps(counted()))  # noqa: T201
