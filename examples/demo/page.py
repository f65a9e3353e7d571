"""The demo's self-contained HTML page: timeline, training curve, claims, figures and where the time went."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from examples.demo.record import LANES, Kind, Mark, Point, Record, Span

WIDTH: Final = 1120
LEFT: Final = 110
LANE_HEIGHT: Final = 46
CURVE_HEIGHT: Final = 150
TICKS: Final = 12


@dataclass(frozen=True)
class Claim:
    """One assertion of the demo, with the evidence for it."""

    text: str
    holds: bool
    seen: str


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: str
    note: str = ""


STYLE: Final = """
:root{--bg:#fbfbf9;--ink:#1f2328;--soft:#6b7280;--line:#e3e4e0;--card:#fff;--info:#4b7bec;--good:#2c9c69;--warn:#d08a00;
--fault:#d1383d;--startup:#c9ccd3;--restore:#9a7bd8;--compile:#e3b448;--train:#7fc6a4;--prepare:#a9c4f5}
@media(prefers-color-scheme:dark){:root{--bg:#16181c;--ink:#e8e8e6;--soft:#9aa1ab;--line:#2d3138;--card:#1e2126;
--startup:#4a4f58;--train:#2f7a57;--prepare:#3a5488;--compile:#8d6d1f;--restore:#6a4fa8}}
body{font:15px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--ink);max-width:1160px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.05rem;margin:2rem 0 .6rem}p{color:var(--soft);margin:.2rem 0}
svg{width:100%;height:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .lane{font-size:12px;fill:var(--ink)}
table{border-collapse:collapse;width:100%;background:var(--card);border:1px solid var(--line);border-radius:8px}
td,th{padding:.38rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;font-size:14px}
tr:last-child td{border-bottom:0}.yes{color:var(--good);font-weight:600}.no{color:var(--fault);font-weight:600}
.num{font-variant-numeric:tabular-nums;white-space:nowrap}.soft{color:var(--soft)}
.key span{display:inline-block;margin-right:1rem;font-size:12.5px;color:var(--soft)}
.key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:.35rem;vertical-align:-1px}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden;border:1px solid var(--line)}
"""

KEY: Final = (
    (Kind.STARTUP, "start, verify, restore"),
    (Kind.COMPILE, "compile, first step"),
    (Kind.TRAIN, "training"),
    (Kind.GOOD, "saved, completed"),
    (Kind.WARN, "notice, refusal"),
    (Kind.FAULT, "injected fault"),
)
"""The meaning of each colour."""

BUCKET_COLOURS: Final = {
    "productive": "var(--train)",
    "rework": "var(--fault)",
    "startup": "var(--startup)",
    "restore": "var(--restore)",
    "compile": "var(--compile)",
    "save-stall": "var(--warn)",
    "idle": "var(--line)",
    "queued": "var(--prepare)",
    "recovery": "var(--info)",
    "suspended": "var(--soft)",
}


def render(
    record: Record, *, verdict: str, claims: Sequence[Claim], figures: Sequence[Figure], buckets: dict[str, float]
) -> str:
    """Return the page as one HTML document without external references."""
    marks, spans, points = record.snapshot()
    end = last_instant(marks, spans, points)
    body = [
        f"<h1>Holdfast demo: {_text(verdict)}</h1>",
        "<p>Two JAX processes on a real Kubernetes control plane. Hover over a mark or a bar to read it.</p>",
        "<h2>Timeline</h2>",
        _timeline(marks, spans, end),
        _key(),
        "<h2>Progress</h2>",
        _curve(points, end),
        "<h2>Claims</h2>",
        _claims(claims),
        "<h2>Figures</h2>",
        _figures(figures),
        "<h2>Where the time went</h2>",
        _buckets(buckets),
        "<h2>What happened</h2>",
        _log(marks),
    ]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>Holdfast demo</title><style>{STYLE}</style>"
    return head + "<body>" + "".join(body) + "</body></html>\n"


def last_instant(marks: Sequence[Mark], spans: Sequence[Span], points: Sequence[Point]) -> float:
    """Return the end of the time axis in seconds."""
    return max([m.at for m in marks] + [s.end or 0.0 for s in spans] + [p.at for p in points] + [1.0])


def _text(value: object) -> str:
    return html.escape(str(value))


def _x(at: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * at / end


def _tick_seconds(end: float) -> float:
    rough = end / TICKS
    scale = 10.0 ** math.floor(math.log10(rough))
    return next(scale * m for m in (1, 2, 5, 10) if scale * m >= rough)


def _axis(end: float, bottom: float) -> str:
    every = _tick_seconds(end)
    lines = []
    for i in range(int(end / every) + 1):
        x = _x(i * every, end)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{bottom}" stroke="var(--line)"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{i * every:g} s</text>')
    return "".join(lines)


def _timeline(marks: Sequence[Mark], spans: Sequence[Span], end: float) -> str:
    shapes, height = timeline_shapes(marks, spans, end)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline">{shapes}</svg>'


def timeline_shapes(marks: Sequence[Mark], spans: Sequence[Span], end: float) -> tuple[str, int]:
    """Return the lanes as SVG elements, and their height in pixels."""
    bottom = LANE_HEIGHT * len(LANES) + 12
    parts = [_axis(end, bottom)]
    for row, lane in enumerate(LANES):
        y = 12 + row * LANE_HEIGHT
        parts.append(f'<text class="lane" x="12" y="{y + 26}">{_text(lane)}</text>')
        parts += [_bar(s, y, end) for s in spans if s.lane == lane]
        parts += [_dot(m, y, end) for m in marks if m.lane == lane]
    return "".join(parts), bottom + 22


def _bar(span: Span, y: int, end: float) -> str:
    x, until = _x(span.start, end), _x(span.end if span.end is not None else end, end)
    seconds = (span.end if span.end is not None else end) - span.start
    return (
        f'<rect x="{x:.1f}" y="{y + 12}" width="{max(1.0, until - x):.1f}" height="20" rx="3" fill="var(--{span.kind})">'
        f"<title>{_text(span.text)}: {span.start:.1f} s, for {seconds:.1f} s</title></rect>"
    )


def _dot(mark: Mark, y: int, end: float) -> str:
    return (
        f'<circle cx="{_x(mark.at, end):.1f}" cy="{y + 22}" r="5.5" fill="var(--{mark.kind})" stroke="var(--card)" '
        f'stroke-width="1.5"><title>{mark.at:.2f} s: {_text(mark.text)}</title></circle>'
    )


def _key() -> str:
    spans = "".join(f'<span><i style="background:var(--{k})"></i>{_text(t)}</span>' for k, t in KEY)
    return f'<p class="key">{spans}</p>'


def _curve(points: Sequence[Point], end: float) -> str:
    bottom = CURVE_HEIGHT
    top_step = max((p.step for p in points), default=1)
    losses = [p.loss for p in points if p.loss is not None and math.isfinite(p.loss)]
    low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)
    steps = " ".join(f"{_x(p.at, end):.1f},{bottom - (bottom - 16) * p.step / top_step:.1f}" for p in points)
    span = (high - low) or 1.0
    loss = " ".join(
        f"{_x(p.at, end):.1f},{bottom - (bottom - 16) * (p.loss - low) / span:.1f}"
        for p in points
        if p.loss is not None and math.isfinite(p.loss)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {bottom + 22}" role="img" aria-label="step and loss over time">{_axis(end, bottom)}'
        f'<text class="lane" x="12" y="26" style="fill:var(--info)">step (max {top_step})</text>'
        f'<text class="lane" x="12" y="44" style="fill:var(--warn)">loss {low:.2f}…{high:.2f}</text>'
        f'<polyline points="{steps}" fill="none" stroke="var(--info)" stroke-width="2"/>'
        f'<polyline points="{loss}" fill="none" stroke="var(--warn)" stroke-width="1.5"/></svg>'
    )


def _claims(claims: Sequence[Claim]) -> str:
    rows = "".join(
        f'<tr><td class="{"yes" if c.holds else "no"}">{"holds" if c.holds else "FAILS"}</td>'
        f'<td>{_text(c.text)}</td><td class="soft">{_text(c.seen)}</td></tr>'
        for c in claims
    )
    return f"<table>{rows}</table>"


def _figures(figures: Sequence[Figure]) -> str:
    rows = "".join(
        f'<tr><td>{_text(f.name)}</td><td class="num">{_text(f.value)}</td><td class="soft">{_text(f.note)}</td></tr>'
        for f in figures
    )
    return f"<table>{rows}</table>"


def _buckets(buckets: dict[str, float]) -> str:
    total = sum(buckets.values()) or 1.0
    shown = sorted(((n, s) for n, s in buckets.items() if s > 0), key=lambda item: -item[1])
    bars = "".join(
        f'<div style="width:{100 * s / total:.2f}%;background:{BUCKET_COLOURS.get(n, "var(--soft)")}" '
        f'title="{_text(n)}: {s:.1f} s"></div>'
        for n, s in shown
    )
    rows = "".join(
        f'<tr><td><span class="key"><i style="background:{BUCKET_COLOURS.get(n, "var(--soft)")}"></i></span>{_text(n)}</td>'
        f'<td class="num">{s:.1f} s</td><td class="num">{100 * s / total:.1f} %</td></tr>'
        for n, s in shown
    )
    return f'<div class="bar">{bars}</div><br><table>{rows}</table>'


def _log(marks: Sequence[Mark]) -> str:
    rows = "".join(
        f'<tr><td class="num">{m.at:.2f} s</td><td>{_text(m.lane)}</td><td>{_text(m.text)}</td></tr>' for m in marks
    )
    return f"<table>{rows}</table>"
