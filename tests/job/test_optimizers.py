"""Optimizers: bytes per parameter, spellings, and what each framework runs."""

from __future__ import annotations

from typing import Any

import click
import pytest

from planner.cli import declared
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.optimizers import (
    OptimizerSetting,
    check_optimizer,
    load_optimizer,
    optimizer_flags,
    optimizer_names,
)
from planner.predict.optimizer_terms import (
    FOREACH_TENSORS,
    moment_bytes,
    traffic_bytes,
    trained_profile,
)

# Spelling | bytes of state per parameter it applies to, of master weight, of gradient.
BYTES = """
adamw 8 - -
adamw-bf16 4 - -
adamw-fp8 3 - -
adamw-8bit 2.03125 - -
adamw-4bit 1.0625 - -
lion 4 - -
muon 4 - -
adafactor 0 - -
adafactor-momentum 4 - -
sgd 4 - -
sgd:momentum=none 0 - -
sgd:momentum=bf16 2 - -
adamw:exp_avg=bf16 6 - -
adamw:exp_avg=fp8,exp_avg_sq=fp16,master=fp16 3 2 -
adamw:exp_avg=fp16,exp_avg_sq=fp16,master=fp16,grad=bf16 4 2 2
adamw:master=fp32,grad=fp32 8 4 4
"""


@pytest.mark.parametrize("line", BYTES.strip().splitlines())
def test_bytes_per_parameter(line: str) -> None:
    spelling, state, master, gradient = line.split()
    optimizer = load_optimizer(spelling)
    assert optimizer.state_bytes == float(state)
    assert optimizer.master_bytes == (None if master == "-" else float(master))
    assert optimizer.gradient_bytes == (None if gradient == "-" else float(gradient))


def test_names_are_what_was_spelled() -> None:
    for name in optimizer_names():
        assert load_optimizer(name.upper().replace("-", "_")).name == name
    spelled = load_optimizer(" AdamW: exp_avg_sq=FP16 , exp_avg=fp32")
    assert spelled.name == "adamw:exp_avg_sq=fp16"
    assert load_optimizer("adamw:exp_avg=fp32").name == "adamw"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("Adam", "adamw"), ("adamw_torch_fused", "adamw"), ("adam:exp_avg=bf16", "adamw:exp_avg=bf16"),
     ("adamw_bnb_8bit", "adamw-8bit")],
)  # fmt: skip
def test_other_words_for_an_optimizer(spelling: str, name: str) -> None:
    assert load_optimizer(spelling).name == name


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("adamm", ("'adamm'", "'adamw'")),
        ("adamw:exp_avg=int8", ("exp_avg=int8", "fp32, bf16, fp16, fp8")),
        ("adamw:moment=bf16", ("moment=bf16", "exp_avg_sq =")),
        ("adamw:", ("cannot read ''", "for example adamw:exp_avg=bf16")),
        ("adamw:master=bf16", ("master = fp32, fp16",)),
        ("adamw:exp_avg=none", ("exp_avg=none",)),
        ("adamw-8bit:exp_avg=bf16", ("exp_avg=bf16", "for example adamw-8bit:master=fp16")),
    ],
)
def test_spelling_errors_say_what_is_possible(spelling: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        load_optimizer(spelling)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("framework", "spelling", "kernel", "offload", "rule"),
    [
        ("megatron-core", "adafactor", "fused", 0.0, "optimizer-offered"),
        ("megatron-core", "adamw-8bit", "fused", 0.0, "optimizer-offered"),
        ("torchtitan", "adamw:master=fp16", "fused", 0.0, "optimizer-types"),
        ("nanotron", "adamw-bf16", "fused", 0.0, "optimizer-types"),
        ("megatron-core", "adamw", "foreach", 0.0, "optimizer-kernel"),
        ("nanotron", "adamw", "fused", 0.5, "optimizer-offload"),
        ("torchtitan", "adamw", "fused", 0.5, "optimizer-offload"),
    ],
)
def test_what_a_framework_lacks_names_the_rule(
    framework: str, spelling: str, kernel: str, offload: float, rule: str
) -> None:
    profile = load_framework(framework)
    setting = OptimizerSetting(load_optimizer(spelling), kernel, offload)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"{framework}.*\[{rule}\]"):
        check_optimizer(profile, setting)


def test_what_frameworks_have_is_accepted() -> None:
    for framework, spelling, kernel, offload in (
        ("megatron-core", "adamw:master=fp16,grad=bf16", "fused", 0.0),
        ("torchtitan", "adamw-4bit", "foreach", 0.0),
        ("deepspeed", "adamw", "fused", 0.3),
    ):
        setting = OptimizerSetting(load_optimizer(spelling), kernel, offload)
        check_optimizer(load_framework(framework), setting)


@pytest.mark.parametrize(
    ("billions", "sixteen", "eighteen", "twenty"),
    [(7, 112, 126, 140), (70, 1120, 1260, 1400), (405, 6480, 7290, 8100)],
)
def test_sixteen_eighteen_twenty(billions: int, sixteen: int, eighteen: int, twenty: int) -> None:
    """GB of weights, gradients, master and moments: 16-bit gradients, fp32 gradients in place of
    them (Megatron-LM), fp32 gradients beside them (DeepSpeed and nanotron in bf16)."""
    adamw = OptimizerSetting(load_optimizer("adamw"), "fused")
    totals = []
    for name in ("textbook", "megatron-core", "nanotron"):
        profile = trained_profile(load_framework(name), adamw)
        state = profile.state
        per_parameter = state.weight_bytes + state.gradient_bytes + state.extra_gradient_bytes
        totals.append(
            billions * (per_parameter + state.master_bytes + moment_bytes(profile, adamw))
        )
    assert totals == [sixteen, eighteen, twenty]


def test_precision_aware_states_of_deepseek_v3() -> None:
    """bf16 moments, fp32 master weights and gradients (arXiv 2412.19437, section 3.3): 14 N."""
    setting = OptimizerSetting(load_optimizer("adamw-bf16"), "fused")
    profile = trained_profile(load_framework("megatron-core"), setting)
    state = profile.state
    total = state.weight_bytes + state.gradient_bytes + state.master_bytes
    assert total + moment_bytes(profile, setting) == 14


@pytest.mark.parametrize(
    ("framework", "optimizer", "copy"),
    [
        ("megatron-bridge", "adamw", 4.0),
        ("megatron-bridge", "adamw:grad=fp32", 0.0),
        ("megatron-core", "adamw", 0.0),
        ("megatron-fsdp", "adamw", 4.0),
        ("megatron-fsdp", "adamw:grad=fp32", 0.0),
    ],
)
def test_gradients_of_16_bits_are_cast_for_the_update(
    framework: str, optimizer: str, copy: float
) -> None:
    """distrib_optimizer.py, `.float()`: no copy of what is fp32 already."""
    setting = OptimizerSetting(load_optimizer(optimizer), "fused")
    state = trained_profile(load_framework(framework), setting).state
    assert state.optimizer_temporary_bytes == copy


def test_foreach_moves_more_than_one_fused_kernel() -> None:
    """34 bytes a parameter in one kernel (7 fp32 tensors, norm and 16-bit weight), and 21 tensors
    for 7 in lists."""
    adamw = load_optimizer("adamw")
    fused, foreach = OptimizerSetting(adamw, "fused"), OptimizerSetting(adamw, "foreach")
    profile = load_framework("megatron-core")
    one, lists = (traffic_bytes(profile, setting) for setting in (fused, foreach))
    assert one == 7 * 4 + 4 + 2
    assert lists - one == 4 * FOREACH_TENSORS == 56


def test_weights_that_are_their_own_masters_are_updated_in_their_type() -> None:
    """Gradient twice, weight and two moments read and written, no other weight: 8 x 2 bytes."""
    adamw = load_optimizer("adamw")
    fused, foreach = OptimizerSetting(adamw, "fused"), OptimizerSetting(adamw, "foreach")
    for mode, size in (("bf16", 2), ("amp", 4)):
        profile = load_framework("hf-transformers").in_mode(mode)
        assert profile.state.master_bytes == 0
        assert traffic_bytes(profile, fused) == 8 * size
        assert traffic_bytes(profile, foreach) == (8 + FOREACH_TENSORS) * size
    offloaded = OptimizerSetting(adamw, "fused", 1.0)
    assert traffic_bytes(profile, offloaded) == 0.0


def test_flags_of_types_and_offload_share_their_switch() -> None:
    profile = load_framework("megatron-core")
    both = OptimizerSetting(load_optimizer("adamw:exp_avg=fp8,grad=bf16"), "fused", 0.5)
    assert optimizer_flags(profile, both) == (
        "--use-precision-aware-optimizer --exp-avg-dtype fp8 --main-grads-dtype bf16 "
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.5"
    )
    offload = OptimizerSetting(load_optimizer("adamw"), "fused", 1.0)
    assert optimizer_flags(profile, offload).startswith("--use-precision-aware-optimizer --opt")
    assert optimizer_flags(profile, OptimizerSetting(load_optimizer("adamw"), "fused")) == ""


def test_help_lists_the_optimizers_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a new one appears in it, as in the error for an unknown one."""
    text = optimizer_help()
    assert all(f"{name}," in text or f"{name};" in text for name in optimizer_names())
    real = declared.shipped_toml

    def with_another(package: str, name: str) -> dict[str, Any]:
        more = {"toy": {}} if name == "optimizers.toml" else {}
        return real(package, name) | more

    monkeypatch.setattr(declared, "shipped_toml", with_another)
    assert "toy; with types" in optimizer_help()
    with pytest.raises(UsageError) as told:
        load_optimizer("none-such")
    assert all(name in str(told.value) for name in optimizer_names())


def optimizer_help() -> str:
    """The option's help, made now."""
    rows = next(rows for rows in declared.option_rows().values() if "optimizer" in rows)
    option = declared.parameter("optimizer", **rows["optimizer"])
    assert isinstance(option, click.Option) and option.help
    return option.help
