"""What each choice saves and costs, as numbers, as a table and as a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.remat.plot import Point, scatter

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Row:
    """One choice. Bytes are per device.

    ``kept_bytes``: held from the forward to the backward pass, by a trace of the gradient, beside arguments and
    results. ``predicted_bytes``: these and what is back at once while the backward pass of one region runs.
    ``compiled_bytes``: temporaries by the compiler's own account; None where it was not asked or means nothing.
    ``recomputed_flops``: done a second time, over all devices. ``flops_ratio``: all FLOPs of value and gradient as a
    multiple of those without rematerialisation.
    """

    name: str
    kept_bytes: int
    predicted_bytes: int
    compiled_bytes: int | None
    recomputed_flops: int
    flops_ratio: float


@dataclass(frozen=True)
class Report:
    """Rows, the first without rematerialisation. ``chosen`` names the row of the plan; None in a mere comparison.

    ``front``: (predicted bytes per device, recomputed FLOPs) of the cheapest choices at budgets in between.
    ``budget_bytes``: per device; None in a comparison. ``search_seconds``: without compilation. ``bound_flops``: no
    choice that fits recomputes fewer; None if the search does not know. ``notes``: what the figures cannot show.
    """

    rows: tuple[Row, ...]
    chosen: str | None = None
    budget_bytes: int | None = None
    front: tuple[tuple[int, int], ...] = ()
    search_seconds: float = 0.0
    bound_flops: float | None = None
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        """The row of this name. Raises KeyError with those there are."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"row: found {name!r}, allowed: {', '.join(r.name for r in self.rows)}")

    def table(self) -> str:
        """The rows as text, one line each."""
        head = ("", "choice", "kept MiB", "saved MiB", "predicted MiB", "compiled MiB", "recomputed GFLOP", "FLOPs")
        lines = [head, *(self._cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        if self.budget_bytes is not None:
            text.append(f"budget: {self.budget_bytes / _MIB:,.2f} MiB per device; search {self.search_seconds:.2f} s")
        return "\n".join([*(line.rstrip() for line in text), *(f"note: {note}" for note in self.notes)])

    def _cells(self, row: Row) -> tuple[str, ...]:
        saved = self.rows[0].kept_bytes - row.kept_bytes
        compiled = "-" if row.compiled_bytes is None else f"{row.compiled_bytes / _MIB:,.2f}"
        return (
            "*" if row.name == self.chosen else "",
            row.name,
            f"{row.kept_bytes / _MIB:,.2f}",
            f"{saved / _MIB:,.2f}",
            f"{row.predicted_bytes / _MIB:,.2f}",
            compiled,
            f"{row.recomputed_flops / 1e9:,.3f}",
            f"{row.flops_ratio:.3f}x",
        )

    def svg(self) -> str:
        """Predicted memory against recomputed FLOPs as an SVG image: the front, the rows and the budget."""
        points = [
            Point(r.name, r.predicted_bytes / _MIB, r.recomputed_flops / 1e9, marked=r.name == self.chosen)
            for r in self.rows
        ]
        line = [(b / _MIB, f / 1e9) for b, f in sorted(self.front)]
        limit = None if self.budget_bytes is None else self.budget_bytes / _MIB
        return scatter(points, line, limit=limit, axes=("predicted MiB per device", "recomputed GFLOP"))

    def write_svg(self, path: str | Path) -> Path:
        """Writes the plot; the path."""
        target = Path(path)
        target.write_text(self.svg(), encoding="utf-8")
        return target
