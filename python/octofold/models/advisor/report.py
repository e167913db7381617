"""Reports of a plan: as text for a terminal or a file, and as one HTML file without scripts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from html import escape
from importlib import resources
from io import StringIO
from itertools import cycle
from string import Template
from typing import TYPE_CHECKING, Any, Final

from ..._core.errors import UnavailableError
from ...nn.conversion.picking import grouped
from .plan import Layer, Option, Plan, shape_of
from .ways import OWN, WAYS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TARGETS: Final = {"time": "least time", "bytes": "fewest bytes", "error": "least error"}


def quantity(value: float | None, units: Sequence[tuple[str, float]]) -> str:
    """Three digits and the largest unit that fits, of those from large to small; "–" for none."""
    if value is None:
        return "–"
    size, sign = abs(value), "−" if value < 0 else ""
    unit, factor = next((u for u in units if size >= u[1]), units[-1])
    scaled = size / factor
    return f"{sign}{scaled:.0f} {unit}" if scaled >= 99.5 else f"{sign}{scaled:.3g} {unit}"


milliseconds = partial(quantity, units=(("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))
megabytes = partial(quantity, units=(("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def percent(error: float | None) -> str:
    """The text of a relative error."""
    if error is None:
        return "–"
    return f"{100 * error:.0f} %" if error >= 0.0995 else f"{100 * error:.2g} %"


def _bound(plan: Plan) -> str:
    """Says what was to be least, under what."""
    limit = (
        f"an error of at most {percent(plan.max_error)}"
        if plan.max_error is not None
        else f"{megabytes(plan.max_bytes)} of parameters and buffers at most"
    )
    return f"{_TARGETS[plan.target]} under {limit}"


def _name(layer: Layer) -> str:
    return layer.name or "(the model)"


def _calls(layer: Layer) -> str:
    """How often it is called with how many rows: "512", "3 × 512, 1"."""
    words = [f"{c.count} × {c.rows}" if c.count > 1 else str(c.rows) for c in layer.calls]
    return ", ".join(words[:3]) + (f", {len(words) - 3} more" if len(words) > 3 else "")


def _effects(plan: Plan) -> Iterator[tuple[str, str, str, str, str]]:
    """The effects of the plan on the whole model: (of what, as it is, by the plan, the gain, a
    remark)."""
    whole = plan.whole
    for what, own, planned, remark in (
        (f"time ({plan.timing})", whole.seconds_own, whole.seconds_planned,
         f"predicted {milliseconds(whole.seconds_predicted)}"),
        ("time, called from Python", whole.seconds_own_from_python,
         whole.seconds_planned_from_python, ""),
    ):  # fmt: skip
        if own is not None and planned is not None:
            quicker = f"{own / planned:.2f} × as fast"
            yield what, milliseconds(own), milliseconds(planned), quicker, remark
    sizes = megabytes(whole.bytes_own), megabytes(whole.bytes_planned)
    saved = 1 - whole.bytes_planned / max(1, whole.bytes_own)
    yield "parameters and buffers", *sizes, f"{100 * saved:.0f} % smaller", ""
    errors = percent(whole.error_own), percent(whole.error)
    yield "error of the answer", *errors, "", f"predicted {percent(whole.error_predicted)}"
    counts = Counter(layer.chosen for layer in plan.changed)
    ways = ", ".join(f"{count} {way}" for way, count in counts.items())
    yield "linear layers changed", "", f"{len(plan.changed)} of {len(plan.layers)}", "", ways


def _left_alone(plan: Plan) -> Iterator[str]:
    """A line for each reason why modules stay as they are."""
    reasons = {_name(layer): layer.why_own for layer in plan.layers if layer.why_own}
    yield from grouped({name: why.partition(" (it alone")[0] for name, why in reasons.items()})
    for other in plan.others:
        yield f"{other.count} {other.kind}: {other.why}"


def text_report(plan: Plan) -> str:
    """Head, effect on the whole, each layer, what is left alone and why."""
    head = ["layer", "features", "rows", "way", "error", "effect", "saves"]
    if plan.timed:
        head += ["own", "planned", "gain"]
    lines = _lines([head, *(_row(plan, layer) for layer in plan.layers if layer.calls)])
    alone = [f"Left alone: {line}." for line in _left_alone(plan)]
    return "\n".join([text_summary(plan), *lines, "", *alone]) + "\n"


def text_summary(plan: Plan) -> str:
    """The head, the effect on the whole, and notes."""
    effects = [
        [what, own, planned, "; ".join(filter(None, words))]
        for what, own, planned, *words in _effects(plan)
    ]
    parts = [
        f"Octofold's plan for {plan.model}: {_bound(plan)}",
        f"measured on {plan.machine}, octofold {plan.octofold}, torch {plan.torch}",
        "",
        *_lines([["", "as it is", "by the plan", ""], *effects]),
        *(f"Note: {note}." for note in plan.notes),
    ]
    return "\n".join(parts) + "\n"


def _row(plan: Plan, layer: Layer) -> list[str]:
    own, option = layer.own, layer.planned
    changed = option is not own
    cells = [_name(layer), shape_of(layer), _calls(layer), layer.chosen]
    cells += [percent(option.error), percent(option.effect) if changed else ""]
    cells.append(megabytes(own.amount(False) - option.amount(False)) if changed else "")
    if plan.timed:
        ratio = own.amount(True) / (option.amount(True) or 1.0)
        cells += [milliseconds(own.seconds), milliseconds(option.seconds)]
        cells.append(f"{ratio:.2f} ×" if changed else "")
    return cells


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows of a table, whose columns of words are the first and the fourth."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if index in (0, 3) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def html_report(plan: Plan) -> str:
    """The whole page, self-contained. Needs matplotlib; raises UnavailableError without it."""
    page = Template(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    ways = [way for way in WAYS if any(_usable(layer.option(way)) for layer in plan.layers)]
    layers = [layer for layer in plan.layers if layer.calls]
    return page.substitute(
        model=escape(plan.model),
        bound=escape(_bound(plan)),
        versions=escape(f"{plan.machine}, octofold {plan.octofold}, torch {plan.torch}"),
        notes="".join(f'<p class="soft">Note: {escape(note)}.</p>' for note in plan.notes),
        tiles="".join(
            f"<div><b>{escape(gain or planned)}</b>{escape(what)}"
            f"{f': {own} → {planned}' if own else ''}{remark and f'; {escape(remark)}'}</div>"
            for what, own, planned, gain, remark in _effects(plan)
        ),
        charts=_charts(plan, layers),
        head=_html_row(["#", "layer", "features", "rows", OWN, *ways], "th"),
        layers="".join(_layer_row(plan, i, layer, ways) for i, layer in enumerate(layers, 1)),
        alone="".join(f"<li>{escape(line)}.</li>" for line in _left_alone(plan)),
        runs=plan.runs,
        rounding=percent(plan.whole.error_own),
        timing=escape(plan.timing or "no GPU, so none"),
        ways="".join(f"<dt>{way.name}</dt><dd>{escape(way.title)}</dd>" for way in WAYS.values()),
    )


def _usable(option: Option | None) -> bool:
    return option is not None and option.why_not is None


def _html_row(cells: Iterable[object], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"


def _layer_row(plan: Plan, number: int, layer: Layer, ways: Sequence[str]) -> str:
    words = _html_row([number, _name(layer), shape_of(layer), _calls(layer)])
    cells = (_layer_cell(plan, layer, layer.option(way)) for way in (OWN, *ways))
    return words.replace("</tr>", "".join(cells) + "</tr>")


def _layer_cell(plan: Plan, layer: Layer, option: Option | None) -> str:
    if option is None or option.why_not is not None:
        return f'<td title="{escape((option and option.why_not) or "not measured")}">–</td>'
    title = f"{layer.name}, {option.way}: changes the answer by {percent(option.effect)}"
    if option.way == OWN:
        title = layer.why_own or f"{layer.name} as it is"
    first, *rest = [percent(option.error), megabytes(option.bytes)]
    if plan.timed:
        first, *rest = [milliseconds(option.seconds), first, *rest]
    chosen = ' class="chosen"' if option.way == layer.chosen else ""
    return f'<td{chosen} title="{escape(title)}">{first}<small>{" · ".join(rest)}</small></td>'


_INK: Final = "#123456"
"""Stands in the charts for the colour of the page's text."""
_COLORS: Final = ("gray", "blue", "green", "purple", "orange", "olive", "pink", "brown", "cyan")
_COLOR_OF: Final = {
    way: f"tab:{color}" for way, color in zip((OWN, *WAYS), cycle(_COLORS), strict=False)
}


def _charts(plan: Plan, layers: Sequence[Layer]) -> str:
    """One picture as SVG: the whole, each layer, and each layer in each way."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise UnavailableError(
            f"octofold.models.html_report: needs {error.name}: pip install 'octofold[tool]'"
        ) from None
    style: dict[Any, Any] = {
        **{f"{what}.color": _INK for what in ("text", "xtick", "ytick")},
        **{f"axes.{what}color": _INK for what in ("edge", "label")},
        **{f"axes.spines.{side}": False for side in ("right", "top")},
        "axes.titlelocation": "left",
        "svg.fonttype": "none",
        "svg.hashsalt": "octofold",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(10.8, 10.5), layout="constrained")
        whole, pairs, dots = figure.subplots(3, height_ratios=(1, 2.2, 3))
        _draw_whole(whole, plan, layers)
        _draw_layers(pairs, plan, layers)
        _draw_options(dots, plan, layers)
        shown = {o.way for layer in layers for o in layer.options if o.why_not is None}
        patches = [Patch(color=c, label=way) for way, c in _COLOR_OF.items() if way in shown]
        figure.legend(handles=patches, loc="outside upper center", ncols=5, frameon=False)
        svg = StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=True, metadata=metadata)
    text = svg.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def _unit(plan: Plan) -> Any:
    """How a chart's axis writes seconds, or bytes where there are no times."""
    return lambda value, _: (milliseconds if plan.timed else megabytes)(value)


def _draw_whole(axes: "Axes", plan: Plan, layers: Sequence[Layer]) -> None:
    """A bar of stacked parts as it is, and one by the plan, where what was measured is marked."""
    whole = plan.whole
    rest = (whole.seconds_own if plan.timed else whole.bytes_own) or 0.0
    rest -= sum(layer.own.amount(plan.timed) for layer in layers)
    for label, options in (
        ("by the plan", [layer.planned for layer in layers]),
        ("as it is", [layer.own for layer in layers]),
    ):
        left = 0.0
        for way, color in _COLOR_OF.items():
            part = sum(option.amount(plan.timed) for option in options if option.way == way)
            if part > 0:
                axes.barh(label, part, left=left, color=color)
            left += part
        axes.barh(label, max(0.0, rest), left=left, color=_INK, alpha=0.2)
    if plan.timed:
        axes.axvline(whole.seconds_planned or 0.0, 0.0, 0.5, color=_INK)
    axes.xaxis.set_major_formatter(_unit(plan))
    words = "; line: measured" if plan.timed else ""
    axes.set_title(f"The whole: linear layers by their way, all else pale{words}")


def _draw_layers(axes: "Axes", plan: Plan, layers: Sequence[Layer]) -> None:
    """A pair of bars for each layer, in the order of the calls: as it is, and by the plan."""
    for edge, options in (
        (0.6, [layer.own for layer in layers]),
        (1.0, [layer.planned for layer in layers]),
    ):
        places = [edge + index for index in range(len(options))]
        colors = [_COLOR_OF[option.way] for option in options]
        heights = [option.amount(plan.timed) for option in options]
        axes.bar(places, heights, 0.4, align="edge", color=colors)
    axes.yaxis.set_major_formatter(_unit(plan))
    axes.locator_params(axis="x", integer=True)
    axes.set_title("Each layer, as it is and by the plan (numbers as in the table)")


def _draw_options(axes: "Axes", plan: Plan, layers: Sequence[Layer]) -> None:
    """Every layer in every way: its effect on the answer, and what it gains."""
    from matplotlib.ticker import LogLocator

    for number, layer in enumerate(layers, 1):
        own = layer.own.amount(plan.timed)
        options = [option for option in layer.options[1:] if option.effect]
        effects = [option.effect or 0.0 for option in options]
        gains = [own - option.amount(plan.timed) for option in options]
        chosen = [option.way == layer.chosen for option in options]
        colors = [
            (_COLOR_OF[option.way], 1.0 if ring else 0.5)
            for option, ring in zip(options, chosen, strict=True)
        ]
        edges = [_INK if ring else "none" for ring in chosen]
        axes.scatter(
            effects, gains, [50 if ring else 14 for ring in chosen], colors, edgecolors=edges
        )
        for ring, effect, gain in zip(chosen, effects, gains, strict=True):
            if ring:
                axes.annotate(f"  {number}", (effect, gain), va="bottom", fontsize=8)
    axes.set_xscale("log", subs=())
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: percent(value))
    axes.yaxis.set_major_formatter(_unit(plan))
    axes.set_xlabel("what the layer alone changes in the model's answer")
    axes.set_title("What each way gains: the chosen ones have a ring and the layer's number")
