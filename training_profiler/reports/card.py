"""A comparison as a picture to show to others: headline, a bar for each time of a step, and the facts behind it."""

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Final

from training_profiler.base.text import printable
from training_profiler.base.units import ms_text
from training_profiler.reports.layout import shortened

WIDTH, MARGIN, LINE, BAR = 640, 28, 22, 26  # in px
LABELS, TIMES = 176, 84  # px beside the bars
LONGEST: Final = 22  # characters of a label
COLUMNS: Final = {"head": 56, "fact": 84}  # characters of a line
STYLE: Final = """
.back { fill: #f6f7f9; stroke: #d8dde3 } .bar { fill: #5b6470 } .after { fill: #0b63c5 }
text { fill: #1c2024; font: 14px system-ui, sans-serif } .head { font-size: 18px; font-weight: 600 }
.fact { fill: #5b6470; font-size: 13px }
@media (prefers-color-scheme: dark) {
 .back { fill: #1d2125; stroke: #363d45 } .bar { fill: #a3adb8 } .after { fill: #79b8ff }
 text { fill: #e6e9ec } .fact { fill: #a3adb8 } }
"""


def render_card(headline: str, times: Sequence[tuple[str, float]], facts: Sequence[str]) -> str:
    """Return an SVG. ``times`` are labels with seconds of a step, the last one the changed; light or dark as the page.

    Texts may come from a program: they are data, and never markup.
    """
    parts, y = [], MARGIN
    for text in _lines([headline], "head"):
        parts.append(_text(MARGIN, y + 14, text, "head"))
        y += LINE + 2
    longest, room = max((seconds for _, seconds in times), default=1.0), WIDTH - 2 * MARGIN - LABELS - TIMES
    y += 10
    for at, (label, seconds) in enumerate(times):
        width, kind = max(1, round(room * seconds / longest)), "after" if at == len(times) - 1 else "bar"
        parts.append(_text(MARGIN, y + 18, shortened(label, LONGEST)))
        parts.append(f'<rect class="{kind}" x="{MARGIN + LABELS}" y="{y}" width="{width}" height="{BAR}" rx="3"/>')
        parts.append(_text(MARGIN + LABELS + width + 8, y + 18, ms_text(seconds)))
        y += BAR + 8
    for text in _lines(facts, "fact"):
        y += LINE - 3
        parts.append(_text(MARGIN, y, text, "fact"))
    height = y + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{escape(printable(headline))}</title><style>{STYLE}</style>\n'
        f'<rect class="back" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _lines(texts: Sequence[str], kind: str) -> list[str]:
    return [line for text in texts if text for line in textwrap.wrap(printable(text), COLUMNS[kind])]


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(printable(text))}</text>'
