"""Random plans of reinforcement learning that a framework can run, for writers and readers."""

from __future__ import annotations

import random
from typing import Any

from planner.job.request import Request
from planner.job.rl.request import RlRequest
from planner.launch.rl import RlLaunch
from planner.predict.configuration import Configuration
from planner.predict.plan import Degrees
from planner.predict.rl.plan import EngineLayout, RlLayout

MODEL = "qwen2.5-7b"
CRITIC = "qwen2.5-1.5b"
LENGTHS = "prompt=128..512,response=lognormal:median=900,p95=2500,max=3584"
_GPUS = (8, 16, 32)
_TRAINERS = {
    "verl": ("hf-fsdp2", "fsdp1", "megatron-core"),
    "nemo-rl": ("megatron-bridge", "automodel"),
    "trl": ("hf-fsdp2", "fsdp1", "deepspeed", "hf-transformers"),
}
_ALGORITHMS = {
    "verl": ("grpo", "ppo", "dapo", "rloo", "gspo", "reinforce"),
    "nemo-rl": ("grpo", "dapo", "gspo", "reinforce"),
    "trl": ("grpo", "rloo", "gspo"),
}
_ENGINES = {"verl": ("vllm", "sglang"), "nemo-rl": ("vllm",), "trl": ("vllm",)}
_REFERENCES = {"verl": ("copied", "host", "none"), "nemo-rl": ("host", "none"),
               "trl": ("copied", "none")}  # fmt: skip

_WAYS = {"verl": ("", "checkpoint-engine", "delta"), "nemo-rl": ("", "reshard", "delta"),
         "trl": ("",)}  # fmt: skip


def _streams(framework: str, behind: int, draw: random.Random) -> bool:
    """NeMo-RL's engines take new weights as they answer; verl's fully asynchronous ones may."""
    return behind > 0 if framework == "nemo-rl" else behind == 2 and draw.random() < 0.5


def _trl(profile: str, seed: int, adapters: bool) -> dict[str, Any]:
    """Options of TRL's trainer: kinds of adapters, weights in fp32 under autocast, attention."""
    draw = random.Random(f"trl {seed}")
    kinds = ("rank=16,targets=all-linear", "rank=8,targets=q+v,dropout=0.1",
             "rank=32,alpha=16,targets=attention,dropout=0.05", "rank=4,whole=head")  # fmt: skip
    made: dict[str, Any] = {"train": f"lora:{draw.choice(kinds)}" if adapters else "full"}
    if profile == "hf-transformers":
        made["dtype"] = draw.choice((None, "bf16", "amp"))
    made["attention"] = draw.choice(("flash", "flash", "eager"))
    return made


def drawn(framework: str, seed: int) -> RlLaunch:
    """A plan that the framework can run."""
    draw = random.Random(f"{framework} {seed}")
    profile = draw.choice(_TRAINERS[framework])
    gpus = draw.choice(_GPUS)
    separate = draw.random() < 0.4
    trains = gpus // 2 if separate else gpus
    algorithm = draw.choice(_ALGORITHMS[framework])
    adapters = profile.startswith(("hf", "fsdp")) and draw.random() < 0.3
    reference = draw.choice(_REFERENCES[framework])
    if adapters and reference != "none":
        reference = "adapters-off"
    tokens = framework != "trl" and (profile == "megatron-core" or draw.random() < 0.8)
    engine_tp = draw.choice((1, 2, 4))
    made = {
        "algorithm": algorithm,
        "prompts": 64 * draw.choice((1, 2, 8)),
        "samples_per_prompt": draw.choice((8, 16)),
        "framework": framework,
        "minibatches": draw.choice((1, 2, 4)),
        "epochs": 1 if framework == "nemo-rl" else draw.choice((1, 2)),
        "placement": "separate" if separate else "colocated",
        "reference": reference,
        "critic": CRITIC if algorithm == "ppo" else None,
        "engine": draw.choice(_ENGINES[framework]),
        "token_limit": draw.choice((4096, 8192, 16384)) if tokens else None,
    }
    if framework == "verl":
        made["old_logprobs"] = draw.random() < 0.7
        made["rollout_precision"] = draw.choice(("bf16", "fp8"))
    behind = 0 if not separate or framework == "trl" else draw.choice((1, 2))
    trainer: dict[str, Any] = {"train": "lora:rank=16,targets=all-linear" if adapters else "full"}
    if framework == "trl":
        trainer = _trl(profile, seed, adapters)
    request = RlRequest(
        trainer=Request(
            model=MODEL,
            gpus=f"{gpus}xH100",
            framework=profile,
            lengths=LENGTHS,
            packing=None if tokens else "longest",
            **trainer,
        ),
        staleness=str(behind),
        **made,
    )
    job = request.resolve()
    engines = (gpus - trains if separate else gpus) // engine_tp
    given = draw.choice((0.4, 0.55, 0.8)), draw.choice((128, 256, 1024))
    told = job.framework.told_sequences
    layout = RlLayout(
        request.placement,  # type: ignore[arg-type]
        _trainer(job, profile, trains, draw, tokens=tokens),
        EngineLayout(
            engines,
            engine_tp,
            kv_share=given[0],
            sequences=given[1] if told else job.usual_sequences(request.placement, engines),
        ),
        behind,
        trainer_leaves=framework == "nemo-rl" or (framework == "verl" and draw.random() < 0.5),
        streams=_streams(framework, behind, draw),
        way=draw.choice(_WAYS[framework]) if separate else "",
    )
    return RlLaunch(request, job, layout)


def _trainer(
    job: Any, profile: str, gpus: int, draw: random.Random, *, tokens: bool
) -> Configuration:
    part = job.trainer.on_gpus(gpus)
    tp = pp = cp = 1
    if profile in ("megatron-core", "megatron-bridge", "automodel"):
        tp = draw.choice((1, 2))
    if profile.startswith("megatron"):
        pp = draw.choice((1, 2))
    if tokens and (profile != "automodel" or job.framework.name == "verl"):
        cp = draw.choice((1, 2)) if gpus >= 8 else 1
    if tp * pp * cp > gpus:
        tp = pp = cp = 1
    dp = gpus // (tp * pp * cp)
    zero = {"megatron-core": 1, "megatron-bridge": 1, "hf-transformers": 0}.get(profile, 3)
    if dp * cp == 1 and profile.startswith("megatron"):
        zero = 0
    mbs = 1 if tokens else draw.choice((1, 2))
    degrees = Degrees(dp=dp, tp=tp, pp=pp, cp=cp, mbs=mbs, grad_acc=1, zero=zero)
    return Configuration.even(part, degrees, draw.choice(("none", "full")))
