"""Charts of a plan as inline SVG: no scripts, and colours of the page's style sheet."""

import math
from collections.abc import Sequence
from html import escape

from .data import Layer, Option, Plan
from .text import megabytes, milliseconds, percent
from .ways import OWN

WIDTH = 1040
LEFT, RIGHT = 64, 12


def way_class(way: str) -> str:
    """The style sheet's class of a way's colour."""
    return f"way-{way}"


def quantity(plan: Plan, option: Option | None) -> float:
    """The quantity that the charts show: seconds where there are times, else bytes."""
    if option is None:
        return 0.0
    return (option.seconds if plan.timing is not None else option.bytes) or 0.0


def quantity_text(plan: Plan, value: float) -> str:
    """The same for people."""
    return milliseconds(value) if plan.timing is not None else megabytes(value)


def shares_chart(plan: Plan) -> str:
    """The parts of the whole, as it is and by the plan: a bar of stacked parts each."""
    whole = plan.whole
    timed = plan.timing is not None
    own = (whole.seconds_own if timed else whole.bytes_own) or 0.0
    planned = (whole.seconds_planned if timed else whole.bytes_planned) or 0.0
    before, after = _shares(plan, planned=False), _shares(plan, planned=True)
    rest = max(0.0, own - sum(before.values()))
    bars = [("as it is", own, {**before, "rest": rest})]
    predicted = {**after, "rest": rest}
    bars.append(("by the plan", planned if not timed else sum(predicted.values()), predicted))
    scale = (WIDTH - LEFT - 150) / max(1e-30, own, planned, sum(predicted.values()))

    def words_of(share: float) -> str:
        return quantity_text(plan, share)

    parts = []
    for row, (label, value, shares) in enumerate(bars):
        y = 8 + 46 * row
        parts.append(_text(LEFT + 16, y + 20, label, "end"))
        x = LEFT + 24.0
        for kind, share in shares.items():
            width = share * scale
            if width > 0:
                title = f"{_share_name(kind)}: {quantity_text(plan, share)}"
                parts.append(
                    _rect(x, y, width, 30, "rest" if kind == "rest" else way_class(kind), title)
                )
                style = "on-rest" if kind == "rest" else "on-bar"
                if width > 90:
                    parts.append(_text(x + width / 2, y + 20, words_of(share), "middle", style))
            x += width
        words = quantity_text(plan, value) + (" predicted" if timed and row == 1 else "")
        mark = LEFT + 24 + planned * scale
        parts.append(_text((max(x, mark) if row == 1 else x) + 8, y + 20, words))
        if timed and row == 1:
            parts.append(_line(mark, y - 5, mark, y + 35, "mark"))
            parts.append(_text(mark, y + 50, f"measured {milliseconds(planned)}", "middle"))
    return _svg(114 if timed else 94, parts, "What the whole is made of, as it is and by the plan")


def _shares(plan: Plan, planned: bool) -> dict[str, float]:
    """By way, what the layers that are to be run so take; "own" those that stay."""
    shares: dict[str, float] = {}
    for layer in plan.layers:
        option = layer.planned if planned else layer.own
        way = layer.chosen if planned else OWN
        shares[way] = shares.get(way, 0.0) + quantity(plan, option)
    return dict(sorted(shares.items(), key=lambda item: item[0] == OWN))


def _share_name(kind: str) -> str:
    names = {OWN: "linear layers in their own dtype", "rest": "all that is not linear"}
    return names.get(kind, f"linear layers, {kind}")


def layers_chart(plan: Plan) -> str:
    """A pair of bars for each layer, in the order of the calls: as it is, and by the plan."""
    layers = [layer for layer in plan.layers if layer.options]
    largest = max((quantity(plan, layer.own) for layer in layers), default=0.0)
    largest = max([largest, *(quantity(plan, layer.planned) for layer in layers)])
    height, bottom = 258, 216
    axis = _Axis(largest, bottom, 12)
    parts = axis.grid(plan)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(layers))
    width = max(0.5, min(26.0, step * 0.42))
    for index, layer in enumerate(layers):
        middle = LEFT + (index + 0.5) * step
        own, planned = quantity(plan, layer.own), quantity(plan, layer.planned)
        title = f"{layer.name}: {quantity_text(plan, own)} as it is, "
        title += f"{quantity_text(plan, planned)} {layer.chosen}"
        top = axis.y(own)
        parts.append(_rect(middle - width, top, width, bottom - top, "before", title))
        top = axis.y(planned)
        parts.append(_rect(middle, top, width, bottom - top, way_class(layer.chosen), title))
    parts += _ticks(layers, step, bottom)
    return _svg(height, parts, "Each linear layer, as it is and by the plan")


def _ticks(layers: Sequence[Layer], step: float, bottom: float) -> list[str]:
    every = max(1, math.ceil(len(layers) / 20))
    parts = []
    for index in range(0, len(layers), every):
        x = LEFT + (index + 0.5) * step
        parts.append(_text(x, bottom + 16, str(index + 1), "middle", "tick"))
    words = "layers in the order in which they are called (numbers as in the table)"
    parts.append(_text((LEFT + WIDTH) / 2, bottom + 32, words, "middle", "tick"))
    return parts


def options_chart(plan: Plan) -> str:
    """Every layer in every way: its effect on the answer, and what it gains."""
    points = [
        (option.effect, quantity(plan, layer.own) - quantity(plan, option), layer, option)
        for layer in plan.layers
        for option in layer.options
        if option.way != OWN and option.why_not is None and option.effect
    ]
    if not points:
        return ""
    effects = [point[0] for point in points]
    gains = [point[1] for point in points]
    low = math.floor(math.log10(min(effects)) * 2) / 2
    high = max(low + 0.5, math.ceil(math.log10(max(effects)) * 2) / 2)
    height, bottom = 322, 276
    axis = _Axis(max(0.0, *gains), bottom, 12, min(0.0, *gains))
    parts = axis.grid(plan)

    def x_of(effect: float) -> float:
        share = (math.log10(effect) - low) / (high - low)
        return LEFT + 8 + share * (WIDTH - LEFT - RIGHT - 16)

    for power in range(math.ceil(low), math.floor(high) + 1):
        for factor in (1, 2, 5):
            effect = factor * 10.0**power
            if low <= math.log10(effect) <= high:
                x = x_of(effect)
                parts.append(_line(x, 12, x, bottom, "grid"))
                parts.append(_text(x, bottom + 16, percent(effect), "middle", "tick"))
    # Chosen ones last, so that they lie on top.
    points.sort(key=lambda point: point[2].chosen == point[3].way)
    for effect, gain, layer, option in points:
        is_chosen = layer.chosen == option.way
        title = f"{layer.name}, {option.way}: {quantity_text(plan, gain)} gained, "
        title += f"{percent(effect)} of the answer"
        parts.append(
            f'<circle cx="{x_of(effect):.1f}" cy="{axis.y(gain):.1f}" r="{5 if is_chosen else 3}" '
            f'class="{way_class(option.way)}{" chosen" if is_chosen else " passed"}">'
            f"<title>{escape(title)}</title></circle>"
        )
    words = "what the layer alone changes in the model's answer"
    parts.append(_text((LEFT + WIDTH) / 2, bottom + 34, words, "middle", "tick"))
    return _svg(height, parts, "Every layer in every way: effect on the answer and gain")


class _Axis:
    """A linear y axis from a round number to a round number."""

    def __init__(self, largest: float, bottom: float, top: float, least: float = 0.0) -> None:
        self.step = _round_up((largest - least) / 4 or 1.0)
        self.least = math.floor(least / self.step + 1e-9) * self.step
        self.most = max(self.least + self.step, math.ceil(largest / self.step - 1e-9) * self.step)
        self.bottom, self.top = bottom, top

    def y(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return self.bottom - share * (self.bottom - self.top)

    def grid(self, plan: Plan) -> list[str]:
        parts = []
        for index in range(round((self.most - self.least) / self.step) + 1):
            value = self.least + index * self.step
            value = 0.0 if abs(value) < 1e-9 * self.step else value
            y = self.y(value)
            parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "zero" if value == 0 else "grid"))
            label = "0" if value == 0 else quantity_text(plan, value)
            parts.append(_text(LEFT - 6, y + 4, label, "end", "tick"))
        return parts


def _round_up(value: float) -> float:
    """To 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= value * (1 - 1e-9))


def _rect(x: float, y: float, width: float, height: float, style: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{max(0.0, height):.2f}" '
        f'class="{style}"><title>{escape(title)}</title></rect>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", style: str = "label") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">'
        f"{escape(words)}</text>"
    )


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
