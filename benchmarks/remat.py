"""Time, FLOPs and memory of none, all, selective and automatic rematerialisation, as ratios to none in the same run.

``python benchmarks/remat.py [--small | --tiny] [--json FILE]``. Each round runs all arms, in an order that is reversed every
time; the first round is dropped. A ratio of times is the median of the rounds' own ratios, with the interval of the middle
half. The arm "none again" is the same program as "none": the distance of its ratio from 1 is the noise of this machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast import remat
from holdfast.remat.report import Report, Row
from tests.support.remat.models import init_layers, largest_difference, scanned, tokens, unrolled

ROUNDS = 9
EPSILONS = 8
BUDGET_SHARE = 0.2
_ready: Callable[[Any], Any] = jax.block_until_ready
_LIMITS = """What CPU figures cannot show:
- Time: a CPU step may get faster with rematerialisation, because less memory is written. Accelerators behave differently.
- Memory of unrolled layers: the CPU compiler orders their operations so that rematerialisation frees nothing. Hence scans.
- Offloading to the host: on CPU, device memory and host memory are the same.
- Peak memory next to other programs, fragmentation, collectives: nothing here has any of them."""


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--tiny", action="store_true", help="smaller than --small, one round, no search over unrolled layers"
    )
    options.add_argument("--small", action="store_true", help="sizes for a test; do not publish its results")
    options.add_argument("--json", type=Path, help="write the rounds to this file")
    chosen = options.parse_args()
    chosen.small |= chosen.tiny
    layers, width, batch, length = (2, 8, 1, 8) if chosen.tiny else (4, 16, 2, 16) if chosen.small else (24, 64, 4, 64)
    rounds = 1 if chosen.tiny else 3 if chosen.small else ROUNDS
    params, x = init_layers(layers, width), tokens(batch, length, width)
    print(
        f"{layers} layers, width {width}, batch {batch}, length {length}; {jax.default_backend()}, jax {jax.__version__}"
    )

    policies: dict[str, remat.Policy] = {"everything again": remat.nothing(), "selective": remat.dots(batch=False)}
    named = remat.compare(scanned, params, x, policies=policies, compiled=True)
    planned = remat.plan(scanned, params, x, budget=remat.fraction(BUDGET_SHARE if not chosen.small else 0.5))
    arms: dict[str, Callable[..., Any]] = {
        "none": scanned,
        "none again": scanned,
        "everything again": _scanned_under(remat.nothing()),
        "selective": _scanned_under(remat.dots(batch=False)),
        "automatic": planned,
    }
    seconds = _measure(arms, params, x, rounds=rounds)
    _print_ratios(seconds, {**{r.name: r for r in named.rows}, "automatic": planned.report.row("automatic")})
    _print_search(planned.report, layers)
    print(_LIMITS)
    if not chosen.tiny:
        _search_unrolled(layers if not chosen.small else 3)
    if chosen.json:
        about = {"jax": jax.__version__, "machine": platform.machine(), "seconds": seconds}
        chosen.json.write_text(json.dumps(about, indent=1))


def _scanned_under(policy: remat.Policy) -> Callable[..., Any]:
    from tests.support.remat.models import layer

    def loss(params: Any, x: Any) -> Any:
        last, _ = remat.scan_layers(lambda c, p: (layer(p, c), None), x, params, policy)
        return (last**2).mean()

    return loss


def _measure(arms: dict[str, Callable[..., Any]], params: Any, x: Any, *, rounds: int) -> dict[str, list[float]]:
    """Measure the seconds of one step per arm and round, without the first round. Compares gradients before timing."""
    steps = {name: jax.jit(jax.value_and_grad(loss)) for name, loss in arms.items()}
    expected = _ready(steps["none"](params, x))
    for name, step in steps.items():
        difference = largest_difference(expected, step(params, x))
        if difference > EPSILONS:
            sys.exit(f"{name}: gradients differ by {difference:.1f} epsilons, allowed: {EPSILONS}")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        order = list(steps) if number % 2 else list(reversed(steps))
        for name in order:
            began = time.perf_counter()
            _ready(steps[name](params, x))
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _print_ratios(seconds: dict[str, list[float]], rows: dict[str, Row]) -> None:
    print(f"{'arm':18}{'time':>8}{'middle half':>16}{'FLOPs':>8}{'kept bytes':>12}{'temporaries':>13}")
    none = rows["none"]
    for name, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(taken, seconds["none"], strict=True))
        low, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.25, 0.75))
        row = rows.get(name, none)
        temporaries = (row.compiled_bytes or 0) / (none.compiled_bytes or 1)
        print(
            f"{name:18}{statistics.median(ratios):8.2f}{f'{low:.2f} to {high:.2f}':>16}{row.flops_ratio:8.3f}"
            f"{row.kept_bytes / none.kept_bytes:12.3f}{temporaries:13.3f}"
        )


def _print_search(report: Report, layers: int) -> None:
    bound, found = report.bound_flops or 0.0, report.row("automatic").recomputed_flops
    print(
        f"search, {layers} layers scanned: {report.search_seconds:.2f} s; recomputes {found:,} FLOPs, bound {bound:,.0f}"
    )


def _search_unrolled(layers: int) -> None:
    """Time only the search, over unrolled layers, each of which may keep different values."""
    params, x = init_layers(layers, 32), tokens(2, 16, 32)
    report = remat.plan(unrolled, params, x, budget=remat.fraction(0.6), confirm=False).report
    bound, found = report.bound_flops or 0.0, report.row("automatic").recomputed_flops
    print(
        f"search, {layers} layers unrolled: {report.search_seconds:.2f} s; recomputes {found:,} FLOPs, bound {bound:,.0f}"
    )


if __name__ == "__main__":
    main()
