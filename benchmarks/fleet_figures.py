"""Counts and percentiles for ``benchmarks.fleet``, from the API server's audit log, /proc and the operator's metrics."""

from __future__ import annotations

import http.client
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.fleet_cluster import OPERATOR_USER
from holdfast_contract import keys
from holdfast_contract.reasons import Metric

MIB = 1024 * 1024


@dataclass(frozen=True)
class Call:
    """One request of the operator, as the API server's audit log has it."""

    at: float  # Unix time of its arrival
    verb: str
    resource: str  # with its subresource: pods, trainingjobs/status
    name: str


class AuditLog:
    """The operator's requests, read from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new_calls(self) -> list[Call]:
        """The operator's requests since the last call of this method."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        complete = content.rfind(b"\n") + 1
        self._offset += complete
        entries = (json.loads(line) for line in content[:complete].splitlines())
        return [_call(entry) for entry in entries if entry["user"].get("username") == OPERATOR_USER]


def _call(entry: Mapping[str, Any]) -> Call:
    ref = entry.get("objectRef") or {}
    resource = "/".join(part for part in (ref.get("resource", ""), ref.get("subresource", "")) if part)
    at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
    return Call(at, entry["verb"], resource, ref.get("name", ""))


def by_kind(calls: Iterable[Call]) -> dict[str, int]:
    """How many calls of each verb and resource, the most frequent first."""
    return dict(Counter(f"{c.verb} {c.resource}" for c in calls).most_common())


def is_status_write(call: Call) -> bool:
    """Whether the call writes a job's status."""
    return call.resource == f"{keys.PLURAL}/status" and call.verb in {"update", "patch"}


def is_event_write(call: Call) -> bool:
    """Whether the call creates or repeats an Event."""
    return call.resource == "events" and call.verb in {"create", "patch", "update"}


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; NaN if there is none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


class Cores:
    """Processor time of a process, as cores in use between two readings."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._seconds = self._used()

    def since_last(self, wall_seconds: float) -> float:
        """Cores in use since the last reading."""
        before, self._seconds = self._seconds, self._used()
        return (self._seconds - before) / wall_seconds

    def resident_mib(self) -> float:
        """Resident memory now."""
        return float(self._process.memory_info().rss) / MIB

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


class ReconcileTimes:
    """The operator's histogram of passes, as the difference of two scrapes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = self._scrape()

    def since_last(self, share: float) -> tuple[int, float]:
        """Number of passes since the last scrape, and the percentile within its bucket, as Prometheus interpolates."""
        before, self._before = self._before, self._scrape()
        counts = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(self._before.items())]
        total = counts[-1][1] if counts else 0.0
        wanted, lower, below = share * total, 0.0, 0.0
        for bound, count in counts:
            if total and count >= wanted:
                upper = lower if math.isinf(bound) else bound
                return int(total), lower + (upper - lower) * (wanted - below) / max(count - below, 1.0)
            lower, below = bound, count
        return 0, math.nan

    def _scrape(self) -> dict[float, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        wanted = f"{Metric.RECONCILE_SECONDS.value}_bucket"
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
        return {float(s.labels["le"]): float(s.value) for s in samples if s.name == wanted}
