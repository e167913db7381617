"""A plan as one HTML file: self-contained, without scripts."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from .charts import layers_chart, options_chart, shares_chart, way_class
from .data import Layer, Option, Plan
from .text import (
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
from .ways import OWN, WAYS


def html_report(plan: Plan) -> str:
    """The whole page."""
    title = f"FP8 plan for {plan.model}"
    sections = (
        _head(plan, title),
        _whole(plan),
        _layers(plan),
        _options(plan),
        _table(plan),
        _alone(plan),
        _how(plan),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{''.join(sections)}</main></body></html>\n"
    )


def _head(plan: Plan, title: str) -> str:
    tiles = "".join(
        f'<div class="tile"><b{style}>{escape(number)}</b><span>{escape(words)}</span></div>'
        for number, words, style in _tiles(plan)
    )
    return (
        f"<h1>{escape(title)}</h1>"
        f'<p class="soft">Asked for: {escape(bound(plan))}. '
        f"Measured on {escape(str(plan.machine))}, octofold {escape(plan.octofold)}, "
        f"torch {escape(plan.torch)}.</p>"
        f'<div class="tiles">{tiles}</div>{_notes(plan)}'
    )


def _tiles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    whole = plan.whole
    good = ' class="good"'
    if whole.seconds_own is not None and whole.seconds_planned:
        ratio = whole.seconds_own / whole.seconds_planned
        words = f"{milliseconds(whole.seconds_own)} → {milliseconds(whole.seconds_planned)} for "
        words += f"these inputs; predicted {milliseconds(whole.seconds_predicted)}"
        yield f"{ratio:.2f} × as fast", words, good if ratio > 1 else ""
    allowed = f", {percent(plan.max_error)} allowed" if plan.max_error is not None else ""
    words = f"change of the model's answer, measured{allowed}"
    yield percent(whole.error), words, ""
    saved = 1 - whole.bytes_planned / max(1, whole.bytes_own)
    words = f"{megabytes(whole.bytes_own)} → {megabytes(whole.bytes_planned)} of parameters and "
    yield f"{100 * saved:.0f} % smaller", words + "buffers", good if saved > 0.005 else ""
    ways = ", ".join(f"{count} {way}" for way, count in ways_counted(plan).items())
    total = len(plan.layers)
    yield f"{len(plan.changed)} of {total}", f"linear layers changed{': ' * bool(ways)}{ways}", ""


def _notes(plan: Plan) -> str:
    return "".join(f'<p class="soft">Note: {escape(note)}.</p>' for note in plan.notes)


def _whole(plan: Plan) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in effects(plan)
    )
    what = "Time of the whole model" if plan.timing is not None else "Bytes of the whole model"
    head = "<tr><th></th><th>as it is</th><th>by the plan</th><th></th></tr>"
    table = f'<div class="scroll"><table class="words">{head}<tbody>{rows}</tbody></table></div>'
    return f"<h2>{what}</h2>{_legend(plan, rest=True)}{shares_chart(plan)}{table}"


def _legend(plan: Plan, rest: bool = False, before: bool = False, every: bool = False) -> str:
    ways = list(ways_counted(plan))
    if every:
        measured = {o.way for layer in plan.layers for o in layer.options if o.why_not is None}
        ways = [way for way in WAYS if way in measured]
    items = [f'<span class="{way_class(way)}"><i></i>{_dark(way)}</span>' for way in ways]
    if not every:
        items.append(f'<span class="{way_class(OWN)}"><i></i>{_dark("in its own dtype")}</span>')
    if rest:
        items.append('<span class="of-rest"><i></i>all that is not linear</span>')
    if before:
        items.insert(0, '<span class="of-before"><i></i>as it is</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _dark(words: str) -> str:
    return f'<span style="color:var(--soft)">{escape(words)}</span>'


def _layers(plan: Plan) -> str:
    what = "Time" if plan.timing is not None else "Bytes"
    return f"<h2>{what} of each layer</h2>{_legend(plan, before=True)}{layers_chart(plan)}"


def _options(plan: Plan) -> str:
    what = "time" if plan.timing is not None else "bytes"
    return (
        f"<h2>What each way gains, and what it costs</h2><p class='soft'>Each dot is a layer in "
        f"one way: up is more {what} gained, left is less changed in the answer. Chosen ones have "
        f"a ring.</p>{_legend(plan, every=True)}{options_chart(plan)}"
    )


def _table(plan: Plan) -> str:
    ways = [
        way
        for way in WAYS
        if any((o := layer.option(way)) and o.why_not is None for layer in plan.layers)
    ]
    first = ("#", "layer", "features", "rows", "own")
    head = "".join(f"<th>{escape(cell)}</th>" for cell in (*first, *ways))
    rows = [
        _row(plan, index + 1, layer, ways)
        for index, layer in enumerate(layer for layer in plan.layers if layer.options)
    ]
    what = "time, " if plan.timing is not None else ""
    words = (
        f"{what}error of its output, bytes of weight, scales and bias. The chosen one has a frame; "
        "what a layer does to the answer, and why a way cannot be, is said where the pointer rests."
    )
    return (
        f'<h2>Each layer in each way</h2><p class="soft">In each cell: {words}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(plan: Plan, number: int, layer: Layer, ways: Sequence[str]) -> str:
    cells = [f"<td>{number}</td>", f"<td>{escape(layer.name or '(the model)')}</td>"]
    cells += [f"<td>{escape(words)}</td>" for words in (shape(layer), calls(layer))]
    cells += [_cell(plan, layer, layer.option(way)) for way in (OWN, *ways)]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(plan: Plan, layer: Layer, option: Option | None) -> str:
    if option is None or option.why_not is not None:
        why_not = "not measured" if option is None else option.why_not or ""
        return f'<td class="none" title="{escape(why_not)}">–</td>'
    chosen = f' class="chosen {way_class(option.way)}"' if option.way == layer.chosen else ""
    title = f"{layer.name}, {option.way}: changes the answer by {percent(option.effect)}"
    if option.way == OWN:
        title = layer.why_own or f"{layer.name} as it is"
    lines = [percent(option.error), megabytes(option.bytes)]
    if plan.timing is not None:
        lines = [milliseconds(option.seconds), " · ".join(lines)]
    first, second = map(escape, lines)
    return f'<td{chosen} title="{escape(title)}"><span>{first}</span><small>{second}</small></td>'


def _alone(plan: Plan) -> str:
    rows = []
    for why, names in left_alone(plan).items():
        shown = ", ".join(name or "(the model)" for name in names)
        rows.append((f"{len(names)} × linear", shown, why))
    rows += [(f"{other.count} × {other.kind}", "", other.why) for other in plan.others]
    if not rows:
        return ""
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    head = "<tr><th>what</th><th>which</th><th>why</th></tr>"
    return (
        f"<h2>Left alone</h2>"
        f'<div class="scroll"><table class="words">{head}<tbody>{body}</tbody></table></div>'
    )


def _how(plan: Plan) -> str:
    used = {OWN: "the layer in its own dtype"}
    used.update({name: way.title for name, way in WAYS.items()})
    ways = "".join(f"<dt>{escape(n)}</dt><dd>{escape(title)}</dd>" for n, title in used.items())
    times = (
        f"Times are medians of interleaved {plan.timing}s after a warm-up, casts counted, weights "
        "as cold in the cache as in the model; of a layer all its calls in the inputs."
        if plan.timing == "CUDA graph"
        else "Times are medians of interleaved calls from Python after a warm-up, casts counted."
        if plan.timing is not None
        else "Times were not measured: there is no GPU here."
    )
    return (
        f"<h2>How it was measured</h2><p>The model ran on the given inputs ({plan.runs} "
        f"{'run' if plan.runs == 1 else 'runs'}). The error of a layer is ‖output − exact‖ / "
        "‖exact‖ on rows of what it was given, exact in FP32. What it changes in the answer, "
        "‖difference‖ / ‖answer‖, is measured with this one layer in FP8, less what "
        "any change makes, as all that follows is rounded anew (as the results of all linear "
        f"layers, rounded at random, change it by {percent(plan.whole.error_own)}); the squares "
        "are added for the prediction, and the whole model, run with the plan, has the last word. "
        f"{times}</p><dl>{ways}</dl>"
    )


WAY_COLORS: Final = {
    "own": ("#8a93a0", "#7d8794"),
    "blockwise": ("#0a6ebd", "#4da3e8"),
    "rowwise": ("#00876a", "#2fbf9a"),
    "tensorwise": ("#7b4fc9", "#a586ea"),
    "weight-only-128x128": ("#c8590a", "#f08a3c"),
    "weight-only-channel": ("#b8860b", "#e0b437"),
    "weight-only-1x128": ("#b23a6f", "#e5719f"),
    "weight-only-tensor": ("#8c5a3c", "#c08f70"),
    "cast": ("#2f7d8c", "#5db7c7"),
}
"""The colours of each way on light and on dark ground; a way without any has the text's colour."""


def _colors(index: int) -> str:
    return "".join(f"--{way}:{pair[index]};" for way, pair in WAY_COLORS.items())


def _classes() -> str:
    return "".join(f".way-{way}{{fill:var(--{way});color:var(--{way})}}" for way in WAY_COLORS)


_LIGHT: Final = (
    "--ground:#ffffff;--panel:#f5f6f8;--text:#1c2127;--soft:#5a6470;--line:#d9dde2;"
    "--before:#c3c9d1;--rest:#e2e5ea;--good:#0b7a3e;" + _colors(0)
)
_DARK: Final = (
    "--ground:#14171b;--panel:#1d2126;--text:#e8ebef;--soft:#a0a9b4;--line:#343a42;"
    "--before:#4a525c;--rest:#30363e;--good:#4fce86;" + _colors(1)
)

STYLE: Final = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--text);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
main{{max-width:1120px;margin:0 auto;padding:32px 24px 64px}}
h1{{font-size:26px;line-height:1.25;margin:0 0 4px}}
h2{{font-size:18px;margin:40px 0 6px}}
p{{margin:4px 0 10px;max-width:82ch}}
.soft{{color:var(--soft)}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(215px,1fr));
gap:12px;margin:22px 0 8px}}
.tile{{background:var(--panel);border-radius:10px;padding:14px 16px}}
.tile b{{display:block;font-size:27px;line-height:1.25;font-weight:650;
font-variant-numeric:tabular-nums}}
.tile .good{{color:var(--good)}}
.tile span{{color:var(--soft);font-size:13.5px;display:block}}
svg{{display:block;width:100%;height:auto;margin:6px 0 2px}}
svg text{{font-size:13px;fill:var(--text)}}
svg .tick{{font-size:12px;fill:var(--soft)}}
svg .on-bar{{font-size:12px;fill:#fff;font-weight:600}}
svg .on-rest{{font-size:12px;fill:var(--soft)}}
svg .grid{{stroke:var(--line);stroke-width:1}}
svg .zero{{stroke:var(--soft);stroke-width:1}}
svg .mark{{stroke:var(--text);stroke-width:2}}
svg .before{{fill:var(--before)}}
svg .rest{{fill:var(--rest)}}
svg .passed{{opacity:.4}}
svg .chosen{{stroke:var(--text);stroke-width:1.6}}
{_classes()}
.legend{{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13.5px;
color:var(--soft);margin:2px 0 4px}}
.legend i{{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;
background:currentColor}}
.legend .of-before i{{background:var(--before)}}
.legend .of-rest i{{background:var(--rest)}}
.scroll{{overflow-x:auto;border:1px solid var(--line);border-radius:10px;margin-top:10px}}
table{{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}}
th,td{{padding:5px 9px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}}
tbody tr:last-child td{{border-bottom:0}}
th{{white-space:normal;font-weight:600;background:var(--panel);vertical-align:bottom}}
td:nth-child(2),th:nth-child(2){{text-align:left;position:sticky;left:0;background:var(--ground)}}
th:nth-child(2){{background:var(--panel)}}
table.words td,table.words th{{text-align:left;white-space:normal;position:static;background:none}}
td small{{display:block;color:var(--soft);font-size:12px}}
td.chosen{{box-shadow:inset 0 0 0 2px currentColor;border-radius:6px;font-weight:650}}
td.chosen>*{{color:var(--text)}}
td.none{{color:var(--soft)}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:8px 0}}
dt{{color:var(--soft)}}
dd{{margin:0}}
@media print{{.scroll{{overflow:visible}}main{{max-width:none}}}}
"""
