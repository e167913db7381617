"""The style sheet of a plan's report: light and dark, on screens and on paper."""

from typing import Final

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
