"""Foundations of distributed training, up to its summary; the correction is in `corrected`."""

from __future__ import annotations

from typing import Any

from hardware.load import load_gpu
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.predict.cost_tables import half_precision
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import parameter_count, pieces
from tests.documents.rows import (
    Row,
    command,
    figure,
    layers_bytes,
    number,
    phase,
    run,
    term,
    within,
)

_FP32 = "memory --model llama-2-7b --framework textbook --seq 2048 --precision fp32"
_MIXED = "memory --model llama-2-7b --framework textbook --seq 2048"
_FP32_GRADIENTS = "memory --model llama-2-7b --framework nanotron --seq 2048"
_GPT3 = "memory --model gpt3-175b --framework textbook --dropout --mbs 1 --seq 2048"
_TF32 = "evaluate --model gpt2 --gpus 1xH100 --gbs 8 --framework hf-transformers --precision tf32"
_STEP = (
    "evaluate --model gpt3-175b --gpus 64xA100 --framework megatron-lm-2022 --precision fp16 "
    "--gbs 64 --seq 2048 --tp 8 --pp 8 --recompute {}"
)
_H, _L, _V = 768, 12, 50257
# A model of each size, and what the document gives for 16 and 20 bytes a parameter, GB.
_STATES = (
    ("gemma-3-1b", 16, 20), ("llama-2-7b", 112, 140), ("llama-3-70b", 1120, 1400),
    ("llama-3.1-405b", 6480, 8100),
)  # fmt: skip
# GPT-style with rotary positions, as the document's count has it.
_ROTARY = load_model("gpt2").spec.model_copy(update={"position": "rope"})


def foundations() -> list[Row]:
    """Rows of the first part."""
    return [*_machine(), *_step(), *_batches(), *_parameters(), *_state(), *_activations(),
            *_recomputation(), *_accumulation(), *_profiler()]  # fmt: skip


def per_parameter(words: str, model: str = "llama-2-7b") -> float:
    """Bytes a parameter of weights, gradients and optimizer state."""
    held = phase(words, "gradient reduction")
    count = parameter_count(load_model(model).spec).total
    return float((held["bytes"] - held["terms"]["inputs"] - held["terms"]["workspaces"]) / count)


def _machine() -> list[Row]:
    gpu = load_gpu("H100")
    cluster = Request(model="8b", gpus="16xH100", gbs=16).resolve().cluster
    by = "`planner hardware H100`"
    return [
        Row("occupants of memory: weights, gradients, optimizer states, activations", "four",
            "the four and weight casts, buckets, workspaces, logits at work, gather buffers",
            command("memory --model 8b"), "agrees"),
        Row("CUDA context and kernels", "1 to 2 GB", number(gpu.context_bytes, "GB", 2), by,
            "ours is the context alone, with its source; libraries, NCCL and fragmentation are "
            "terms of their own"),
        figure("H100 SXM, dense bf16", 989e12, gpu.peak(half_precision(gpu)), by, unit="TFLOP/s"),
        Row("compute utilisation", "achieved over peak", "MFU and HFU, causal or not",
            command("evaluate --model 8b --gpus 8xH100 --gbs 64"), "agrees"),
        figure("NVLink 4 of an H100, both directions", 900e9,
               2 * gpu.scale_up_bytes_per_s_per_gpu_per_direction, by, unit="GB/s"),
        figure("InfiniBand NDR, a port", 50e9, cluster.nic_bytes_per_s, by, unit="GB/s",
               note="per GPU and direction"),
        Row("time of a step: compute, communication not hidden, waiting; peak memory below HBM",
            "a sum and a bound", "terms of the step and of the heaviest stage",
            command("evaluate --model 8b --gpus 8xH100 --gbs 64"), "agrees"),
        *_utilisation(),
        Row("recomputation trades compute for memory, tensor parallelism communication", "a table",
            "each as a change with bytes and seconds",
            command("memory --model 8b --gpus 8xH100 --mbs 4 --advise"), "agrees"),
    ]  # fmt: skip


def _utilisation() -> list[Row]:
    words = "evaluate --model gpt2 --gpus 1xH100 --gbs 8 --framework hf-transformers"
    pipeline = _STEP.format("none")
    crossed = "evaluate --model 8b --gpus 16xH100 --gbs 32 --mbs 1 --allow-tp-across-nodes --tp {}"
    inside, across = (run(crossed.format(tp))["plans"][0]["time"]["tp_s"] for tp in (8, 16))
    overlapped = "evaluate --model 8b --gpus 16xH100 --gbs 16 --mbs 1 --framework {}"
    beside, behind = (
        run(overlapped.format(name))["plans"][0]["time"]["dp_s"]
        for name in ("megatron-core", "megatron-core-no-overlap")
    )
    return [
        Row(
            "causes of low utilisation: memory-bound kernels, launches, bubbles",
            "named",
            "memory-bound kernels and waiting for launches as parts of the compute term; the "
            "bubble as a term",
            command(words),
            "agrees",
        ),
        Row(
            "idle time of pipeline stages",
            "named",
            f"{run(pipeline)['plans'][0]['time']['bubble_s']:.2f} s of "
            f"a step of {run(pipeline)['plans'][0]['step_time_s']:.1f} s",
            command(pipeline),
            "agrees",
        ),
        Row(
            "overlap hides gradient reduction behind backward",
            "asynchronous all-reduce",
            f"{beside * 1e3:.0f} ms exposed, {behind * 1e3:.0f} without overlap",
            command(overlapped.format("megatron-core-no-overlap")),
            "agrees",
        ),
        Row(
            "placement keeps heavy traffic inside a node",
            "a rule",
            f"TP traffic of {inside:.2f} s a step inside a node, {across:.2f} across two",
            command(crossed.format(16)),
            "agrees",
        ),
    ]


def _step() -> list[Row]:
    names = list(dict.fromkeys(item["phase"] for item in run(_FP32)["stages"][0]["phases"]))
    return [
        Row("phases of a step", "forward, backward, optimizer", ", ".join(names), command(_FP32),
            "agrees"),
        figure("Adam's update reads two moments", 2.0, term(_FP32, "optimizer state", "optimizer")
               / term(_FP32, "weights", "optimizer"), command(_FP32), unit="",
               note="in units of fp32 weights"),
    ]  # fmt: skip


def _batches() -> list[Row]:
    tokens = Request(model="7b", gpus="8xH100", gbs=1024, seq=4096)
    return [
        figure("batch in tokens", 1024.0 * 4096, (tokens.gbs or 0) * float(tokens.seq or 0),
               "`--gbs 1024 --seq 4096` = `--gbs-tokens 4Mi`", unit="", formula="bs · seq"),
        *_critical_batch(),
        Row("DeepSeek-V3: 15,360 sequences", "about 60 M tokens", number(15360.0 * 4096, "", 0),
            command("budget --model deepseek-v3 --gbs 15360 --seq 4096 --tokens 14.8T"),
            "agrees; 62.9 M"),
        Row("Llama 1: 4 M tokens a step, 1.4 T in all", "4 M", "`--gbs-tokens 4M`",
            command("search --model llama-7b --gpus 64xA100 --gbs-tokens 4M"), "agrees"),
        *_dependence(),
        Row("bytes of fp32, bf16, fp16, fp8", "4, 2, 2, 1", "4, 2, 2, 1; blocks of fp8 with their "
            "scales more", command("memory --model 8b --gpus 1xB200 --precision mxfp8"),
            "agrees"),
        Row("exponent and mantissa bits of fp32, bf16, fp16, fp8", "8, 23; 8, 7; 5, 10; 4, 3",
            "; ".join(f"{form['exponent_bits']}, {form['mantissa_bits']}"
                      for form in (_formats()[name] for name in ("fp32", "bf16", "fp16", "fp8"))),
            command("hardware H100"), "agrees"),
    ]  # fmt: skip


def _formats() -> dict[str, Any]:
    return dict(run("hardware H100")["formats"])


def _critical_batch() -> list[Row]:
    """What a batch costs in tokens, by `planner budget`'s law."""
    words = "budget --model gpt2-xl --gbs-tokens 4M --tokens 300B"
    critical = run(words)["critical_batch"]["tokens"]["value"]
    ramp = (
        "evaluate --model deepseek-v3 --gpus 2048xH800 --seq 4096 --pp 16 "
        "--ep 64 --batch-ramp 3072..15360/469B"
    )
    steps = run(ramp)["plans"][0]["ramp"]
    return [
        Row("critical batch size: gains diminish above it", "a size for each model and data set",
            f"{critical / 1e6:.1f} M tokens for a training on 300 B tokens",
            command(words), "agrees; a law of measured runs with its interval"),
        Row("below it twice the batch halves the steps, above it tokens are lost",
            "two regimes", "with --gpus: the share of further tokens that the same loss needs",
            command(words), "agrees"),
        Row("sweet spot of pretraining", "4 M to 60 M tokens", "no fixed range: the critical batch "
            "grows with the tokens trained on", command(words),
            "**erratum** as a rule: for a small model or a short run 4 M tokens are too many"),
        Row("DeepSeek-V3's batch grows over its first 469 B tokens", "3,072 to 15,360 sequences",
            f"{steps[0]['gbs']:,} sequences first; every batch of the ramp is costed",
            command(ramp), "agrees"),
    ]  # fmt: skip


def _dependence() -> list[Row]:
    longer = _MIXED.replace("2048", "4096")
    state = [term(words, "weights", "start") for words in (_MIXED, f"{_MIXED} --mbs 2", longer)]
    kept = [layers_bytes(words) for words in (_MIXED, f"{_MIXED} --mbs 2", longer)]
    return [
        Row("weights, gradients and states depend on batch and length", "no, no",
            "no, no" if len(set(state)) == 1 else "yes", command(f"{_MIXED} --mbs 2"), "agrees"),
        Row("activations depend on batch and length", "linearly, quadratically",
            f"x {kept[1] / kept[0]:.2f}, x {kept[2] / kept[0]:.2f} for twice as much",
            command(longer), "agrees with scores in memory; with flash attention linear in both"),
    ]  # fmt: skip


def _parameters() -> list[Row]:
    by = "`planner.predict.ops.table.parameter_count` of GPT-2 without learned positions"
    total = parameter_count(_ROTARY).total
    layer = float(total - parameter_count(_ROTARY.model_copy(update={"layers": _L - 1})).total)
    parts = _part_parameters(_ROTARY)
    return [
        figure("parameters of a GPT", float(_H * _V + _L * (12 * _H**2 + 13 * _H) + 2 * _H), total,
               by, unit="", formula="h v + L (12 h² + 13 h) + 2 h"),
        figure("query, key, value", 3.0 * _H**2, parts["attention/qkv"] - 3 * _H, by, unit="",
               formula="3 h²"),
        figure("output projection", 1.0 * _H**2, parts["attention/out_proj"] - _H, by, unit="",
               formula="h²"),
        figure("up-projection", 4.0 * _H**2, parts["mlp/up"] - 4 * _H, by, unit="",
               formula="4 h²"),
        figure("down-projection", 4.0 * _H**2, parts["mlp/down"] - _H, by, unit="",
               formula="4 h²"),
        figure("two layer norms", 4.0 * _H, parts["attention/norm"] + parts["ffn/norm"], by,
               unit="", formula="4 h"),
        figure("biases", 9.0 * _H, layer - 12.0 * _H**2 - 4 * _H, by, unit="", formula="~9 h",
               note="exact: 3 + 1 + 4 + 1"),
        figure("a layer", 12.0 * _H**2 + 13 * _H, layer, by, unit="", formula="12 h² + 13 h"),
    ]  # fmt: skip


def _part_parameters(model: ModelSpec) -> dict[str, float]:
    context = OpContext(model, load_framework("megatron-core"), model.pretraining_seq)
    return {op.name: sum(count for count, _ in op.parameters) for op in pieces(context)[0].ops}


def _state() -> list[Row]:
    fp32, mixed, twenty = (per_parameter(item) for item in (_FP32, _MIXED, _FP32_GRADIENTS))
    rows = [
        figure("fp32: weights, gradients, two moments", 16.0, fp32, command(_FP32), unit="",
               digits=2, formula="4 N + 4 N + 8 N, per N"),
        figure("mixed precision, gradients in 16 bits", 16.0, mixed, command(_MIXED), unit="",
               digits=2, formula="2 N + 2 N + 4 N + 8 N, per N"),
        figure("and gradients accumulated in fp32", 20.0, twenty, command(_FP32_GRADIENTS),
               unit="", digits=2, formula="2 N + 2 N + 4 N + 4 N + 8 N, per N",
               note="Megatron drops the 16-bit gradient: 18"),
    ]  # fmt: skip
    for model, plain, more in _STATES:
        count = parameter_count(load_model(model).spec).total
        for bytes_each, theirs, framework in ((16, plain, "textbook"), (20, more, "nanotron")):
            words = f"memory --model {model} --framework {framework} --seq 2048"
            rows.append(
                figure(f"{bytes_each} N of {model}, {count / 1e9:.2f} B parameters",
                       bytes_each * float(count), per_parameter(words, model) * count,
                       command(words), unit="GB", formula=f"{theirs} GB for its size",
                       note="" if abs(theirs * 1e9 / bytes_each / count - 1) < 0.02 else
                       f"N is not {theirs / bytes_each:g} B")
            )  # fmt: skip
    rates = load_gpu("H100").peak_flop_per_s
    fits = run("memory --model llama-2-7b --framework textbook --gpus 1xH100 --mbs 1")["fits"]
    return [
        *rows,
        Row("7B on one H100 of 80 GB", "does not fit", "fits" if fits else "does not fit",
            command("memory --model llama-2-7b --framework textbook --gpus 1xH100 --mbs 1"),
            "agrees"),
        Row("mixed precision saves no state; its gains", "products 2 times faster than fp32, "
            "activations halved", f"{rates['bf16'] / rates['tf32']:.0f} times tf32, "
            f"{rates['bf16'] / rates['fp32']:.1f} times fp32 on an H100", command(_TF32),
            "**erratum**: 2 times is against TF32 products; fp32 ones are far slower"),
    ]  # fmt: skip


def _activations() -> list[Row]:
    model = load_model("gpt3-175b").spec
    formula = float(
        model.layers * 2048 * model.hidden * (34 + 5 * model.heads * 2048 / model.hidden)
    )
    unit = 2048.0 * model.hidden * model.layers
    tensors = {
        peak_kept_tensor["name"]: peak_kept_tensor["bytes"] / unit
        for peak_kept_tensor in run(_GPT3)["stages"][0]["peak_kept_tensors"]
    }
    scores = model.heads * 2048 / model.hidden
    found = command(_GPT3)
    table = (
        ("input of the attention's norm", 2.0, "attention/norm/input"),
        ("input of the feed-forward norm", 2.0, "ffn/norm/input"),
        ("attention output before its projection", 2.0, "attention/output"),
    )
    ours = sum(tensors.get(f"attention/{name}", 0.0) for name in "qkv")
    return [
        figure("activations of GPT-3 175B", formula, layers_bytes(_GPT3), found, unit="GiB",
               digits=2, formula="L s b h (34 + 5 a s / h)"),
        *(figure(f"table of the derivation: {what}", theirs, tensors[name], found, unit="s h")
          for what, theirs, name in table),
        figure("table: query, key, value", 6.0, ours, found, unit="s h"),
        figure("table: softmax of the scores, with its remaining terms, per a s²", 5.0,
               sum(size for name, size in tensors.items() if "scores" in name or "probab" in name)
               / scores, found, unit="", digits=1,
               note="the table's 2 are softmax's output; its dropout's output 2 and mask 1 are "
               "among the remaining terms, and the formula has all 5"),
        figure("table: feed-forward intermediate", 8.0, tensors["mlp/down/input"], found,
               unit="s h"),
        figure("table: GELU's input, among the remaining terms", 8.0,
               tensors["mlp/activation_input"], found, unit="s h"),
        Row("table: output of the feed-forward block", "2 s h", "0 s h", found,
            "**erratum**: nothing in backward reads it; the input of each projection is kept "
            "instead, 2 s h each"),
        figure("table: dropout masks", 2.0,
               sum(size for name, size in tensors.items() if "mask" in name and "core" not in name
                   and "scores" not in name), found, unit="s h"),
    ]  # fmt: skip


def _recomputation() -> list[Row]:
    none, selective, full = (
        run(_STEP.format(mode))["plans"][0] for mode in ("none", "selective", "full")
    )
    whole = layers_bytes(_GPT3)
    kept = layers_bytes(f"{_GPT3} --recompute selective")
    inputs = layers_bytes(f"{_GPT3} --recompute full")
    deepseek = load_model("deepseek-v3").spec
    rank = deepseek.mla.kv_lora_rank if deepseek.mla else 0
    flash = layers_bytes(f"{_GPT3} --attention flash")
    return [
        figure("full recomputation keeps a layer's input", 2.0 * 96 * 2048 * 12288, inputs,
               command(f"{_GPT3} --recompute full"), unit="GiB", digits=2, formula="2 L s b h"),
        figure("a checkpoint every k-th layer keeps 1/k of that, k = 4", inputs / 4,
               layers_bytes(f"{_GPT3} --recompute full:uniform=4"),
               command(f"{_GPT3} --recompute full:uniform=4"), unit="GiB", digits=2,
               formula="O(L / k)", note="full/4 is another mode: one layer in four recomputes"),
        within("and takes 30 to 40 % more time", "30 to 40 %", 0.3, 0.4,
               full["step_time_s"] / none["step_time_s"] - 1, command(_STEP.format("full"))),
        figure("selective recomputation of GPT-3 saves activations", 0.70, 1 - kept / whole,
               command(f"{_GPT3} --recompute selective"), unit="%"),
        within("and takes 2.7 % more time", "2.7 %", 0.022, 0.032,
               selective["step_time_s"] / none["step_time_s"] - 1,
               command(_STEP.format("selective"))),
        Row("MLA keeps keys and values compressed", "d_c far below h",
            f"{rank} of {deepseek.hidden:,} in DeepSeek-V3", command("models deepseek-v3"),
            "agrees for the cache of serving; training keeps the expanded ones too"),
        figure("FlashAttention keeps no scores: saved of 5 a s²", whole - kept, whole - flash,
               command(f"{_GPT3} --attention flash"), unit="GiB", digits=1),
        figure("MFU equals HFU without recomputation", none["mfu"], none["hfu"],
               command(_STEP.format("none")), unit="%", digits=1),
        Row("HFU exceeds MFU with it", "HFU > MFU", f"{number(full['hfu'], '%', 1)}, "
            f"{number(full['mfu'], '%', 1)}", command(_STEP.format("full")), "agrees"),
    ]  # fmt: skip


def _accumulation() -> list[Row]:
    words = "evaluate --model 8b --gpus 1xB200 --framework textbook --mbs 1 --grad-acc {}"
    one, four = (run(words.format(count))["plans"][0] for count in (1, 4))
    return [
        figure("global batch on one GPU", 4.0, four["gbs"], command(words.format(4)), unit="",
               formula="mbs · grad_acc", note="times dp on several"),
        figure("activations depend on the micro-batch alone", one["stages"][0]["activations"],
               four["stages"][0]["activations"], command(words.format(4))),
        Row("time of a step", "G (forward + backward) + optimizer",
            f"{four['step_time_s'] / one['step_time_s']:.2f} times that of one micro-batch",
            command(words.format(4)), "agrees"),
        Row("gradients persist between micro-batches", "a small overhead",
            "phases with gradients held",
            command("memory --model 8b --framework hf-transformers --grad-acc 2"), "agrees; it is "
            "all of the gradients, 2 to 4 bytes a parameter"),
        Row("micro-batches are independent, hence data parallelism", "-", "dp",
            command("search --model 70b --gpus 64xH100 --gbs-tokens 4M"), "agrees"),
    ]  # fmt: skip


def _profiler() -> list[Row]:
    return [
        Row("profiler: its arguments, timelines and patterns", "two tables",
            "the profiler's traces by term, and these patterns, each with its seconds",
            command("trace examples/08_traces/made_up_rank0.json"), "agrees"),
        Row("copies between CPU and GPU: use pinned memory", "a rule",
            "seconds of copies of pinned and of pageable memory",
            command("trace examples/08_traces/made_up_rank0.json"), "agrees"),
        Row("the second step needs more than the first", "8 N more", number(
            phase(_FP32, "start")["bytes"] - phase(_FP32, "start", "first")["bytes"], "GB", 2)
            + " for Llama-2-7B", command(_FP32), "agrees: 8 N"),
        Row("summary table", "the formulas above", "the rows above", command(_FP32), "agrees"),
    ]  # fmt: skip
