"""Memory by component and by parallel strategy, for training and for serving."""

from __future__ import annotations

from planner.job.models.catalog import load_model
from planner.predict.ops.table import parameter_count
from tests.documents.rows import Row, command, figure, layers_bytes, number, phase, run, term

_MIXED = "memory --model llama-2-7b --framework textbook"
_FP32 = f"{_MIXED} --precision fp32"
_GPT3 = "memory --model gpt3-175b --framework textbook --dropout --mbs 1 --seq 2048"
_SERVE = "memory --inference --model {} --gpus 1xH100 --batch {} --context {} --weights {}"
_QWEN = "qwen2.5-7b"
_BATCH = 16
_ANY_BATCH = (
    "memory --inference --model llama-3-8b --gpus {0}xH100 --tp {0} --context 32Ki --weights fp16 "
    "--solve batch"
)
_FOUR = (
    "memory --inference --model qwen2.5-7b --gpus 4xH100 --tp 4 --batch 64 --context 32Ki "
    "--weights fp16"
)


def components() -> list[Row]:
    """Rows of the document."""
    return [*_parts(), *_activations(), *_totals(), *_sharding(), *_experts(), *_qwen(), *_rules()]


def count(name: str) -> int:
    """Parameters of a model."""
    return parameter_count(load_model(name).spec).total


def _per_parameter(words: str, *names: str) -> float:
    return sum(term(words, name, "gradient reduction") for name in names) / count("llama-2-7b")


def _weights(words: str) -> float:
    stage = run(words)["stages"][0]
    named = stage["within_budget"].items()
    return float(sum(size for name, size in named if name.startswith("weights")))


def _parts() -> list[Row]:
    rows = [
        Row("six components, for training and serving", "a table",
            "training: planner memory; serving: --inference, with keys and values",
            command(_MIXED), "agrees"),
        Row("variables: L, d, d_ff, heads, key/value heads, V, N, B", "an example",
            "the model's, from the catalogue", command("models llama-2-7b"),
            "**erratum** as a model: 8 key/value heads are Llama-3's, the widths Llama-2-7B's"),
    ]  # fmt: skip
    sizes = (("7B", "llama-2-7b", 7e9), ("13B", "llama-2-13b", 13e9), ("70B", "llama-3-70b", 70e9))
    for label, name, nominal in sizes:
        for kind, size in (("fp32", 4.0), ("fp16", 2.0), ("int8", 1.0), ("int4", 0.5)):
            words = _SERVE.format(name, 1, 4096, kind)
            weights = _weights(words)
            # Quantised weights have scales; embedding and head stay in 16 bits.
            scaled = "scales, and embedding and head in 16 bits" if kind.startswith("int") else ""
            theirs = size * count(name)
            differs = abs(weights / theirs - 1) > 0.02
            rows.append(
                figure(f"weights of {label} in {kind}; {name} has {count(name) / 1e9:.2f} B",
                       theirs, weights, command(words), unit="GB", digits=1,
                       formula=f"{size * nominal / 1e9:g} GB at {label}; P b",
                       erratum=scaled if differs else "")
            )  # fmt: skip
    return [*rows, *_training_parts()]


def _training_parts() -> list[Row]:
    mixed, fp32 = command(_MIXED), command(_FP32)
    return [
        figure("mixed-precision AdamW", 12.0,
               _per_parameter(_MIXED, "optimizer state", "master weights"), mixed, unit="",
               formula="4 + 4 + 4 bytes a parameter"),
        figure("fp32 AdamW", 8.0, _per_parameter(_FP32, "optimizer state", "master weights"),
               fp32, unit="", formula="4 + 4 bytes a parameter"),
        figure("optimizer of Llama-2-7B", 12.0 * count("llama-2-7b"),
               count("llama-2-7b") * _per_parameter(_MIXED, "optimizer state", "master weights"),
               mixed, unit="GB", digits=1, formula="84 GB at 7 B; 12 P",
               note="at or above one 80 GB GPU, so at least two"),
        figure("gradients in 16 bits", 2.0, _per_parameter(_MIXED, "gradients"), mixed, unit=""),
        figure("gradients in fp32", 4.0, _per_parameter(_FP32, "gradients"), fp32, unit=""),
    ]  # fmt: skip


def _activations() -> list[Row]:
    model = load_model("gpt3-175b").spec
    tokens = 2048.0 * model.layers
    kept, layers_byte = layers_bytes(_GPT3), command(_GPT3)
    full = layers_bytes(f"{_GPT3} --recompute full")
    return [
        figure("rough estimate of activations, GPT-3", 2 * tokens * model.hidden * 2, kept,
               layers_byte, unit="GB", digits=1, formula="2 B N d L b_act",
               erratum="two tensors a layer of the 34 d + 5 n N bytes that are kept"),
        figure("full formula of activations, GPT-3",
               tokens * (34 * model.hidden + 5 * model.heads * 2048) * 2, kept, layers_byte,
               unit="GB", digits=1, formula="L B N (34 d + 5 n N) b_act",
               erratum="34 and 5 are bytes already: without b_act"),
        Row("checkpoint of each layer", "M / L, 33 % more compute",
            f"{number(full, 'GB', 2)} of {number(kept, 'GB', 1)}: a layer's input each",
            command(f"{_GPT3} --recompute full"),
            "**erratum**: 2 L B N d remain, not M / L; 33 % is right"),
        Row("full recomputation", "O(B N d), 100 % more compute", "the same as the row above",
            command(f"{_GPT3} --recompute full"),
            "**erratum**: one more forward is a third of forward and backward, 33 %"),
        figure("keys and values a token, Llama-2-7B", 2.0 * 32 * 128 * 32 * 2,
               run(_SERVE.format("llama-2-7b", 1, 4096, "fp16"))["kv_bytes_per_token"],
               command(_SERVE.format("llama-2-7b", 1, 4096, "fp16")),
               formula="2 n_kv d_h L b_kv"),
        figure("grouped queries cache less, Llama-3-8B to Llama-2-7B", 0.25,
               run(_SERVE.format("llama-3-8b", 1, 4096, "fp16"))["kv_bytes_per_token"]
               / run(_SERVE.format("llama-2-7b", 1, 4096, "fp16"))["kv_bytes_per_token"],
               command(_SERVE.format("llama-3-8b", 1, 4096, "fp16")), unit="", digits=2,
               formula="n_kv / n_h"),
        Row("temporary buffers", "1 to 2 GB", "workspaces, communicators, context, fragmentation",
            command("memory --model 8b --gpus 8xH100"), "terms of their own, each with its source"),
    ]  # fmt: skip


def _totals() -> list[Row]:
    words = "memory --model llama-2-7b --framework megatron-core --mbs 32 --seq 4096"
    textbook = f"{_MIXED} --mbs 32 --seq 4096 --dropout --attention flash --recompute full"
    kept = term(words, "activations", "forward end")
    return [
        figure("training Llama-2-7B, without activations and buffers", 16.0 * count("llama-2-7b"),
               count("llama-2-7b") * _per_parameter(_MIXED, "weights", "gradients",
                                                    "optimizer state", "master weights"),
               command(_MIXED), unit="GB", digits=1, formula="14 + 84 + 14 = 112 GB at 7 B; 16 P"),
        figure("activations of 7B at B = 32, N = 4096", 60e9, kept, command(words), unit="GB",
               erratum="the rough estimate; with flash attention and no checkpoints it is ten "
               "times that"),
        figure("the same, all layers checkpointed", 60e9, layers_bytes(textbook),
               command(textbook), unit="GB",
               erratum="2 L B N d with every layer checkpointed"),
        figure("total of training 7B", 174e9, run(words)["total_bytes"],
               command(words), unit="GB", erratum="the activations are ten times the estimate; "
               "fragmentation, workspaces and the context count too"),
        Row("does not fit 80 GB", "so it is split", "does not fit" if not run(words)["fits"]
            else "fits", command(words), "agrees"),
        Row("total of serving", "weights, keys and values, buffers", "the same and activations of "
            "a chunk, CUDA graphs", command(_SERVE.format("llama-2-7b", 1, 4096, "fp16")),
            "agrees"),
    ]  # fmt: skip


def _sharding() -> list[Row]:
    found = "memory --model llama-2-7b --framework textbook --gpus 8xH100 --zero {}"
    single, data = (phase(words, "gradient reduction") for words in (_MIXED, found.format(0)))
    state = {stage: _state(found.format(stage)) for stage in (0, 1, 2, 3)}
    rows = [
        figure("data parallelism divides no state", _sum(single), _sum(data),
               command(found.format(0)), unit="GB", digits=2),
        Row("and divides activations by splitting the batch", "M(B / dp)", "the micro-batch is "
            "an option of its own", command(found.format(0)), "agrees"),
    ]  # fmt: skip
    for stage, theirs, whole in ((1, "~4x", 4.0), (2, "~8x", 2.0), (3, "~dp x", 0.0)):
        expected = 16.0 / (whole + (16.0 - whole) / 8)
        rows.append(
            figure(f"ZeRO-{stage} on 8 GPUs saves", expected, state[0] / state[stage],
                   command(found.format(stage)), unit="x", digits=2, formula=theirs,
                   note="" if stage == 3 else f"{theirs} in the limit of many GPUs")
        )  # fmt: skip
    return [*rows, *_model_parallel()]


def _sum(item: dict[str, dict[str, float]]) -> float:
    names = ("weights", "gradients", "optimizer state", "master weights")
    return sum(item["terms"][name] for name in names)


def _state(words: str) -> float:
    return _sum(phase(words, "gradient reduction"))


def _model_parallel() -> list[Row]:
    split, plain = f"{_GPT3} --tp 8", f"{_GPT3} --tp 8 --no-sequence-parallel"
    stages = f"{_GPT3} --pp 8 --grad-acc 32"
    whole = layers_bytes(_GPT3)
    first = run(stages)["stages"][0]
    held = sum(peak_kept_tensor["bytes"] for peak_kept_tensor in first["peak_kept_tensors"]
               if not peak_kept_tensor["name"].startswith(("head", "embedding")))  # fmt: skip
    return [
        figure("tensor parallelism divides state, tp 8", _state(_GPT3) / 8, _state(split),
               command(split), unit="GB", digits=1, note="but positions and norms"),
        figure("and activations, with sequence parallelism", whole / 8, layers_bytes(split),
               command(split), unit="GB", digits=1),
        figure("and without", whole / 8, layers_bytes(plain), command(plain), unit="GB",
               digits=1, erratum="norms, dropout and inputs stay whole: 10 of 34 bytes"),
        Row("tensor parallelism costs two all-reduces a layer", "2", "2 in forward, 2 in backward",
            command("evaluate --model gpt3-175b --gpus 64xA100 --gbs 64 --tp 8 --pp 8"),
            "**erratum** for training: 4"),
        figure("pipeline stages divide state, pp 8, an inner stage", _inner(_GPT3) / 8,
               _inner(stages), command(f"{stages} --stage 1"), unit="GB", digits=1),
        figure("and activations, first stage of 1F1B", whole / 8, held, command(stages),
               unit="GB", digits=1,
               erratum="as many micro-batches as stages are in flight: M(L) again"),
        Row("pipeline bubbles", "idle time", "(pp − 1) / (vpp · micro-batches), and its seconds",
            command("evaluate --model gpt3-175b --gpus 64xA100 --gbs 64 --tp 8 --pp 8"), "agrees"),
    ]  # fmt: skip


def _inner(words: str) -> float:
    """Weights, gradients and optimizer of the layers of a rank, of all if there is one stage."""
    found = run(words)["stages"]
    result = found[1] if len(found) > 1 else found[0]
    phases = result["phases"]
    held = next(p for p in phases if p["phase"] == "gradient reduction" and p["step"] == "later")
    if len(found) > 1:
        return _sum(held)
    model = load_model("gpt3-175b").spec
    outer = (model.vocab + model.max_positions + 2) * model.hidden
    return _sum(held) * (1 - outer / count("gpt3-175b"))


def _experts() -> list[Row]:
    words = "memory --model mixtral-8x7b --framework textbook --gpus 8xH100 --ep {} --zero 0"
    spec = load_model("mixtral-8x7b").spec
    found = parameter_count(spec)
    shared = found.total - found.experts
    result = term(words.format(8), "weights", "start")
    return [
        figure("experts of a rank, Mixtral at ep 8", found.experts / 8 * 2.0,
               result - 2.0 * shared, command(words.format(8)), unit="GB", digits=2,
               formula="E P_expert / ep · b"),
        figure("weights of a rank, Mixtral at ep 8", 2.0 * (shared + found.experts / 8), result,
               command(words.format(8)), unit="GB", digits=2,
               formula="P_shared b + E P_expert / ep · b"),
        Row("GPUs of combined strategies", "dp · tp · pp · ep", "dp · tp · pp · cp",
            command("search --model mixtral-8x7b --gpus 64xH100 --gbs-tokens 4M"),
            "**erratum**: expert parallelism lies inside data and tensor parallelism"),
        Row("memory of a GPU under all of them", "weights / (tp pp) + optimizer / (tp pp dp) + "
            "activations + buffers", "every term by what shards it",
            command("memory --model 70b --tp 8 --pp 2"),
            "**erratum**: gradients are missing"),
    ]  # fmt: skip


def _qwen() -> list[Row]:
    spec = load_model(_QWEN).spec
    words = _SERVE.format(_QWEN, _BATCH, "32Ki", "fp16")
    served = run(words)["stages"][0]
    wide = _SERVE.format("llama-3-8b", _BATCH, "32Ki", "fp16")
    shape = f"{spec.layers} layers of {spec.hidden:,}, {spec.heads} and {spec.kv_heads} heads"
    rows = [
        Row("shape of Qwen2.5-7B", "32 layers of 4,096, 32 and 8 heads", shape,
            command(f"models {_QWEN}"), "**erratum**: the widths are not Qwen2.5-7B's"),
        figure("weights in 16 bits", 15.2e9, _weights(words), command(words), unit="GB",
               digits=1),
        figure("keys and values, 16 sequences of 32Ki, with the document's widths", 32.8e9,
               _llama_cache(), command(_SERVE.format("llama-3-8b", _BATCH, "32Ki", "fp16")),
               unit="GB", digits=1, formula="2 · 16 · 32768 · 8 · 128 · 32 · 2",
               erratum="the product is 68.7 GB, 64 GiB"),
        figure("the same with Qwen2.5-7B's", 32.8e9, served["kv_needed_bytes"], command(words),
               unit="GB", digits=1, erratum="28 layers of 4 heads: 30.1 GB, 28 GiB"),
        Row("total on one H100", "~50 GB, fits", "with the document's widths, which are "
            f"Llama-3-8B's: {_served(wide)}; with Qwen2.5-7B's: {_served(words)}", command(words),
            "**erratum** for the widths given; agrees for the model, chunks and CUDA graphs "
            "counted as well"),
        Row("available batch: 16 on one GPU, 32 at tp 2, 64 at tp 4, with the document's widths",
            "16, 32, 64", ", ".join(str(_largest_batch(tp)) for tp in (1, 2, 4)),
            command(f"{_ANY_BATCH.format(2)}"),
            "**erratum**: the caches are twice what the document computed"),
        Row("tp shortens a decode step and adds two all-reduces a layer", "a rule",
            _decode_trade_off(), command(f"{_FOUR} --advise"),
            "agrees; each split of the same GPUs with its latency and throughput"),
    ]  # fmt: skip
    for tp, weights, total, batch in ((2, 7.6, 40, 32), (4, 3.8, 35, 64)):
        words = _SERVE.format(_QWEN, batch, "32Ki", "fp16")
        one = words.replace("1xH100", f"{tp}xH100 --tp {tp}")
        wide_one = one.replace(_QWEN, "llama-3-8b")
        rows += [
            figure(f"tp {tp}: weights of a GPU", weights * 1e9, _weights(one), command(one),
                   unit="GB", digits=1),
            Row(f"tp {tp}: total of a GPU at batch {batch}", f"~{total} GB", _served(one),
                command(one), "agrees for Qwen2.5-7B but for what the engine takes beside the "
                f"document's 2 GB; **erratum** for the widths given: {_served(wide_one)}"),
        ]  # fmt: skip
    return rows


def _served(words: str) -> str:
    """All that a server takes of its fullest GPU, and whether it fits."""
    stage, fits = run(words)["stages"][0], run(words)["fits"]
    parts = (*stage["within_budget"].values(), *stage["beside_budget"].values())
    total = float(sum(parts)) + float(stage["kv_needed_bytes"])
    return f"{number(total, 'GB', 0)}, {'fits' if fits else 'does not fit'}"


def _largest_batch(tp: int) -> int:
    """Sequences of 32Ki tokens that fit with the document's widths."""
    words = _ANY_BATCH.format(tp) if tp > 1 else _ANY_BATCH.replace(" --tp {0}", "").format(1)
    return int(run(words)["solved"]["expected"])


def _decode_trade_off() -> str:
    splits = {split["tp"]: split for split in run(f"{_FOUR} --advise")["splits"]}
    return "; ".join(
        f"tp {tp}: {(splits[tp]['read_s'] + splits[tp]['reduce_s']) * 1e3:.1f} ms a token, "
        f"{splits[tp]['tokens_per_s']:,.0f} tokens/s"
        for tp in (1, 2, 4)
    )


def _llama_cache() -> float:
    """Llama-3-8B has the widths that the document gives."""
    words = _SERVE.format("llama-3-8b", _BATCH, "32Ki", "fp16")
    return float(run(words)["stages"][0]["kv_needed_bytes"])


def _rules() -> list[Row]:
    short, long = (_SERVE.format("llama-2-7b", 1, size, "fp16") for size in ("4096", "128Ki"))
    nanotron = "memory --model llama-2-7b --framework nanotron"
    megatron = "memory --model llama-2-7b --framework megatron-core --without bf16-gradients"
    names = ("weights", "gradients", "optimizer state", "master weights")
    least, most = (_per_parameter(words, *names) for words in (megatron, nanotron))
    caches = [run(words)["stages"][0]["kv_needed_bytes"] for words in (short, long)]
    return [
        Row("flow chart of an out-of-memory", "ZeRO, checkpoints, splitting; quantisation, GQA, "
            "cache, splitting", "every change evaluated, smallest cost first",
            command("memory --model 8b --gpus 8xH100 --mbs 8 --advise"),
            "agrees"),
        figure("serving in 16 bits, per 1B", 2.0, _weights(short) / count("llama-2-7b"),
               command(short), unit="", digits=1),
        Row("training in mixed precision, per 1B", "18 to 20 GB", f"{least:.0f} to {most:.0f} GB",
            command(nanotron), "agrees"),
        figure("keys and values of Llama-7B at 4K", 2 * 2.0**30, caches[0], command(short),
               unit="GiB"),
        figure("and at 128K", 64 * 2.0**30, caches[1], command(long), unit="GiB"),
        figure("traffic of an all-reduce from tp 2 to tp 4", 2.0, (2 * 3 / 4) / (2 * 1 / 2),
               "a ring sends 2 (t − 1) / t of the tensor", unit="", digits=1,
               erratum="1.5 times a GPU, and each product is half as large"),
        Row("ZeRO-2 by default, ZeRO-3 if nothing else fits", "a rule", "the fastest that fits",
            command("search --model 70b --gpus 64xH100 --gbs-tokens 4M"),
            "searched for each job; frameworks offer 1 and 3 mostly"),
        Row("accuracy of the formulas", "about 80 %", "an interval with each answer",
            command("validate"), "ours is measured, by family"),
    ]  # fmt: skip
