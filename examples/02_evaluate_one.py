"""Cost one given configuration: the degrees of NVIDIA's own recipe for Llama 3 70B."""

from planner import Degrees, Request, evaluate

request = Request(model="llama-3-70b", gpus="64xH100", gbs=128)
plan = evaluate(request, Degrees(tp=4, pp=4, vpp=5, cp=2, dp=2, zero=1, mbs=1, grad_acc=64))

print(f"{plan.step_time_s:.2f} s a step, MFU {plan.mfu:.1%} of dense bf16")
print(f"80 % interval {plan.step_time.low:.2f} to {plan.step_time.high:.2f} s")
for stage in plan.stages:
    print(f"stage {stage.stage}: {stage.layers} layers, {stage.peak / 2**30:.1f} GiB")
