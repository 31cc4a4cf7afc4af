"""The second part of the foundations: memory by phase instead of a sum."""

from __future__ import annotations

from planner.job.models.catalog import load_model
from planner.predict.ops.table import parameter_count
from tests.documents.rows import Row, command, figure, layers_bytes, number, phase, run, term

_WORDS = "memory --model llama-2-7b --framework textbook --seq 2048 --precision fp32"
_TORCH = "memory --model llama-2-7b --framework hf-transformers --seq 2048 --precision fp32 --mbs 8"
_GPT = "memory --model gpt3-175b --framework textbook --dropout --seq 2048"


def corrected() -> list[Row]:
    """Rows of the second part."""
    return [*_count(), *_phases(), *_peak(), *_use()]


def _held(words: str, name: str, step: str = "later") -> float:
    """Bytes of a phase without token ids, as the document counts."""
    found = phase(words, name, step)
    return float(found["bytes"] - found["terms"]["inputs"] - found["terms"].get("working", 0.0))


def _parameters() -> int:
    return parameter_count(load_model("llama-2-7b").spec).total


def _count() -> list[Row]:
    llama = load_model("llama-2-7b").spec
    outer = 2 * llama.vocab * llama.hidden + llama.hidden
    layer = 4 * llama.hidden**2 + 2 * llama.hidden * llama.ffn + 2 * llama.hidden
    grouped = load_model("llama-3-8b").spec
    attention = 4 * grouped.hidden**2
    kept = 2 * grouped.hidden**2 + 2 * grouped.hidden * grouped.kv_width
    return [
        Row("16 N as a sum over the step", "an error", "phases of their own", command(_WORDS),
            "agrees"),
        figure("general parameter count, for Llama-2-7B", float(outer + llama.layers * layer),
               _parameters(), command("models llama-2-7b"), unit="",
               formula="embedding + L (4 a d h + 2 h d_ff + norms) + head",
               erratum="a gated feed-forward block has three matrices, 3 h d_ff"),
        figure("and of attention in Llama-3-8B", float(attention), float(kept),
               command("models llama-3-8b"), unit="", formula="3 a d h + a d h",
               erratum="with grouped queries keys and values are narrower, as the text says and "
               "the formula does not: 2 a d h + 2 k d h"),
    ]  # fmt: skip


def _phases() -> list[Row]:
    count, parameter = _parameters(), command(_WORDS)
    kept = term(_WORDS, "activations", "forward end")
    double = layers_bytes(f"{_GPT} --precision fp32") / layers_bytes(_GPT)
    return [
        figure("weights", 4.0 * count, term(_WORDS, "weights", "start"), parameter, formula="4 N"),
        figure("first and second moment", 8.0 * count, term(_WORDS, "optimizer state", "start"),
               parameter, formula="4 N + 4 N"),
        figure("gradients, in backward and optimizer", 4.0 * count,
               term(_WORDS, "gradients", "backward"), parameter, formula="4 N"),
        figure("before forward, first step", 4.0 * count, _held(_WORDS, "start", "first"),
               parameter, formula="4 N"),
        figure("before forward, later", 12.0 * count, _held(_WORDS, "start"), parameter,
               formula="12 N"),
        Row("during forward after k layers", "12 N + the sum of k layers",
            "the end of forward is shown, which is its peak", parameter, "agrees"),
        figure("end of forward", 12.0 * count + kept, _held(_WORDS, "forward end"), parameter,
               formula="12 N + A"),
        figure("fp32 activations are twice those in 16 bits, GPT-3", 2.0, double,
               command(f"{_GPT} --precision fp32"), unit="", digits=3,
               erratum="masks of dropout stay one byte: 66 + 9 a s / h instead of 68 + 10"),
    ]  # fmt: skip


def _peak() -> list[Row]:
    count, parameter = _parameters(), command(_WORDS)
    kept = term(_WORDS, "activations", "forward end")
    torch_peak = phase(_TORCH, "backward")
    terms = torch_peak["terms"]
    made = terms["gradients"] / (4 * count)
    return [
        Row("activations left and gradients made at layer k of backward",
            "sums from k, and 4 N (L - k) / L",
            f"each moment is looked at; the heaviest is shown: at {torch_peak['at']}",
            command(_TORCH), "agrees"),
        figure("peak, gradients there as backward starts", 16.0 * count + kept,
               _held(_WORDS, "backward"), parameter, formula="16 N + A"),
        Row("most frameworks allocate all gradients as backward starts", "16 N + A",
            f"PyTorch: {number(made, '%', 0)} of the gradients at the peak of backward",
            command(_TORCH), "**erratum**: PyTorch makes each gradient as its layer is done; "
            "Megatron, DDP with views and accumulation keep buffers (16 N + A)"),
        Row("memory falls through backward to 16 N", "monotonically", "gradients held: yes; "
            "PyTorch without: it may rise again where a layer's gradients outweigh what it kept",
            command(_TORCH), "**erratum** for frameworks that make gradients layer by layer"),
        figure("optimizer step", 16.0 * count, _held(_WORDS, "optimizer"), parameter,
               formula="16 N",
               note="torch's foreach kernels add a copy, 20 N: --optimizer-kernel foreach"),
        figure("after the step", 12.0 * count, _held(_WORDS, "start"), parameter, formula="12 N"),
    ]  # fmt: skip


def _use() -> list[Row]:
    words = "memory --model gpt2 --framework hf-transformers --gpus 1xA100-80G --precision fp32"
    solution = run(f"{words} --solve mbs")["solution"]
    safe, even = (solution[name]["largest"]["value"] for name in ("safe", "even"))
    return [
        Row("does it fit", "16 N + A ≤ HBM − context", "peak of all phases, with fragmentation "
            "and a probability", command(words), "agrees; more terms count"),
        Row("largest batch and length", "what HBM leaves beside 12 N",
            f"{safe} sequences of 1,024 of GPT-2 on an A100 with 80 % probability, {even} with "
            "50 %", command(f"{words} --solve mbs"),
            "agrees in kind: solved on the whole account, gradients included"),
        Row("fits at step 1, out of memory at step 2", "8 N come with the first update",
            "both steps are shown", command(words), "agrees"),
    ]  # fmt: skip
