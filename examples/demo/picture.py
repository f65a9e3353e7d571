"""The demo's timeline as one SVG file, with a legend and a list of the faults, for places that can only show images."""

from __future__ import annotations

import html
from typing import Final

from examples.demo.page import KEY, STYLE, WIDTH, last_instant, timeline_shapes
from examples.demo.record import Kind, Record

LINE_HEIGHT: Final = 19
KEY_WIDTH: Final = 172
COLUMNS: Final = 2
LONGEST: Final = 62


def draw(record: Record) -> str:
    """Return the timeline as a self-contained SVG document."""
    marks, spans, points = record.snapshot()
    shapes, top = timeline_shapes(marks, spans, last_instant(marks, spans, points))
    faults = [f"{m.at:.1f} s  {m.lane}: {_short(m.text)}" for m in marks if m.kind is Kind.FAULT]
    rows = -(-len(faults) // COLUMNS)
    height = top + 16 + (rows + 1) * LINE_HEIGHT + 8
    size = f'viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="timeline of the demo">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--card)" stroke="var(--line)"/>',
        shapes,
        *(_legend(i, kind, text, top + 18) for i, (kind, text) in enumerate(KEY)),
    ]
    for i, fault in enumerate(faults):
        x, y = 24 + (i // rows) * WIDTH // COLUMNS, top + 18 + (1 + i % rows) * LINE_HEIGHT
        parts.append(f'<text x="{x}" y="{y}">{html.escape(fault)}</text>')
    return "".join(parts) + "</svg>\n"


def _legend(place: int, kind: Kind, text: str, y: int) -> str:
    x = 24 + place * KEY_WIDTH
    return (
        f'<rect x="{x}" y="{y - 10}" width="11" height="11" rx="3" fill="var(--{kind})"/>'
        f'<text x="{x + 17}" y="{y}">{html.escape(text)}</text>'
    )


def _short(text: str) -> str:
    """Shorten a text to half a line, without the request path, which is long and always the same."""
    shown = text.partition(": PUT ")[0]
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
