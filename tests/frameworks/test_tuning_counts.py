"""Counts of partly trained models made again with peft and bitsandbytes: tests/truth/data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest

from tests.truth.predicted import Row
from tests.truth.tuning_counts import ACTIVATIONS, PARAMETERS, tuning_counts, tuning_label

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
Needs = Callable[[str], ModuleType]
SMALLEST = "gemma-2-2b"
ROWS = [row for row in tuning_counts(ACTIVATIONS) if row["model"] == SMALLEST]
HELD = [row for row in tuning_counts(PARAMETERS) if row["model"] == SMALLEST]
TINY = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=map(tuning_label, ROWS))
def test_counts_again(row: Row, needs: Needs) -> None:
    needs("peft")
    from tests.frameworks.count_tuning import count_run, described, settings_of
    from tests.truth.predicted import reference_model

    spec = reference_model(row["model"])
    by_cells = {in_words(described(spec, setting)): setting for setting in settings_of(spec)}
    [cells] = [cells for cells in by_cells if set(row.items()) >= cells]
    again, _ = count_run(spec, by_cells[cells])
    for name in ("per_layer", "non_layer", "weight_casts_per_layer", "weight_casts_non_layer"):
        assert again[name] == int(row[name]), name


def in_words(row: Mapping[str, object]) -> frozenset[tuple[str, str]]:
    """Cells as a file has them."""
    return frozenset((name, str(cell)) for name, cell in row.items())


@pytest.mark.parametrize("row", HELD, ids=map(tuning_label, HELD))
def test_parameters_again(row: Row, needs: Needs) -> None:
    needs("peft")
    from tests.frameworks.count_tuning import count_parameters, parameter_cells, settings_of
    from tests.truth.predicted import reference_model

    spec = reference_model(row["model"])
    known = {(setting.tuning, setting.mode) for setting in settings_of(spec)}
    [again] = [one for one in known if set(row.items()) >= in_words(parameter_cells(spec, *one))]
    assert set(row.items()) >= in_words(count_parameters(spec, *again))


@pytest.mark.parametrize("base", ["nf4", "nf4-double"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("prepared", [False, True])
def test_real_tensors_are_as_large(
    base: str, checkpointing: str, prepared: bool, needs: Needs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bitsandbytes' real layers on a CPU save what the fake ones do, and hold as many bytes."""
    needs("bitsandbytes")
    from tests.frameworks import tuned_models
    from tests.frameworks.hf_counts import saved_tensors

    tuning = tuned_models.Tuning("qlora", rank=8, base=base, prepared=prepared)
    run = tuned_models.TunedRun(TINY, 64, 2, "bf16", "eager", checkpointing, tuning=tuning)
    fake = [(one.module, one.shape, one.dtype, one.size) for one in saved_tensors(run)]
    monkeypatch.setattr(tuned_models, "quantise", quantise_for_real)
    real = [(one.module, one.shape, one.dtype, one.size) for one in saved_tensors(run, real=True)]
    assert fake
    assert real == fake


@pytest.mark.parametrize("base", ["nf4", "nf4-double"])
def test_real_weights_are_as_large(base: str, needs: Needs) -> None:
    needs("bitsandbytes")
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tests.frameworks.tuned_models import TunedRun, Tuning, quantise, state_tensors

    run = TunedRun(TINY, 64, tuning=Tuning())
    with FakeTensorMode(), torch.device("cuda"):
        fake = run.build()
        quantise(fake, base)
        counted = [held(module, state_tensors(module)) for module in fake.modules()]
    real = run.build()
    quantise_for_real(real, base)
    assert [held(module, state_tensors(module)) for module in real.modules()] == counted
    assert sum(counted) > 0


def held(module: Any, states: Any) -> int:
    """Bytes of a quantised linear: packed weight and what belongs to it."""
    if not type(module).__name__.startswith("Linear4bit"):
        return 0
    tensors = [module.weight, *states]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def quantise_for_real(model: Any, base: str) -> None:
    """What `from_pretrained` does: bitsandbytes' layers with the model's weights, on the CPU."""
    import bitsandbytes
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    nested = base == "nf4-double"
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=nested,
    )  # fmt: skip
    weights = {name: parameter.data for name, parameter in model.named_parameters()}
    replace_with_bnb_linear(model, list(get_keys_to_not_convert(model)), config)
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.weight = bitsandbytes.nn.Params4bit(
                weights[f"{name}.weight"], requires_grad=False, quant_type="nf4",
                compress_statistics=nested, module=module,
            ).to("cpu")  # fmt: skip
    model.is_loaded_in_4bit = True


@pytest.mark.parametrize("method", ["full", "lora", "dora"])
@pytest.mark.parametrize("mode", ["bf16", "amp"])
def test_a_real_step_leaves_as_many_bytes(method: str, mode: str, needs: Needs) -> None:
    """Gradients and states of torch's AdamW after a step on a CPU, against what is counted."""
    torch = needs("torch")
    needs("peft")
    from tests.frameworks.count_tuning import held_by
    from tests.frameworks.tuned_models import TunedRun, Tuning

    tuning = Tuning(method, rank=4, frozen=("embeddings",) if method == "full" else ())
    run = TunedRun(TINY, 32, 1, mode, "eager", tuning=tuning)
    model = run.build()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    run.loss(model).backward()
    optimizer.step()
    moments = ("exp_avg", "exp_avg_sq")
    states = [state[name] for state in optimizer.state.values() for name in moments]
    counted = held_by(model)
    assert counted["gradient_bytes"] == sum(one.grad.nbytes for one in trained)
    assert counted["state_bytes"] == sum(tensor.nbytes for tensor in states)
    assert counted["trained_bytes"] == sum(one.nbytes for one in trained)
