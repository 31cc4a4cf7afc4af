"""Draws a plan: the front it lies on, memory by stage, time, the schedule, the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import altair as alt

from constraints.axes import AXES, Axis
from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, seconds
from planner.report.charts.drawing import (
    BLUE,
    GREY,
    LIMIT_DASH,
    PALETTE,
    VERMILION,
    Width,
    colours,
    table,
)
from planner.report.figures import schedule
from planner.report.figures.candidates import Candidate
from planner.report.figures.plan import GROUP_KINDS, BarPart, DrawnCluster, FrontPlan

_HEIGHT = 300
_BAR_HEIGHT = 24
# Beyond so many dots each is smaller and fainter.
_MANY_DOTS = 1500
_KIND_COLOURS = dict(
    zip(
        schedule.KINDS,
        ("#0072b2", "#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7", "#bbbbbb"),
        strict=True,
    )
)
_CLUSTER_COLOURS = tuple(colour for colour in PALETTE if colour != GREY)
_GROUP_LABELS = {
    "pp": "pipeline stage", "tp": "tensor group", "cp": "context group", "ep": "expert group",
    "dp": "data-parallel group",
}  # fmt: skip


def front_chart(
    plans: Sequence[FrontPlan],
    riskier: Sequence[FrontPlan],
    dots: Sequence[Candidate],
    limit_bytes: float | None,
    width: Width,
    marked: int = 1,
    before: Sequence[FrontPlan] = (),
) -> Any:
    """Peak memory against speed: candidates as faint dots, plans joined by their front, riskier
    ones hollow, the front `before` dashed. The page sets the parameter `selected` to a plan's
    number, `marked` at first, and `picked` to any other dot that was clicked."""
    selected = alt.param(name="selected", value=marked)
    picked = alt.param(name="picked", value=0)
    x = alt.X("gib:Q", title="peak memory of a GPU, GiB", scale=alt.Scale(zero=False, padding=12))
    y = alt.Y("speed:Q", title="tokens/s of a GPU", scale=alt.Scale(zero=False, padding=12))
    tooltip = alt.Tooltip("text:N", title="configuration")
    base = alt.Chart(table(_front_rows(plans))).encode(x=x, y=y)
    chosen = "datum.number == selected"
    layers = [
        base.mark_line(color=BLUE, opacity=0.5, interpolate="step-after").encode(
            order=alt.Order("gib:Q")
        ),
        base.mark_point(filled=True, opacity=1, cursor="pointer").encode(
            size=alt.condition(
                chosen, alt.value(230), alt.Size("radius:Q", scale=None, legend=None)
            ),
            color=alt.condition(chosen, alt.value(VERMILION), alt.value(BLUE)),
            tooltip=tooltip,
        ),
        base.mark_text(dy=-13, dx=8, fontWeight="bold").encode(text=alt.Text("label:N")),
    ]
    if dots:
        layers.insert(0, _faint(dots).encode(x=x, y=y, tooltip=tooltip))
    if before:
        dashed = alt.Chart(table(_front_rows(before))).encode(x=x, y=y, order=alt.Order("gib:Q"))
        layers.append(
            dashed.mark_line(color=VERMILION, strokeDash=LIMIT_DASH, interpolate="step-after")
        )
    if riskier:
        hollow = alt.Chart(table(_front_rows(riskier))).mark_point(
            color=VERMILION, size=110, cursor="pointer"
        )
        layers.append(hollow.encode(x=x, y=y, tooltip=tooltip))
    if limit_bytes is not None:
        layers.append(_limit(limit_bytes, "x"))
    ring = alt.Chart(table(_front_rows(plans[:1]))).mark_point(color=VERMILION, size=260)
    at = {name: f"picked ? picked.{name} : datum.{name}" for name in ("gib", "speed")}
    seen = alt.condition("picked", alt.value(1), alt.value(0))
    layers.insert(0, ring.transform_calculate(**at).encode(x=x, y=y, opacity=seen))
    return (
        alt.layer(*layers).add_params(selected, picked).properties(width=width, height=_HEIGHT + 60)
    )


def _front_rows(plans: Sequence[FrontPlan]) -> list[dict[str, object]]:
    return [
        {
            "number": plan.number, "label": f" {plan.label}", "radius": 110 if plan.label else 45,
            "gib": plan.gib, "speed": plan.tokens_per_s, "text": plan.text,
        } | ({"command": plan.command} if plan.command else {})
        for plan in plans
    ]  # fmt: skip


def _faint(dots: Sequence[Candidate]) -> Any:
    """The candidates, whose texts the page makes of their degrees: many times smaller."""
    modes = list(dict.fromkeys(dot.recompute for dot in dots))
    rows = (
        {"gib": dot.gib, "speed": dot.tokens_per_s, "mode": modes.index(dot.recompute)}
        | dot.degrees.model_dump()
        for dot in dots
    )
    many = len(dots) > _MANY_DOTS
    shown = " + ".join(map(_degree_expression, AXES.values()))
    return (
        alt.Chart(table(rows), name="considered")
        .transform_calculate(recompute=f"{modes!r}[datum.mode]")
        .transform_calculate(
            text=f"trim({shown}) + ', ' + datum.mbs"
            " + '×' + datum.grad_acc + ', ' + datum.recompute + ': '"
            " + format(datum.speed, ',.0f') + ' tokens/s a GPU, ' + format(datum.gib, '.1f')"
            " + ' GiB'"
        )
        .mark_circle(
            size=12 if many else 22,
            opacity=0.25 if many else 0.35,
            color=GREY,
            cursor="pointer",
            aria=False,
        )
    )


def _degree_expression(axis: Axis) -> str:
    """A degree of a dot as the text of `Degrees` has it."""
    shown = f"'{axis.letter or axis.name}' + datum.{axis.name} + ' '"
    changed = f"(datum.{axis.name} > {axis.least} ? {shown} : '')"
    return {"always": shown, "changed": changed, "never": "''"}[axis.shown]


def _limit(limit_bytes: float, channel: str) -> Any:
    """The dashed line of the memory that may be used, with its words."""
    data = table([{"limit": limit_bytes / GIB, "text": "HBM that may be used"}])
    place = alt.X("limit:Q") if channel == "x" else alt.Y("limit:Q")
    base = alt.Chart(data).encode(place, tooltip=[alt.Tooltip("text:N"), alt.Tooltip("limit:Q")])
    rule = base.mark_rule(color=VERMILION, strokeDash=LIMIT_DASH, strokeWidth=1.5)
    start = {"y": alt.value(8)} if channel == "x" else {"x": alt.value(0)}
    words = base.mark_text(align="left", dx=5, dy=0 if channel == "x" else -7, color=VERMILION)
    return alt.layer(rule, words.encode(text=alt.Text("text:N"), **start))


def stages_chart(bars: Sequence[BarPart], limit_bytes: float, width: Width) -> Any:
    """Memory of every stage at its peak, stacked by term, against the HBM line."""
    names = list(MEMORY_GROUPS)
    used = [name for name in names if any(bar.part == name for bar in bars)]
    palette = [PALETTE[names.index(name)] for name in used]
    base = alt.Chart(table(_bar_rows(bars))).mark_bar()
    stacked = base.encode(
        x=alt.X("label:O", title="pipeline stage", axis=alt.Axis(labelAngle=0), sort=None),
        y=alt.Y("start:Q", title="GiB"),
        y2=alt.Y2("end"),
        color=alt.Color("part:N", title=None, scale=colours(used, palette), sort=names),
        tooltip=alt.Tooltip("text:N", title="memory"),
    )
    return alt.layer(stacked, _limit(limit_bytes, "y")).properties(width=width, height=_HEIGHT)


def waterfall_chart(bars: Sequence[BarPart], interval: tuple[float, float], width: Width) -> Any:
    """Terms of the step time one after the other, the whole step below with its interval."""
    labels = [bar.label for bar in bars]
    rows = [row | {"right": row["end"]} for row in _bar_rows(bars)]
    rows[-1]["right"] = interval[1]
    base = alt.Chart(table(rows)).encode(
        y=alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(labelLimit=190))
    )
    steps = base.mark_bar(minBandSize=2).encode(
        x=alt.X(
            "start:Q",
            title="seconds",
            # Space for the words, on a phone too.
            scale=alt.Scale(domain=[0.0, 1.25 * interval[1]], nice=False),
        ),
        x2=alt.X2("end"),
        color=alt.Color("part:N", scale=colours(["term", "step"], (BLUE, GREY)), legend=None),
        tooltip=alt.Tooltip("text:N", title="time"),
    )
    words = base.mark_text(align="left", dx=5).encode(x=alt.X("right:Q"), text=alt.Text("amount:N"))
    whisker_data = table([{"label": labels[-1], "low": interval[0], "high": interval[1]}])
    whisker = alt.Chart(whisker_data).mark_rule(strokeWidth=1.5)
    return alt.layer(
        steps,
        words,
        whisker.encode(y=alt.Y("label:N", sort=labels), x=alt.X("low:Q"), x2=alt.X2("high")),
    ).properties(width=width, height=_BAR_HEIGHT * len(bars))


def _bar_rows(bars: Sequence[BarPart]) -> list[dict[str, object]]:
    return [asdict(bar) | {"amount": seconds(bar.end - bar.start)} for bar in bars]


def schedule_chart(gantt: schedule.Gantt, width: Width) -> Any:
    """What every stage does when; what is grey is the bubble."""
    kinds = [kind for kind in schedule.KINDS if any(bar.kind == kind for bar in gantt.bars)]
    rows = [
        {
            "s": bar.stage, "k": kinds.index(bar.kind), "a": round(bar.start_s, 4),
            "b": round(bar.end_s, 4),
            "c": bar.chunk, "m": bar.microbatch,
        }
        for bar in gantt.bars
    ]  # fmt: skip
    stages = 1 + max(bar.stage for bar in gantt.bars)
    # Where passes are narrow, borders would hide them.
    border = alt.ExprRef(f"width < {4 * len(gantt.bars) // stages} ? 0 : 0.5")
    return (
        alt.Chart(table(rows))
        .transform_calculate(kind=f"{kinds!r}[datum.k]")
        .transform_calculate(
            text="datum.kind + (datum.m < 0 ? '' : ', micro-batch ' + datum.m + ', chunk ' "
            "+ datum.c) + ': ' + format(datum.a, '.3~g') + ' to ' + format(datum.b, '.3~g') + ' s'"
        )
        .mark_rect(stroke="currentColor", strokeOpacity=0.3, strokeWidth=border, aria=False)
        .encode(
            x=alt.X("a:Q", title="seconds", scale=alt.Scale(nice=False)),
            x2=alt.X2("b"),
            y=alt.Y("s:O", title="pipeline stage", scale=alt.Scale(paddingInner=0.15)),
            color=alt.Color(
                "kind:N", title=None, scale=colours(kinds, [_KIND_COLOURS[kind] for kind in kinds])
            ),
            tooltip=alt.Tooltip("text:N", title="pass"),
        )
        .properties(width=width, height=max(120, min(_BAR_HEIGHT, 900 // stages) * stages))
    )


def cluster_chart(cluster: DrawnCluster, width: Width) -> Any:
    """GPUs on their nodes, coloured by a group; pointing at one shows the group it is in."""
    shown = {_GROUP_LABELS[kind]: f"g{GROUP_KINDS.index(kind)}" for kind in cluster.kinds}
    first = next(iter(shown))
    colour_by = alt.param(
        name="colour_by", value=first, bind=alt.binding_select(options=list(shown), name="Colour: ")
    )
    pointed = alt.selection_point(
        name="pointed", fields=["group"], on="pointerover", clear="pointerout", empty=True
    )
    choice = "{" + ", ".join(f"'{name}': datum.{field}" for name, field in shown.items()) + "}"
    gpus = (
        {"x": gpu.column, "y": gpu.row, "text": gpu.text}
        | {f"g{index}": group for index, group in enumerate(gpu.groups)}
        for gpu in cluster.gpus
    )
    rows = 1 + max(gpu.row for gpu in cluster.gpus)
    columns = list(range(1 + max(gpu.column for gpu in cluster.gpus)))
    return (
        alt.Chart(table(gpus), name="gpus")
        .transform_calculate(group=f"{choice}[colour_by]")
        .transform_calculate(colour=f"datum.group % {len(_CLUSTER_COLOURS)}")
        .mark_rect()
        .encode(
            x=alt.X("x:O", axis=None, scale=alt.Scale(domain=columns, paddingInner=0.08)),
            y=alt.Y("y:O", axis=None, scale=alt.Scale(paddingInner=0.15)),
            color=alt.Color(
                "colour:O",
                legend=None,
                scale=alt.Scale(
                    domain=list(range(len(_CLUSTER_COLOURS))), range=list(_CLUSTER_COLOURS)
                ),
            ),
            opacity=alt.condition(pointed, alt.value(1.0), alt.value(0.2)),
            tooltip=alt.Tooltip("text:N", title="GPU"),
        )
        .add_params(colour_by, pointed)
        .properties(width=width, height=26 * rows)
    )
