"""Gradients and optimizer states as torch and bitsandbytes hold them, counted on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from planner.job.frameworks.profile import load_framework, with_tables
from planner.job.optimizers import OptimizerSetting, load_optimizer
from planner.predict.optimizer_terms import state_bytes

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Needs = Callable[[str], ModuleType]
LAYERS, WIDTH = 4, 512


def layers(torch: Any) -> Any:
    """Products of one width, in bf16."""
    made = [torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
    return torch.nn.Sequential(*made)


def most_gradient_bytes(
    model: Any, torch: Any, then: Callable[[Any], None] = lambda _parameter: None
) -> tuple[int, int]:
    """Bytes of gradients alive at most in backward, and after it; `then`: what follows each."""
    most = 0

    def count() -> int:
        return sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)

    def seen(parameter: Any) -> None:
        nonlocal most
        most = max(most, count())
        then(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(seen)
    model(torch.ones(2, WIDTH, dtype=torch.bfloat16)).sum().backward()
    return most, count()


def test_gradients_that_are_updated_in_backward(needs: Needs) -> None:
    """All of them without; one parameter's with hooks as torchtune has them, none after; as the
    profile says. (training/memory.py, register_optim_in_bwd_hooks: step and zero_grad.)"""
    torch = needs("torch")
    one, profile = 2 * WIDTH * WIDTH, load_framework("torchtune")
    assert most_gradient_bytes(layers(torch), torch) == (LAYERS * one, LAYERS * one)
    assert profile.state.gradient_bytes * WIDTH * WIDTH == one

    freed = layers(torch)
    optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in freed.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    assert most_gradient_bytes(freed, torch, step) == (one, 0)
    technique = profile.technique("optimizer-in-backward")
    assert technique is not None
    assert with_tables(profile, technique.changes(used=True)).state.updates_in_backward


@pytest.mark.parametrize(
    ("named", "name"),
    [("PagedAdamW8bit", "paged-adamw-8bit"), ("PagedAdamW32bit", "paged-adamw"),
     ("PagedLion32bit", "paged-lion")],
)  # fmt: skip
def test_bytes_of_states_that_bitsandbytes_pages(needs: Needs, named: str, name: str) -> None:
    """Moments and their scales of a matrix, whatever memory they lie in; what is alike for all
    parameters (maps of the quantised values) is no state of one."""
    torch, optim = needs("torch"), needs("bitsandbytes.optim")
    weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
    optimizer = getattr(optim, named)([weight], lr=1e-3)
    assert optimizer.is_paged
    optimizer.init_state(optimizer.param_groups[0], weight, 0, 0)
    kept = {"state1", "state2", "absmax1", "absmax2"}
    counted = sum(v.nbytes for k, v in optimizer.state[weight].items() if k in kept)
    setting = OptimizerSetting(load_optimizer(name), "fused")
    predicted = state_bytes(load_framework("hf-transformers"), setting) * weight.numel()
    assert counted == pytest.approx(predicted, rel=1e-3)
