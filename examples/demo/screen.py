"""Shows the running demo and its latest events on one screen, or as plain lines if there is no terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.record import Kind, Mark, Record

COLOURS = {Kind.GOOD: "green", Kind.WARN: "yellow", Kind.FAULT: "bold red", Kind.INFO: "cyan"}
RECENT_MARKS = 14
PRINT_SECONDS = 0.3


class Screen:
    """Shows a Record live. If the output is not a terminal, prints each new mark as a line."""

    def __init__(self, record: Record, status: Callable[[], dict[str, Any]], *, total_steps: int) -> None:
        self.record = record
        self.status = status
        self.total_steps = total_steps
        self.act = ""
        self._console = Console()
        self._printed = 0
        self._done = threading.Event()
        self._live = (
            Live(get_renderable=self._draw, console=self._console, refresh_per_second=4)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            threading.Thread(target=self._print, name="screen", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        self._done.set()
        self.flush()

    def say(self, act: str) -> None:
        """Show which act of the demo runs now."""
        self.act = act
        if not self._live:
            print(f"-- {act}", flush=True)

    def _print(self) -> None:
        while not self._done.wait(PRINT_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Print the marks that are not printed yet (only without a terminal)."""
        if self._live:
            return
        marks = list(self.record.marks)
        for mark in marks[self._printed :]:
            sys.stdout.write(f"   {mark.at:7.2f} s  {mark.lane:<12} {mark.text}\n")
        self._printed = len(marks)
        sys.stdout.flush()

    def _draw(self) -> Group:
        marks, _, points = self.record.snapshot()
        status = self.status()
        step = points[-1].step if points else 0
        loss = points[-1].loss if points else None
        head = Table.grid(padding=(0, 2))
        head.add_row(
            "step", f"{step}/{self.total_steps}", ProgressBar(total=self.total_steps, completed=step, width=40)
        )
        head.add_row("loss", "-" if loss is None else f"{loss:.4f}", "")
        head.add_row("attempt", str(status.get("attempt", "-")), Text(str(status.get("state", "")), style="cyan"))
        log = Table.grid(padding=(0, 1))
        for mark in marks[-RECENT_MARKS:]:
            log.add_row(*_row(mark))
        title = f"Holdfast demo · {self.record.now():.0f} s · {self.act}"
        return Group(Panel(head, title=title, title_align="left"), Panel(log, title="events", title_align="left"))


def _row(mark: Mark) -> tuple[Text, Text, Text]:
    colour = COLOURS.get(mark.kind, "")
    return Text(f"{mark.at:7.2f} s", style="dim"), Text(mark.lane), Text(mark.text, style=colour)
