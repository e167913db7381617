"""A plan as text, for a terminal or a file, and its numbers as people read them."""

from collections.abc import Sequence

from .data import Layer, Option, Plan

TARGETS = {"time": "least time", "bytes": "fewest bytes", "error": "least error"}


def milliseconds(seconds: float | None) -> str:
    """With three digits; "–" where there is none."""
    if seconds is None:
        return "–"
    size = abs(seconds)
    sign = "−" if seconds < 0 else ""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if size >= factor:
            return f"{sign}{_three_digits(size / factor)} {unit}"
    return f"{sign}{_three_digits(size * 1e6)} µs"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def megabytes(count: float | None) -> str:
    """In the unit that suits."""
    if count is None:
        return "–"
    sign, size = ("−" if count < 0 else ""), abs(count)
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{sign}{_three_digits(size / factor)} {unit}"
    return f"{sign}{size:.0f} B"


def percent(error: float | None) -> str:
    """The text of a relative error."""
    if error is None:
        return "–"
    return f"{100 * error:.0f} %" if error >= 0.0995 else f"{100 * error:.2g} %"


def bound(plan: Plan) -> str:
    """Says what was to be least, under what."""
    limit = (
        f"an error of at most {percent(plan.max_error)}"
        if plan.max_error is not None
        else f"{megabytes(plan.max_bytes)} of parameters and buffers at most"
    )
    return f"{TARGETS[plan.target]} under {limit}"


def shape(layer: Layer) -> str:
    """ "768 → 3072"."""
    return f"{layer.in_features} → {layer.out_features}"


def calls(layer: Layer) -> str:
    """How often it is called with how many rows: "512", "3 × 512, 1"."""
    words = [f"{c.count} × {c.rows}" if c.count > 1 else str(c.rows) for c in layer.calls]
    return ", ".join(words[:3]) + (f", {len(words) - 3} more" if len(words) > 3 else "")


def ways_counted(plan: Plan) -> dict[str, int]:
    """How many layers are to be run in each way that is used."""
    counts: dict[str, int] = {}
    for layer in plan.changed:
        counts[layer.chosen] = counts.get(layer.chosen, 0) + 1
    return counts


def left_alone(plan: Plan) -> dict[str, list[str]]:
    """The layers that stay as they are, by the reason."""
    found: dict[str, list[str]] = {}
    for layer in plan.layers:
        if layer.why_own is not None:
            found.setdefault(layer.why_own.partition(" (it alone")[0], []).append(layer.name)
    return found


def effects(plan: Plan) -> list[tuple[str, str, str, str]]:
    """The effects of the plan on the whole model: (of what, as it is, by the plan, comment)."""
    whole = plan.whole
    rows = []
    if whole.seconds_own is not None and whole.seconds_planned is not None:
        quicker = f"{whole.seconds_own / whole.seconds_planned:.2f} × as fast"
        predicted = f"predicted {milliseconds(whole.seconds_predicted)}"
        times = milliseconds(whole.seconds_own), milliseconds(whole.seconds_planned)
        rows.append((f"time ({plan.timing})", *times, f"{quicker}; {predicted}"))
    own, planned = whole.seconds_own_from_python, whole.seconds_planned_from_python
    if own is not None and planned is not None:
        quicker = f"{own / planned:.2f} × as fast"
        rows.append(("time, called from Python", milliseconds(own), milliseconds(planned), quicker))
    share = f"{100 * whole.bytes_planned / max(1, whole.bytes_own):.0f} %"
    sizes = megabytes(whole.bytes_own), megabytes(whole.bytes_planned)
    rows.append(("parameters and buffers", *sizes, share))
    predicted = f"predicted {percent(whole.error_predicted)}"
    own_error = percent(whole.error_own)
    rows.append(("error of the answer", own_error, percent(whole.error), predicted))
    return rows


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
