"""Draw a rematerialisation report: predicted memory against recomputed FLOPs, as an SVG image.

``python tools/remat_chart.py REPORT.json CHART.svg``; ``REPORT.json`` holds ``Report.to_jsonable()``. Standard library only.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

_MIB: Final = 1024 * 1024
_GIGA: Final = 1e9

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 20, 50
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_DARK, _LINE, _MARKED, _LIMIT = "#333333", "#8da0cb", "#d95f02", "#7570b3"


@dataclass(frozen=True)
class Point:
    """A dot and its name; ``marked`` for the choice that the plan made."""

    name: str
    x: float
    y: float
    marked: bool


@dataclass(frozen=True)
class _Axes:
    """Maps values to pixels. Both axes begin at 0, because a cut axis makes small differences look large."""

    x_end: float
    y_end: float

    def x(self, value: float) -> float:
        return round(_LEFT + value / self.x_end * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self.y_end * (_HEIGHT - _TOP - _BOTTOM), 1)


def chart(report: Mapping[str, Any]) -> str:
    """The SVG document of a report: its front as a line, its rows as dots, its budget as a vertical line.

    Args:
        report: what ``holdfast.remat.Report.to_jsonable`` returns.
    """
    points = [
        Point(
            row["name"], row["predicted_bytes"] / _MIB, row["recomputed_flops"] / _GIGA, row["name"] == report["chosen"]
        )
        for row in report["rows"]
    ]
    front = sorted((point["predicted_bytes"] / _MIB, point["recomputed_flops"] / _GIGA) for point in report["front"])
    budget = None if report["budget_bytes"] is None else report["budget_bytes"] / _MIB
    xs = [p.x for p in points] + [x for x, _ in front] + ([] if budget is None else [budget])
    ys = [p.y for p in points] + [y for _, y in front]
    scale = _Axes(_round_up(max(xs, default=1.0)), _round_up(max(ys, default=1.0)))
    parts = [*_frame(scale, ("predicted MiB per device", "recomputed GFLOP"))]
    if front:
        path = " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in front)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    if budget is not None:
        parts.append(_segment((budget, 0), (budget, scale.y_end), scale, _LIMIT, dashed=True))
        parts.append(_text(scale.x(budget) + 4, _TOP + 10, "budget", colour=_LIMIT))
    parts.extend(_dots(points, scale))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>'
    background = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>", ""])


def _dots(points: Sequence[Point], scale: _Axes) -> list[str]:
    """Dots with their names; a name moves up until it covers no other."""
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
        _segment((0, 0), (scale.x_end, 0), scale, _DARK),
        _segment((0, 0), (0, scale.y_end), scale, _DARK),
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


def _segment(
    start: tuple[float, float], end: tuple[float, float], scale: _Axes, colour: str, *, dashed: bool = False
) -> str:
    (x1, y1), (x2, y2) = ((scale.x(x), scale.y(y)) for x, y in (start, end))
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dash}/>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 or 10 times a power of ten, so that the quarters of an axis are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 8, 10) if value <= power * step)


def main() -> None:
    """Draw the report named by the first argument into the file named by the second."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} REPORT.json CHART.svg")
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(chart(report), encoding="utf-8")


if __name__ == "__main__":
    main()
