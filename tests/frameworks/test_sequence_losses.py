"""What losses on sequences hold of the logits, counted again with TRL's functions: the figures of
`planner/job/losses.toml` for logits of 16 bits, which no trainer makes on a CPU, and for fp32 ones.

The order of events is that of trl 1.10: `DPOTrainer._compute_loss` and `CPOTrainer`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from planner.job.frameworks.losses import loss_bytes

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
Needs = Callable[[str], ModuleType]
ROWS, TOKENS, VOCABULARY = 4, 1024, 4096
Logits = Literal["fp32", "half"]


@pytest.mark.parametrize("kind", ["dpo", "simpo", "distill", "policy"])
@pytest.mark.parametrize("logits", ["fp32", "half"])
def test_losses_hold_again_what_they_held(kind: str, logits: Logits, needs: Needs) -> None:
    needs("trl")
    losses = {"dpo": _dpo, "simpo": _simpo, "distill": _distill, "policy": _policy}
    kept, peak = losses[kind](logits)
    found = loss_bytes(kind, logits, "trl" if kind == "policy" else "")
    assert found is not None
    assert kept == pytest.approx(found.saved, rel=0.02)
    assert peak == pytest.approx(found.peak, rel=0.03)


def test_torchtunes_distillation_holds_again_what_it_held() -> None:
    python = os.environ.get("PLANNER_TORCHTUNE")
    if not python:
        pytest.fail("PLANNER_TORCHTUNE must name a Python that has torchtune")
    done = subprocess.run(
        [python, "-m", "tests.frameworks.count_torchtune"], capture_output=True, text=True,
        check=True, timeout=300, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    held = json.loads(done.stdout.splitlines()[-1])
    found = loss_bytes("distill", "half", "torchtune")
    assert found is not None
    assert held == {"kept": found.saved, "peak": found.peak}


def _dpo(logits: Logits) -> tuple[float, float]:
    """Policy, then reference without gradients, then the entropy that is logged."""
    trl = import_module("trl.trainer.utils")
    head, reference, labels = _head(logits), _head(logits, trained=False), _labels()

    def loss() -> Any:
        policy = head()[..., :-1, :]
        mine = trl.selective_log_softmax(policy, labels).sum(dim=1)
        others = reference()[..., :-1, :]
        theirs = trl.selective_log_softmax(others, labels).sum(dim=1)
        trl.entropy_from_logits(policy.detach())
        return _preferred(mine - theirs)

    return _held(loss)


def _simpo(logits: Logits) -> tuple[float, float]:
    trl = import_module("trl.trainer.utils")
    head, labels = _head(logits), _labels()
    return _held(
        lambda: _preferred(trl.selective_log_softmax(head()[..., :-1, :], labels).sum(dim=1))
    )


def _policy(logits: Logits) -> tuple[float, float]:
    """GRPO's ratio of log-probabilities, and the entropy that is logged."""
    torch, trl = import_module("torch"), import_module("trl.trainer.utils")
    head, labels = _head(logits), _labels()

    def loss() -> Any:
        scaled = head()[:, :-1, :] / 0.9
        found = trl.selective_log_softmax(scaled, labels)
        with torch.no_grad():
            trl.entropy_from_logits(scaled)
        return -torch.exp(found - found.detach()).mean()

    return _held(loss)


def _distill(logits: Logits) -> tuple[float, float]:
    trainer = import_module("trl.experimental.gkd.gkd_trainer").GKDTrainer
    head, teacher = _head(logits), _head(logits, trained=False)

    def loss() -> Any:
        student, taught = head(), teacher()
        return trainer.generalized_jsd_loss(
            student[:, 3:-1, :], taught[:, 3:-1, :], _labels()[:, 3:], temperature=0.9
        )

    return _held(loss)


def _head(logits: Logits, *, trained: bool = True) -> Callable[[], Any]:
    """A model that is a head alone; its logits are made fp32 as accelerate does."""
    torch = import_module("torch")
    weight = torch.randn(4, VOCABULARY).bfloat16().requires_grad_(trained)
    hidden = torch.randn(ROWS, TOKENS, 4).bfloat16().requires_grad_(trained)
    return lambda: (hidden @ weight).float() if logits == "fp32" else hidden @ weight


def _labels() -> Any:
    torch = import_module("torch")
    return torch.randint(0, VOCABULARY, (ROWS, TOKENS - 1))


def _preferred(ratios: Any) -> Any:
    """The loss of chosen rows before rejected ones."""
    torch = import_module("torch")
    chosen, rejected = ratios.chunk(2)
    return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def _held(loss: Callable[[], Any]) -> tuple[float, float]:
    """Bytes a logit when the loss is made, and at the most, forward or backward."""
    live = import_module("tests.frameworks.live_bytes").LiveBytes(lambda tensor: tensor.dim() > 0)
    with live:
        found = loss()
        kept, forward = live.live, live.peak
        live.restart()
        found.backward()
    every = ROWS * TOKENS * VOCABULARY
    return kept / every, max(forward, live.peak) / every
