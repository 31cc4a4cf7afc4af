"""Write and run examples/06_notebook.ipynb: the library with its output.

pip install -e '.[plot,notebook]'
python examples/make_notebook.py
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

NOTEBOOK = Path(__file__).with_name("06_notebook.ipynb")

# Text cells begin with a #, in the manner of Markdown; all others are Python.
CELLS = (
    """# Eight H100s for a week: what do I launch?

You have one node of eight H100s and want to train Llama 3.2 1B on 100 billion tokens. This
notebook asks the planner what to start, why, and what would change its mind. It needs no GPU
and takes seconds.

`pip install 'trainplan[plot]'` is all it needs; `docs/library.md` lists every name and
column.""",
    """import altair

altair.renderers.enable("png")  # pictures that any viewer shows; leave out to point and click""",
    """# The answer

Say which model, which GPUs and how many tokens a step. The card says what to take: how long a
step takes, how much memory it fills, and how sure both are.""",
    """from planner import Request, find_plans

request = Request(model="llama-3.2-1b", gpus="8xH100", gbs_tokens=512_000)
result = find_plans(request)
result""",
    """# How long is that for all the tokens?

Seconds come with an interval: 8 of 10 such steps take a time between its ends once they are
measured. So the days have an interval, too.""",
    """best = result.plans[result.recommended - 1]
steps = 100e9 / best.gbs_tokens
step = best.step_time
days = [steps * seconds / 86_400 for seconds in (step.low, best.step_time_s, step.high)]
print(f"{steps:,.0f} steps: {days[1]:.1f} days ({days[0]:.1f} to {days[2]:.1f})")""",
    """# Why this one?

Each grey dot is a configuration: higher is faster, further left is lighter. The line joins
those that no other beats in both. The one to take is the fastest of them that is likely to
fit. The bars through a dot say how far it may be off: where those of two plans overlap, do
not read their order as sure.""",
    "result.plot()",
    """# Where do its seconds and gigabytes go?

Memory on the fullest GPU against what it has, the terms of a step, and what each pipeline
stage does when.""",
    "best.plot()",
    """# A colleague would rather use tensor parallelism

Eight GPUs can also work in pairs. `evaluate` costs any configuration that you name, and the
terms of its step say what the pairs pay for: `tp_s` is the exchange between them that nothing
hides.""",
    """from planner import Degrees, evaluate

pairs = evaluate(request, Degrees(tp=2, dp=4, zero=1, mbs=1, grad_acc=16))
print(f"{pairs.step_time_s / best.step_time_s:.2f} times as long as the plan above")
terms = {
    name: seconds - getattr(best.time, name)
    for name, seconds in pairs.time
    if isinstance(seconds, float)
}
for name, more in sorted(terms.items(), key=lambda term: -abs(term[1]))[:3]:
    print(f"{more:+.3f} s  {name}")""",
    """# What else was tried?

The best of each pair of two degrees, with its seconds; an empty cell names the rule that forbids
the pair.""",
    'result.plot("heat")',
    """# What if the samples were longer?

Four times as many tokens a sample leave the batch as it is and fill the memory more. Ask
again, with one field changed.""",
    """longer = find_plans(request.model_copy(update={"seq": 32_768}))
long = longer.plans[longer.recommended - 1]
print(long)
print(f"{long.tokens_per_s / best.tokens_per_s:.2f} times the tokens a second")""",
    """# Would eight A100s do?""",
    """older = find_plans(request.model_copy(update={"gpus": "8xA100"}))
on_a100 = older.plans[older.recommended - 1]
print(f"{on_a100.step_time_s / best.step_time_s:.1f} times as long a step")
print(f"{on_a100.peak_bytes / 2**30:.1f} GiB on the fullest GPU")""",
    """# Every plan, for your own analysis

A table in SI units; `attrs["units"]` names them. Lists have one entry for each pipeline
stage.""",
    """frame = result.to_frame()
print({name: frame.attrs["units"][name] for name in ("step_time_s", "peak_bytes")})
frame[["tp", "dp", "mbs", "recompute", "step_time_s", "peak_bytes", "fit_probability"]].head()""",
    """# Start it

The same search in a terminal keeps the plans, and writes the files that start one:

    planner search --model llama-3.2-1b --gpus 8xH100 --gbs-tokens 512k -o plans.json
    planner launch plans.json -o run/""",
)


def main() -> None:
    """Run the cells and write them with their output."""
    nbclient, nbformat = map(import_module, ("nbclient", "nbformat"))
    made = nbformat.v4.new_notebook(cells=[_cell(index, text) for index, text in enumerate(CELLS)])
    made.metadata["kernelspec"] = {
        "name": "python3", "display_name": "Python 3", "language": "python"
    }  # fmt: skip
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        path for path in (root, os.environ.get("PYTHONPATH", "")) if path
    )
    nbclient.NotebookClient(made, timeout=300, record_timing=False).execute()
    made.metadata.pop("language_info", None)
    nbformat.write(made, NOTEBOOK)


def _cell(index: int, text: str) -> object:
    nbformat = import_module("nbformat")
    new = nbformat.v4.new_markdown_cell if text.startswith("# ") else nbformat.v4.new_code_cell
    return new(text, id=f"cell-{index}")


if __name__ == "__main__":
    main()
