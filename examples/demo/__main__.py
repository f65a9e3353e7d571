"""``make demo``: train on a real Kubernetes control plane, inject faults, measure, and check every claim."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from examples.demo import processes, scenario
from examples.demo.jobs import Training
from examples.demo.kills import WriteKiller
from examples.demo.logs import Line, LogFollower
from examples.demo.page import Figure, render
from examples.demo.picture import draw
from examples.demo.record import Kind, Record
from examples.demo.rig import NAMESPACE, Rig
from examples.demo.scenario import Outcome, Stage
from examples.demo.screen import Screen
from examples.demo.watch import JobWatch

REPOSITORY: Final = Path(__file__).resolve().parents[2]
GOODPUT_TOLERANCE: Final = 0.005
PAUSE_SECONDS: Final = 0.05
"""Pause after each step of the disturbed run, so that even on a fast machine it lasts until the last fault."""


def main() -> int:
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    began = time.monotonic()
    killer = WriteKiller()
    try:
        with Rig(REPOSITORY, killer) as rig:
            killer.kill = lambda: processes.kill_operators(rig.api_port)
            outcome, record, buckets = _perform(options, rig, work, killer)
            code = _conclude(options, outcome, record, buckets, seconds=time.monotonic() - began)
            if options.keep:
                _keep(rig, work)
            return code
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed for model, data order and dropout (default 0)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
    parser.add_argument("--every-steps", type=int, default=20, help="steps between checkpoints (default 20)")
    parser.add_argument("--watch-only", action="store_true", help="train to the end without faults")
    parser.add_argument("--keep", action="store_true", help="keep the cluster and its files until you press Enter")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the page and the figures")
    options = parser.parse_args(words)
    for name in ("steps", "every_steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: found {getattr(options, name)}, allowed: 1 or more")
    return options


def _training(options: argparse.Namespace, work: Path, name: str) -> Training:
    for folder in ("checkpoints", "output", "compiled"):
        (work / folder).mkdir(exist_ok=True)
    return Training(
        name=name,
        steps=options.steps,
        every_steps=options.every_steps,
        seed=options.seed,
        repository=REPOSITORY,
        checkpoints=work / "checkpoints",
        output=work / "output",
        compiled=work / "compiled",
    )


def _perform(
    options: argparse.Namespace, rig: Rig, work: Path, killer: WriteKiller
) -> tuple[Outcome, Record, dict[str, float]]:
    reference, outcome = _training(options, work, "reference"), Outcome()
    training = replace(reference, name="char-lm", pause_seconds=PAUSE_SECONDS)
    skipped = replace(reference, name="one-batch-skipped", skip_batch=options.steps // 2)
    undisturbed = scenario.run_alone(rig, reference, print, "-- reference: the same run without faults")
    other = (
        ""
        if options.watch_only
        else scenario.run_alone(rig, skipped, print, "-- control: the same run with one batch skipped")
    )
    record = Record()
    killer.on_kill = lambda what: record.mark("operator", Kind.FAULT, what)
    watch = JobWatch(record, lambda: rig.get_job(training.name))
    logs = LogFollower(record, rig.kubectl, NAMESPACE, lambda line: _lane(record, line))
    rig.on_pods = logs.follow_all
    with Screen(record, lambda: watch.status, total_steps=options.steps) as screen:
        watch.start()
        stage = Stage(rig, training, record, watch, logs, killer, outcome, screen.say)
        try:
            status = _acts(options, stage)
        finally:
            watch.stop()
            logs.stop()
            for lane in ("worker 0", "worker 1"):
                record.end(lane)
    _judge_digests(outcome, scenario.digest(training.digest_file), undisturbed=undisturbed, skipped=other)
    wall_seconds = stage.finished_at - stage.applied_at
    return outcome, record, _judge_goodput(outcome, status, wall_seconds=wall_seconds)


def _acts(options: argparse.Namespace, stage: Stage) -> dict[str, Any]:
    stage.rig.follow_pods(stage.training.name)
    scenario.begin(stage)
    if options.watch_only:
        return scenario.finish(stage)
    scenario.notice(stage)
    scenario.crash(stage)
    compare_with_plain_orbax = scenario.corruption(stage)
    scenario.operator_kills(stage)
    compare_with_plain_orbax()  # from here on, training may end at any time
    return scenario.finish(stage)


LANE_CHANGES: Final = (
    (re.compile(r"attempt (\d+) begins from the initial state"), Kind.COMPILE),
    (re.compile(r"attempt (\d+) continues after"), Kind.COMPILE),
    (re.compile(r"attempt (\d+) begins"), Kind.STARTUP),
    (re.compile(r"first step of this process, step (\d+), is complete"), Kind.TRAIN),
)
TRAINER_ENDED: Final = re.compile(r"attempt \d+: the trainer (ended|was)")


def _lane(record: Record, line: Line) -> None:
    if TRAINER_ENDED.search(line.text):
        record.end(f"worker {line.worker}")
        return
    for pattern, kind in LANE_CHANGES:
        found = pattern.search(line.text)
        if found:
            subject = "from step" if kind is Kind.TRAIN else "attempt"
            record.begin(f"worker {line.worker}", kind, f"{kind}, {subject} {found[1]}")
            return


def _judge_digests(outcome: Outcome, mine: str, *, undisturbed: str, skipped: str) -> None:
    outcome.claim(
        "final parameters are bit-identical to the undisturbed run",
        mine == undisturbed,
        f"{mine[:16]} and {undisturbed[:16]}",
    )
    if skipped:
        outcome.claim("control: one skipped batch gives other parameters", skipped != undisturbed, f"{skipped[:16]}")


def _judge_goodput(outcome: Outcome, status: dict[str, Any], *, wall_seconds: float) -> dict[str, float]:
    goodput = status.get("goodput") or {}
    buckets = {str(k): float(v) for k, v in (goodput.get("buckets") or {}).items()}
    total = sum(buckets.values())
    off = abs(total - wall_seconds) / wall_seconds
    outcome.claim(
        "every second is in one goodput or badput bucket: their sum is the wall time within 0.5 %",
        off <= GOODPUT_TOLERANCE,
        f"{total:.2f} s in buckets, {wall_seconds:.2f} s from apply to completion by the demo's own clock",
    )
    share = buckets.get("productive", 0.0) / total if total else 0.0
    outcome.figures.append(
        Figure(
            "goodput", f"{100 * share:.1f} %", "share of productive seconds; the run is short and includes all faults"
        )
    )
    causes = ", ".join(f"{c} {n}" for c, n in sorted((status.get("restarts") or {}).items())) or "none"
    outcome.figures.append(Figure("restarts by cause", causes))
    return buckets


def _conclude(
    options: argparse.Namespace, outcome: Outcome, record: Record, buckets: dict[str, float], *, seconds: float
) -> int:
    verdict = f"{sum(c.holds for c in outcome.claims)} of {len(outcome.claims)} claims hold"
    console = Console()
    claims = Table("", "claim", "seen", title=verdict, title_justify="left")
    for claim in outcome.claims:
        claims.add_row("[green]holds[/]" if claim.holds else "[bold red]FAILS[/]", claim.text, claim.seen)
    figures = Table("figure", "value", "", title="figures", title_justify="left")
    for figure in outcome.figures:
        figures.add_row(figure.name, figure.value, figure.note[:100])
    where = Table("goodput bucket", "seconds", title="where the time went", title_justify="left")
    for name, value in sorted(buckets.items(), key=lambda item: -item[1]):
        where.add_row(name, f"{value:.1f}")
    for table in (claims, figures, where):
        console.print(table)
    page = options.output / "timeline.html"
    page.write_text(render(record, verdict=verdict, claims=outcome.claims, figures=outcome.figures, buckets=buckets))
    (options.output / "timeline.svg").write_text(draw(record))
    facts = {
        "claims": [vars(c) for c in outcome.claims],
        "figures": [vars(f) for f in outcome.figures],
        "buckets": buckets,
        "seconds": seconds,
    }
    (options.output / "figures.json").write_text(json.dumps(facts, indent=1) + "\n")
    console.print(f"The timeline is in {page}. The demo took {seconds:.0f} s.")
    return outcome.exit_code()


def _keep(rig: Rig, work: Path) -> None:
    print(f"The cluster is still running. KUBECONFIG={rig.kubeconfig}  files: {work}")
    input("Press Enter to stop it. ")


if __name__ == "__main__":
    sys.exit(main())
