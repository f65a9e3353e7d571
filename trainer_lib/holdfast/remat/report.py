"""What each choice saves and costs, as numbers and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Row:
    """One choice. Bytes are per device.

    ``kept_bytes``: held from the forward to the backward pass beside arguments and results, by a trace of the gradient.
    ``predicted_bytes``: kept bytes plus the bytes that are recomputed and held at once while the backward pass of one
    region runs. ``compiled_bytes``: temporaries by the compiler's own memory analysis; None if the compiler was not
    asked or its figures mean nothing here. ``recomputed_flops``: computed a second time, over all devices.
    ``flops_ratio``: all FLOPs of value and gradient, divided by those without rematerialisation.
    """

    name: str
    kept_bytes: int
    predicted_bytes: int
    compiled_bytes: int | None
    recomputed_flops: int
    flops_ratio: float

    @property
    def figure_bytes(self) -> int:
        """The best figure there is, which a budget is compared with: the compiler's, otherwise the prediction."""
        return self.predicted_bytes if self.compiled_bytes is None else self.compiled_bytes


@dataclass(frozen=True)
class Report:
    """Rows of choices; the first is without rematerialisation. ``chosen`` names the plan's row; None in a comparison.

    ``front``: (predicted bytes per device, recomputed FLOPs) of the cheapest choices at budgets in between.
    ``budget_bytes``: per device; None in a comparison. ``search_seconds``: time of the search without compilation.
    ``bound_flops``: no choice that fits recomputes fewer; None if the search found no bound. ``notes``: what the figures
    do not show.
    """

    rows: tuple[Row, ...]
    chosen: str | None = None
    budget_bytes: int | None = None
    front: tuple[tuple[int, int], ...] = ()
    search_seconds: float = 0.0
    bound_flops: float | None = None
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        """The row of this name. Raises KeyError, which lists the names that exist."""
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

    def to_jsonable(self) -> dict[str, Any]:
        """All figures for programs, as JSON holds them; ``tools/remat_chart.py`` in the repository draws them.

        ``rows`` have the fields of ``Row``. ``front`` holds ``predicted_bytes`` (per device) and ``recomputed_flops`` (over
        all devices) of each point, by bytes, ascending.
        """
        return {
            "rows": [asdict(row) for row in self.rows],
            "chosen": self.chosen,
            "budget_bytes": self.budget_bytes,
            "front": [{"predicted_bytes": b, "recomputed_flops": f} for b, f in sorted(self.front)],
            "search_seconds": self.search_seconds,
            "bound_flops": self.bound_flops,
            "notes": list(self.notes),
        }
