"""A plan as text, for a terminal or a file."""

from collections.abc import Sequence

from ..plan.data import Layer, Option, Plan
from .words import (
    bound,
    calls,
    effects,
    left_alone,
    megabytes,
    milliseconds,
    percent,
    shape,
    ways_counted,
)


def text_report(plan: Plan) -> str:
    """Head, effect on the whole, each layer, what is left alone and why."""
    return "\n".join([text_summary(plan), *_stripped([*_layers(plan), "", *_alone(plan)])]) + "\n"


def text_summary(plan: Plan) -> str:
    """The head, the effect on the whole, and notes."""
    parts = [_head(plan), *_table([("", "as it is", "by the plan", ""), *effects(plan)])]
    parts += [f"Note: {note}." for note in plan.notes]
    return "\n".join(_stripped(parts)) + "\n"


def _stripped(lines: Sequence[str]) -> list[str]:
    return [line.rstrip() for line in lines]


def _head(plan: Plan) -> str:
    counts = ", ".join(f"{count} {way}" for way, count in ways_counted(plan).items()) or "none"
    return (
        f"Octofold's plan for {plan.model}: {bound(plan)}\n"
        f"measured on {plan.machine}, octofold {plan.octofold}, torch {plan.torch}\n"
        f"layers changed: {len(plan.changed)} of {len(plan.layers)} linear ones ({counts})\n"
    )


def _layers(plan: Plan) -> list[str]:
    head = ["layer", "features", "rows", "way", "error", "effect", "saves"]
    if plan.timing is not None:
        head += ["own", "planned", "gain"]
    return _table([head, *(_row(plan, layer) for layer in plan.layers if layer.options)])


def _row(plan: Plan, layer: Layer) -> list[str]:
    own, option = layer.own, layer.planned
    assert own is not None
    assert option is not None
    changed = option is not own
    cells = [layer.name or "(the model)", shape(layer), calls(layer), layer.chosen]
    cells += [percent(option.error), percent(option.effect) if changed else ""]
    cells.append(megabytes((own.bytes or 0) - (option.bytes or 0)) if changed else "")
    if plan.timing is not None:
        cells += [milliseconds(own.seconds), milliseconds(option.seconds)]
        cells.append(_gain(own, option) if changed else "")
    return cells


def _gain(own: Option, option: Option) -> str:
    if not own.seconds or not option.seconds:
        return ""
    return f"{own.seconds / option.seconds:.2f} ×"


def _alone(plan: Plan) -> list[str]:
    lines = [f"Left alone: {_names(names)}: {why}." for why, names in left_alone(plan).items()]
    lines += [f"Left alone: {other.count} {other.kind}: {other.why}." for other in plan.others]
    return lines


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(name or "(the model)" for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index in (0, 3) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells))
    return lines
