"""Write and run examples/06_notebook.ipynb: the library with its output.

pip install -e '.[plot,notebook]'
python examples/make_notebook.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).with_name("06_notebook.ipynb")

# Text cells begin with a #, in the manner of Markdown; all others are Python.
CELLS = (
    """# Planning a training run in a notebook

Llama 3.2 1B on eight H100s: small enough to be searched in a second. `docs/library.md` has every
name, and every column with its unit.""",
    """import altair

altair.renderers.enable("png")  # pictures that any viewer shows; leave out to point and click""",
    """from planner import Request, find_plans

result = find_plans(Request(model="llama-3.2-1b", gpus="8xH100", gbs_tokens=512_000))
result""",
    """# Which plan to take

A plan is one line; its degrees, times and memory are fields.""",
    """best = result.plans[result.recommended - 1]
best""",
    """print(repr(best))
print(best.degrees.tp, best.layout.stage_layers, best.step_time.low)""",
    """# The front, and where memory and time go""",
    "result.plot()",
    "best.plot()",
    """# Two degrees at a time

The best shape of each pair of values, or the rule that forbids it.""",
    'result.plot("heat")',
    """# As a table

Lists are lists, and `attrs["units"]` names the units.""",
    """frame = result.to_frame()
columns = ["tp", "pp", "dp", "layers_per_stage", "step_time_s", "peak_bytes", "fit_probability"]
print({name: frame.attrs["units"].get(name, "-") for name in columns})
frame[columns].head()""",
    """# One configuration that is given""",
    """from planner import Degrees, evaluate

plan = evaluate(result.request, Degrees(tp=2, dp=4, zero=1, mbs=1, grad_acc=16))
print(f"{plan.step_time_s / best.step_time_s:.2f} times as long as the best plan")""",
)


def main() -> None:
    """Run the cells and write them with their output."""
    import nbclient  # noqa: PLC0415
    import nbformat  # noqa: PLC0415

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
    import nbformat  # noqa: PLC0415

    new = nbformat.v4.new_markdown_cell if text.startswith("# ") else nbformat.v4.new_code_cell
    return new(text, id=f"cell-{index}")


if __name__ == "__main__":
    sys.exit(main())
