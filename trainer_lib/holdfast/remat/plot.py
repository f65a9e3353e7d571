"""A scatter plot as SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 20, 50
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_DARK, _LINE, _MARKED, _LIMIT = "#333333", "#8da0cb", "#d95f02", "#7570b3"


@dataclass(frozen=True)
class Point:
    """A dot and its name."""

    name: str
    x: float
    y: float
    marked: bool


@dataclass(frozen=True)
class _Axes:
    """From values to pixels. Both axes begin at 0: a part of an axis would make small differences look large."""

    x_end: float
    y_end: float

    def x(self, value: float) -> float:
        return round(_LEFT + value / self.x_end * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self.y_end * (_HEIGHT - _TOP - _BOTTOM), 1)


def scatter(
    points: Sequence[Point],
    line: Sequence[tuple[float, float]],
    *,
    limit: float | None,
    axes: tuple[str, str],
) -> str:
    """An SVG document. ``line`` joins positions in order; ``limit`` draws a vertical line; ``axes`` are their names."""
    xs = [p.x for p in points] + [x for x, _ in line] + ([] if limit is None else [limit])
    ys = [p.y for p in points] + [y for _, y in line]
    scale = _Axes(_round_up(max(xs, default=1.0)), _round_up(max(ys, default=1.0)))
    parts = [*_frame(scale, axes)]
    if line:
        path = " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    if limit is not None:
        parts.append(_segment(scale.x(limit), scale.y(0), scale.x(limit), scale.y(scale.y_end), _LIMIT, dashed=True))
        parts.append(_text(scale.x(limit) + 4, _TOP + 10, "budget", colour=_LIMIT))
    parts.extend(_dots(points, scale))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>'
    ground = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _dots(points: Sequence[Point], scale: _Axes) -> list[str]:
    """Dots with their names, each name moved up as far as others that it would cover need."""
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: -p.y):
        x, y = scale.x(point.x), scale.y(point.y)
        colour = _MARKED if point.marked else _DARK
        label_y = y - 6
        while any(abs(label_y - b) < 13 and abs(x - a) < 110 for a, b in taken):
            label_y -= 13
        taken.append((x, label_y))
        title = f"<title>{escape(point.name)}: {point.x:,.2f}, {point.y:,.3f}</title>"
        parts.append(f'<circle cx="{x}" cy="{y}" r="{5 if point.marked else 4}" fill="{colour}">{title}</circle>')
        parts.append(_text(x + 7, label_y, point.name, colour=colour))
    return parts


def _frame(scale: _Axes, axes: tuple[str, str]) -> list[str]:
    middle = f'x="16" y="{_HEIGHT / 2}" transform="rotate(-90 16 {_HEIGHT / 2})" text-anchor="middle"'
    turned = f'<text {middle} fill="{_DARK}">{escape(axes[1])}</text>'
    parts = [
        _segment(_LEFT, scale.y(0), _WIDTH - _RIGHT, scale.y(0), _DARK),
        _segment(_LEFT, scale.y(0), _LEFT, _TOP, _DARK),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, axes[0], anchor="middle"),
        turned,
    ]
    for part in range(5):
        x, y = scale.x_end * part / 4, scale.y_end * part / 4
        parts.append(_text(scale.x(x), scale.y(0) + 18, f"{x:g}", anchor="middle"))
        parts.append(_text(_LEFT - 8, scale.y(y) + 4, f"{y:g}", anchor="end"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = _DARK) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _segment(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dash}/>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: ends of axes whose quarters are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 8, 10) if value <= power * step)
