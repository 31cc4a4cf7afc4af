"""The main job as a library call: Llama 3 70B on 64 H100s, about 4 million tokens a step."""

from planner import Request, find_plans

result = find_plans(Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000))

best = result.plans[0]
print(f"{len(result.plans)} plans; the fastest takes {best.step_time_s:.1f} s a step")
print(
    f"with tp {best.degrees.tp}, pp {best.degrees.pp}, cp {best.degrees.cp}, dp {best.degrees.dp}"
)
print(f"and {best.peak_bytes / 2**30:.1f} GiB of {best.usable_bytes / 2**30:.1f} GiB")
