"""Limit the search, and look at the plans as a pandas DataFrame (SI units)."""

from planner import Request, find_plans

request = Request(
    model="mixtral-8x7b",
    gpus="32xH100",
    gbs=256,
    framework="megatron-core",
    hbm_reserve="5%",
    recompute=("none", "full"),
    limits={"tp": (1, 2, 4), "zero": (1,)},
)
frame = find_plans(request, top=5, sort="peak_bytes").to_frame()

frame["peak_gib"] = frame["peak_bytes"] / 2**30
print(frame[["tp", "pp", "ep", "dp", "recompute", "step_time_s", "peak_gib", "mfu"]])
