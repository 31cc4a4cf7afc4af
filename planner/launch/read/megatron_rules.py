"""Combinations of options that Megatron-LM refuses, at the start or only at run time.

Rules over degrees (divisibility, batch, experts) are those of `constraints`; here is what only the
options say. Source of all: megatron-core 0.19, training/arguments.py (validate_args) and
transformer_config.py (__post_init__), where nothing else is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.launch.read.found import Edit, Problem
from planner.launch.read.megatron_arguments import Arguments

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True)
class Facts:
    """What rules read beside the options: degrees, and the environment of the command."""

    arguments: Arguments
    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int | None
    environment: dict[str, str]
    command_place: str
    # A list of options without the command says nothing of its environment.
    has_command: bool = True


Rule = Callable[[Facts], Iterator[Problem]]


def option_problems(facts: Facts) -> list[Problem]:
    """What each rule finds."""
    return [problem for rule in _RULES for problem in rule(facts)]


# What Megatron-Core offloads of layers with experts alone, and the variable that keeps Transformer
# Engine from offloading weights.
_OF_EXPERTS = ("mlp_norm", "expert_fc1", "moe_act")
OFFLOAD_V1 = "NVTE_CPU_OFFLOAD_V1"


def _clash(
    facts: Facts, rule: str, text: str, names: tuple[str, ...], *, fix: str = "", **more: object
) -> Problem:
    return Problem(rule, text, places=facts.arguments.place(*names), fix=fix, **more)  # type: ignore[arg-type]


def _switch_on(name: str) -> tuple[Edit, ...]:
    return (Edit(f"--{name}", ""),)


def _overlap(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if not arguments.has("overlap-param-gather"):
        if arguments.has("overlap-param-gather-with-optimizer-step"):
            yield _clash(
                facts, "overlap-param-gather",
                "--overlap-param-gather-with-optimizer-step needs --overlap-param-gather",
                ("overlap-param-gather-with-optimizer-step",),
                fix="--overlap-param-gather", edits=_switch_on("overlap-param-gather"),
            )  # fmt: skip
        return
    if not (arguments.has("use-distributed-optimizer") or arguments.has("use-megatron-fsdp")):
        yield _clash(
            facts, "overlap-param-gather",
            "--overlap-param-gather needs --use-distributed-optimizer (or --use-megatron-fsdp)",
            ("overlap-param-gather",),
            fix="--use-distributed-optimizer", edits=_switch_on("use-distributed-optimizer"),
        )  # fmt: skip
    if not arguments.has("overlap-grad-reduce"):
        yield _clash(
            facts, "overlap-param-gather",
            "--overlap-param-gather needs --overlap-grad-reduce", ("overlap-param-gather",),
            fix="--overlap-grad-reduce", edits=_switch_on("overlap-grad-reduce"),
        )  # fmt: skip


def _experts(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has("num-experts") and facts.tp > 1 and not arguments.has("sequence-parallel"):
        yield _clash(
            facts, "moe-tensor-needs-sequence",
            "experts under tensor parallelism need --sequence-parallel (found out in the first "
            "forward pass: transformer/moe/moe_layer.py)",
            ("num-experts", "tensor-model-parallel-size"),
            fix="--sequence-parallel", edits=_switch_on("sequence-parallel"), late=True,
        )  # fmt: skip
    if arguments.has("num-experts") and not arguments.has("moe-grouped-gemm"):
        yield _clash(
            facts, "grouped-gemm",
            "without --moe-grouped-gemm experts run one after another: the CPU's time for it is "
            "costed, the slower products are not",
            ("num-experts",), severity="warning",
            fix="--moe-grouped-gemm", edits=_switch_on("moe-grouped-gemm"),
        )  # fmt: skip


def _recompute(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    granularity = arguments.text("recompute-granularity")
    method, layers = arguments.text("recompute-method"), arguments.number("recompute-num-layers")
    if granularity == "selective" and method:
        yield _clash(
            facts, "recompute-method",
            "--recompute-granularity selective takes no --recompute-method",
            ("recompute-granularity", "recompute-method"),
            fix="leave --recompute-method out", edits=(Edit("--recompute-method", None),),
        )  # fmt: skip
    if granularity == "full" and (not method or not layers):
        missing = [n for n, v in (("method", method), ("num-layers", layers)) if not v]
        usual = {"method": "uniform", "num-layers": "1"}
        yield _clash(
            facts, "recompute-method",
            "--recompute-granularity full needs "
            + " and ".join(f"--recompute-{name}" for name in missing),
            ("recompute-granularity",),
            fix=" ".join(f"--recompute-{name} {usual[name]}" for name in missing),
            edits=tuple(Edit(f"--recompute-{name}", usual[name]) for name in missing),
        )  # fmt: skip
    if arguments.has("recompute-modules") and granularity != "selective":
        yield _clash(
            facts, "recompute-modules",
            "--recompute-modules has no effect without --recompute-granularity selective",
            ("recompute-modules",), severity="warning",
            fix="--recompute-granularity selective",
        )  # fmt: skip


def _connections(facts: Facts) -> Iterator[Problem]:
    """Order of kernel launches that tensor and context parallelism rely on before Blackwell."""
    arguments = facts.arguments
    value = facts.environment.get(CONNECTIONS)
    shards = arguments.has("use-megatron-fsdp") or arguments.has("use-torch-fsdp2")
    if shards and value == "1":
        yield Problem(
            "cuda-device-max-connections",
            f"{CONNECTIONS}=1 is refused with FSDP: its collectives must run beside compute",
            places=(facts.command_place,),
            fix=f"unset {CONNECTIONS}",
        )
    elif not shards and (facts.tp > 1 or facts.cp > 1) and value != "1":
        seen = f"is {value}" if value else "is not set in the files"
        yield Problem(
            "cuda-device-max-connections",
            f"{CONNECTIONS} {seen}: tp or cp > 1 need 1 on GPUs before Blackwell",
            "error" if value or facts.has_command else "warning",
            places=(facts.command_place,),
            fix=f"export {CONNECTIONS}=1",
            edits=(Edit(f"${CONNECTIONS}", "1"),) if facts.has_command else (),
        )


def _interleaving(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if facts.vpp > 1 and facts.pp == 2 and arguments.has("no-overlap-p2p-communication"):
        yield _clash(
            facts, "interleaving-p2p",
            "interleaving without p2p overlap needs pp > 2", ("no-overlap-p2p-communication",),
            fix="leave it out", edits=(Edit("--no-overlap-p2p-communication", None),),
        )  # fmt: skip


def _precision(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has("bf16") and arguments.has("fp16"):
        yield _clash(
            facts, "precision", "--bf16 and --fp16 exclude each other", ("bf16", "fp16"),
            fix="leave --fp16 out", edits=(Edit("--fp16", None),),
        )  # fmt: skip
    if arguments.has("fp8-format") and arguments.has("fp4-format"):
        names = ("fp8-format", "fp4-format")
        yield _clash(facts, "precision", "--fp8-format and --fp4-format exclude each other", names)
    sharded = ("use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2")
    if arguments.has("fp8-param-gather") and not any(arguments.has(name) for name in sharded):
        yield _clash(
            facts, "fp8-param-gather", "--fp8-param-gather needs --use-distributed-optimizer",
            ("fp8-param-gather",), fix="--use-distributed-optimizer",
            edits=_switch_on("use-distributed-optimizer"),
        )  # fmt: skip


def _optimizer(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    aware = arguments.has("use-precision-aware-optimizer")
    if arguments.has("optimizer-cpu-offload") and not aware:
        yield _clash(
            facts, "optimizer-offload",
            "--optimizer-cpu-offload needs --use-precision-aware-optimizer",
            ("optimizer-cpu-offload",), fix="--use-precision-aware-optimizer",
            edits=_switch_on("use-precision-aware-optimizer"),
        )  # fmt: skip
    sharded = ("use-distributed-optimizer", "use-megatron-fsdp")
    if aware and not any(arguments.has(name) for name in sharded):
        yield _clash(
            facts, "precision-aware-optimizer",
            "--use-precision-aware-optimizer needs --use-distributed-optimizer",
            ("use-precision-aware-optimizer",), fix="--use-distributed-optimizer",
            edits=_switch_on("use-distributed-optimizer"),
        )  # fmt: skip
    types = ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    given = [name for name in types if arguments.has(name) and arguments.text(name) != "fp32"]
    if given and not aware:
        yield _clash(
            facts, "precision-aware-optimizer",
            f"--{given[0]} {arguments.text(given[0])} needs --use-precision-aware-optimizer",
            tuple(given), fix="--use-precision-aware-optimizer",
            edits=_switch_on("use-precision-aware-optimizer"),
        )  # fmt: skip


def _attention(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has("multi-latent-attention") and arguments.has("group-query-attention"):
        yield _clash(
            facts, "mla-and-gqa",
            "--multi-latent-attention and --group-query-attention exclude each other",
            ("multi-latent-attention", "group-query-attention"),
            fix="leave --group-query-attention out",
            edits=(Edit("--group-query-attention", None), Edit("--num-query-groups", None)),
        )  # fmt: skip
    seq, most = arguments.number("seq-length"), arguments.number("max-position-embeddings")
    if seq and most and seq > most:
        yield _clash(
            facts, "positions",
            f"--max-position-embeddings {most} is less than --seq-length {seq}",
            ("max-position-embeddings", "seq-length"),
            fix=f"--max-position-embeddings {seq}",
            edits=(Edit("--max-position-embeddings", str(seq)),),
        )  # fmt: skip


def _tensor(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has("tp-comm-overlap") and not arguments.has("sequence-parallel"):
        yield _clash(
            facts, "tp-comm-overlap", "--tp-comm-overlap needs --sequence-parallel",
            ("tp-comm-overlap",), fix="--sequence-parallel", edits=_switch_on("sequence-parallel"),
        )  # fmt: skip
    if arguments.has("sequence-parallel") and facts.tp == 1:
        yield _clash(
            facts, "sequence-parallel", "--sequence-parallel has no effect at tp 1",
            ("sequence-parallel",), severity="note",
        )  # fmt: skip


def _offload(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has("fine-grained-activation-offloading"):
        yield from _fine_grained(facts)
    if not arguments.number("cpu-offloading-num-layers"):
        return
    for other, words in (
        ("pp", facts.pp > 1),
        ("recompute", arguments.has("recompute-granularity")),
    ):
        if words:
            yield _clash(
                facts, "activation-offload",
                f"--cpu-offloading-num-layers excludes {other}", ("cpu-offloading-num-layers",),
            )  # fmt: skip


def _fine_grained(facts: Facts) -> Iterator[Problem]:
    """transformer_config.py and arguments.py, core 0.19."""
    arguments, option = facts.arguments, "fine-grained-activation-offloading"
    modules = arguments.many("offload-modules")
    if not modules:
        yield _clash(
            facts, "activation-offload", f"--{option} needs --offload-modules", (option,),
            fix="--offload-modules core_attn attn_proj",
        )  # fmt: skip
    if arguments.number("cpu-offloading-num-layers"):
        names = (option, "cpu-offloading-num-layers")
        yield _clash(
            facts, "activation-offload",
            f"--{option} and --cpu-offloading-num-layers exclude each other", names,
        )  # fmt: skip
    if arguments.text("transformer-impl") == "local":
        names = (option, "transformer-impl")
        yield _clash(
            facts, "activation-offload", f"--{option} needs --transformer-impl transformer_engine",
            names, fix="--transformer-impl transformer_engine",
            edits=(Edit("--transformer-impl", "transformer_engine"),),
        )  # fmt: skip
    fraction = arguments.real("activation-offload-fraction")
    if not 0.0 <= fraction <= 1.0:
        yield _clash(
            facts, "activation-offload-fraction",
            f"--activation-offload-fraction {fraction:g}: Megatron takes 0 to 1",
            ("activation-offload-fraction",),
        )  # fmt: skip
    if arguments.number("delta-offload-bytes-across-pp-ranks") and facts.pp > 1:
        yield _clash(
            facts, "activation-offload-delta",
            "--delta-offload-bytes-across-pp-ranks keeps the first groups of a step's first "
            "backward on every stage but the first; Megatron-Core 0.19 then takes their chunk for "
            "done and fails in the second step (Chunk mismatch)",
            ("delta-offload-bytes-across-pp-ranks",), fix="leave it out",
            edits=(Edit("--delta-offload-bytes-across-pp-ranks", None),), late=True,
        )  # fmt: skip
    if "attn_proj" in modules and "core_attn" not in modules:
        yield _clash(
            facts, "activation-offload-projection",
            "--offload-modules attn_proj needs core_attn, which keeps the same tensor",
            ("offload-modules",), fix="--offload-modules core_attn attn_proj",
        )  # fmt: skip


def _fine_grained_effects(facts: Facts) -> Iterator[Problem]:
    """What runs, but not as it is meant to."""
    arguments, option = facts.arguments, "fine-grained-activation-offloading"
    if not arguments.has(option):
        return
    if facts.environment.get(OFFLOAD_V1) != "1":
        yield Problem(
            "activation-offload-weights",
            f"{OFFLOAD_V1} is not 1 in the files: from Transformer Engine 2.10 on Megatron refuses "
            f"--{option} without it, which would offload weights too",
            "warning",
            (facts.command_place,),
            fix=f"export {OFFLOAD_V1}=1",
            edits=(Edit(f"${OFFLOAD_V1}", "1"),),
        )
    if arguments.number("fine-grained-offloading-max-inflight-offloads") is None:
        cap = "--fine-grained-offloading-max-inflight-offloads"
        yield _clash(
            facts, "activation-offload-copies",
            f"without {cap} copies that lag behind pile up on the GPU: more memory than predicted "
            "where the host link limits", (option,),
            severity="warning", fix=f"{cap} 1", edits=(Edit(cap, "1"),),
        )  # fmt: skip
    needs = dict.fromkeys(_OF_EXPERTS, "num-experts") | {"attn_norm": "multi-latent-attention"}
    modules = arguments.many("offload-modules")
    idle = [name for name in modules if name in needs and not arguments.has(needs[name])]
    if idle:
        yield _clash(
            facts, "activation-offload-module",
            f"--offload-modules {' '.join(idle)}: no effect on this model", ("offload-modules",),
            severity="note",
        )  # fmt: skip


def _sharding(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has("use-megatron-fsdp") and arguments.text("ckpt-format") != "fsdp_dtensor":
        yield _clash(
            facts, "fsdp-checkpoint",
            "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor", ("use-megatron-fsdp",),
            fix="--ckpt-format fsdp_dtensor", edits=(Edit("--ckpt-format", "fsdp_dtensor"),),
        )  # fmt: skip
    if not arguments.has("use-torch-fsdp2"):
        return
    excluded = [name for name in ("use-distributed-optimizer",) if arguments.has(name)]
    words = [f"--{name}" for name in excluded]
    words += ["pp > 1"] if facts.pp > 1 else []
    words += ["ep > 1"] if (arguments.number("expert-model-parallel-size") or 1) > 1 else []
    untied = arguments.has("untie-embeddings-and-output-weights")
    words += [] if untied else ["tied embeddings"]
    fused = not arguments.has("no-gradient-accumulation-fusion")
    words += ["gradient accumulation fusion"] if fused else []
    if words:
        yield _clash(
            facts, "torch-fsdp2", f"--use-torch-fsdp2 excludes {', '.join(words)}",
            ("use-torch-fsdp2", *excluded),
        )  # fmt: skip


def _loss(facts: Facts) -> Iterator[Problem]:
    arguments = facts.arguments
    if (
        arguments.has("cross-entropy-loss-fusion")
        and arguments.text("cross-entropy-fusion-impl") == "te"
    ):
        yield _clash(
            facts, "cross-entropy-fusion",
            "--cross-entropy-fusion-impl te is refused with --cross-entropy-loss-fusion",
            ("cross-entropy-fusion-impl",), fix="--cross-entropy-fusion-impl native",
            edits=(Edit("--cross-entropy-fusion-impl", "native"),),
        )  # fmt: skip


_RULES: tuple[Rule, ...] = (
    _overlap, _experts, _recompute, _connections, _interleaving, _precision, _optimizer,
    _attention, _tensor, _offload, _fine_grained_effects, _sharding, _loss,
)  # fmt: skip
